"""OpenAI's Responses API."""

from ferrule.models.wires.openai_responses.decode import read
from ferrule.models.wires.openai_responses.encode import headers, path, render
from ferrule.models.wires.openai_responses.stream import Assembly
from ferrule.models.wires.wire import no_headers as request_headers

__all__ = ["Assembly", "headers", "path", "read", "render", "request_headers"]
