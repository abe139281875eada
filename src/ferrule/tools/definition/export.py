"""The external forms of a tool: its name on the wire, a line of a prompt, the schema of one call, plain data.

Providers accept names that match `[A-Za-z0-9_-]{1,64}`. Other characters are escaped as `_dot_` or
`_x<hexadecimal>_`, and `own_name` reads them back. Only a name that is too long, empty or
unprintable has no wire form.

A native call has no field for the intention, the model's reason for the call. So the declaration
gets one more argument, the first, and `ToolCall` keeps it apart from the arguments of the function.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import escape_surrogates, json_text
from ferrule.encoding.pattern import pattern
from ferrule.errors import ToolDefinitionError, shown
from ferrule.schema.nodes import names_elsewhere
from ferrule.values.conversation.exchange import Declarations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.schema.nodes import Schema
    from ferrule.tools.definition.constructor import ToolDefinition
    from ferrule.values.calls.call import ToolCall, ToolSpec

LONGEST = 64
INTENTION = "intention"
INTENTION_DESCRIPTION = "Why this call is made, and what it is to achieve."
_INTENTION_FIELD: Mapping[str, Any] = {"type": "string", "description": INTENTION_DESCRIPTION}
_SAFE = pattern(r"[A-Za-z0-9_-]+")
_ESCAPE = pattern(r"_(?:dot|x([0-9a-f]{2,5}|10[0-9a-f]{4}))_")
_END = pattern(r"<(?=\s*/\s*desc)", re.IGNORECASE)


def wire_name(name: str) -> str:
    """The provider-safe form of a name. Raises `ToolDefinitionError` if there is none."""
    if _SAFE.fullmatch(name) and len(name) <= LONGEST and not _ESCAPE.search(name):
        return name
    if not name.strip() or not name.isprintable():
        raise ToolDefinitionError(
            f"{shown(name)} cannot be a tool's name: it must have letters that can be printed, and no line breaks.",
        )
    made = "".join(each if _SAFE.fullmatch(each) else _escape(each) for each in name)
    if own_name(made) != name:  # the name itself looks like an escape somewhere
        made = "".join(
            each if _SAFE.fullmatch(each) and each != "_" else _escape(each) for each in name
        )
    if len(made) > LONGEST:
        also = f" (`{made}` with its special characters written out)" if made != name else ""
        msg = f"`{name}`{also} is longer than the {LONGEST} characters that providers take for a tool's name. Give `name=` a shorter one."
        raise ToolDefinitionError(msg)
    return made


def own_name(wire: str) -> str:
    """The inverse of `wire_name`: the tool's own name."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else ".", wire)


def tool_line(name: str, description: str, schema: Schema) -> str:
    """One line of a prompt: `calculator, whose description is <desc>...</desc>. It takes arguments {...}.`

    A description cannot end its own field or imitate a marker of the prompt.
    """
    from ferrule.schema.words import escape_markers

    said = " ".join(_END.sub("&lt;", description).splitlines())
    about = f", whose description is <desc>{said}</desc>" if said.strip() else ""
    properties: Any = schema.get("properties") or {}
    more: Any = schema.get("additionalProperties", False)
    takes = (
        f"arguments {json_text(properties)}"
        if properties
        else "no arguments"
        if more is False
        else "any arguments by name"
    )
    if names_elsewhere(schema):
        takes = f"arguments by the schema {json_text({key: value for key, value in schema.items() if key != '$defs'})}"
    elif properties and more not in (False, None):
        takes += " and any others by name"
    if schema.get("$defs"):
        takes += f", where `$defs` are {json_text(schema['$defs'])}"
    return escape_markers(escape_surrogates(f"{name}{about}. It takes {takes}."))


def call_schema(name: str, parameters: Schema) -> dict[str, Any]:
    """The JSON schema of one call of a tool. Order matters: a model writes the reason before the choice."""
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


def tool_state(given: ToolDefinition, parameters: Schema) -> dict[str, Any]:
    """The tool as plain data, without its function."""
    return {
        "name": given.name,
        "description": given.description,
        "parameters": parameters,
        "require_confirmation": bool(given.require_confirmation)
        if callable(given.require_confirmation)
        else given.require_confirmation,
        "effect": given.effect,
        # Left out at its default, so that states saved before the option existed stay equal.
        **({"unknown": given.unknown} if given.unknown != "ask" else {}),
        "timeout_s": given.timeout_s,
        "concurrent": given.concurrent,
        "mcp_server": given.mcp_server,
        **({"mcp": given.mcp.as_json()} if given.mcp is not None else {}),
    }


def _escape(character: str) -> str:
    return "_dot_" if character == "." else f"_x{ord(character):02x}_"


# -- intention
# ------------------------------------------------------------------------------------------------------


def check_no_intention_argument(tools: Iterable[ToolSpec]) -> None:
    """Raise `ToolDefinitionError` for a tool that has an argument named `intention`: the two would be confused."""
    for tool in tools:
        if INTENTION in tool.declaration["function"]["parameters"].get("properties", ()):
            msg = (
                f"`{tool.name}` has an argument `{INTENTION}` of its own, and the agent asks for the intention of every call. "
                f"Rename the argument, or make the agent with `intention=False`."
            )
            raise ToolDefinitionError(msg)


def add_intention(tools: Iterable[ToolSpec], *, without: str) -> Declarations:
    """Declarations that ask for the intention first, except for the tool named `without`."""
    return Declarations(
        tool.declaration if tool.name == without else _asking(tool.declaration) for tool in tools
    )


def _asking(declaration: Mapping[str, Any]) -> dict[str, Any]:
    function: Mapping[str, Any] = declaration["function"]
    parameters: Mapping[str, Any] = function["parameters"]
    asking = {
        **parameters,
        **{
            key: [_knowing(branch) for branch in parameters[key]]
            for key in ("anyOf", "oneOf", "allOf")
            if key in parameters
        },
        "properties": {INTENTION: dict(_INTENTION_FIELD), **parameters.get("properties", {})},
        "required": [INTENTION, *parameters.get("required", ())],
    }
    return {**declaration, "function": {**function, "parameters": asking}}


def _knowing(branch: Any) -> Any:
    """Add the intention to a branch of a union, which may forbid further arguments."""
    if not isinstance(branch, dict) or "properties" not in branch:
        return cast("Any", branch)
    form = cast("dict[str, Any]", branch)
    return {**form, "properties": {INTENTION: dict(_INTENTION_FIELD), **form["properties"]}}


def take_intention(call: ToolCall) -> ToolCall:
    """Move the intention from the arguments of a call to the call. A call without one is accepted."""
    if INTENTION not in call.args:
        return call
    rest = dict(call.args)
    why = rest.pop(INTENTION)
    return call.changed(
        args=rest,
        intention=call.intention or (why.strip() if isinstance(why, str) else None) or None,
    )


def write_intention(call: ToolCall) -> ToolCall:
    """Move the intention back into the arguments, where a model writes it in a native call."""
    if call.intention is None:
        return call
    return call.changed(args={INTENTION: call.intention, **call.args}, intention=None)
