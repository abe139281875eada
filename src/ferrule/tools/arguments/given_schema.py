"""Check arguments against a schema that the user gave, and convert arguments to JSON for display.

The function's types and the schema may disagree on the form: a `Decimal` is text in JSON but a
"number" in the schema, a secret is shown as stars. So the coerced values are checked first, and
those that do not fit are replaced by the given values.
"""

from __future__ import annotations

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
    taken: dict[str, Any],
    given: dict[str, Any],
    schema: Schema,
    broken: Callable[[dict[str, Any]], list[Problem]],
) -> list[Problem]:
    """The problems of arguments, by their names in the schema: `taken` are the coerced values, as shown, and `given` the original ones."""
    secret = {name for name, value in taken.items() if is_masked(value)}
    payload = {**taken, **{name: _as_json(given[name]) for name in secret}}
    problems = broken(payload)
    if problems:
        misfits = {_name_in(path, payload) for path, _ in problems}
        others = {
            name: _as_json(given[name])
            for name in (misfits if None not in misfits else payload)
            if name is not None
        }
        # A given value whose type the schema does not admit was coerced (text to a number, for
        # example): the coerced one stays.
        payload |= {
            name: value
            for name, value in others.items()
            if _is_admitted(value, schema.get("properties", {}).get(name, True), schema)
        }
        problems = broken(payload)
    return [
        (path, _silent(path, schema) if _name_in(path, payload) in secret else text)
        for path, text in problems
    ]


def _name_in(path: str, payload: dict[str, Any]) -> str | None:
    """The argument with a problem; None if the problem concerns all arguments."""
    return next((name for name in payload if path == name or path.startswith(f"{name}.")), None)


def _is_admitted(value: Any, node: Any, root: Schema) -> bool:
    admitted, kind = admitted_types(node, root), json_type(value)
    return admitted is None or kind in admitted or (kind == "integer" and "number" in admitted)


def _silent(path: str, schema: Schema) -> str:
    """The text of a problem with a secret, which does not show the secret."""
    node: Any = schema.get("properties", {}).get(path)
    return (
        f"expected {describe_expected(node, schema)}"
        if is_object(node)
        else "does not fit the schema"
    )


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


def json_view(value: Any, depth: int = 0) -> Any:
    """A value as JSON, for people, journal and observers. Sets are sorted: their order differs by process, and views are compared."""
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
        return {
            name if isinstance(name, str) else json_text(name).strip('"'): json_view(
                each,
                depth + 1,
            )
            for name, each in value.items()
        }
    if kind is set or kind is frozenset:
        return sorted((json_view(each, depth + 1) for each in value), key=json_text)
    if isinstance(value, Iterator):  # a file, for example: showing its content would read it
        return object_text(cast("Any", value))
    return jsonable(value) if not _is_written_otherwise(kind) else _as_read(value, jsonable(value))  # pyright: ignore[reportUnknownArgumentType]


# -- models: a person sees, and sends back, the names of the schema
# -------------------------------------------------------------


@lru_cache(maxsize=256)
def _is_written_otherwise(kind: Any) -> bool:
    """Whether a model, or one inside it, is serialized under other names than it is validated with, or without some fields."""
    core = getattr(kind, "__pydantic_core_schema__", None)
    if core is None:  # its fields and items may be anything
        return issubclass(kind, _CONTAINERS) or hasattr(kind, "__dataclass_fields__")
    nodes = core_nodes(core)
    return any(
        each.get("validation_alias") != each.get("serialization_alias")
        or not _PARTLY.isdisjoint(each)
        for each in nodes
    )


def _as_read(value: Any, written: Any) -> Any:
    """The JSON of a value. Models in it have all their fields, under the names that the schema uses."""
    kind = cast("Any", type(value))
    if is_list(written) and isinstance(value, _CONTAINERS) and len(value) == len(written):
        return [_as_read(*each) for each in zip(value, written, strict=True)]
    if is_object(written) and is_object(value) and len(value) == len(written):
        return {
            name: _as_read(each, written[name])
            for name, each in zip(written, value.values(), strict=True)
        }
    if getattr(kind, "__pydantic_root_model__", False):
        return _as_read(cast("Any", value).root, written)
    fields = model_fields_of(kind)
    if (
        not is_object(written)
        or not fields
        or getattr(getattr(kind, "__pydantic_decorators__", None), "model_serializers", None)
    ):
        return written
    left = dict(written)
    made: dict[str, Any] = {}
    for name, field in fields.items():
        inside, before = (
            getattr(value, name, None),
            left.pop(getattr(field, "serialization_alias", None) or name, left),
        )
        read = _read_name(name, getattr(field, "validation_alias", None))
        made[read] = _as_read(inside, before) if before is not left else json_view(inside)
    return {**made, **left}


def _read_name(name: str, alias: Any) -> str:
    """The name of a field in the schema."""
    return next(
        (each for each in getattr(alias, "choices", (alias,)) if isinstance(each, str)),
        name,
    )
