"""Forms that a person fills in when an MCP server asks for input (elicitation).

In: a JSON schema of an object whose fields are texts, numbers, booleans and choices, and a person's answer. Out: the values by field.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import DecisionError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    Form = Mapping[str, Any] | None


def fill_form(form: Form, content: Mapping[str, Any]) -> dict[str, Any]:
    """The values given, and the form's defaults for the others (MCP 2025-11-25, client/elicitation; SEP-1034)."""
    defaults = {name: field["default"] for name, field in form_fields(form).items() if "default" in field}
    return {**defaults, **content}


def agree_to_form(form: Form) -> dict[str, Any]:
    """The values that a plain yes gives besides the defaults: true for a boolean, if that is the only missing field."""
    wanted = [name for name, field in form_fields(form).items() if "default" not in field]
    return {wanted[0]: True} if len(wanted) == 1 and form_fields(form)[wanted[0]].get("type") == "boolean" else {}


def read_form(form: Form, said: str) -> dict[str, Any]:
    """A typed answer as the values of a form: a JSON object, or the value itself if only one is missing.

    Raises `DecisionError`, which names the fields, for any other text.
    """
    found = _json(said)
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    wanted = [name for name, field in form_fields(form).items() if "default" not in field] or list(form_fields(form))
    if len(wanted) != 1:
        msg = f"This form takes a JSON object with {describe_form(form)}; found {shown(said)}."
        raise DecisionError(msg)
    is_text = form_fields(form)[wanted[0]].get("type") == "string"
    return {wanted[0]: said if is_text or found is None else found}


def describe_form(form: Form) -> str:
    """The fields in words, for a person: `name` (string), `age` (integer, default 3)."""
    required = _listed((form or {}).get("required"))
    lines: list[str] = []
    for name, field in form_fields(form).items():
        choices = _listed(field.get("enum")) or [
            each["const"] for each in _listed(field.get("oneOf")) if isinstance(each, dict) and "const" in each
        ]
        kind = " or ".join(json.dumps(each, ensure_ascii=False) for each in choices) if choices else str(field.get("type", "any"))
        default = f", default {json.dumps(field['default'], ensure_ascii=False)}" if "default" in field else ""
        lines.append(f"`{name}` ({kind}{default}{'' if name in required else ', may be left out'})")
    return ", ".join(lines) or "no fields"


def form_fields(form: Form) -> dict[str, dict[str, Any]]:
    """The schema of each field, by name, in the form's order. A value that is no schema counts as an empty one."""
    found: Any = (form or {}).get("properties")
    by_name = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return {name: cast("dict[str, Any]", field) if isinstance(field, dict) else {} for name, field in by_name.items()}


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
