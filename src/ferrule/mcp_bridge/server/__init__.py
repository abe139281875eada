"""Serving ferrule's tools and programs over MCP."""
