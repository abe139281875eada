"""Bound a schema: make one that has finitely many values and a longest text.

Definitions that contain themselves are unrolled to a given depth.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.schema.lowering.grammar import ANY_VALUE
from ferrule.schema.nodes import Schema, find_pointer, is_object, members

if TYPE_CHECKING:
    from ferrule.schema.lowering.lower import LoweredSchema

_LONGEST_ESCAPE = 6
"""The most bytes that a character takes in JSON, as in `\\u0000`."""
_LONGEST_BY_PATTERN = 400
"""The characters that a text with a pattern may have, if that is more than its bound."""


class Bounds(Struct, frozen=True, kw_only=True):
    """Limits that apply where a schema sets none of its own."""

    depth: int = 3
    """The number of times that a definition may contain itself."""
    chars: int = 200
    """The characters of a text and of a property's name.

    A text with a pattern may have 400, if that is more.
    """
    items: int = 8
    """The items of a list, and the properties whose names the schema leaves open."""
    decimals: int = 6
    """The digits after the decimal point of a number."""


def bound(lowered: LoweredSchema, bounds: Bounds | None = None) -> Schema:
    """Make a schema without references that has finitely many values.

    The given schema, lowered for a grammar, admits all of them. Raises `ValueError` if no value
    fits the bounds.
    """
    bounded = _Unrolling(lowered.schema, bounds or Bounds()).node(lowered.schema, ())
    if bounded is None:
        raise ValueError("No value of this schema fits the bounds: raise `depth` or `items`.")
    return bounded


class _Unrolling:
    def __init__(self, root: Schema, bounds: Bounds) -> None:
        self._root = root
        self._bounds = bounds

    def node(self, schema: Schema, inside: tuple[str, ...]) -> Schema | None:
        """The bounded schema inside these definitions; None if it has no finite value."""
        if "$ref" in schema:
            return self._reference(schema["$ref"], inside)
        if "enum" in schema:
            return schema
        if "anyOf" in schema:
            branches = [self.node(branch, inside) for branch in schema["anyOf"]]
            possible = [branch for branch in branches if branch is not None]
            return {"anyOf": possible} if possible else None
        match schema.get("type"):
            case "object":
                return self._object(schema, inside)
            case "array":
                return self._array(schema, inside)
            case "string":
                return self._string(schema)
            case "number" if "multipleOf" not in schema:
                return {**schema, "multipleOf": float(f"1e-{self._bounds.decimals}")}
            case "number":
                return schema
            case _:
                return {key: value for key, value in schema.items() if key != "$defs"}

    def _reference(self, reference: str, inside: tuple[str, ...]) -> Schema | None:
        # Any value may hold any value: two levels are enough, and more would grow without use.
        if reference.endswith(ANY_VALUE):
            most = 1
        else:
            most = self._bounds.depth
        if inside.count(reference) > most:
            return None
        return self.node(find_pointer(reference, self._root), (*inside, reference))

    def _string(self, schema: Schema) -> Schema:
        longest = max(self._bounds.chars, schema.get("minLength", 0))
        if "pattern" in schema:
            longest = max(longest, _LONGEST_BY_PATTERN)
        return {**schema, "maxLength": min(schema.get("maxLength", longest), longest)}

    def _object(self, schema: Schema, inside: tuple[str, ...]) -> Schema | None:
        required: list[str] = schema.get("required") or []
        properties: dict[str, Schema] = {}
        for name, part in members(schema, "properties").items():
            bounded = self.node(part, inside)
            if bounded is not None:
                properties[name] = bounded
            elif name in required:
                return None
        bounded_object: Schema = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        for key in ("minProperties", "maxProperties"):
            if key in schema:
                bounded_object[key] = schema[key]
        if len(required) == len(properties):  # otherwise the engine cannot count the others
            bounded_object |= self._other_properties(schema, inside, len(properties))
        has_form = properties or "patternProperties" in bounded_object
        if schema.get("minProperties", 0) > 0 and not has_form:
            return None
        return bounded_object

    def _other_properties(self, schema: Schema, inside: tuple[str, ...], named: int) -> Schema:
        """The keywords for properties whose names the schema leaves open."""
        keywords: Schema = {}
        most = min(schema.get("maxProperties", self._bounds.items), self._bounds.items + named)
        more: Any = schema.get("additionalProperties")
        if is_object(more) and not named:
            bounded = self.node(more, inside)
            if bounded is not None:
                # Names have no limit of their own.
                any_name = f"^[^\\x00-\\x1f]{{0,{self._bounds.chars}}}$"
                keywords = {"patternProperties": {any_name: bounded}, "maxProperties": most}
        for pattern, part in members(schema, "patternProperties").items():
            bounded = self.node(part, inside)
            if bounded is not None:
                keywords = {"patternProperties": {pattern: bounded}, "maxProperties": most}
        return keywords

    def _array(self, schema: Schema, inside: tuple[str, ...]) -> Schema | None:
        least: int = schema.get("minItems", 0)
        prefix: list[Any] = schema.get("prefixItems") or []
        first: list[Schema] = []
        for part in prefix:
            bounded = self.node(part, inside)
            if bounded is None:  # the list ends before it
                break
            first.append(bounded)
        rest: Schema | None = None
        if is_object(schema.get("items")) and len(first) == len(prefix):
            rest = self.node(schema["items"], inside)
        if rest is None:
            most = len(first)
        else:
            most = max(self._bounds.items, least)
        most = min(most, schema.get("maxItems", most))
        if least > most:
            return None
        bounded_array: Schema = {
            "type": "array",
            "minItems": least,
            "maxItems": most,
            "items": False if rest is None else rest,
        }
        if first:
            bounded_array["prefixItems"] = first
        return bounded_array


def longest_bytes(schema: Schema) -> int:
    """An upper bound on the bytes of a bounded schema's values, as JSON without whitespace."""
    if "enum" in schema:
        return max(_bytes(value) for value in schema["enum"])
    if "anyOf" in schema:
        return max(longest_bytes(branch) for branch in schema["anyOf"])
    match schema.get("type"):
        case "object":
            return _longest_object(schema)
        case "array":
            return _longest_array(schema)
        case "string":
            return 2 + _LONGEST_ESCAPE * schema["maxLength"]
        case "integer" | "number":
            return _longest_number(schema)
        case "boolean":
            return len("false")
        case _:
            return len("null")


def _longest_object(schema: Schema) -> int:
    total = len("{}")
    for name, part in members(schema, "properties").items():
        total += _bytes(name) + len(":,") + longest_bytes(part)
    for part in members(schema, "patternProperties").values():
        longest_name = 2 + _LONGEST_ESCAPE * _LONGEST_BY_PATTERN
        total += schema["maxProperties"] * (longest_name + len(":,") + longest_bytes(part))
    return total


def _longest_array(schema: Schema) -> int:
    most: int = schema["maxItems"]
    prefix: list[Schema] = schema.get("prefixItems") or []
    first = prefix[:most]
    total = len("[]") + sum(longest_bytes(part) + len(",") for part in first)
    rest: Any = schema["items"]
    if is_object(rest):
        total += (most - len(first)) * (longest_bytes(rest) + len(","))
    return total


def _longest_number(schema: Schema) -> int:
    keys = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    digits = max(len(str(int(schema.get(key, 0)))) for key in keys)
    return digits + len("-") + _decimals(schema.get("multipleOf", 1))


def _decimals(step: float) -> int:
    """The characters of a number after its digits: the decimal point and what follows it."""
    exponent = Decimal(str(step)).as_tuple().exponent
    if isinstance(exponent, int):
        return max(0, -exponent) + 1
    return 0


def _bytes(value: Any) -> int:
    return len(json_text(value).encode())
