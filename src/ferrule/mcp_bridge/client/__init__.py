"""`MCPServer` and what it offers."""
