"""How messages travel: stdio, HTTP, server-sent events."""
