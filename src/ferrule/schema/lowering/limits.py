"""The limits of strict modes, checked before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.schema.lowering.rules import SchemaLoss, Target
from ferrule.schema.nodes import Schema, is_list, is_object, subschemas
from ferrule.schema.references import join_pointer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PROPERTIES, _LEVELS, _ENUM_VALUES, _CHARACTERS, _LONG_ENUM, _CHARACTERS_OF_LONG_ENUM = (
    5_000,
    10,
    1_000,
    120_000,
    250,
    15_000,
)
"""OpenAI's limits for one strict schema ("Structured model outputs", section "Supported schemas", 2026-08)."""
_STRICT_TOOLS, _OPTIONAL, _UNIONS = 20, 24, 16
"""Anthropic's limits for all strict tools of one request together ("Structured outputs", section "Schema complexity limits", 2026-10)."""


def beyond_limits(schema: Schema, target: Target) -> Iterator[SchemaLoss]:
    """The losses of a lowered schema that exceeds strict mode's limits for one schema."""
    if target == "openai-strict":
        yield from _beyond_openai(schema)
    elif target == "anthropic":
        optional, unions = _complexity(schema)
        for count, most, what in (
            (optional, _OPTIONAL, "optional properties"),
            (unions, _UNIONS, "unions"),
        ):
            if count > most:
                yield SchemaLoss(
                    "",
                    "properties",
                    f"strict mode allows {most} {what}; found {count}",
                    breaking=True,
                )


def within_request(schemas: Mapping[int, Schema]) -> set[int]:
    """The schemas of strict tools that fit together into one request to Anthropic: as many as possible, the simplest first."""
    costs = {place: _complexity(schema) for place, schema in schemas.items()}
    chosen: set[int] = set()
    optional, unions = _OPTIONAL, _UNIONS
    for place, (some, other) in sorted(
        costs.items(),
        key=lambda item: item[1][0] / _OPTIONAL + item[1][1] / _UNIONS,
    ):
        if some <= optional and other <= unions and len(chosen) < _STRICT_TOOLS:
            chosen.add(place)
            optional, unions = optional - some, unions - other
    return chosen


def _complexity(schema: Schema) -> tuple[int, int]:
    """The numbers of optional properties and of unions in a schema."""
    found = [each for _, each in nodes(schema, "")]
    optional = sum(
        len(set(each.get("properties") or ()) - set(each.get("required") or ())) for each in found
    )
    return optional, sum("anyOf" in each or is_list(each.get("type")) for each in found)


def nodes(schema: Any, at: str) -> Iterator[tuple[str, Schema]]:
    """Every schema in a lowered schema, with its JSON pointer."""
    if is_object(schema):
        yield at, schema
        for keyword, step, each in subschemas(schema):
            yield from nodes(each, join_pointer(at, keyword, step))


def _beyond_openai(schema: Schema) -> Iterator[SchemaLoss]:
    found = [each for _, each in nodes(schema, "")]
    names = [
        name for each in found for key in ("properties", "$defs") for name in each.get(key) or ()
    ]
    enums: list[list[Any]] = [each["enum"] for each in found if "enum" in each]
    texts = [[value for value in enum if isinstance(value, str)] for enum in enums]
    characters = sum(map(len, names)) + sum(len(text) for each in texts for text in each)
    longest_enum = max((sum(map(len, each)) for each in texts if len(each) > _LONG_ENUM), default=0)
    counted = (
        (
            sum(len(each.get("properties") or ()) for each in found),
            _PROPERTIES,
            "properties",
            "properties in all",
        ),
        (_depth(schema), _LEVELS, "properties", "levels of objects"),
        (sum(map(len, enums)), _ENUM_VALUES, "enum", "values of enumerations in all"),
        (characters, _CHARACTERS, "properties", "characters of names and values"),
        (longest_enum, _CHARACTERS_OF_LONG_ENUM, "enum", "characters of one enumeration"),
    )
    for count, most, keyword, what in counted:
        if count > most:
            yield SchemaLoss(
                "",
                keyword,
                f"strict mode allows {most} {what}; found {count}",
                breaking=True,
            )


def _depth(schema: Any) -> int:
    if not is_object(schema):
        return 0
    return ("properties" in schema) + max(
        (_depth(each) for _, _, each in subschemas(schema)),
        default=0,
    )
