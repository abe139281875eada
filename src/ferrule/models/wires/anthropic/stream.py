"""A streamed Anthropic message: turns bytes into `Delta`s, and into the same `Response` as the unstreamed answer.

Events are assembled into the body of an unstreamed answer, which `read` reads. Format:
platform.claude.com, "Streaming messages", November 2026. Events of unknown types are ignored, as
that page requires.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.encoding.repair import strict_json
from ferrule.models.wires.anthropic.codec import read
from ferrule.models.wires.payload import Json, decode_event, mapping, text_of
from ferrule.net.errors import payload_error
from ferrule.net.sse import EventAssembly
from ferrule.values.conversation.exchange import CallPiece, Delta, Response

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


@dataclass(slots=True)
class _Block:
    """A block that arrives in pieces."""

    start: Json
    call: int | None = None
    """If the block is a call: its position among the calls of the answer."""
    pieces: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    citations: list[Any] = field(default_factory=list[Any])

    def take(self, delta: Json) -> tuple[str, str]:
        """Add a piece; return the kind of its text, and the piece."""
        name = _PIECES.get(text_of(delta.get("type")) or "", "")
        piece = text_of(delta.get(name)) or ""
        if piece:
            self.pieces.setdefault(name, []).append(piece)
        if delta.get("type") == "citations_delta":
            self.citations.append(delta.get("citation"))
        return name, piece

    def piece(self, arguments: str) -> Delta:
        """The next piece of a call's arguments."""
        return Delta(
            call=CallPiece(
                self.call or 0,
                text_of(self.start.get("id")) or "",
                text_of(self.start.get("name")) or "",
                arguments,
            ),
        )

    def whole(self) -> Json:
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


class Assembly(EventAssembly):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def __init__(self) -> None:
        super().__init__()
        self._body: Json = {}
        self._usage: Json = {}
        self._blocks: dict[int, _Block] = {}
        """The latest block of each index."""
        self._begun: list[tuple[int, _Block]] = []

    def response(self) -> Response:
        """The whole answer; raises `UnavailableError` if the stream broke off."""
        self._check_ended(self.is_done or text_of(self._body.get("stop_reason")), self._blocks)
        content = [block.whole() for _, block in sorted(self._begun, key=itemgetter(0))]
        return read({**self._body, "content": content, "usage": self._usage})

    def _event(self, data: bytes) -> Iterator[Delta]:
        event = decode_event(data)
        if event.get("error") or event.get("type") == "error":
            raise payload_error(event)
        match event.get("type"):
            case "message_start":
                self._body = {**mapping(event.get("message"))}
                self._count(self._body.get("usage"))
            case "content_block_start":
                yield from self._started(event)
            case "content_block_delta":
                block = self._blocks.get(_index(event))
                if block is not None:
                    name, piece = block.take(mapping(event.get("delta")))
                    if piece and block.call is not None and name == "partial_json":
                        yield block.piece(piece)
                    yield from _delta(name, piece)
            case "content_block_stop":
                yield from self._stopped(event)
            case "message_delta":
                self._body.update(mapping(event.get("delta")))
                self._count(event.get("usage"))
            case "message_stop":
                self.is_done = True
            case _:  # a ping, the end of a block, future events
                pass

    def _started(self, event: Json) -> Iterator[Delta]:
        block, index = mapping(event.get("content_block")), _index(event)
        known = self._blocks.get(index)
        if known is not None and known.start == block and not known.pieces:
            return  # the same block sent twice; a different block with the same index is a new one
        is_call = block.get("type") == "tool_use"
        begun = sum(each.call is not None for _, each in self._begun)
        self._blocks[index] = made = _Block(block, begun if is_call else None)
        self._begun.append((index, made))
        if is_call:
            yield made.piece("")
        for name in ("text", "thinking"):
            yield from _delta(name, text_of(block.get(name)) or "")

    def _stopped(self, event: Json) -> Iterator[Delta]:
        block = self._blocks.get(_index(event))
        if (
            block is not None
            and block.call is not None
            and not block.pieces
            and (whole := block.start.get("input"))
        ):
            yield block.piece(
                whole if isinstance(whole, str) else json_text(whole),
            )  # from a server that sends calls whole

    def _count(self, usage: Any) -> None:
        """Take token counts: they are running totals, and a later event may omit some."""
        self._usage.update(
            {name: count for name, count in mapping(usage).items() if count is not None},
        )


def _index(event: Json) -> int:
    index = event.get("index")
    return index if type(index) is int else 0


def _delta(name: str, piece: str) -> Iterator[Delta]:
    if piece and name == "text":
        yield Delta(piece)
    elif piece and name == "thinking":
        yield Delta("", piece)


def _object_in(text: str) -> Any:
    """The object in a call's arguments, or the text unchanged, which becomes a fault of the call."""
    try:
        value = strict_json(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text  # pyright: ignore[reportUnknownVariableType]  any JSON object
