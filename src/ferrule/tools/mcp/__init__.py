"""MCP tools and their results as ferrule's. No SDK, no socket."""
