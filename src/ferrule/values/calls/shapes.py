"""Tool calls in the shapes that models and providers write them in.

In: a mapping or an object. Out: the fields of a `ToolCall`, with a named fault where the arguments cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ferrule.errors import ToolCallError, shown
from ferrule.values.encoding.encode import json_text
from ferrule.values.encoding.repair import kind_of, read_object

_ARGUMENTS = ("arguments", "args", "parameters", "input")
_HARMLESS = frozenset({str, int, bool, type(None)})
_DEEPEST = 200
"""Levels of arguments: what is deeper cannot be written again everywhere."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """Why a call cannot be run as the model wrote it."""

    code: str
    """`invalid_tool_call`, `invalid_tool_call_arguments`, or `invalid_tool_calls` where there is no list of calls at all."""
    reason: str
    raw: str = ""
    """The text as the model wrote it."""
    index: int | None = None
    """The call's place in its answer, as far as it is known."""


def call_fields(entry: Any) -> dict[str, Any]:
    """The fields of a call; raises `ToolCallError` for what is none."""
    look = _look(entry)
    function = look("function")
    inner = look if function is None else _look(function)
    name, kept = inner("name"), _fault(look("fault"))
    if not isinstance(name, str) or not (name.strip() or kept):
        msg = f"A tool call needs a name; found {shown(entry)}."
        raise ToolCallError("invalid_tool_call", msg, raw=entry)
    raw = None
    for key in _ARGUMENTS:
        raw = inner(key)
        if raw is not None:
            break
    # The text of a known fault is not parsed again.
    args, fault, mended = ({}, None, ()) if kept is not None and raw == kept.raw else _parsed(name, raw)
    repairs, call_id, intention = look("repairs"), look("call_id"), inner("intention")
    return {
        "name": name,
        "args": args,
        "id": _id(look("id") if call_id is None else call_id),
        "intention": _text(look("intention") if intention is None else intention),
        "fault": kept or fault,
        "repairs": mended if repairs is None else _texts(repairs) or mended,
    }


def id_in(entry: Any) -> str | None:
    """The id in what may be a call; None where it has none."""
    return _id(_look(entry)("id"))


def _look(entry: Any) -> Callable[[str], Any]:
    """What reads a key of a mapping, or an attribute of an object."""
    if isinstance(entry, (dict, Mapping)):
        return cast("dict[str, Any]", entry).get

    def attribute(key: str) -> Any:
        return getattr(entry, key, None)

    return attribute


def _text(found: Any) -> str | None:
    return found if isinstance(found, str) and found else None


def _texts(found: Any) -> tuple[str, ...]:
    return tuple([each for each in cast("list[Any]", found) if isinstance(each, str)]) if isinstance(found, (list, tuple)) else ()


def _id(found: Any) -> str | None:
    # Some servers count their calls; what is neither text nor a number is no id, and the run gives one.
    return str(found) if isinstance(found, int) and not isinstance(found, bool) else _text(found)


def _fault(found: Any) -> CallFault | None:
    if isinstance(found, CallFault) or not isinstance(found, Mapping):
        return found if isinstance(found, CallFault) else None
    known = cast("Mapping[str, Any]", found)
    code, reason, raw = (_text(known.get(key)) for key in ("code", "reason", "raw"))
    index = known.get("index")
    return CallFault(code, reason or "", raw or "", index if type(index) is int else None) if code else None


def _parsed(name: str, raw: Any) -> tuple[dict[str, Any], CallFault | None, tuple[str, ...]]:
    """The arguments, or why there are none; and the repairs their text needed."""
    args, fault, repairs = _found(name, raw)
    if not (problem := unwritable(args)):
        return args, fault, repairs
    fault = CallFault(
        "invalid_tool_call_arguments", f"the arguments of `{name}` {problem}", raw if isinstance(raw, str) else json_text(args)
    )
    return {}, fault, ()


def unwritable(args: dict[str, Any]) -> str | None:
    """What keeps arguments from being written as JSON again, so that they would come back as others; None for nearly all."""
    if _HARMLESS.issuperset(map(type, args.values())):
        return None
    level: list[dict[str, Any] | list[Any]] = [args]
    for _ in range(_DEEPEST):
        inside: dict[int, Any] = {}  # by identity: what stands in two places is looked at once
        for each in level:
            values = cast("list[object]", each.values() if type(each) is dict else each)
            for value in values:
                kind = type(value)
                if kind is dict or kind is list:
                    inside[id(value)] = value
                elif isinstance(value, float) and value - value != 0:
                    return "hold NaN or an infinity, which JSON has no word for"
        if not inside:
            return None
        level = list(inside.values())
    return "are nested too deeply"


def _found(name: str, raw: Any) -> tuple[dict[str, Any], CallFault | None, tuple[str, ...]]:
    if raw is None:
        return {}, None, ()
    if isinstance(raw, str):
        try:
            args, repairs = read_object(raw, tool=name)
        except ToolCallError as error:
            return {}, CallFault(error.code, str(error), raw), ()
        return args, None, repairs
    if isinstance(raw, (bytes, bytearray)):
        return _found(name, raw.decode("utf-8", "replace"))
    if isinstance(raw, (dict, Mapping)):
        args = dict(cast("Mapping[Any, Any]", raw))
        odd = next((key for key in args if not isinstance(key, str)), None)
        if odd is None:
            return args, None, ()
        reason = f"the arguments of `{name}` need names that are text, found {shown(odd)}"
        return {}, CallFault("invalid_tool_call_arguments", reason, json_text(args)), ()
    reason = f"the arguments of `{name}` must be a JSON object, found {kind_of(raw)}"
    return {}, CallFault("invalid_tool_call_arguments", reason, json_text(raw)), ()
