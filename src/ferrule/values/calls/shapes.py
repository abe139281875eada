"""Read structured tool calls in the shapes of models and providers.

Arguments that cannot be parsed give a call with a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from ferrule.encoding.encode import json_text
from ferrule.encoding.repair import kind_of, read_arguments
from ferrule.encoding.written import split_digits
from ferrule.errors import ToolCallError, shown
from ferrule.text_calls.drafts import CallFault, read_id, unwritable

_ARGUMENTS = ("arguments", "args", "parameters", "input")


def call_fields(entry: Any) -> dict[str, Any]:
    """The fields of a call; raises `ToolCallError` for anything else."""
    look = _look(entry)
    function = look("function")
    inner = look if function is None else _look(function)
    name = inner("name")
    known_fault = _fault(look("fault"))
    if not isinstance(name, str) or not (name.strip() or known_fault):
        msg = f"A tool call needs a name; found {shown(entry)}."
        raise ToolCallError("invalid_tool_call", msg, raw=entry)
    raw = None
    for key in _ARGUMENTS:
        raw = inner(key)
        if raw is not None:
            break
    args: dict[str, Any] = {}
    fault: CallFault | None = None
    repairs: tuple[str, ...] = ()
    # The text of a known fault is not parsed again.
    if known_fault is None or raw != known_fault.raw:
        args, fault, repairs = _parsed(name, raw)
    listed = look("repairs")
    if isinstance(listed, (list, tuple)):
        texts = [repair for repair in cast("list[Any]", listed) if isinstance(repair, str)]
        repairs = tuple(texts) or repairs
    call_id, intention = look("call_id"), inner("intention")
    args, written = split_digits(args)
    return {
        "name": name,
        "args": args,
        "id": read_id(look("id") if call_id is None else call_id),
        "intention": _text(look("intention") if intention is None else intention),
        "fault": known_fault or fault,
        "written": written,
        "repairs": repairs,
    }


def fields_at(entry: Any, index: int) -> dict[str, Any]:
    """The fields of the call at a position of an answer; for anything else, a fault."""
    try:
        return call_fields(entry)
    except ToolCallError as error:
        fault = CallFault(error.code, f"call {index}: {error}", json_text(entry), index)
        return {"name": "", "args": {}, "id": read_id(_look(entry)("id")), "fault": fault}


def schema_of(*names: str) -> Callable[[dict[str, Any]], None]:
    """A `json_schema_extra` that leaves the fields that a language model writes."""

    def reduce(schema: dict[str, Any]) -> None:
        schema["properties"] = {
            name: field for name, field in schema["properties"].items() if name in names
        }
        schema["required"] = list(schema["properties"])

    return reduce


def _look(entry: Any) -> Callable[[str], Any]:
    """A function that reads a key of a mapping, or an attribute of an object."""
    if isinstance(entry, (dict, Mapping)):
        return cast("dict[str, Any]", entry).get

    def attribute(key: str) -> Any:
        return getattr(entry, key, None)

    return attribute


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _fault(value: Any) -> CallFault | None:
    if isinstance(value, CallFault):
        return value
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, Any]", value)
    code, reason, raw = (_text(fields.get(key)) for key in ("code", "reason", "raw"))
    if code is None:
        return None
    index = fields.get("index")
    return CallFault(code, reason or "", raw or "", index if type(index) is int else None)


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
    reason = f"the arguments of `{name}` {problem}"
    return {}, CallFault("invalid_tool_call_arguments", reason, text), ()


def _odd_names(args: dict[Any, Any]) -> list[Any]:
    """The names that are not text: Python code passes anything."""
    return [name for name in args if not isinstance(name, str)]
