"""The size of a model's context window, as its server reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from ferrule.models.providers import address
from ferrule.models.wires.payload import count_of, list_of, mapping

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "n_ctx",
    "max_input_tokens",
    "inputTokenLimit",
)
"""The field's names at vLLM and SGLang, OpenRouter, Groq, Mistral and LM Studio, llama.cpp, Anthropic and Gemini."""


def find_window(base_url: str, model: str, fetch: Callable[[str], object]) -> int | None:
    """The context window in tokens; None if the server does not report it. `fetch` returns the JSON at an address, or None.

    Asks for the list of models, then for llama.cpp's `/props`, which is outside `/v1`.
    """
    listed = mapping(fetch(address(base_url, "/models")))
    entries = [
        mapping(each) for each in list_of(listed.get("data")) or list_of(listed.get("models"))
    ]
    own = [
        each
        for each in entries
        if model
        in (each.get("id"), each.get("name"), str(each.get("name")).removeprefix("models/"))
    ]
    for entry in own or (
        entries if len(entries) == 1 else []
    ):  # a server of one model answers to any name
        for place in (mapping(entry.get("meta")), entry):
            if found := next(filter(None, (count_of(place.get(name)) for name in _NAMES)), 0):
                return found
    parts = urlsplit(base_url)
    beside = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/').removesuffix('/v1')}/props"))
    return (
        count_of(mapping(mapping(fetch(beside)).get("default_generation_settings")).get("n_ctx"))
        or None
    )
