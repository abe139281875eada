"""Read calls written as JSON, in the shapes of many models.

A declaration of a tool, a result, or another object that looks similar is not a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ferrule.encoding.ahead import Ahead
from ferrule.encoding.loose import LooseReader
from ferrule.encoding.repair import read_arguments
from ferrule.encoding.written import read_float
from ferrule.errors import ToolCallError
from ferrule.text_calls.drafts import Draft, Group, faulty, read_id

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Offer, OfferedTools

_NAMES = (
    "name", "tool_name", "function_name", "function", "tool", "recipient_name", "action",
    "api_name", "api", "func", "next_tool_name",
)  # fmt: skip
_ARGUMENTS = (
    "arguments", "args", "parameters", "params", "input", "tool_input", "action_input",
    "tool_args", "tool_arguments", "function_args", "function_arguments", "kwargs", "parameter",
    "tool_parameters", "inputs", "argument", "function_arg", "next_tool_args",
)  # fmt: skip
_LISTS = (
    "tool_calls", "function_calls", "calls", "tool_uses", "functions", "actions", "tools",
    "tool_call", "function_call", "action", "call",
)  # fmt: skip
_RESULTS = (
    "result", "results", "output", "response", "observation", "content", "error", "return",
    "returns", "status",
)  # fmt: skip
_TYPES = frozenset({
    "string", "integer", "number", "boolean", "array", "object", "null", "str", "int", "float",
    "bool", "list", "dict",
})  # fmt: skip
_PLACEHOLDER = re.compile(r"\s*(?:\.{3}|…|<[\w .-][\w ./-]*>|\{[\w ./-]+\}|\[[a-z][\w ./-]+\])\s*")
_HEAD = re.compile(
    r"""[\s{\["']*(?:name|tool_name|function|recipient_name)\\?["']?\s*:"""
    r"""\s*\\?["'](?P<name>[^"'\\\n]{1,120})"""
)
_CALL = (
    r"""\{\s*(?:["']next_thought["']\s*:"""
    r"""\s*(?:"(?:[^"\\]|\\.){0,4000}"|'(?:[^'\\]|\\.){0,4000}')\s*,\s*)?"""
    r"""["'](?:name|tool_name|function_name|tool|action|next_tool_name)["']\s*:"""
    r"""\s*["']([^"'\\\n]{1,120})["']\s*,\s*"""
    rf"""["'](?:{"|".join(_ARGUMENTS)})["']\s*:\s*\{{\s*["']"""
)
_CALL_HEAD = re.compile(_CALL)
_CALL_END = re.compile(rf"\}}[ \t]*(?=\]?\s*(?:\Z|```|<[|/])|\]?[ \t]*\n[ \t]*\n|[\s,;]*{_CALL})")
_SHOWN = re.compile(r""":\s*(?:<\w|\.{3}|…)""")
"""A placeholder instead of a value."""
_SHORT = 2_000
_LONGEST_TOKEN = 16
"""An error in the last characters of a part may be due to its end: `tru`, `\\u00`, `-Infini`."""
_OBJECT_OR_LIST = re.compile(r"""\{\s*(?:["'}/#]|[\w$-]+\s*:)|\[""")
_raw_decode = json.JSONDecoder(parse_float=read_float).raw_decode


class Value(NamedTuple):
    """A JSON value in a text, its end, and the repairs that it needed."""

    content: Any
    end: int
    repairs: tuple[str, ...]


class Values:
    """The JSON values of a text, by their positions. Each stretch of the text is read once.

    Where a value breaks off, all that is open around the error is not a value either.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._reader = LooseReader(text)
        self._known: dict[int, Value | None] = {}
        self._failed_at: dict[int, int] = {}

    def at(self, offset: int) -> Value | None:
        """The object or list at a position; None if there is none."""
        if offset not in self._known:
            self._known[offset] = self._read(offset)
        return self._known[offset]

    def reaches(self, offset: int, end: int) -> bool:
        """Whether what begins at a position is JSON up to an end, but not complete there."""
        return self.at(offset) is None and self._failed_at.get(offset, -1) >= end

    def _read(self, offset: int) -> Value | None:
        if _OBJECT_OR_LIST.match(self._text, offset) is None:
            return None  # braces in prose or in a program
        if not self._reader.never_closes('"', offset):
            try:
                return Value(*_decode(self._text, offset), ())
            except (ValueError, RecursionError):
                pass
        try:
            content, end = self._reader.next_value(offset)
        except (ValueError, RecursionError):
            for opened in self._reader.open:
                self._known[opened] = None
                self._failed_at[opened] = self._reader.failed_at
            return None
        return Value(content, end, tuple(self._reader.repairs))


def _decode(text: str, offset: int) -> tuple[Any, int]:
    """The strict JSON at a position, and its end.

    The parser counts the lines of the text before an error, so it is given as little of the text as
    the value needs.
    """
    size = _SHORT
    while True:
        part = text[offset : offset + size]
        try:
            content, end = _raw_decode(part)
        except json.JSONDecodeError as error:
            is_cut = error.pos > len(part) - _LONGEST_TOKEN or error.msg.startswith("Unterminated")
            if not is_cut or len(part) < size:
                raise
            size *= 8
        else:
            return content, offset + end


def drafts_of(content: Any, offers: OfferedTools, *, marked: bool) -> list[Draft] | None:
    """The calls of a JSON value.

    `marked`: a tag or fence announces calls, so that a weaker shape is enough.
    """
    if isinstance(content, list):
        return _drafts_of_list(cast("list[Any]", content), offers, marked=marked)
    if not isinstance(content, dict):
        return None
    entry = cast("dict[str, Any]", content)
    for key in _LISTS:
        inner = entry.get(key)
        if not isinstance(inner, (list, dict)) or not inner:
            continue
        if key in ("functions", "tools") and len(entry) > 1:
            continue  # a declaration
        is_sure = marked or key in ("tool_calls", "function_call", "tool_uses")
        drafts = drafts_of(inner, offers, marked=is_sure)
        if drafts is not None:
            return drafts
    draft = _named(entry, offers, marked=marked)
    return [draft] if draft is not None else _keyed(entry, offers)


def _drafts_of_list(items: list[Any], offers: OfferedTools, *, marked: bool) -> list[Draft] | None:
    drafts: list[Draft] = []
    for item in items:
        calls = drafts_of(item, offers, marked=marked) if isinstance(item, dict) else None
        if calls is None and not (marked and isinstance(item, dict)):
            return None
        drafts += calls or []
    return drafts or None


def drafts_of_args(offer: Offer, content: Any, offers: OfferedTools) -> Draft | None:
    """The call of a tool whose name comes before its arguments."""
    if not isinstance(content, dict):
        return None
    args = cast("dict[str, Any]", content)
    if "name" in args and "name" not in offer.properties:
        whole = _named(args, offers, marked=False)
        if whole is not None and whole.offer is offer:
            return whole
    return Draft(offer, args)


def fault_of(text: str, offset: int, end: int, offers: OfferedTools) -> Draft | None:
    """A call with a fault: announced text names an offered tool, but is not JSON."""
    head = _HEAD.match(text, offset, min(end, offset + 200))
    offer = offers.get(head["name"]) if head is not None else None
    return unreadable(offer, text[offset:end].strip()) if offer is not None else None


class BrokenCalls:
    """Calls with a fault, for objects that are not announced and cannot be parsed."""

    def __init__(self, text: str, offers: OfferedTools) -> None:
        self._text = text
        self._offers = offers
        self._ahead = Ahead(text)

    def at(self, offset: int) -> Group | None:
        """The call that begins at a position."""
        head = _CALL_HEAD.match(self._text, offset)
        offer = self._offers.get(head[1]) if head is not None else None
        if head is None or offer is None:
            return None
        close = self._ahead.search("end", head.end(), self._close)
        placeholder = self._ahead.search("placeholder", offset, self._placeholder)
        if close < 0 or offset <= placeholder < close:
            return None
        closed = _CALL_END.match(self._text, close)
        end = close if closed is None else closed.end()
        return Group([unreadable(offer, self._text[offset:end].strip())], end)

    def _close(self, offset: int) -> int:
        close = _CALL_END.search(self._text, offset)
        return -1 if close is None else close.start()

    def _placeholder(self, offset: int) -> int:
        shown = _SHOWN.search(self._text, offset)
        return -1 if shown is None else shown.start()


def unreadable(offer: Offer, raw: str) -> Draft:
    """A call whose arguments cannot be parsed."""
    try:
        read_arguments(raw, tool=offer.name)
    except ToolCallError as error:
        return faulty(offer, str(error), raw)
    return faulty(offer, f"the call of `{offer.name}` cannot be read as JSON", raw)


def _named(entry: dict[str, Any], offers: OfferedTools, *, marked: bool) -> Draft | None:
    """`{"name": ..., "arguments": {...}}` and similar shapes, such as OpenAI's nested one."""
    function = entry.get("function")
    inner = cast("dict[str, Any]", function) if isinstance(function, dict) else entry
    name_key = _first_key(_NAMES, inner, str)
    offer = offers.get(inner[name_key]) if name_key else None
    if offer is None:
        return None
    for key in _RESULTS:
        if entry.get(key) is not None and key != name_key and key not in offer.properties:
            return None
    key = _first_key(_ARGUMENTS, inner)
    if not key:
        if not marked and inner.keys().isdisjoint(_ARGUMENTS):
            return None
        others = {name_key, "id", "type", *_ARGUMENTS}
        args = {name: value for name, value in inner.items() if name not in others}
        return Draft(offer, args, call_id=_id(entry)) if offer.fits(args) else None
    content, repairs = inner[key], ()
    if isinstance(content, str):
        try:
            content, repairs = read_arguments(content, tool=offer.name)
        except ToolCallError as error:
            fault = faulty(offer, str(error), content)._replace(call_id=_id(entry))
            return fault if marked else None
    if not isinstance(content, dict) or (key == "parameters" and "description" in inner):
        return None
    args = cast("dict[str, Any]", content)
    if _is_schema(args, offer) or (not marked and _has_placeholder(args)):
        return None
    intention = inner.get("intention")
    if not isinstance(intention, str):
        intention = None
    return Draft(offer, args, repairs, _id(entry), intention or None)


def _first_key(keys: tuple[str, ...], entry: dict[str, Any], kind: type = object) -> str:
    """The first of some keys that has a value of a type; empty if none has."""
    for key in keys:
        if entry.get(key) is not None and isinstance(entry[key], kind):
            return key
    return ""


def _has_placeholder(args: dict[str, Any]) -> bool:
    return any(isinstance(text, str) and _PLACEHOLDER.fullmatch(text) for text in args.values())


def _keyed(entry: dict[str, Any], offers: OfferedTools) -> list[Draft] | None:
    """`{"tool": {...arguments}}`, one or more.

    The arguments must fit, as nothing else marks a call.
    """
    drafts: list[Draft] = []
    for name, content in entry.items():
        offer, repairs = offers.get(name), ()
        if offer is None:
            return None
        if isinstance(content, str):
            try:
                content, repairs = read_arguments(content)  # noqa: PLW2901  the same arguments
            except ToolCallError:
                return None
        if not isinstance(content, dict):
            return None
        args = cast("dict[str, Any]", content)
        if not offer.fits(args) or _is_schema(args, offer):
            return None
        drafts.append(Draft(offer, args, repairs))
    return drafts or None


def _is_schema(args: dict[str, Any], offer: Offer) -> bool:
    """Whether the arguments are a schema: the model repeats a declaration."""
    if isinstance(args.get("properties"), dict) and "properties" not in offer.properties:
        return True
    for schema in args.values():
        kind = cast("Any", schema).get("type") if isinstance(schema, Mapping) else None
        if not isinstance(kind, str) or kind not in _TYPES:
            return False
    return bool(args)


def _id(entry: dict[str, Any]) -> str | None:
    return read_id(entry.get("id") or entry.get("call_id") or entry.get("tool_call_id"))
