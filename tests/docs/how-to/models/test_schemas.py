"""The claims of docs/how-to/models/schemas.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrule.schema.lowering.lower import TARGETS
from ferrule.schemas import lower_schema

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "models" / "schemas.md"
CASES: dict[str, tuple[dict[str, object], ...]] = {
    "an object or list of any form": (
        {"type": "object"},
        {"type": "array"},
        {"type": "object", "additionalProperties": True},
        {},
    ),
    "a dictionary": ({"type": "object", "additionalProperties": {"type": "integer"}},),
    "`$ref` to itself, in an optional property": ({"$ref": "#/$defs/Node"},),
    "`$ref` to itself elsewhere": ({"$ref": "#/$defs/Must"},),
    "`minimum`, `maximum`": ({"type": "number", "minimum": 1, "maximum": 2},),
    "`minItems`, `maxItems`": ({"type": "array", "items": {"type": "string"}, "maxItems": 3},),
    "`minLength`": ({"type": "string", "minLength": 1}, {"type": "string", "not": {"const": "a"}}),
    "a tuple": (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "maxItems": 2},
    ),
}
"""Beginnings of rows of the table, and schemas that they speak of."""


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/models/schemas.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/schemas.md") == []


@pytest.mark.parametrize("row", CASES)
def test_the_table_says_what_happens(row: str) -> None:
    """A cell says "unchanged" exactly where nothing is lost, and "no strict mode" exactly where
    there is none.
    """
    [cells] = re.findall(
        rf"^\| {re.escape(row)}[^|]*\|(.*)\|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    for target, cell in zip(TARGETS, cells.split("|"), strict=True):
        for schema in CASES[row]:
            node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
            must = {
                "type": "object",
                "properties": {"next": {"type": "array", "items": {"$ref": "#/$defs/Must"}}},
                "required": ["next"],
            }
            root = {
                "type": "object",
                "properties": {"x": schema},
                "required": ["x"],
                "$defs": {"Node": node, "Must": must},
            }
            lowered = lower_schema(root, target)
            assert (lowered.losses == ()) is ("unchanged" in cell), (target, schema)
            assert any(loss.breaking for loss in lowered.losses) is ("no strict mode" in cell), (
                target,
                schema,
            )
