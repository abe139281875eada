"""OpenAI's chat completions."""

from ferrule.models.wires.openai_chat.decode import read
from ferrule.models.wires.openai_chat.encode import headers, path, render
from ferrule.models.wires.openai_chat.stream import Assembly
from ferrule.models.wires.wire import no_headers as request_headers

__all__ = ["Assembly", "headers", "path", "read", "render", "request_headers"]
