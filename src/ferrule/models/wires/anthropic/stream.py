"""A streamed Anthropic message: from bytes to `Delta`s, and to the `Response` of the whole answer.

Events are assembled into the body of an unstreamed answer, which `read` reads. Format:
platform.claude.com, "Streaming messages", November 2026. Events of unknown types are ignored, as
that page requires.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text
from ferrule.encoding.repair import strict_json
from ferrule.models.wires.anthropic.decode import read, usage_of
from ferrule.models.wires.anthropic.provider_calls import call_in
from ferrule.models.wires.payload import Json, decode_event, mapping, text_of
from ferrule.net.errors import is_error, payload_error
from ferrule.net.sse import EventAssembly
from ferrule.values.conversation.exchange import CallPiece, Delta, Response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.values.provider_tools import ProviderCall

_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""The field of each type of delta that holds its text."""


class Assembly(EventAssembly):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def __init__(self) -> None:
        super().__init__()
        self._body: Json = {}
        self._usage: Json = {}
        self._blocks: list[_Block] = []
        self._current: dict[int, _Block] = {}
        """The latest block of each index."""
        self._provider_calls: dict[str, ProviderCall] = {}
        """The calls that the provider ran so far, by id."""

    def response(self) -> Response:
        """The whole answer; raises `UnavailableError` if the stream broke off."""
        self._check_ended(self.is_done or text_of(self._body.get("stop_reason")), self._blocks)
        content = [block.whole() for block in sorted(self._blocks, key=attrgetter("index"))]
        return read({**self._body, "content": content, "usage": self._usage}, is_streamed=True)

    def _event(self, data: bytes) -> Iterator[Delta]:
        event = decode_event(data)
        if is_error(event, "type"):
            raise payload_error(event)
        match event.get("type"):
            case "message_start":
                self._body = dict(mapping(event.get("message")))
                self._count(self._body.get("usage"))
            case "content_block_start":
                yield from self._start_block(event)
            case "content_block_delta":
                block = self._current.get(_index(event))
                if block is not None:
                    yield from block.take(mapping(event.get("delta")))
            case "content_block_stop":
                block = self._current.get(_index(event))
                if block is not None:
                    yield from block.end()
                    if text_of(block.start.get("type")) in {"server_tool_use", "mcp_tool_use"}:
                        yield from self._provider_call(block.whole(), is_running=True)
            case "message_delta":
                self._body.update(mapping(event.get("delta")))
                self._count(event.get("usage"))
            case "message_stop":
                self.is_done = True
            case _:  # a ping, or a future event
                pass

    def _start_block(self, event: Json) -> Iterator[Delta]:
        start, index = mapping(event.get("content_block")), _index(event)
        known = self._current.get(index)
        if known is not None and known.start == start and not known.pieces:
            return  # the same block sent twice; a different block with the same index is a new one
        block = _Block(index, start)
        if start.get("type") == "tool_use":
            block.call_index = sum(other.call_index is not None for other in self._blocks)
        self._blocks.append(block)
        self._current[index] = block
        yield from self._provider_call(start, is_running=False)
        yield from block.begin()

    def _provider_call(self, block: Json, *, is_running: bool) -> Iterator[Delta]:
        """The delta of a call of the provider: with its arguments, or with its result."""
        known: dict[str, ProviderCall] = {}
        if not is_running:
            if not text_of(block.get("tool_use_id")):
                return  # a call that begins: its arguments come first
            known = self._provider_calls
        call = call_in(block, known)
        if call is None:
            return
        self._provider_calls[call.id or ""] = call
        yield Delta(provider_call=call, is_running=is_running)

    def _count(self, usage: Any) -> None:
        """Take token counts: they are running totals, and a later event may omit some."""
        for name, count in mapping(usage).items():
            if count is not None:
                self._usage[name] = count
        model = text_of(self._body.get("model"))
        self.so_far = Response(None, usage=usage_of(self._usage), model=model)


@dataclass(slots=True)
class _Block:
    """A block that arrives in pieces."""

    index: int
    start: Json
    """The block as it began."""
    call_index: int | None = None
    """If the block is a call: its position among the calls of the answer."""
    pieces: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The pieces of each field."""
    citations: list[Any] = field(default_factory=list[Any])

    def begin(self) -> Iterator[Delta]:
        """The delta of a call that begins, or of a text that is already in the block."""
        if self.call_index is not None:
            yield self._call_delta("")
        for name in ("text", "thinking"):
            yield from _text_delta(name, text_of(self.start.get(name)) or "")

    def take(self, delta: Json) -> Iterator[Delta]:
        """Add a piece, and yield it."""
        if delta.get("type") == "citations_delta":
            self.citations.append(delta.get("citation"))
            return
        name = _PIECES.get(text_of(delta.get("type")) or "", "")
        piece = text_of(delta.get(name))
        if piece is None:
            return
        self.pieces.setdefault(name, []).append(piece)
        if name == "partial_json" and self.call_index is not None:
            yield self._call_delta(piece)
        yield from _text_delta(name, piece)

    def end(self) -> Iterator[Delta]:
        """The arguments of a call from a server that sends calls whole."""
        arguments = self.start.get("input")
        if self.call_index is None or self.pieces or not arguments:
            return
        if not isinstance(arguments, str):
            arguments = json_text(arguments)
        yield self._call_delta(arguments)

    def _call_delta(self, arguments: str) -> Delta:
        call_id = text_of(self.start.get("id")) or ""
        name = text_of(self.start.get("name")) or ""
        return Delta(call=CallPiece(self.call_index or 0, call_id, name, arguments))

    def whole(self) -> Json:
        """The block in the form of an unstreamed answer."""
        block = dict(self.start)
        for name, pieces in self.pieces.items():
            if name != "partial_json":
                block[name] = (text_of(block.get(name)) or "") + "".join(pieces)
        arguments = "".join(self.pieces.get("partial_json", ()))
        if arguments.strip():
            block["input"] = _object_in(arguments)
        if self.citations:
            block["citations"] = self.citations
        return block


def _index(event: Json) -> int:
    index = event.get("index")
    if type(index) is int:
        return index
    return 0


def _text_delta(name: str, piece: str) -> Iterator[Delta]:
    if piece and name == "text":
        yield Delta(piece)
    elif piece and name == "thinking":
        yield Delta(reasoning=piece)


def _object_in(text: str) -> Any:
    """The object in a call's arguments, or the text unchanged: it becomes a fault of the call."""
    try:
        value = strict_json(text)
    except ValueError:
        return text
    if isinstance(value, dict):
        return cast("Json", value)
    return text
