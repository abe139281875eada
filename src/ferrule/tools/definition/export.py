"""The external forms of a tool.

These are a line of a prompt, the schema of one call, and plain data.

A native call has no field for the intention, the model's reason for the call. So the declaration
gets one more argument, the first, and `ToolCall` keeps it apart from the arguments of the function.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import escape_surrogates, json_text
from ferrule.encoding.pattern import pattern
from ferrule.errors import ToolDefinitionError
from ferrule.schema.nodes import names_elsewhere
from ferrule.schema.words import escape_markers
from ferrule.values.conversation.exchange import Declarations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.schema.nodes import Schema
    from ferrule.tools.definition.constructor import ToolDefinition
    from ferrule.values.calls.call import ToolCall, ToolSpec

INTENTION = "intention"
INTENTION_DESCRIPTION = "Why this call is made, and what it is to achieve."
_INTENTION_FIELD: Mapping[str, Any] = {"type": "string", "description": INTENTION_DESCRIPTION}
_END = pattern(r"<(?=\s*/\s*desc)", re.IGNORECASE)


def tool_line(name: str, description: str, schema: Schema) -> str:
    """One line of a prompt.

    It reads `calculator, whose description is <desc>...</desc>. It takes arguments {...}.` A
    description cannot end its own field or imitate a marker of the prompt.
    """
    text = " ".join(_END.sub("&lt;", description).splitlines())
    about = ""
    if text.strip():
        about = f", whose description is <desc>{text}</desc>"
    line = f"{name}{about}. It takes {_describe_arguments(schema)}."
    return escape_markers(escape_surrogates(line))


def _describe_arguments(schema: Schema) -> str:
    properties: Any = schema.get("properties") or {}
    other: Any = schema.get("additionalProperties", False)
    if names_elsewhere(schema):
        rules = {key: value for key, value in schema.items() if key != "$defs"}
        description = f"arguments by the schema {json_text(rules)}"
    elif properties:
        description = f"arguments {json_text(properties)}"
        if other not in (False, None):
            description += " and any others by name"
    elif other is False:
        description = "no arguments"
    else:
        description = "any arguments by name"
    if schema.get("$defs"):
        description += f", where `$defs` are {json_text(schema['$defs'])}"
    return description


def call_schema(name: str, parameters: Schema) -> dict[str, Any]:
    """The JSON schema of one call of a tool.

    Order matters: a model writes the reason before the choice.
    """
    definitions: Any = parameters.pop("$defs", None)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            INTENTION: dict(_INTENTION_FIELD),
            "name": {"type": "string", "const": name},
            "arguments": parameters,
        },
        "required": [INTENTION, "name", "arguments"],
        "additionalProperties": False,
    }
    if definitions:
        schema["$defs"] = definitions
    return schema


def tool_state(definition: ToolDefinition, parameters: Schema) -> dict[str, Any]:
    """The tool as plain data, without its function."""
    requirement = definition.require_confirmation
    state: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "parameters": parameters,
        "require_confirmation": callable(requirement) or requirement,
        "effect": definition.effect,
        "unknown": definition.unknown,
        "timeout_s": definition.timeout_s,
        "concurrent": definition.concurrent,
        "mcp_server": definition.mcp_server,
    }
    if definition.unknown == "ask":
        # Left out at its default, so that states saved before the option existed stay equal.
        del state["unknown"]
    if definition.retries is not None:
        state["retries"] = definition.retries
    if definition.result != "function":
        state["result"] = definition.result
        state["within_s"] = definition.within_s
    is_of_server = definition.mcp is not None or definition.mcp_server is not None
    if definition.untrusted != is_of_server:
        state["untrusted"] = definition.untrusted
    if definition.mcp is not None:
        state["mcp"] = definition.mcp.as_json()
    return state


# -- intention


def check_no_intention_argument(tools: Iterable[ToolSpec]) -> None:
    """Raise `ToolDefinitionError` for a tool that has an argument named `intention`.

    The two would be confused.
    """
    for tool in tools:
        if INTENTION in tool.declaration["function"]["parameters"].get("properties", ()):
            raise ToolDefinitionError(
                f"`{tool.name}` has an argument `{INTENTION}` of its own, and the agent asks for "
                "the intention of every call. Rename the argument, or make the agent with "
                "`intention=False`."
            )


def add_intention(tools: Iterable[ToolSpec], *, without: str) -> Declarations:
    """Declarations that ask for the intention first, except for the tool named `without`."""
    declarations: list[dict[str, Any]] = []
    for tool in tools:
        if tool.name == without:
            declarations.append(tool.declaration)
        else:
            declarations.append(_asking(tool.declaration))
    return Declarations(declarations)


def _asking(declaration: Mapping[str, Any]) -> dict[str, Any]:
    function: Mapping[str, Any] = declaration["function"]
    parameters: Mapping[str, Any] = function["parameters"]
    asking: dict[str, Any] = dict(parameters)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in parameters:
            asking[keyword] = [_knowing(branch) for branch in parameters[keyword]]
    asking["properties"] = {INTENTION: dict(_INTENTION_FIELD), **parameters.get("properties", {})}
    asking["required"] = [INTENTION, *parameters.get("required", ())]
    return {**declaration, "function": {**function, "parameters": asking}}


def _knowing(branch: Any) -> Any:
    """Add the intention to a branch of a union, which may forbid further arguments."""
    if not isinstance(branch, dict) or "properties" not in branch:
        return cast("Any", branch)
    form = cast("dict[str, Any]", branch)
    return {**form, "properties": {INTENTION: dict(_INTENTION_FIELD), **form["properties"]}}


def take_intention(call: ToolCall) -> ToolCall:
    """Move the intention from the arguments of a call to the call, if it has one."""
    if INTENTION not in call.args:
        return call
    args = dict(call.args)
    written = args.pop(INTENTION)
    intention = ""
    if isinstance(written, str):
        intention = written.strip()
    return call.changed(args=args, intention=call.intention or intention or None)


def write_intention(call: ToolCall) -> ToolCall:
    """Move the intention back into the arguments, where a model writes it in a native call."""
    if call.intention is None:
        return call
    return call.changed(args={INTENTION: call.intention, **call.args}, intention=None)
