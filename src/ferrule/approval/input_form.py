"""The answers of two kinds of questions: a form that is filled in, and a result that is delivered.

A question of the kind `input` has a form, which a person fills in for an MCP server: the JSON
Schema of an object whose fields are texts, numbers, booleans or choices (MCP 2025-11-25,
client/elicitation). Defaults of the schema apply to fields that the person leaves out (SEP-1034).

A question of the kind `result` takes the result of a call that ends outside the run, as JSON or as
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from ferrule.encoding.pattern import pattern
from ferrule.encoding.stored import parse_json
from ferrule.errors import DecisionError, shown
from ferrule.schema.explain import SchemaCheck
from ferrule.schema.nodes import is_list, is_object, members

_SECRET = pattern(
    r"pass[\W_]*(?:word|phrase|code)|passwd|\bpwd\b|\bsecret|(?:api|access|private)[\W_]*key"
    r"|\btoken|credential|credit[\W_]*card|card[\W_]*number|\bcv[cv]\b|\bpin\b|seed[\W_]*phrase"
    r"|recovery[\W_]*code|one[\W_]*time[\W_]*code|\botp\b",
    re.IGNORECASE,
)
"""Words for secrets. A server that asks for one in other words is not noticed."""
Form = Mapping[str, Any] | None
"""The JSON Schema of an object with plain fields; None for no form."""


def form_fields(form: Form) -> dict[str, dict[str, Any]]:
    """The schema of each field, by name, in the form's order.

    A value that is not a schema counts as an empty one: the form comes from a server.
    """
    properties = members(dict(form or {}), "properties")
    return {name: schema if is_object(schema) else {} for name, schema in properties.items()}


def secret_fields(form: Form, message: str = "") -> list[str]:
    """The fields that ask for a secret, as far as their schema or their words say so.

    A server must not ask for secrets in a form (MCP 2025-11-25, client/elicitation): whatever a
    person types goes to the server, and is stored with the run. If the message alone names one,
    each text field may be meant.
    """
    fields = form_fields(form)
    names: list[str] = []
    for name, schema in fields.items():
        words = f"{name} {schema.get('title', '')} {schema.get('description', '')}"
        is_marked = schema.get("format") == "password" or schema.get("writeOnly") is True
        if is_marked or _SECRET.search(words):
            names.append(name)
    if not names and _SECRET.search(message):
        names = [name for name, schema in fields.items() if schema.get("type") == "string"]
    return names


def fill_form(form: Form, content: Mapping[str, Any]) -> dict[str, Any]:
    """The given values, with the form's defaults for the other fields."""
    values: dict[str, Any] = {}
    for name, schema in form_fields(form).items():
        if "default" in schema:
            values[name] = schema["default"]
    return {**values, **content}


def agree_to_form(form: Form) -> dict[str, Any]:
    """The values that a plain "yes" adds to the defaults.

    Only a boolean that is the single missing field becomes true; "yes" says nothing about others.
    """
    missing = _fields_without_default(form)
    if len(missing) == 1 and form_fields(form)[missing[0]].get("type") == "boolean":
        return {missing[0]: True}
    return {}


def read_form(form: Form, text: str) -> dict[str, Any]:
    """Read a typed answer as the values of a form.

    It is a JSON object, or a value alone if only one field can be meant. For any other text, raises
    a `DecisionError` that names the fields.
    """
    answer = json_or_none(text)
    if isinstance(answer, dict):
        return cast("dict[str, Any]", answer)
    fields = form_fields(form)
    # A lone value is for the only field that needs one, or for the only field.
    candidates = _fields_without_default(form) or list(fields)
    if len(candidates) != 1:
        raise DecisionError(
            f"This form takes a JSON object with {describe_form(form)}; found {shown(text)}."
        )
    name = candidates[0]
    # A text field takes the words as they were typed, even if they happen to be JSON ("12").
    if fields[name].get("type") == "string" or answer is None:
        return {name: text}
    return {name: answer}


def describe_form(form: Form) -> str:
    """The fields in words, for a person: `name` (string), `age` (integer, default 3)."""
    required = _list_or_empty((form or {}).get("required"))
    descriptions: list[str] = []
    for name, schema in form_fields(form).items():
        description = _describe_type(schema)
        if "default" in schema:
            description += f", default {json.dumps(schema['default'], ensure_ascii=False)}"
        if name not in required:
            description += ", may be left out"
        descriptions.append(f"`{name}` ({description})")
    return ", ".join(descriptions) or "no fields"


def result_of_text(returns: Mapping[str, Any] | None, text: str) -> Any:
    """A result that was written as text: JSON if that fits the declared type, else the text.

    `returns` is the JSON Schema of that type; None if the tool declares none.
    """
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        return text
    if result_problems(returns, value) and not result_problems(returns, text):
        return text
    return value


def result_problems(returns: Mapping[str, Any] | None, value: Any) -> tuple[str, ...]:
    """Why a value does not fit the declared type of a result; empty if it fits."""
    if returns is None:
        return ()
    return SchemaCheck(dict(returns))(value)


def json_or_none(text: str) -> Any:
    """The value of JSON text; None for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _describe_type(schema: Mapping[str, Any]) -> str:
    choices = _list_or_empty(schema.get("enum"))
    if not choices:
        # Choices with titles are a `oneOf` of constants.
        options = _list_or_empty(schema.get("oneOf"))
        choices = [option["const"] for option in options if is_object(option) and "const" in option]
    if choices:
        return " or ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return str(schema.get("type", "any"))


def _fields_without_default(form: Form) -> list[str]:
    return [name for name, schema in form_fields(form).items() if "default" not in schema]


def _list_or_empty(value: Any) -> list[Any]:
    return value if is_list(value) else []
