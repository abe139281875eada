"""Arguments checked against a given schema, and the JSON view of arguments.

The function's types and the schema may disagree on the form: a `Decimal` is text in JSON where the schema says "number", a secret is shown
as stars. So the coerced values are checked first, and those that do not fit are replaced by the values as they came.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from ferrule.errors import ToolDefinitionError
from ferrule.values.encoding.encode import is_masked, json_text, jsonable, object_text
from ferrule.values.schema.nodes import Schema, admitted_types, is_object, json_type
from ferrule.values.schema.validator import Validator
from ferrule.values.schema.words import describe_expected

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.tools.arguments.problems import Problem

_DEEPEST = 60
_SCALARS = frozenset({int, str, bool, type(None)})


def build_validator(tool: str, schema: Schema, *, lenient: bool = False) -> Validator:
    """The validator for a schema. Raises `ToolDefinitionError` for a schema that it cannot use."""
    try:
        return Validator(schema, lenient=lenient)
    except ValueError as error:
        raise ToolDefinitionError(f"The schema of `{tool}` cannot be used: {error}.") from error


def check_by_schema(
    taken: dict[str, Any], given: dict[str, Any], schema: Schema, broken: Callable[[dict[str, Any]], list[Problem]]
) -> list[Problem]:
    """The problems of arguments, keyed by their names in the schema: `taken` as they are shown, `given` as they came."""
    secret = {name for name, value in taken.items() if is_masked(value)}
    payload = {**taken, **{name: _as_json(given[name]) for name in secret}}
    problems = broken(payload)
    if problems:
        misfits = {_name_in(path, payload) for path, _ in problems}
        others = {name: _as_json(given[name]) for name in (misfits if None not in misfits else payload) if name is not None}
        # A value of another type was coerced (a text for a number, for example): the schema is asked about the result.
        payload |= {
            name: value for name, value in others.items() if _is_admitted(value, schema.get("properties", {}).get(name, True), schema)
        }
        problems = broken(payload)
    return [(path, _silent(path, schema) if _name_in(path, payload) in secret else text) for path, text in problems]


def _name_in(path: str, payload: dict[str, Any]) -> str | None:
    """The argument that a problem is about; None if it is about all."""
    return next((name for name in payload if path == name or path.startswith(f"{name}.")), None)


def _is_admitted(value: Any, node: Any, root: Schema) -> bool:
    admitted, kind = admitted_types(node, root), json_type(value)
    return admitted is None or kind in admitted or (kind == "integer" and "number" in admitted)


def _silent(path: str, schema: Schema) -> str:
    """The text for a problem of a secret, without the secret."""
    node: Any = schema.get("properties", {}).get(path)
    return f"expected {describe_expected(node, schema)}" if is_object(node) else "does not fit the schema"


def _as_json(value: Any) -> Any:
    """The value as a model would write it in JSON; Python code may pass objects."""
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


def is_formless(value: Any) -> bool:
    """Whether a value has no JSON form."""
    try:
        to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        return True
    return False


def json_view(value: Any, depth: int = 0) -> Any:
    """A value as JSON, for people, journal and observers. Sets are sorted: processes differ in their order, and views are compared."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _SCALARS or (kind is float and value - value == 0.0):
        return value
    if depth > _DEEPEST:
        return jsonable(value)  # which cuts values that are too deep or contain themselves
    if kind is list or kind is tuple:
        if _SCALARS.issuperset(map(type, value)):
            return list(value)
        return [json_view(each, depth + 1) for each in value]
    if kind is dict:
        return {name if isinstance(name, str) else json_text(name).strip('"'): json_view(each, depth + 1) for name, each in value.items()}
    if kind is set or kind is frozenset:
        return sorted((json_view(each, depth + 1) for each in value), key=json_text)
    if isinstance(value, Iterator):  # a file, for example: showing its content would read it
        return object_text(cast("Any", value))
    return jsonable(value)
