"""The limits of strict modes, checked before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.schema.lowering.rules import SchemaLoss, Target
from ferrule.schema.nodes import Schema, is_list, is_object, subschemas
from ferrule.schema.references import join_pointer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# OpenAI's limits for one strict schema ("Structured model outputs", section "Supported schemas",
# 2026-08).
_MOST_PROPERTIES = 5_000
_MOST_LEVELS = 10
_MOST_ENUM_VALUES = 1_000
_MOST_CHARACTERS = 120_000
_LONG_ENUM = 250
"""An enumeration of more values than this has a limit of its own for its characters."""
_MOST_CHARACTERS_OF_LONG_ENUM = 15_000

# Anthropic's limits for all strict tools of one request together ("Structured outputs", section
# "Schema complexity limits", 2026-10).
_MOST_STRICT_TOOLS = 20
_MOST_OPTIONAL = 24
_MOST_UNIONS = 16


def beyond_limits(schema: Schema, target: Target) -> Iterator[SchemaLoss]:
    """The losses of a lowered schema that exceeds strict mode's limits for one schema."""
    if target == "openai-strict":
        yield from _beyond_openai(schema)
    elif target == "anthropic":
        optional, unions = _complexity(schema)
        yield from _beyond(optional, _MOST_OPTIONAL, "properties", "optional properties")
        yield from _beyond(unions, _MOST_UNIONS, "properties", "unions")


def _beyond(count: int, most: int, keyword: str, what: str) -> Iterator[SchemaLoss]:
    if count > most:
        yield SchemaLoss(
            "", keyword, f"strict mode allows {most} {what}; found {count}", breaking=True
        )


def within_request(schemas: Mapping[int, Schema]) -> set[int]:
    """The schemas of strict tools that fit together into one request to Anthropic.

    As many as possible, the simplest first.
    """
    costs = [(*_complexity(schema), number) for number, schema in schemas.items()]
    costs.sort(key=lambda cost: cost[0] / _MOST_OPTIONAL + cost[1] / _MOST_UNIONS)
    chosen: set[int] = set()
    optional_left, unions_left = _MOST_OPTIONAL, _MOST_UNIONS
    for optional, unions, number in costs:
        fits = optional <= optional_left and unions <= unions_left
        if fits and len(chosen) < _MOST_STRICT_TOOLS:
            chosen.add(number)
            optional_left -= optional
            unions_left -= unions
    return chosen


def _complexity(schema: Schema) -> tuple[int, int]:
    """The numbers of optional properties and of unions in a schema."""
    optional = unions = 0
    for _, node in nodes(schema, ""):
        optional += len(set(node.get("properties") or ()) - set(node.get("required") or ()))
        unions += "anyOf" in node or is_list(node.get("type"))
    return optional, unions


def nodes(schema: Any, pointer: str) -> Iterator[tuple[str, Schema]]:
    """Every schema in a lowered schema, with its JSON pointer."""
    if is_object(schema):
        yield pointer, schema
        for keyword, step, part in subschemas(schema):
            yield from nodes(part, join_pointer(pointer, keyword, step))


def _beyond_openai(schema: Schema) -> Iterator[SchemaLoss]:
    properties = enum_values = characters = longest_enum = 0
    for _, node in nodes(schema, ""):
        properties += len(node.get("properties") or ())
        for key in ("properties", "$defs"):
            characters += sum(len(name) for name in node.get(key) or ())
        values: list[Any] = node.get("enum") or []
        texts = [value for value in values if isinstance(value, str)]
        length = sum(len(text) for text in texts)
        enum_values += len(values)
        characters += length
        if len(texts) > _LONG_ENUM:
            longest_enum = max(longest_enum, length)
    yield from _beyond(properties, _MOST_PROPERTIES, "properties", "properties in all")
    yield from _beyond(_depth(schema), _MOST_LEVELS, "properties", "levels of objects")
    yield from _beyond(enum_values, _MOST_ENUM_VALUES, "enum", "values of enumerations in all")
    yield from _beyond(characters, _MOST_CHARACTERS, "properties", "characters of names and values")
    yield from _beyond(
        longest_enum, _MOST_CHARACTERS_OF_LONG_ENUM, "enum", "characters of one enumeration"
    )


def _depth(schema: Any) -> int:
    """How many objects with properties are nested."""
    if not is_object(schema):
        return 0
    inside = max((_depth(part) for _, _, part in subschemas(schema)), default=0)
    return inside + ("properties" in schema)
