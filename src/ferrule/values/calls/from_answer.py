"""The calls of one answer, however they came: natively, as parsed JSON, or as text.

In: what a provider or an output field holds. Out: calls in order, each with an id of its own. One rule for bad ones (E39): a good call is
kept whatever stands beside it, a bad one is kept as well, with its fault, which says its place and the reason. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from ferrule.errors import ToolCallError, shown
from ferrule.values.calls.call import CallFault, ToolCall, ToolCalls
from ferrule.values.calls.shapes import id_in
from ferrule.values.encoding.encode import json_text
from ferrule.values.encoding.repair import read_json

Calls = TypeVar("Calls", bound=ToolCalls)
_NO_CALLS = frozenset({"", "none", "null", "nil", "n/a", "na", "nothing", "no calls", "no tool calls", "empty"})
"""What models write where they make no call."""


def read_calls(found: Any, kind: type[Calls]) -> Calls:
    """The calls of an answer, empty for none. `found` has any of the usual shapes, or is their JSON as a model writes it.

    Raises `ToolCallError` where there are calls, but no good one: code, raw text, index and tool are those of the first. Raises it with
    `invalid_tool_calls` where there is something, but no list of calls.
    """
    calls = with_ids([_placed(entry, index) for index, entry in enumerate(_entries(found))])
    bad = [(call, call.fault) for call in calls if call.fault is not None]
    if bad and len(bad) == len(calls):
        call, first = bad[0]
        problems = "; ".join(fault.reason for _, fault in bad)
        raise ToolCallError(first.code, problems, raw=first.raw, index=first.index, tool=call.name or None)
    return kind(tool_calls=calls)


def call_at(entry: Any, index: int) -> ToolCall:
    """One call of an answer, as `ToolCall.read` reads it; what is no call becomes one that has a fault."""
    try:
        return ToolCall.read(entry)
    except ToolCallError as error:
        fault = CallFault(error.code, f"call {index}: {error}", json_text(entry), index)
        return ToolCall(name="", id=id_in(entry), fault=fault)


def _placed(entry: Any, index: int) -> ToolCall:
    """The call, with its place said in its fault if it has one."""
    call = call_at(entry, index)
    if call.fault is None or call.fault.index is not None:
        return call
    reason = call.fault.reason
    said = reason if reason.startswith(f"call {index}: ") else f"call {index}: {reason}"
    return call.changed(fault=replace(call.fault, index=index, reason=said))


def with_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """The calls with an id each, unique among them; a call keeps its own where none before it has it."""
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
