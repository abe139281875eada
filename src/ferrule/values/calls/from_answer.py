"""Read the calls of one answer: native ones, parsed JSON, or text.

A valid call is kept whatever else the answer holds. An invalid one is kept too, with a fault that names its position and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from ferrule.errors import ToolCallError, shown
from ferrule.values.calls.call import ToolCall, ToolCalls, call_at
from ferrule.values.encoding.repair import read_json

Calls = TypeVar("Calls", bound=ToolCalls)
_NO_CALLS = frozenset({"", "none", "null", "nil", "n/a", "na", "nothing", "no calls", "no tool calls", "empty"})
"""Texts that models write for no calls."""


def read_calls(found: Any, kind: type[Calls]) -> Calls:
    """Read the calls of an answer, in any of the usual shapes or as JSON text.

    Raises `ToolCallError` if there are calls but no valid one (with the code, raw text, index and tool of the first), and with the code
    `invalid_tool_calls` if there is something else.
    """
    calls = with_ids([_read_call(entry, index) for index, entry in enumerate(_entries(found))])
    bad = [(call, call.fault) for call in calls if call.fault is not None]
    if bad and len(bad) == len(calls):
        call, first = bad[0]
        problems = "; ".join(fault.reason for _, fault in bad)
        raise ToolCallError(first.code, problems, raw=first.raw, index=first.index, tool=call.name or None)
    return kind(tool_calls=calls)


def _read_call(entry: Any, index: int) -> ToolCall:
    """The call; its fault, if any, names its position."""
    call = call_at(entry, index)
    if call.fault is None or call.fault.index is not None:
        return call
    reason = call.fault.reason
    said = reason if reason.startswith(f"call {index}: ") else f"call {index}: {reason}"
    return call.changed(fault=replace(call.fault, index=index, reason=said))


def with_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """The calls, each with a unique id. A call keeps its own id unless an earlier one has it."""
    seen: set[str] = set()
    made: list[ToolCall] = []
    for place, call in enumerate(calls):
        own = call.id or f"call_{place}"
        while own in seen:
            own = f"{own}_{place}"
        seen.add(own)
        made.append(call if own == call.id else call.with_id(own))
    return made


def _entries(found: Any) -> list[Any]:
    value: Any = found
    if isinstance(found, str):
        try:
            value = read_json(found)[0] if found.strip(" \t\r\n.*`()\"'").casefold() not in _NO_CALLS else None
        except ValueError as error:
            msg = f"the calls are not valid JSON: {error}"
            raise ToolCallError("invalid_tool_calls", msg, raw=found) from None
    if isinstance(value, ToolCalls):
        return list(value.tool_calls)
    if isinstance(value, Mapping) and "tool_calls" in value:
        value = cast("Mapping[str, Any]", value)["tool_calls"]
    elif isinstance(value, (Mapping, ToolCall)):
        value = [value]
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        msg = f"the calls must be a list of calls, found {shown(cast('object', value))}"
        raise ToolCallError("invalid_tool_calls", msg, raw=found)
    return list(cast("list[Any]", value))
