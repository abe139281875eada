"""Gemini's generateContent."""

from ferrule.models.wires.gemini.decode import read
from ferrule.models.wires.gemini.encode import headers, path, render
from ferrule.models.wires.gemini.stream import Assembly
from ferrule.models.wires.wire import no_headers as request_headers

__all__ = ["Assembly", "headers", "path", "read", "render", "request_headers"]
