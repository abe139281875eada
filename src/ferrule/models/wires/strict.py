"""Strict function calling: tools lowered for the provider's strict mode on the way out, calls restored on the way back."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ferrule.errors import ConfigurationError
from ferrule.values.conversation.exchange import Declarations
from ferrule.values.record import replace
from ferrule.values.schema.lowering.lower import lower_tools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.values.conversation.exchange import Request, Response
    from ferrule.values.schema.lowering.lower import LoweredTools, Target

_TARGETS: Mapping[str, Target] = {"openai_chat": "openai-strict", "openai_responses": "openai-strict", "anthropic": "anthropic"}


def target_of(wire: str) -> Target:
    """The strict mode that a wire's providers have; raises `ConfigurationError` for one that has none."""
    if wire not in _TARGETS:
        msg = f"`strict_tools` is for {', '.join(_TARGETS)}; the wire `{wire}` has no strict mode."
        raise ConfigurationError(msg)
    return _TARGETS[wire]


def strictly(request: Request, target: Target) -> Request:
    """The request with its tools as strict as they can be; one that cannot goes out as it is (`ferrule lint` tells why)."""
    if not request.tools:
        return request
    _, tools = _lowered(request.tools, target)
    asked = request.following(request.messages)
    asked.tools = tools
    return asked


def restored(response: Response, request: Request, target: Target) -> Response:
    """The answer with its calls as the tools' own schemas have them: a null that stands for "left out" is left out."""
    if not response.tool_calls:
        return response
    found, _ = _lowered(request.tools, target)
    calls = [call if call.fault else call.changed(args=found.restored(call.name, call.args)) for call in response.tool_calls]
    return replace(response, tool_calls=tuple(calls))


@lru_cache(maxsize=64)
def _lowered(tools: Declarations, target: Target) -> tuple[LoweredTools, Declarations]:
    found = lower_tools(tools, target)
    return found, Declarations(found.tools)
