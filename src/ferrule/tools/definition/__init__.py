"""How a tool is defined: from a function, a schema, or an MCP server's listing."""
