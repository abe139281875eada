"""The Model Context Protocol, as client and as server."""
