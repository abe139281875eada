"""Gemini's generateContent."""

from ferrule.models.wires.gemini.decode import read
from ferrule.models.wires.gemini.encode import headers, path, render
from ferrule.models.wires.gemini.stream import Assembly

__all__ = ["Assembly", "headers", "path", "read", "render"]
