"""Check arguments against a schema that the user gave, and convert arguments to JSON for display.

The function's types and the schema may disagree on the form: a `Decimal` is text in JSON but a
"number" in the schema, a secret is shown as stars. So the coerced values are checked first, and
those that do not fit are replaced by the given values.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import is_masked, json_text, jsonable, object_text
from ferrule.errors import ToolDefinitionError
from ferrule.schema.iterables import core_nodes, model_fields_of
from ferrule.schema.nodes import Schema, admitted_types, is_list, is_object, json_type
from ferrule.schema.validator import Validator
from ferrule.schema.words import describe_expected

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.schema.explain import Problem

_DEEPEST = 60
_SCALARS = frozenset({int, str, bool, type(None)})
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, deque)
_PARTLY = frozenset({"serialization_exclude", "serialization_exclude_if"})


def build_validator(tool: str, schema: Schema, *, lenient: bool = False) -> Validator:
    """The validator for a schema. Raises `ToolDefinitionError` for a schema that it cannot use."""
    try:
        return Validator(schema, lenient=lenient)
    except ValueError as error:
        raise ToolDefinitionError(f"The schema of `{tool}` cannot be used: {error}.") from error


def check_by_schema(
    coerced: dict[str, Any],
    originals: dict[str, Any],
    schema: Schema,
    find_problems: Callable[[dict[str, Any]], list[Problem]],
) -> list[Problem]:
    """The problems of arguments, by their names in the schema.

    `coerced` are the coerced values, as shown; `originals` are those before.
    """
    secrets = {name for name, value in coerced.items() if is_masked(value)}
    payload = {**coerced, **{name: _as_json(originals[name]) for name in secrets}}
    problems = find_problems(payload)
    if problems:
        # The coerced form may be at fault, so the original values get a try. But one whose type the
        # schema does not admit was coerced for that reason (text to a number): it stays coerced.
        misfits = {_name_in(path, payload) for path, _ in problems}
        is_about_all = None in misfits
        properties = schema.get("properties", {})
        for name in [name for name in payload if is_about_all or name in misfits]:
            value = _as_json(originals[name])
            if _is_admitted(value, properties.get(name, True), schema):
                payload[name] = value
        problems = find_problems(payload)
    reported: list[Problem] = []
    for path, text in problems:
        if _name_in(path, payload) in secrets:
            reported.append((path, _text_without_value(path, schema)))
        else:
            reported.append((path, text))
    return reported


def _name_in(path: str, payload: dict[str, Any]) -> str | None:
    """The argument with a problem; None if the problem concerns all arguments."""
    for name in payload:
        if path == name or path.startswith(f"{name}."):
            return name
    return None


def _is_admitted(value: Any, node: Any, root: Schema) -> bool:
    admitted, kind = admitted_types(node, root), json_type(value)
    if admitted is None or kind in admitted:
        return True
    return kind == "integer" and "number" in admitted


def _text_without_value(path: str, schema: Schema) -> str:
    """The text of a problem with a secret, which does not show the secret."""
    node: Any = schema.get("properties", {}).get(path)
    if not is_object(node):
        return "does not fit the schema"
    return f"expected {describe_expected(node, schema)}"


def _as_json(value: Any) -> Any:
    """The value as a model would write it in JSON; Python code may pass objects."""
    match value:
        case Decimal() if value.is_finite():
            if value == value.to_integral_value():
                return int(value)
            return float(value)
        case timedelta():
            return value.total_seconds()
        case datetime():
            return value.isoformat()
        case _:
            reveal = getattr(value, "get_secret_value", None)
            if reveal is not None:
                value = reveal()
            return json_view(value)


def json_view(value: Any, depth: int = 0) -> Any:
    """A value as JSON, for people, journal and observers.

    Sets are sorted: their order differs by process, and views are compared.
    """
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _SCALARS or (kind is float and math.isfinite(value)):
        return value
    if depth > _DEEPEST:
        return jsonable(value)  # which cuts values that are too deep or contain themselves
    if kind is list or kind is tuple:
        return [json_view(item, depth + 1) for item in value]
    if kind is dict:
        view: dict[str, Any] = {}
        for name, item in value.items():
            if isinstance(name, str):
                text = name
            else:
                text = json_text(name).strip('"')
            view[text] = json_view(item, depth + 1)
        return view
    if kind is set or kind is frozenset:
        return sorted((json_view(item, depth + 1) for item in value), key=json_text)
    if isinstance(value, Iterator):  # a file, for example: showing its content would read it
        return object_text(cast("Any", value))
    if _is_written_otherwise(kind):
        return _as_read(value, jsonable(value))
    return jsonable(value)


# -- models: a person sees, and sends back, the names of the schema


@lru_cache(maxsize=256)
def _is_written_otherwise(kind: Any) -> bool:
    """Whether a model, or one inside it, is serialized otherwise than it is validated.

    It then has other names, or lacks some fields.
    """
    core = getattr(kind, "__pydantic_core_schema__", None)
    if core is None:  # its fields and items may be anything
        return issubclass(kind, _CONTAINERS) or hasattr(kind, "__dataclass_fields__")
    return any(
        node.get("validation_alias") != node.get("serialization_alias")
        or not _PARTLY.isdisjoint(node)
        for node in core_nodes(core)
    )


def _as_read(value: Any, written: Any) -> Any:
    """The JSON of a value, in which models have all their fields, under the schema's names.

    `written` is the value's JSON as pydantic writes it.
    """
    kind = cast("Any", type(value))
    if is_list(written) and isinstance(value, _CONTAINERS) and len(value) == len(written):
        return [_as_read(item, form) for item, form in zip(value, written, strict=True)]
    if is_object(written) and is_object(value) and len(value) == len(written):
        pairs = zip(written.items(), value.values(), strict=True)
        return {name: _as_read(item, form) for (name, form), item in pairs}
    if getattr(kind, "__pydantic_root_model__", False):
        return _as_read(cast("Any", value).root, written)
    fields = model_fields_of(kind)
    decorators = getattr(kind, "__pydantic_decorators__", None)
    has_own_serializer = getattr(decorators, "model_serializers", None)
    if not is_object(written) or not fields or has_own_serializer:
        return written
    unread = dict(written)
    read: dict[str, Any] = {}
    for name, field in fields.items():
        item = getattr(value, name, None)
        alias = getattr(field, "serialization_alias", None) or name
        if alias in unread:
            form = _as_read(item, unread.pop(alias))
        else:
            form = json_view(item)
        read[_read_name(name, getattr(field, "validation_alias", None))] = form
    return {**read, **unread}


def _read_name(name: str, alias: Any) -> str:
    """The name of a field in the schema."""
    for choice in getattr(alias, "choices", (alias,)):
        if isinstance(choice, str):
            return choice
    return name
