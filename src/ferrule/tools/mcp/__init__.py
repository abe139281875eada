"""MCP tools and their results, as ferrule's tools and results. Uses no SDK and no sockets."""
