"""Logging in to MCP servers by OAuth: settings, stored tokens, and the log-in itself."""
