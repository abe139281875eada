"""One connection to an MCP server: opened, watched, and opened again."""
