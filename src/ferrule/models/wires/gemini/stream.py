"""A streamed Gemini answer: from bytes to `Delta`s, and to the `Response` of the whole answer.

Events are assembled into the body of an unstreamed answer, which `read` reads. Each event is a
small answer: text comes in pieces, calls come whole, and token counts are running totals. No event
says that it is the last.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from ferrule.models.wires.gemini.decode import (
    block_of,
    finish_of,
    present,
    read,
    read_parts,
    usage_of,
)
from ferrule.models.wires.gemini.provider_calls import calls_in_parts, is_provider_part
from ferrule.models.wires.payload import Json, count_of, decode_event, list_of, mapping, text_of
from ferrule.net.errors import is_error, payload_error
from ferrule.net.sse import EventAssembly
from ferrule.values.conversation.exchange import CallPiece, Delta, Response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.values.provider_tools import ProviderCall


class Assembly(EventAssembly):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def __init__(self) -> None:
        super().__init__()
        self._body: Json = {}
        self._candidate: Json = {}
        self._parts: list[Json] = []
        self._tokens: list[Any] = []
        self._number_of_calls = 0
        self._told: tuple[ProviderCall, ...] = ()
        """The calls of the provider so far."""

    def response(self) -> Response:
        """The whole answer; raises `UnavailableError` if no event said why it ended."""
        self._check_ended(finish_of(self._candidate) or block_of(self._body), self._parts)
        if not self._candidate:
            return read({**self._body, "candidates": []})
        candidate = {
            **self._candidate,
            "content": {"role": "model", "parts": _joined(self._parts)},
            "logprobsResult": {"chosenCandidates": self._tokens},
        }
        return read({**self._body, "candidates": [candidate]})

    def _event(self, data: bytes) -> Iterator[Delta]:
        chunk = decode_event(data)
        if is_error(chunk, "candidates"):
            raise payload_error(chunk)
        self._body.update(_filled_fields(chunk, without="candidates"))
        usage = mapping(chunk.get("usageMetadata"))
        if usage:
            model = text_of(self._body.get("modelVersion"))
            self.so_far = Response(None, usage=usage_of(usage), model=model)
        for entry in list_of(chunk.get("candidates")):
            candidate = mapping(entry)
            if not count_of(candidate.get("index")):  # only the first answer is read
                yield from self._take(candidate)

    def _take(self, candidate: Json) -> Iterator[Delta]:
        self._candidate.update(_filled_fields(candidate, without="content"))
        self._candidate.setdefault("index", 0)
        self._tokens += list_of(mapping(candidate.get("logprobsResult")).get("chosenCandidates"))
        for entry in list_of(mapping(candidate.get("content")).get("parts")):
            part = present(entry)
            self._parts.append(part)
            yield from self._provider_calls(part)
            text = text_of(part.get("text"))
            if text and part.get("thought"):
                yield Delta(reasoning=text)
            elif text:
                yield Delta(text)
            for call in read_parts([part]).calls:
                index = self._number_of_calls
                self._number_of_calls += 1
                yield Delta(call=CallPiece(index, call.id or "", call.name, call.arguments_text))

    def _provider_calls(self, part: Json) -> Iterator[Delta]:
        """The call of the provider that a part begins, or that it completes."""
        if not is_provider_part(part):
            return
        before = self._told
        self._told = calls_in_parts(self._parts)
        for number, call in enumerate(self._told):
            if number >= len(before) or before[number] != call:
                yield Delta(provider_call=call, is_running=call.result is None)


def _filled_fields(fields: Json, *, without: str) -> Json:
    return {name: value for name, value in fields.items() if name != without and value}


def _joined(parts: list[Json]) -> list[Json]:
    """The parts with adjacent pieces of text joined.

    Signed ones stay apart ("Thought signatures", as of November 2026).
    """
    joined: list[Json] = []
    for kind, group in groupby(parts, _kind):
        if kind is None:
            joined += group
            continue
        part: Json = {"text": "".join([part["text"] for part in group])}
        if kind == "thought":
            part["thought"] = True
        joined.append(part)
    return joined


def _kind(part: Json) -> str | None:
    """Whether a part is only text, or only a thought; None for any other."""
    if not part.keys() <= {"text", "thought"} or not isinstance(part.get("text"), str):
        return None
    return "thought" if part.get("thought") else "text"
