"""Anthropic's Messages API."""

from ferrule.models.wires.anthropic.decode import read
from ferrule.models.wires.anthropic.encode import headers, path, render, request_headers
from ferrule.models.wires.anthropic.stream import Assembly

__all__ = ["Assembly", "headers", "path", "read", "render", "request_headers"]
