"""Strict tools: the provider enforces their schemas.

Their schemas are rewritten for that (`strictly`), so calls are converted back to the tools' own
schemas (`restored_calls`).
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

from ferrule.errors import ToolCallError
from ferrule.models.providers import SCHEMA_TARGETS
from ferrule.schema.lowering.lower import lower_tools
from ferrule.values.calls.call import CallFault
from ferrule.values.conversation.exchange import Declarations, ToolChange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.schema.lowering.lower import LoweredTools, Target
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.conversation.exchange import Request

_log = logging.getLogger("ferrule.models")


def strictly(request: Request, wire: str) -> Request:
    """The request with tools as strict as its provider allows.

    For Gemini, with the mode that enforces schemas.
    """
    strict = request.following(request.messages)
    target = SCHEMA_TARGETS[wire]
    if target != "gemini":
        _, strict.tools = _strict_tools(request.tools, target)
        if request.first_tools is not None:
            _, strict.first_tools = _strict_tools(request.first_tools, target)
        changes: list[ToolChange] = []
        for change in request.tool_changes:
            _, added = _strict_tools(change.added, target)
            changes.append(ToolChange(change.after, added, change.removed))
        strict.tool_changes = tuple(changes)
    elif request.tool_choice in (None, "auto"):  # the other modes enforce schemas already
        strict.tool_choice = {"mode": "VALIDATED"}
    return strict


def restored_calls(
    calls: Iterable[ToolCall], tools: Declarations, wire: str
) -> tuple[ToolCall, ...]:
    """The calls with arguments converted to the tools' own schemas, or with a fault.

    A null for an omitted argument is dropped.
    """
    lowered, _ = _strict_tools(tools, SCHEMA_TARGETS[wire])
    return tuple([_restored(call, lowered) for call in calls])


def _restored(call: ToolCall, tools: LoweredTools) -> ToolCall:
    if call.fault is not None:
        return call
    try:
        return call.changed(args=tools.restored(call.name, call.args))
    except ToolCallError as error:
        return call.changed(fault=CallFault(error.code, str(error), call.arguments_text))


@lru_cache(maxsize=64)
def _strict_tools(tools: Declarations, target: Target) -> tuple[LoweredTools, Declarations]:
    """Tools as strict as the target allows.

    A tool that cannot be strict stays unchanged, with a warning in the log.
    """
    lowered = lower_tools(tools, target)
    refusals: list[str] = []
    for name, losses in lowered.losses.items():
        if name not in lowered.lowered:
            path = losses[0].path or "the whole"
            refusals.append(f"`{name}` ({path}: {losses[0].lost})")
    if refusals:
        _log.warning("%s: sent without strict mode: %s", target, "; ".join(refusals))
    return lowered, Declarations(lowered.tools)
