"""A streamed OpenAI response: from bytes to `Delta`s, and to the `Response` of the whole answer.

The last event carries the whole body, which `read` reads. Some servers omit its output: then the
items are assembled from the earlier events. Format: OpenAI's API reference, "Streaming events" of
responses, as of November 2026.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.models.wires.openai_responses.decode import error_of, read
from ferrule.models.wires.openai_responses.provider_calls import provider_call_in
from ferrule.models.wires.payload import Json, decode_event, list_of, mapping, text_of
from ferrule.net.errors import is_error
from ferrule.net.sse import EventAssembly
from ferrule.values.conversation.exchange import CallPiece, Delta, Response

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ferrule.values.provider_tools import ProviderCall


class _Part(NamedTuple):
    """Where the text of a kind of event belongs in an item."""

    item_type: str
    list_name: str
    """The item's list of parts; empty if the text is a field of the item itself."""
    part_type: str
    text_key: str


_TEXT = "response.output_text"
_SUMMARY = "response.reasoning_summary_text"
_ARGUMENTS = "response.function_call_arguments"
_PARTS: Mapping[str, _Part] = {
    _TEXT: _Part("message", "content", "output_text", "text"),
    "response.refusal": _Part("message", "content", "refusal", "refusal"),
    "response.reasoning_text": _Part("reasoning", "content", "reasoning_text", "text"),
    _SUMMARY: _Part("reasoning", "summary", "summary_text", "text"),
    _ARGUMENTS: _Part("function_call", "", "", "arguments"),
}
"""Streamed parts, by the name of their events without `.delta` or `.done`."""
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Assembly(EventAssembly):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def __init__(self) -> None:
        super().__init__()
        self._body: Json = {}
        self._items: dict[int | str, _Item] = {}
        """The items by index, or by id if a server sends no indices."""
        self._provider_calls: dict[str, ProviderCall] = {}
        """The calls of the provider in the complete items so far, by id."""
        self._latest_thought: object = None
        """The item and part of the latest piece of reasoning."""

    def response(self) -> Response:
        """The whole answer; raises `UnavailableError` if the stream broke off."""
        self._check_ended(self.is_done, self._items)
        if list_of(self._body.get("output")):
            return read(self._body)
        items = sorted(self._items.values(), key=attrgetter("position"))
        return read({**self._body, "output": [item.whole() for item in items]})

    def _event(self, data: bytes) -> Iterator[Delta]:
        event = decode_event(data)
        event_type = text_of(event.get("type")) or ""
        name, _, verb = event_type.rpartition(".")
        if is_error(event, "type"):
            raise error_of(event.get("error") or event)
        if event_type in _LAST or event_type == "response.created":
            self._body = {**self._body, **mapping(event.get("response"))}
            self.is_done = event_type in _LAST
        elif name == "response.output_item":
            yield from self._take_item(event, is_whole=verb == "done")
        elif name in _PARTS:
            yield from self._take_part(event, name, is_whole=verb == "done")

    def _done(self) -> None:
        self._body["status"] = None  # no last event said how the answer ended
        super()._done()

    def _item_of(self, event: Json) -> _Item:
        """The item that an event belongs to: by its index, else by its id, else the latest."""
        index = event.get("output_index")
        if type(index) is int:
            return self._items.setdefault(index, _Item(index))
        item_id = text_of(event.get("item_id")) or text_of(mapping(event.get("item")).get("id"))
        key = item_id or next(reversed(self._items), 0)
        return self._items.setdefault(key, _Item(len(self._items)))

    def _take_item(self, event: Json, *, is_whole: bool) -> Iterator[Delta]:
        """Take an item when it begins or is complete; yield the beginning or the rest of a call."""
        item = self._item_of(event)
        fields = mapping(event.get("item"))
        if fields:
            item.fields, item.is_whole = fields, is_whole
        yield from self._provider_call(fields, is_whole=is_whole)
        if fields.get("type") != "function_call":
            return
        pieces = item.pieces_of(_ARGUMENTS, 0)
        rest = _rest_after("".join(pieces), text_of(fields.get("arguments")) or "")
        if item.call_index is None or rest:
            self._number(item)
            pieces.append(rest)
            yield item.call_delta(rest)

    def _provider_call(self, fields: Json, *, is_whole: bool) -> Iterator[Delta]:
        """The delta of a call of the provider: when it begins, and when it has ended."""
        call = provider_call_in(fields, self._provider_calls)
        if call is None:
            return
        # What a search for tools found is an item of its own, after the call.
        has_ended = is_whole and fields.get("type") != "tool_search_call"
        if is_whole:
            self._provider_calls[call.id or f"#{len(self._provider_calls)}"] = call
        yield Delta(provider_call=call, is_running=not has_ended)

    def _take_part(self, event: Json, name: str, *, is_whole: bool) -> Iterator[Delta]:
        """Take a piece of a part, or the whole part, which usually came in pieces before."""
        item = self._item_of(event)
        part = _PARTS[name]
        index_key, text_key = "content_index", "delta"
        if name == _SUMMARY:
            index_key = "summary_index"
        if is_whole:
            text_key = part.text_key
        index, text = event.get(index_key), event.get(text_key)
        if type(index) is not int:
            index = 0
        if not isinstance(text, str):
            return
        pieces = item.pieces_of(name, index)
        if is_whole:
            whole = text
            text = _rest_after("".join(pieces), whole)
            pieces[:] = [whole]
        else:
            pieces.append(text)
        if not text:
            return
        if name == _ARGUMENTS:
            self._number(item)
            yield item.call_delta(text)
        elif name == _TEXT:
            yield Delta(text)
        elif part.item_type == "reasoning":
            thought = (item.position, name, index)
            if self._latest_thought not in {None, thought}:
                text = f"\n\n{text}"
            self._latest_thought = thought
            yield Delta(reasoning=text)

    def _number(self, item: _Item) -> None:
        """Give a call its position among the calls of the answer."""
        if item.call_index is None:
            numbered = [other for other in self._items.values() if other.call_index is not None]
            item.call_index = len(numbered)


@dataclass(slots=True)
class _Item:
    """An item of the output that arrives in pieces."""

    position: int
    fields: Json = field(default_factory=dict[str, Any])
    pieces: dict[tuple[str, int], list[str]] = field(
        default_factory=dict[tuple[str, int], "list[str]"]
    )
    """The pieces of each part, by event name and index."""
    is_whole: bool = False
    """Whether `fields` are those of the complete item."""
    call_index: int | None = None
    """If the item is a call: its position among the calls of the answer."""

    def pieces_of(self, name: str, index: int) -> list[str]:
        return self.pieces.setdefault((name, index), [])

    def call_delta(self, arguments: str) -> Delta:
        """The next piece of a call's arguments."""
        call_id = text_of(self.fields.get("call_id")) or text_of(self.fields.get("id")) or ""
        name = text_of(self.fields.get("name")) or ""
        return Delta(call=CallPiece(self.call_index or 0, call_id, name, arguments))

    def whole(self) -> Json:
        """The item in the form of an unstreamed answer."""
        if self.is_whole:
            return self.fields
        item = dict(self.fields)
        for name, index in sorted(self.pieces, key=_index_of_part):
            part, text = _PARTS[name], "".join(self.pieces[name, index])
            item.setdefault("type", part.item_type)
            if not part.list_name:
                item[part.text_key] = text
                continue
            parts = list_of(item.get(part.list_name))
            item[part.list_name] = [*parts, {"type": part.part_type, part.text_key: text}]
        return item


def _index_of_part(key: tuple[str, int]) -> int:
    _, index = key
    return index


def _rest_after(known: str, whole: str) -> str:
    """What a whole text adds to its known beginning; empty if it begins in another way."""
    if whole.startswith(known):
        return whole.removeprefix(known)
    return ""
