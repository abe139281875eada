"""Requests over HTTP: connections, deadlines, errors, server-sent events."""
