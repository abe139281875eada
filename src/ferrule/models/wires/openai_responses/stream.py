"""A streamed OpenAI response: turns bytes into `Delta`s, and into the same `Response` as the unstreamed answer.

The last event carries the whole body, which `read` reads. Some servers omit its output: then the
items are assembled from the earlier events. Format: OpenAI's API reference, "Streaming events" of
responses, as of November 2026.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ferrule.models.wires.openai_responses.codec import error_of, read
from ferrule.models.wires.payload import Json, decode_event, list_of, mapping, text_of
from ferrule.net.sse import EventAssembly
from ferrule.values.conversation.exchange import CallPiece, Delta, Response

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PIECES: Mapping[str, tuple[str, str, str, str]] = {
    "response.output_text": ("message", "content", "output_text", "text"),
    "response.refusal": ("message", "content", "refusal", "refusal"),
    "response.reasoning_text": ("reasoning", "content", "reasoning_text", "text"),
    "response.reasoning_summary_text": ("reasoning", "summary", "summary_text", "text"),
    "response.function_call_arguments": ("function_call", "", "", "arguments"),
}
"""Streamed parts, by event name without `.delta` or `.done`: the item's type, its list, the part's type, and the text's key."""
_ARGUMENTS = "response.function_call_arguments"
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


@dataclass(slots=True)
class _Item:
    """An item of the output that arrives in pieces."""

    place: int
    fields: Json = field(default_factory=dict[str, Any])
    parts: dict[tuple[str, int], list[str]] = field(
        default_factory=dict[tuple[str, int], "list[str]"],
    )
    """The pieces of each part, by event name and index."""
    is_whole: bool = False
    call: int | None = None
    """If the item is a call: its position among the calls of the answer."""

    def take(self, item: Json, *, is_whole: bool) -> None:
        if item:
            self.fields, self.is_whole = item, is_whole

    def piece(self, arguments: str) -> Delta:
        """The next piece of a call's arguments."""
        call_id = text_of(self.fields.get("call_id")) or text_of(self.fields.get("id")) or ""
        return Delta(
            call=CallPiece(
                self.call or 0,
                call_id,
                text_of(self.fields.get("name")) or "",
                arguments,
            ),
        )

    def whole(self) -> Json:
        if self.is_whole:
            return self.fields
        made = dict(self.fields)
        for (name, _), pieces in sorted(self.parts.items(), key=lambda each: each[0][1]):
            kind, among, part, key = _PIECES[name]
            made.setdefault("type", kind)
            if among:
                made[among] = [*list_of(made.get(among)), {"type": part, key: "".join(pieces)}]
            else:
                made[key] = "".join(pieces)
        return made


class Assembly(EventAssembly):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def __init__(self) -> None:
        super().__init__()
        self._body: Json = {}
        self._items: dict[int | str, _Item] = {}
        self._thought: object = None

    def response(self) -> Response:
        """The whole answer; raises `UnavailableError` if the stream broke off."""
        self._check_ended(self.is_done, self._items)
        if list_of(self._body.get("output")):
            return read(self._body)
        return read(
            {
                **self._body,
                "output": [
                    item.whole()
                    for item in sorted(self._items.values(), key=lambda item: item.place)
                ],
            },
        )

    def _event(self, data: bytes) -> Iterator[Delta]:
        event = decode_event(data)
        kind = text_of(event.get("type")) or ""
        name, _, verb = kind.rpartition(".")
        if kind == "error" or event.get("error"):
            raise error_of(event.get("error") or event)
        if kind in _LAST or kind == "response.created":
            self._body = {**self._body, **mapping(event.get("response"))}
            self.is_done = kind in _LAST
        elif name == "response.output_item":
            yield from self._call(
                self._item(event),
                mapping(event.get("item")),
                is_whole=verb == "done",
            )
        elif name in _PIECES:
            yield from self._piece(event, name, verb)

    def _done(self) -> None:
        self._body["status"] = None
        super()._done()

    def _item(self, event: Json) -> _Item:
        """The item that an event belongs to: by its index, else by its id, else the latest."""
        index = event.get("output_index")
        item_id = text_of(event.get("item_id")) or text_of(mapping(event.get("item")).get("id"))
        key = index if type(index) is int else item_id or next(reversed(self._items), 0)
        if key not in self._items:
            self._items[key] = _Item(index if type(index) is int else len(self._items))
        return self._items[key]

    def _call(self, item: _Item, fields: Json, *, is_whole: bool) -> Iterator[Delta]:
        """Take an item when it begins or is complete; if it is a call, yield its beginning or its rest."""
        item.take(fields, is_whole=is_whole)
        if fields.get("type") != "function_call":
            return
        pieces = item.parts.setdefault((_ARGUMENTS, 0), [])
        arguments, known = text_of(fields.get("arguments")) or "", "".join(pieces)
        rest = arguments.removeprefix(known) if arguments.startswith(known) else ""
        if item.call is None or rest:
            self._number(item)
            pieces.append(rest)
            yield item.piece(rest)

    def _number(self, item: _Item) -> None:
        if item.call is None:
            item.call = sum(each.call is not None for each in self._items.values())

    def _piece(self, event: Json, name: str, verb: str) -> Iterator[Delta]:
        item = self._item(event)
        index = event.get(
            "summary_index" if name == "response.reasoning_summary_text" else "content_index",
        )
        part = (name, index if type(index) is int else 0)
        pieces = item.parts.setdefault(part, [])
        value = event.get("delta" if verb == "delta" else _PIECES[name][3])
        if not isinstance(value, str):
            return
        if verb == "done":  # holds the whole part, which usually came in pieces before
            known = "".join(pieces)
            pieces[:] = [value]
            value = value.removeprefix(known) if value.startswith(known) else ""
        else:
            pieces.append(value)
        if not value:
            return
        if name == _ARGUMENTS:
            self._number(item)
            yield item.piece(value)
        elif name == "response.output_text":
            yield Delta(value)
        elif _PIECES[name][0] == "reasoning":
            thought = (item.place, part)
            gap = "\n\n" if self._thought not in {None, thought} else ""
            self._thought = thought
            yield Delta("", gap + value)
