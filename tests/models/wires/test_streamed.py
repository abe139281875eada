"""What a stream tells of its model and its tokens before it ends, and what comes together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferrule import Message, Messages, Request, Response, Usage
from ferrule.errors import UnavailableError
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
    pieces = [body, _events(more), _events(more)]
    deltas = [delta for piece in pieces for delta in reader.feed(piece)]
    assert [delta.so_far for delta in deltas] == [so_far, None, None]


def test_a_stream_without_counts_tells_nothing() -> None:
    body = _events({"model": "m", "choices": [{"index": 0, "delta": {"content": "Hel"}}]})
    [delta] = assembly("openai_chat", REQUEST).feed(body)
    assert delta.so_far is None


def _chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": None}]}


CALL = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
BURST = [
    _chunk(reasoning_content="I "),
    _chunk(reasoning_content="think."),
    _chunk(content="It "),
    _chunk(content="is "),
    _chunk(content="so."),
    _chunk(tool_calls=[CALL]),
    _chunk(content="And "),
    _chunk(content="so."),
]
"""Events that come at once from a fast model."""


def test_texts_that_came_together_are_one_piece():
    """In their order. What came apart stays apart: a reader sees it when it comes."""
    together = assembly("openai_chat", REQUEST)
    parts = [
        (delta.text, delta.reasoning, delta.call is not None)
        for delta in together.feed(_events(*BURST))
    ]
    assert parts == [
        ("", "I think.", False),
        ("It is so.", "", False),
        ("", "", True),
        ("And so.", "", False),
    ]
    apart = assembly("openai_chat", REQUEST)
    assert [len([*apart.feed(_events(event))]) for event in BURST] == [1] * len(BURST)
    for reader in (together, apart):
        assert [*reader.feed(b"data: [DONE]\n\n"), *reader.end()] == []
    assert together.response() == apart.response()


def test_texts_that_came_with_a_broken_event_are_read_before_it_is_raised():
    reader = assembly("openai_chat", REQUEST)
    came: list[Delta] = []
    with pytest.raises(UnavailableError, match="the stream broke"):  # noqa: PT012  what came first
        for delta in reader.feed(_events(*BURST[2:4]) + b"data: {broken\n\n"):
            came.append(delta)  # noqa: PERF402  `extend` would lose it
    assert [delta.text for delta in came] == ["It is "]
