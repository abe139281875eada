"""Strict tools: declares them so that the provider enforces their schemas, and converts calls back to the tools' own schemas."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

from ferrule.errors import ToolCallError
from ferrule.schema.lowering.lower import lower_tools
from ferrule.values.calls.call import CallFault
from ferrule.values.conversation.exchange import Declarations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.schema.lowering.lower import LoweredTools, Target
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.conversation.exchange import Request

_log = logging.getLogger("ferrule.models")
_TARGETS: Mapping[str, Target] = {
    "openai_chat": "openai-strict", "openai_responses": "openai-strict", "anthropic": "anthropic", "gemini": "gemini",
}  # fmt: skip


def strictly(request: Request, wire: str) -> Request:
    """The request with tools as strict as its provider allows or, for Gemini, with the mode that enforces schemas."""
    made = request.following(request.messages)
    target = _TARGETS[wire]
    if target != "gemini":
        made.tools = _strict_tools(request.tools, target)[1]
    elif request.tool_choice in (None, "auto"):  # the other modes enforce schemas already
        made.tool_choice = {"mode": "VALIDATED"}
    return made


def restored_calls(
    calls: Iterable[ToolCall],
    tools: Declarations,
    wire: str,
) -> tuple[ToolCall, ...]:
    """The calls with arguments converted to the tools' own schemas, or with a fault. A null for an omitted argument is dropped."""
    found, _ = _strict_tools(tools, _TARGETS[wire])
    return tuple([_restored(call, found) for call in calls])


def _restored(call: ToolCall, tools: LoweredTools) -> ToolCall:
    if call.fault is not None:
        return call
    try:
        return call.changed(args=tools.restored(call.name, call.args))
    except ToolCallError as error:
        return call.changed(fault=CallFault(error.code, str(error), call.arguments_text))


@lru_cache(maxsize=64)
def _strict_tools(tools: Declarations, target: Target) -> tuple[LoweredTools, Declarations]:
    """Tools as strict as the target allows; a tool that cannot be strict stays unchanged, with a warning in the log."""
    found = lower_tools(tools, target)
    if len(found.lowered) < len(found.tools):
        first = {
            name: losses[0] for name, losses in found.losses.items() if name not in found.lowered
        }
        without = [
            f"`{name}` ({loss.path or 'the whole'}: {loss.lost})" for name, loss in first.items()
        ]
        _log.warning("%s: sent without strict mode: %s", target, "; ".join(without))
    return found, Declarations(found.tools)
