"""Read tool calls in the shapes of models and providers.

Arguments that cannot be parsed give a call with a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ferrule.encoding.encode import json_text
from ferrule.encoding.repair import kind_of, read_arguments
from ferrule.encoding.written import split_digits
from ferrule.errors import ToolCallError, shown

_ARGUMENTS = ("arguments", "args", "parameters", "input")
_DEEPEST = 200
"""The largest depth of arguments; deeper ones cannot be written as JSON everywhere."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """Why a call cannot run as the model wrote it."""

    code: str
    """`invalid_tool_call` or `invalid_tool_call_arguments`.

    `invalid_tool_calls` for something that is not a list of calls.
    """
    reason: str
    raw: str = ""
    """The text as the model wrote it."""
    index: int | None = None
    """The call's position in its answer, if known."""


def call_fields(entry: Any) -> dict[str, Any]:
    """The fields of a call; raises `ToolCallError` for anything else."""
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
    args, fault, repaired = (
        ({}, None, ()) if kept is not None and raw == kept.raw else _parsed(name, raw)
    )
    args, written = split_digits(args)
    repairs, call_id, intention = look("repairs"), look("call_id"), inner("intention")
    return {
        "name": name,
        "args": args,
        "id": read_id(look("id") if call_id is None else call_id),
        "intention": _text(look("intention") if intention is None else intention),
        "fault": kept or fault,
        "written": written,
        "repairs": repaired if repairs is None else _texts(repairs) or repaired,
    }


def schema_of(*names: str) -> Callable[[dict[str, Any]], None]:
    """A `json_schema_extra` that leaves the fields that a language model writes."""

    def reduce(schema: dict[str, Any]) -> None:
        schema["properties"] = {
            name: each for name, each in schema["properties"].items() if name in names
        }
        schema["required"] = list(schema["properties"])

    return reduce


def fields_at(entry: Any, index: int) -> dict[str, Any]:
    """The fields of the call at a position of an answer; for anything else, a fault."""
    try:
        return call_fields(entry)
    except ToolCallError as error:
        fault = CallFault(error.code, f"call {index}: {error}", json_text(entry), index)
        return {"name": "", "args": {}, "id": read_id(_look(entry)("id")), "fault": fault}


def _look(entry: Any) -> Callable[[str], Any]:
    """A function that reads a key of a mapping, or an attribute of an object."""
    if isinstance(entry, (dict, Mapping)):
        return cast("dict[str, Any]", entry).get

    def attribute(key: str) -> Any:
        return getattr(entry, key, None)

    return attribute


def _text(found: Any) -> str | None:
    return found if isinstance(found, str) and found else None


def _texts(found: Any) -> tuple[str, ...]:
    return (
        tuple([each for each in cast("list[Any]", found) if isinstance(each, str)])
        if isinstance(found, (list, tuple))
        else ()
    )


def read_id(found: Any) -> str | None:
    """The id of a call as text: some servers number their calls.

    None for anything else; the run then assigns an id.
    """
    return str(found) if isinstance(found, int) and not isinstance(found, bool) else _text(found)


def _fault(found: Any) -> CallFault | None:
    if isinstance(found, CallFault) or not isinstance(found, Mapping):
        return found if isinstance(found, CallFault) else None
    known = cast("Mapping[str, Any]", found)
    code, reason, raw = (_text(known.get(key)) for key in ("code", "reason", "raw"))
    index = known.get("index")
    return (
        CallFault(code, reason or "", raw or "", index if type(index) is int else None)
        if code
        else None
    )


def _parsed(name: str, raw: Any) -> tuple[dict[str, Any], CallFault | None, tuple[str, ...]]:
    """The arguments or a fault, and the repairs that their text needed."""
    args: dict[str, Any] = {}
    repairs: tuple[str, ...] = ()
    problem: str | None = None
    if isinstance(raw, (bytes, bytearray)):
        raw = raw.decode("utf-8", "replace")
    if isinstance(raw, str):
        try:
            args, repairs = read_arguments(raw, tool=name)
        except ToolCallError as error:
            return {}, CallFault(error.code, str(error), raw), ()
    elif isinstance(raw, (dict, Mapping)):
        args = dict(cast("Mapping[Any, Any]", raw))
        if odd := _odd_names(args):
            problem = f"need names that are text, found {shown(odd[0])}"
    elif raw is not None:
        problem = f"must be a JSON object, found {kind_of(raw)}"
    problem = problem or unwritable(args)
    if problem is None:
        return args, None, repairs
    text = raw if isinstance(raw, str) else json_text(cast("object", raw))
    return (
        {},
        CallFault("invalid_tool_call_arguments", f"the arguments of `{name}` {problem}", text),
        (),
    )


def _odd_names(args: dict[Any, Any]) -> list[Any]:
    """The names that are not text: Python code passes anything."""
    return [name for name in args if not isinstance(name, str)]


def unwritable(args: dict[str, Any]) -> str | None:
    """Why arguments do not survive a round trip through JSON; None if they do."""
    level: list[dict[str, Any] | list[Any]] = [args]
    for _ in range(_DEEPEST):
        inside: dict[int, Any] = {}  # by identity: a value in two positions is checked once
        for each in level:
            values = cast("list[object]", each.values() if type(each) is dict else each)
            for value in values:
                kind = type(value)
                if kind is dict or kind is list:
                    inside[id(value)] = value
                elif isinstance(value, float) and value - value != 0:
                    return "hold NaN or an infinity, which JSON cannot express"
        if not inside:
            return None
        level = list(inside.values())
    return "are nested too deeply"
