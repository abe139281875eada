"""Arguments against a schema that was given by hand.

In: arguments as they came, as the function is to get them (in JSON), and the schema that the model sees. Out: what is wrong with them. The
function's types and the schema may speak of different forms: a `Decimal` is a text in JSON where the schema says "number", a secret is
stars. So what coercion made is checked first, and then, where that does not fit, what was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ToolDefinitionError
from ferrule.values.encoding.encode import is_masked, json_text, jsonable, object_text
from ferrule.values.schema.nodes import Schema, admitted_types, is_object, json_type
from ferrule.values.schema.words import describe_expected

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.tools.arguments.problems import Problem

_DEEPEST = 60
_SCALARS = frozenset({int, str, bool, type(None)})


def build_validator(tool: str, schema: Schema) -> Any:
    """What `jsonschema` makes of a schema. Raises `ToolDefinitionError` for one that it cannot use."""
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    kind: Any = validator_for(schema, default=Draft202012Validator)  # pyright: ignore[reportUnknownVariableType]
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        msg = f"The schema of `{tool}` cannot be used: {error.message}."
        raise ToolDefinitionError(msg) from error
    return kind(schema)


def check_by_schema(
    taken: dict[str, Any], given: dict[str, Any], schema: Schema, broken: Callable[[dict[str, Any]], list[Problem]]
) -> list[Problem]:
    """What the schema refuses of arguments, by the names that it has for them: `taken` as they are shown, `given` as they came."""
    secret = {name for name, value in taken.items() if is_masked(value)}
    payload = {**taken, **{name: _as_json(given[name]) for name in secret}}
    problems = broken(payload)
    if problems:
        misfits = {_name_in(path, payload) for path, _ in problems}
        others = {name: _as_json(given[name]) for name in (misfits if None not in misfits else payload) if name is not None}
        # A text that stands for a number, say, was coerced: what came of it is what the schema is asked about.
        payload |= {name: value for name, value in others.items() if _is_admitted(value, schema["properties"].get(name, True), schema)}
        problems = broken(payload)
    return [(path, _silent(path, schema) if _name_in(path, payload) in secret else text) for path, text in problems]


def _name_in(path: str, payload: dict[str, Any]) -> str | None:
    """The argument that a problem is about; None where it is about all."""
    return next((name for name in payload if path == name or path.startswith(f"{name}.")), None)


def _is_admitted(value: Any, node: Any, root: Schema) -> bool:
    admitted, kind = admitted_types(node, root), json_type(value)
    return admitted is None or kind in admitted or (kind == "integer" and "number" in admitted)


def _silent(path: str, schema: Schema) -> str:
    """A problem of a secret, which is not told."""
    node: Any = schema["properties"].get(path)
    return f"expected {describe_expected(node, schema)}" if is_object(node) else "does not fit the schema"


def _as_json(value: Any) -> Any:
    """What was given, as the JSON that a model would have written for it; Python code may give objects."""
    match value:
        case Decimal() if value.is_finite():
            return int(value) if value == value.to_integral_value() else float(value)
        case timedelta():
            return value.total_seconds()
        case datetime():
            return value.isoformat()
        case _:
            reveal = getattr(value, "get_secret_value", None)
            return json_view(reveal() if reveal is not None else value)


def json_view(value: Any, depth: int = 0) -> Any:
    """A value as JSON. Sets are sorted: their order differs from process to process, and what is shown is compared across them."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _SCALARS or (kind is float and value - value == 0.0):
        return value
    if depth > _DEEPEST:
        return jsonable(value)  # which cuts what is too deep, or contains itself
    if kind is list or kind is tuple:
        if _SCALARS.issuperset(map(type, value)):
            return list(value)
        return [json_view(each, depth + 1) for each in value]
    if kind is dict:
        return {name if isinstance(name, str) else json_text(name).strip('"'): json_view(each, depth + 1) for name, each in value.items()}
    if kind is set or kind is frozenset:
        return sorted((json_view(each, depth + 1) for each in value), key=json_text)
    if isinstance(value, Iterator):  # a file, say: to show what is in it would be to read it
        return object_text(cast("Any", value))
    return jsonable(value)
