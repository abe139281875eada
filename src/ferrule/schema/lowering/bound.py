"""Bound a schema: make one that has finitely many values and a longest text, with recursion unrolled to a given depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.schema.lowering.grammar import ANY_VALUE
from ferrule.schema.nodes import Schema, find_pointer, is_object, members

if TYPE_CHECKING:
    from ferrule.schema.lowering.lower import LoweredSchema

_PER_CHARACTER = 6
"""The most bytes that a character takes in JSON, as in `\\u0000`."""


class Bounds(Struct, frozen=True, kw_only=True):
    """Limits that apply where a schema sets none of its own."""

    depth: int = 3
    """The number of times that a definition may contain itself."""
    chars: int = 200
    """The characters of a text and of a property's name. A text with a pattern may have 400, if that is more."""
    items: int = 8
    """The items of a list, and the properties whose names the schema leaves open."""
    decimals: int = 6
    """The digits after the decimal point of a number."""


def bound(lowered: LoweredSchema, bounds: Bounds | None = None) -> Schema:
    """Make a schema without references that has finitely many values. The given schema, lowered for a grammar, admits all of them.

    Raises `ValueError` if no value fits the bounds.
    """
    made = _Unrolling(lowered.schema, bounds or Bounds()).node(lowered.schema, ())
    if made is None:
        raise ValueError("No value of this schema fits the bounds: raise `depth` or `items`.")
    return made


class _Unrolling:
    def __init__(self, root: Schema, bounds: Bounds) -> None:
        self._root = root
        self._bounds = bounds

    def node(self, schema: Schema, inside: tuple[str, ...]) -> Schema | None:
        """The bounded schema inside these definitions; None if it has no finite value."""
        if "$ref" in schema:
            reference: str = schema["$ref"]
            most = 1 if reference.endswith(ANY_VALUE) else self._bounds.depth
            return (
                self.node(find_pointer(reference, self._root), (*inside, reference))
                if inside.count(reference) <= most
                else None
            )
        if "enum" in schema:
            return schema
        if "anyOf" in schema:
            branches = [
                made for each in schema["anyOf"] if (made := self.node(each, inside)) is not None
            ]
            return {"anyOf": branches} if branches else None
        match schema.get("type"):
            case "object":
                return self._object(schema, inside)
            case "array":
                return self._array(schema, inside)
            case "string":
                least = schema.get("minLength", 0)
                own = (
                    max(self._bounds.chars, least)
                    if "pattern" not in schema
                    else max(self._bounds.chars, least, 400)
                )
                return {**schema, "maxLength": min(schema.get("maxLength", own), own)}
            case "number":
                return (
                    schema
                    if "multipleOf" in schema
                    else {**schema, "multipleOf": float(f"1e-{self._bounds.decimals}")}
                )
            case _:
                return {key: value for key, value in schema.items() if key != "$defs"}

    def _object(self, schema: Schema, inside: tuple[str, ...]) -> Schema | None:
        required: list[str] = schema.get("required") or []
        named = {
            name: self.node(each, inside) for name, each in members(schema, "properties").items()
        }
        if any(named[name] is None for name in required):
            return None
        kept = {name: each for name, each in named.items() if each is not None}
        made: Schema = {
            "type": "object",
            "properties": kept,
            "required": required,
            "additionalProperties": False,
        }
        made |= {key: schema[key] for key in ("minProperties", "maxProperties") if key in schema}
        if len(required) == len(kept):  # otherwise the engine cannot count the other properties
            most = min(
                schema.get("maxProperties", self._bounds.items),
                self._bounds.items + len(kept),
            )
            more: Any = schema.get("additionalProperties")
            if is_object(more) and (each := self.node(more, inside)) is not None:
                any_name = f"^[^\\x00-\\x1f]{{0,{self._bounds.chars}}}$"  # names have no limit of their own
                made |= (
                    {"patternProperties": {any_name: each}, "maxProperties": most}
                    if not kept
                    else {}
                )
            for pattern, value in members(schema, "patternProperties").items():
                each = self.node(value, inside)
                if each is not None:
                    made |= {"patternProperties": {pattern: each}, "maxProperties": most}
        return (
            made
            if schema.get("minProperties", 0) == 0 or kept or "patternProperties" in made
            else None
        )

    def _array(self, schema: Schema, inside: tuple[str, ...]) -> Schema | None:
        least: int = schema.get("minItems", 0)
        places = [self.node(each, inside) for each in schema.get("prefixItems") or ()]
        places = places[: places.index(None)] if None in places else places
        more: Any = schema.get("items")
        each = (
            self.node(more, inside)
            if is_object(more) and len(places) == len(schema.get("prefixItems") or ())
            else None
        )
        most = max(self._bounds.items, least) if each is not None else len(places)
        most = min(most, schema.get("maxItems", most))
        if least > most:
            return None
        made: Schema = {
            "type": "array",
            "minItems": least,
            "maxItems": most,
            "items": each if each is not None else False,
        }
        return {**made, "prefixItems": places} if places else made


def longest_bytes(schema: Schema) -> int:
    """An upper bound on the bytes of a bounded schema's values, as JSON without whitespace."""
    if "enum" in schema:
        return max(len(json_text(each).encode()) for each in schema["enum"])
    if "anyOf" in schema:
        return max(map(longest_bytes, schema["anyOf"]))
    match schema.get("type"):
        case "object":
            named = members(schema, "properties")
            total = 2 + sum(
                len(json_text(name).encode()) + 2 + longest_bytes(each)
                for name, each in named.items()
            )
            for each in members(schema, "patternProperties").values():
                total += schema["maxProperties"] * (
                    2 + _PER_CHARACTER * 400 + 2 + longest_bytes(each)
                )
            return total
        case "array":
            places = [
                longest_bytes(each)
                for each in (schema.get("prefixItems") or ())[: schema["maxItems"]]
            ]
            more: Any = schema["items"]
            rest = (
                (schema["maxItems"] - len(places)) * (longest_bytes(more) + 1)
                if is_object(more)
                else 0
            )
            return 2 + sum(places) + len(places) + rest
        case "string":
            return 2 + _PER_CHARACTER * schema["maxLength"]
        case "integer" | "number":
            bounds = (
                schema.get(key, 0)
                for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
            )
            return (
                max(len(str(int(each))) for each in bounds)
                + 1
                + _decimals(schema.get("multipleOf", 1))
            )
        case "boolean":
            return len("false")
        case _:
            return len("null")


def _decimals(step: float) -> int:
    from decimal import Decimal

    exponent = Decimal(str(step)).as_tuple().exponent
    return max(0, -exponent) + 1 if isinstance(exponent, int) else 0
