"""A streamed Gemini answer: turns bytes into `Delta`s, and into the same `Response` as the unstreamed answer.

Events are assembled into the body of an unstreamed answer, which `read` reads. Each event is a
small answer: text comes in pieces, calls come whole, and token counts are running totals. No event
says that it is the last.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from ferrule.models.wires.gemini.codec import block_of, finish_of, read
from ferrule.models.wires.gemini.parts import present, read_parts
from ferrule.models.wires.payload import Json, count_of, decode_event, list_of, mapping, text_of
from ferrule.net.errors import payload_error
from ferrule.net.sse import EventAssembly
from ferrule.values.conversation.exchange import CallPiece, Delta, Response

if TYPE_CHECKING:
    from collections.abc import Iterator


class Assembly(EventAssembly):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def __init__(self) -> None:
        super().__init__()
        self._body: Json = {}
        self._candidate: Json = {}
        self._parts: list[Json] = []
        self._begun = 0
        """The number of calls so far."""

    def response(self) -> Response:
        """The whole answer; raises `UnavailableError` if no event said why it ended."""
        self._check_ended(finish_of(self._candidate) or block_of(self._body), self._parts)
        candidate: Json = {
            **self._candidate,
            "content": {"role": "model", "parts": _joined(self._parts)},
        }
        return read({**self._body, "candidates": [candidate] if self._candidate else []})

    def _event(self, data: bytes) -> Iterator[Delta]:
        chunk = decode_event(data)
        if chunk.get("error"):
            raise payload_error(chunk)
        self._body.update(
            {key: value for key, value in chunk.items() if key != "candidates" and value},
        )
        for candidate in map(mapping, list_of(chunk.get("candidates"))):
            if not count_of(candidate.get("index")):  # only the first answer is read
                yield from self._piece(candidate)

    def _piece(self, candidate: Json) -> Iterator[Delta]:
        self._candidate.update(
            {key: value for key, value in candidate.items() if key != "content" and value},
        )
        self._candidate.setdefault("index", 0)
        for part in map(present, list_of(mapping(candidate.get("content")).get("parts"))):
            self._parts.append(part)
            text = text_of(part.get("text"))
            if text:
                yield Delta("", text) if part.get("thought") else Delta(text)
            for call in read_parts([part]).calls:
                yield Delta(
                    call=CallPiece(self._begun, call.id or "", call.name, call.arguments_text),
                )
                self._begun += 1


def _joined(parts: list[Json]) -> list[Json]:
    """The parts with adjacent pieces of text joined, except signed ones ("Thought signatures", as of November 2026)."""
    joined: list[Json] = []
    for kind, group in groupby(parts, _kind):
        if kind is None:
            joined += group
        else:
            text = "".join([part["text"] for part in group])
            joined.append({"text": text, "thought": True} if kind == "thought" else {"text": text})
    return joined


def _kind(part: Any) -> str | None:
    if not part.keys() <= {"text", "thought"} or not isinstance(part.get("text"), str):
        return None
    return "thought" if part.get("thought") else "text"
