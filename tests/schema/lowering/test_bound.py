"""Schemas of finitely many values."""

import random

import pytest

from ferrule.models.local.constraint import Constraint
from ferrule.schema.lowering.bound import Bounds, bound, longest_bytes
from ferrule.schema.lowering.lower import lower_schema
from ferrule.testing import byte_vocabulary, random_walk

SMALL = Bounds(depth=2, chars=12, items=2, decimals=3)
TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "inside": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    "schema",
    [TREE, {}, {"type": "number"}, {"type": "string", "pattern": "^a*$"}, {"type": "object", "additionalProperties": {"type": "integer"}},
     {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "string"}}, {"anyOf": [{"type": "integer"}, {"const": "ä"}]}],
)  # fmt: skip
def test_no_value_is_longer_than_said_and_all_fit_the_original(schema):
    pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")
    constraint = Constraint.of_schema(byte_vocabulary(), schema, bounds=SMALL)
    for seed in range(30):
        matcher = random_walk(constraint, random.Random(seed))
        assert len(matcher.tokens) <= constraint.longest_bytes
        matcher.answer()


def test_recursion_is_unrolled_to_the_given_depth():
    def depth(schema) -> int:
        return (
            1 + depth(schema["properties"]["inside"]["items"])
            if "inside" in schema.get("properties", {})
            and schema["properties"]["inside"]["maxItems"]
            else 0
        )

    made = [depth(bound(lower_schema(TREE, "grammar"), Bounds(depth=n))) for n in (1, 2, 3)]
    assert made == sorted(set(made))
    assert longest_bytes(bound(lower_schema(TREE, "grammar"), Bounds(depth=1))) < longest_bytes(
        bound(lower_schema(TREE, "grammar")),
    )


def test_limits_of_the_schema_that_are_smaller_stay_and_a_least_size_is_kept():
    lowered = lower_schema(
        {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 9},
        "grammar",
    )
    assert bound(lowered, SMALL) == {
        "type": "array",
        "minItems": 9,
        "maxItems": 9,
        "items": {"type": "string", "maxLength": 3},
    }


def test_a_schema_whose_every_value_contains_another_cannot_be_bounded():
    endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    with pytest.raises(ValueError, match="depth"):
        bound(lower_schema(endless, "grammar"))
