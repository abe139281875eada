"""The forms a tool is shown in: a line of a prompt, the schema of one call, plain data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.tools.definition import intention
from ferrule.values.encoding.encode import json_text
from ferrule.values.schema.words import escape_markers, escape_surrogates

if TYPE_CHECKING:
    from ferrule.tools.definition.constructor import ToolDefinition
    from ferrule.values.schema.nodes import Schema

_END = re.compile(r"<(?=\s*/\s*desc)", re.IGNORECASE)


def tool_line(name: str, description: str, schema: Schema) -> str:
    """`calculator, whose description is <desc>...</desc>. It takes arguments {...}.` (seed 001, line 314).

    Nothing in a description can end its field or pass for a marker of the prompt.
    """
    said = " ".join(_END.sub("&lt;", description).splitlines())
    about = f", whose description is <desc>{said}</desc>" if said.strip() else ""
    properties: Any = schema.get("properties") or {}
    more: Any = schema.get("additionalProperties", False)
    takes = f"arguments {json_text(properties)}" if properties else "no arguments" if more is False else "any arguments by name"
    if properties and more not in (False, None):
        takes += " and any others by name"
    if schema.get("$defs"):
        takes += f", where `$defs` are {json_text(schema['$defs'])}"
    return escape_markers(escape_surrogates(f"{name}{about}. It takes {takes}."))


def call_schema(name: str, parameters: Schema) -> dict[str, Any]:
    """The JSON schema of one call of a tool. The order matters: the reason is written before the choice."""
    definitions: Any = parameters.pop("$defs", None)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {intention.NAME: dict(intention.FIELD), "name": {"type": "string", "const": name}, "arguments": parameters},
        "required": [intention.NAME, "name", "arguments"],
        "additionalProperties": False,
    }
    if definitions:
        schema["$defs"] = definitions
    return schema


def tool_state(given: ToolDefinition, parameters: Schema) -> dict[str, Any]:
    """A tool as plain data."""
    return {
        "name": given.name,
        "description": given.description,
        "parameters": parameters,
        "require_confirmation": bool(given.require_confirmation) if callable(given.require_confirmation) else given.require_confirmation,
        "effect": given.effect,
        # Left out where it is what it is by default: states that were saved before there was a choice are equal to those of today.
        **({"unknown": given.unknown} if given.unknown != "ask" else {}),
        "timeout_s": given.timeout_s,
        "concurrent": given.concurrent,
        "mcp_server": given.mcp_server,
        **({"mcp": given.mcp.as_json()} if given.mcp is not None else {}),
    }
