"""Intention: the model's reason for a call, in its own words, written before it chooses.

A native call has no field for it, so a declaration gets one more argument, and every call loses it again before its arguments are checked:
the function never sees it, the call keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ToolDefinitionError
from ferrule.values.conversation.exchange import Declarations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.values.calls.call import ToolCall, ToolSpec

NAME = "intention"
DESCRIPTION = "Why this call is made, and what it is to achieve."
FIELD: Mapping[str, Any] = {"type": "string", "description": DESCRIPTION}


def check_no_intention_argument(tools: Iterable[ToolSpec]) -> None:
    """Raise `ToolDefinitionError` for a tool that has an argument of that name: the two could not be told apart."""
    for tool in tools:
        if NAME in tool.declaration["function"]["parameters"]["properties"]:
            msg = (
                f"`{tool.name}` has an argument `{NAME}` of its own, and the agent asks for the intention of every call. "
                f"Rename the argument, or make the agent with `intention=False`."
            )
            raise ToolDefinitionError(msg)


def add_intention(tools: Iterable[ToolSpec], *, without: str) -> Declarations:
    """Declarations that ask for the intention first, except for the tool named `without`."""
    return Declarations(tool.declaration if tool.name == without else _asking(tool.declaration) for tool in tools)


def _asking(declaration: Mapping[str, Any]) -> dict[str, Any]:
    function: Mapping[str, Any] = declaration["function"]
    parameters: Mapping[str, Any] = function["parameters"]
    asking = {
        **parameters,
        **{key: [_knowing(branch) for branch in parameters[key]] for key in ("anyOf", "oneOf", "allOf") if key in parameters},
        "properties": {NAME: dict(FIELD), **parameters.get("properties", {})},
        "required": [NAME, *parameters.get("required", ())],
    }
    return {**declaration, "function": {**function, "parameters": asking}}


def _knowing(branch: Any) -> Any:
    """Add the intention to a branch of a union, which may forbid further arguments."""
    if not isinstance(branch, dict) or "properties" not in branch:
        return cast("Any", branch)
    form = cast("dict[str, Any]", branch)
    return {**form, "properties": {NAME: dict(FIELD), **form["properties"]}}


def take_intention(call: ToolCall) -> ToolCall:
    """Move the intention from the arguments of a call to the call. A call without one is accepted."""
    if NAME not in call.args:
        return call
    rest = dict(call.args)
    why = rest.pop(NAME)
    return call.changed(args=rest, intention=call.intention or (why.strip() if isinstance(why, str) else None) or None)


def write_intention(call: ToolCall) -> ToolCall:
    """Move the intention back into the arguments, as a model writes it natively."""
    if call.intention is None:
        return call
    return call.changed(args={NAME: call.intention, **call.args}, intention=None)
