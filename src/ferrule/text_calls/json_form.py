"""Read calls written as JSON, in the shapes of many models.

A declaration of a tool, a result, or another object that looks similar is not a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from ferrule.encoding.loose import LooseReader
from ferrule.encoding.repair import read_arguments
from ferrule.errors import ToolCallError
from ferrule.text_calls.offers import Draft, Effort, Offer, OfferedTools
from ferrule.text_calls.shapes import CallFault, read_id

_NAMES = (
    "name",
    "tool_name",
    "function_name",
    "function",
    "tool",
    "recipient_name",
    "action",
    "api_name",
    "api",
    "func",
    "next_tool_name",
)
_ARGUMENTS = (
    "arguments", "args", "parameters", "params", "input", "tool_input", "action_input", "tool_args", "tool_arguments",
    "function_args", "function_arguments", "kwargs", "parameter", "tool_parameters", "inputs", "argument", "function_arg", "next_tool_args",
)  # fmt: skip
_LISTS = (
    *("tool_calls", "function_calls", "calls", "tool_uses", "functions", "actions", "tools"),
    *("tool_call", "function_call", "action", "call"),
)
_RESULTS = (
    "result",
    "results",
    "output",
    "response",
    "observation",
    "content",
    "error",
    "return",
    "returns",
    "status",
)
_TYPES = frozenset(
    {
        "string",
        "integer",
        "number",
        "boolean",
        "array",
        "object",
        "null",
        "str",
        "int",
        "float",
        "bool",
        "list",
        "dict",
    }
)
_PLACEHOLDER = re.compile(r"\s*(?:\.{3}|…|<[\w .-][\w ./-]*>|\{[\w ./-]+\}|\[[a-z][\w ./-]+\])\s*")
_HEAD = re.compile(
    r"""[\s{\["']*(?:name|tool_name|function|recipient_name)\\?["']?\s*:\s*\\?["'](?P<name>[^"'\\\n]{1,120})"""
)
_CALL = (
    r"""\{\s*(?:["']next_thought["']\s*:\s*(?:"(?:[^"\\]|\\.){0,4000}"|'(?:[^'\\]|\\.){0,4000}')\s*,\s*)?"""
    r"""["'](?:name|tool_name|function_name|tool|action|next_tool_name)["']\s*:\s*["']([^"'\\\n]{1,120})["']\s*,\s*"""
    rf"""["'](?:{"|".join(_ARGUMENTS)})["']\s*:\s*\{{\s*["']"""
)
_CALL_HEAD = re.compile(_CALL)
_CALL_END = re.compile(rf"\}}[ \t]*(?=\]?\s*(?:\Z|```|<[|/])|\]?[ \t]*\n[ \t]*\n|[\s,;]*{_CALL})")
_SHOWN = re.compile(r""":\s*(?:<\w|\.{3}|…)""")
"""A placeholder instead of a value."""
_OBJECT_OR_LIST = re.compile(r"""\{\s*(?:["'}/#]|[\w$-]+\s*:)|\[""")
_decode = json.JSONDecoder().raw_decode


class _Measured(LooseReader):
    """A reader that records how far it came."""

    reached = 0

    def value(self, offset: int, depth: int) -> tuple[Any, int]:
        self.reached = offset
        return super().value(offset, depth)


def read_value(text: str, offset: int, effort: Effort) -> tuple[Any, int, tuple[str, ...]] | None:
    """The JSON value at a position, its end and its repairs; None if there is no value."""
    if (
        effort.left <= 0 or _OBJECT_OR_LIST.match(text, offset) is None
    ):  # braces in prose or in a program
        effort.spend(0)
        return None
    try:
        value, end = _decode(text, offset)
    except RecursionError:
        effort.spend(20_000)
        return None
    except ValueError as error:
        # The parser counts the lines before the error, which is not free.
        effort.spend((getattr(error, "pos", offset) - offset) // 8 + offset // 256)
    else:
        return value, end, ()
    reader = _Measured(text)
    try:
        value, end = reader.value(offset, 0)
    except (ValueError, RecursionError) as error:
        # For an unclosed string or comment the parser searches the whole text.
        is_open = (
            "the end of the text" in str(error)
            or "/*" in text[reader.reached : reader.reached + 200]
        )
        effort.spend(
            reader.reached - offset + 64 + (len(text) - offset) // (8 if is_open else 1024)
        )
        return None
    return value, end, tuple(reader.repairs)


def drafts_of(value: Any, offers: OfferedTools, *, marked: bool) -> list[Draft] | None:
    """The calls of a JSON value.

    `marked`: a tag or fence announces calls, so that a weaker shape is enough.
    """
    if isinstance(value, list):
        found = [
            drafts_of(each, offers, marked=marked)
            for each in cast("list[Any]", value)
            if isinstance(each, dict)
        ]
        if len(found) != len(cast("list[Any]", value)):
            return None
        drafts = [draft for each in found if each is not None for draft in each]
        return drafts if drafts and (marked or None not in found) else None
    if not isinstance(value, dict):
        return None
    entry = cast("dict[str, Any]", value)
    for key in _LISTS:
        inner = entry.get(key)
        if (
            isinstance(inner, (list, dict))
            and inner
            and (key not in {"functions", "tools"} or len(entry) == 1)
        ):
            drafts = drafts_of(
                inner, offers, marked=marked or key in {"tool_calls", "function_call", "tool_uses"}
            )
            if drafts is not None:
                return drafts
    draft = _named(entry, offers, marked=marked)
    return [draft] if draft is not None else _keyed(entry, offers)


def drafts_of_args(offer: Offer, args: Any, offers: OfferedTools) -> Draft | None:
    """The call of a tool whose name comes before its arguments."""
    if not isinstance(args, dict):
        return None
    found = cast("dict[str, Any]", args)
    if "name" in found and "name" not in offer.properties:
        again = _named(found, offers, marked=False)
        if again is not None and again.offer is offer:
            return again
    return Draft(offer, found)


def fault_of(text: str, offset: int, end: int, offers: OfferedTools) -> Draft | None:
    """A call with a fault: announced text names an offered tool, but is not JSON."""
    head = _HEAD.match(text, offset, min(end, offset + 200))
    offer = offers.get(head["name"]) if head is not None else None
    return unreadable(offer, text[offset:end].strip()) if offer is not None else None


def broken_call(
    text: str, offset: int, offers: OfferedTools, effort: Effort
) -> tuple[Draft, int] | None:
    """A call with a fault for an object that is not announced and cannot be parsed; and its end."""
    head = _CALL_HEAD.match(text, offset)
    offer = offers.get(head[1]) if head is not None else None
    if head is None or offer is None:
        return None
    found = _CALL_END.search(text, head.end())
    end = found.end() if found is not None else len(text)
    if (
        not effort.spend(end - offset)
        or found is None
        or _SHOWN.search(text, offset, end) is not None
    ):
        return None
    return unreadable(offer, text[offset:end].strip()), end


def unreadable(offer: Offer, raw: str) -> Draft:
    """A call whose arguments cannot be parsed."""
    try:
        read_arguments(raw, tool=offer.name)
        reason = f"the call of `{offer.name}` cannot be read as JSON"
    except ToolCallError as error:
        reason = str(error)
    return Draft(offer, {}, fault=CallFault("invalid_tool_call_arguments", reason, raw))


def _named(entry: dict[str, Any], offers: OfferedTools, *, marked: bool) -> Draft | None:
    """`{"name": ..., "arguments": {...}}` and similar shapes, such as OpenAI's nested one."""
    function = entry.get("function")
    inner = cast("dict[str, Any]", function) if isinstance(function, dict) else entry
    key = next((each for each in _NAMES if isinstance(inner.get(each), str)), None)
    offer = offers.get(inner[key]) if key is not None else None
    if offer is None or any(
        entry.get(each) is not None
        for each in _RESULTS
        if each != key and each not in offer.properties
    ):
        return None
    used = next((each for each in _ARGUMENTS if inner.get(each) is not None), None)
    if used is None:
        if not marked and not any(each in inner for each in _ARGUMENTS):
            return None
        beside = {
            each: found
            for each, found in inner.items()
            if each not in {key, "id", "type", *_ARGUMENTS}
        }
        return Draft(offer, beside, call_id=_id(entry)) if offer.fits(beside) else None
    args, repairs = inner[used], ()
    if isinstance(args, str):
        try:
            args, repairs = read_arguments(args, tool=offer.name)
        except ToolCallError as error:
            fault = CallFault(error.code, str(error), args)
            return Draft(offer, {}, call_id=_id(entry), fault=fault) if marked else None
    if (
        not isinstance(args, dict)
        or (used == "parameters" and "description" in inner)
        or _is_schema(cast("Any", args), offer)
    ):
        return None
    found = cast("dict[str, Any]", args)
    if not marked and any(
        isinstance(each, str) and _PLACEHOLDER.fullmatch(each) for each in found.values()
    ):
        return None
    intention = inner.get("intention")
    return Draft(
        offer,
        found,
        repairs,
        _id(entry),
        intention if isinstance(intention, str) and intention else None,
    )


def _keyed(entry: dict[str, Any], offers: OfferedTools) -> list[Draft] | None:
    """`{"tool": {...arguments}}`, one or more.

    The arguments must fit, as nothing else marks a call.
    """
    drafts: list[Draft] = []
    for key, given in entry.items():
        offer, args, repairs = offers.get(key), given, ()
        if offer is None:
            return None
        if isinstance(args, str):
            try:
                args, repairs = read_arguments(args)
            except ToolCallError:
                return None
        if (
            not isinstance(args, dict)
            or not offer.fits(cast("dict[str, Any]", args))
            or _is_schema(cast("Any", args), offer)
        ):
            return None
        drafts.append(Draft(offer, cast("dict[str, Any]", args), repairs))
    return drafts or None


def _is_schema(args: dict[str, Any], offer: Offer) -> bool:
    """Whether the arguments are a schema: the model repeats a declaration."""
    if isinstance(args.get("properties"), dict) and "properties" not in offer.properties:
        return True
    kinds = [
        cast("Mapping[str, Any]", each).get("type")
        for each in args.values()
        if isinstance(each, Mapping)
    ]
    return (
        bool(kinds)
        and len(kinds) == len(args)
        and all(isinstance(each, str) and each in _TYPES for each in kinds)
    )


def _id(entry: dict[str, Any]) -> str | None:
    return read_id(entry.get("id") or entry.get("call_id") or entry.get("tool_call_id"))
