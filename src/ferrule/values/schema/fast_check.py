"""A fast check that accepts values which clearly fit a JSON schema.

`True` means that the value fits; `False` only means "ask `jsonschema`", which takes 0.1 s to import and three times as long to run. Most
calls fit, so most never need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.values.schema.nodes import Schema, is_list, is_object

_Check = Callable[[Any], bool]

_NOTES = frozenset(
    {"title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id"}
)
_KNOWN = _NOTES | {
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"),
}


def quick_check(schema: Any) -> _Check | None:
    """A function that returns True only for values that fit; None for a schema with a keyword that it does not know."""
    if schema is True:
        return _anything
    if not is_object(schema) or not schema.keys() <= _KNOWN or "$id" in schema:
        return None
    checks: list[_Check] = []
    for made in (_type(schema), _choice(schema), _limits(schema), _object(schema), _array(schema), _union(schema)):
        if made is None:
            return None
        if made is not _anything:
            checks.append(made)
    return checks[0] if len(checks) == 1 else lambda value: all(check(value) for check in checks)


def _anything(value: Any) -> bool:
    del value
    return True


_TYPES: dict[str, _Check] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) is int or (type(value) is float and value - value == 0.0),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: type(value) is dict,
    "array": lambda value: type(value) is list,
}


def _type(schema: Schema) -> _Check | None:
    kind = schema.get("type")
    if kind is None:
        return _anything
    if isinstance(kind, str):
        return _TYPES.get(kind)
    checks = [_TYPES[each] for each in kind if isinstance(each, str) and each in _TYPES] if is_list(kind) else []
    return (lambda value: any(check(value) for check in checks)) if checks else None


def _choice(schema: Schema) -> _Check | None:
    choices: Any = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is None:
        return _anything
    # Only text: for numbers and booleans Python's equality differs from JSON's.
    if ("const" in schema and "enum" in schema) or not is_list(choices) or not all(isinstance(each, str) for each in choices):
        return None
    admitted = frozenset(choices)
    return lambda value: isinstance(value, str) and value in admitted


def _limits(schema: Schema) -> _Check | None:
    numbers: list[_Check] = []
    for key, fits in _COMPARISONS.items():
        if key in schema:
            bound = schema[key]
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                return None
            numbers.append(lambda value, fits=fits, bound=bound: fits(value, bound))
    if not numbers:
        return _anything
    return lambda value: all(check(value) for check in numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: not _is_number(value) or value >= bound,
    "maximum": lambda value, bound: not _is_number(value) or value <= bound,
    "exclusiveMinimum": lambda value, bound: not _is_number(value) or value > bound,
    "exclusiveMaximum": lambda value, bound: not _is_number(value) or value < bound,
    "minLength": lambda value, bound: not isinstance(value, str) or len(value) >= bound,
    "maxLength": lambda value, bound: not isinstance(value, str) or len(value) <= bound,
    "minItems": lambda value, bound: type(value) is not list or len(value) >= bound,  # pyright: ignore[reportUnknownArgumentType]
    "maxItems": lambda value, bound: type(value) is not list or len(value) <= bound,  # pyright: ignore[reportUnknownArgumentType]
}


def _object(schema: Schema) -> _Check | None:
    if not schema.keys() & {"properties", "required", "additionalProperties"}:
        return _anything
    properties: Any = schema.get("properties", {})
    required: Any = schema.get("required", [])
    more: Any = schema.get("additionalProperties", True)
    if not is_object(properties) or not is_list(required):
        return None
    checks: dict[str, _Check] = {}
    for name, each in properties.items():
        made = quick_check(each)
        if made is None:
            return None
        checks[name] = made
    others = quick_check(more) if more is not False else _nothing
    if others is None:
        return None
    wanted = frozenset(required)

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return True
        found: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return found.keys() >= wanted and all(checks.get(name, others)(each) for name, each in found.items())

    return fits


def _nothing(value: Any) -> bool:
    del value
    return False


def _array(schema: Schema) -> _Check | None:
    if "items" not in schema:
        return _anything
    each = quick_check(schema["items"])
    if each is None:
        return None
    return lambda value: type(value) is not list or all(map(each, value))  # pyright: ignore[reportUnknownArgumentType]


def _union(schema: Schema) -> _Check | None:
    if "anyOf" not in schema:
        return _anything
    checks = [quick_check(each) for each in schema["anyOf"]]
    if not checks or None in checks:
        return None
    return lambda value: any(check(value) for check in checks if check is not None)
