"""What a stream tells of its model and its tokens before it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferrule import Message, Messages, Request, Response, Usage
from ferrule.models.wires.streamed import assembly
from ferrule.values.conversation.exchange import Delta

REQUEST = Request(Messages([Message("user", "hi")]))


def _events(*payloads: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)


STREAMS = {
    "anthropic": (
        _events(
            {
                "type": "message_start",
                "message": {
                    "model": "claude-x",
                    "usage": {
                        "input_tokens": 30,
                        "cache_read_input_tokens": 12,
                        "output_tokens": 1,
                    },
                },
            },
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "Hel"},
            },
        ),
        Response(None, usage=Usage(42, 1, 12, 1), model="claude-x"),
    ),
    "gemini": (
        _events(
            {
                "candidates": [{"content": {"parts": [{"text": "Hel"}]}}],
                "usageMetadata": {"promptTokenCount": 42, "candidatesTokenCount": 1},
                "modelVersion": "gemini-x",
            },
        ),
        Response(None, usage=Usage(42, 1, 0, 1), model="gemini-x"),
    ),
    "openai_chat": (
        _events(
            {
                "model": "gpt-x",
                "choices": [{"index": 0, "delta": {"content": "Hel"}}],
                "usage": {"prompt_tokens": 42, "completion_tokens": 1},
            },
        ),
        Response(None, usage=Usage(42, 1, 0, 1), model="gpt-x"),
    ),
}
"""Beginnings of streams, by their wire, and what they tell."""


@pytest.mark.parametrize("name", STREAMS)
def test_a_piece_tells_what_is_known_so_far(name: str) -> None:
    body, so_far = STREAMS[name]
    reader = assembly(name, REQUEST)
    deltas = [*reader.feed(body)]
    assert deltas == [Delta("Hel")]
    assert deltas[-1].so_far == so_far == reader.so_far


def test_only_the_first_piece_that_can_tell_it_does() -> None:
    body, so_far = STREAMS["anthropic"]
    more = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "lo"},
    }
    reader = assembly("anthropic", REQUEST)
    deltas = [*reader.feed(body + _events(more, more))]
    assert [delta.so_far for delta in deltas] == [so_far, None, None]


def test_a_stream_without_counts_tells_nothing() -> None:
    body = _events({"model": "m", "choices": [{"index": 0, "delta": {"content": "Hel"}}]})
    [delta] = assembly("openai_chat", REQUEST).feed(body)
    assert delta.so_far is None
