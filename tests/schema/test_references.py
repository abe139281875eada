import math
from typing import Any

import pytest

from ferrule.schema.references import SchemaReferences, TooMuchWorkError, count_work


def count(schema: Any, *costly: str) -> float:
    return count_work(SchemaReferences(schema), lambda pattern: pattern in costly)


def doubling(
    levels: int,
    keyword: str = "anyOf",
    wrap: Any = lambda schema: schema,
) -> dict[str, Any]:
    """Definitions that each refer twice to the next."""
    made: dict[str, Any] = {
        f"d{i}": {keyword: [wrap({"$ref": f"#/$defs/d{i + 1}"})] * 2} for i in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**made, f"d{levels}": {"type": "string"}}}


def test_every_schema_that_applies_to_a_value_counts():
    assert count({"anyOf": [{}, {"allOf": [{}, True]}], "not": {}}) == 6
    assert (
        count({"properties": {"a": {}, "b": {"anyOf": [{}, {}]}}, "additionalProperties": {}}) == 4
    )


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda schema: schema,
        lambda schema: {"items": schema},
        lambda schema: {"properties": {"a": schema}},
    ],
    ids=["here", "items", "name"],
)
def test_each_doubling_doubles_the_count_and_many_are_refused(keyword, wrap):
    first, second = count(doubling(7, keyword, wrap)), count(doubling(8, keyword, wrap))
    assert 1.9 < second / first < 2.1
    with pytest.raises(TooMuchWorkError, match="references multiply"):
        count(doubling(20, keyword, wrap))


def test_the_same_definition_in_many_places_is_no_doubling():
    names = {f"p{i}": {"$ref": "#/$defs/d"} for i in range(500)}
    inner = {f"q{i}": {"$ref": "#/$defs/e"} for i in range(500)}
    assert (
        count(
            {
                "properties": names,
                "$defs": {"d": {"properties": inner}, "e": {"anyOf": [{}, {}, {}]}},
            },
        )
        < 10
    )


def test_how_much_work_a_recursion_makes_depends_on_the_value():
    assert count({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}) == math.inf
    union = [{"items": {"$ref": f"#/$defs/d{i}"}} for i in range(30)]
    assert (
        count({"$defs": {f"d{i}": {"anyOf": union} for i in range(30)}, "$ref": "#/$defs/d0"})
        == math.inf
    )


def test_definitions_that_apply_themselves_to_the_same_value_over_and_over_are_refused():
    assert count({"properties": {"x": {"$ref": "#/properties/x"}}}) == math.inf
    every = [{"$ref": f"#/$defs/d{i}"} for i in range(12)]
    with pytest.raises(TooMuchWorkError, match="references multiply"):
        count({"$defs": {f"d{i}": {"allOf": every} for i in range(12)}, "$ref": "#/$defs/d0"})


@pytest.mark.parametrize("levels", [60, 3_000])
def test_a_long_chain_of_references_is_refused(levels):
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(levels)}
    with pytest.raises(TooMuchWorkError, match="nested too deeply"):
        count({"$ref": "#/$defs/d0", "$defs": {**chain, f"d{levels}": {}}})


def test_a_costly_pattern_counts_as_many():
    assert count({"pattern": "a"}, "a") > 1_000
    assert count({"patternProperties": {"a": {}, "b": {}}}, "a") > 1_000


def test_the_count_itself_is_bounded_by_the_size_of_the_schema():
    everything = [{"items": {"$ref": f"#/$defs/d{i}"}} for i in range(60)]
    assert (
        count({"$defs": {f"d{i}": {"anyOf": everything} for i in range(60)}, "$ref": "#/$defs/d0"})
        == math.inf
    )


@pytest.mark.parametrize(
    ("schema", "reference", "pointer"),
    [
        ({"$defs": {"a/b": {}}}, "#/$defs/a~1b", "/$defs/a~1b"),
        ({"$defs": {"a b": {}}}, "#/$defs/a%20b", "/$defs/a b"),
        ({"$defs": {"a": {"$anchor": "here"}}}, "#here", "/$defs/a"),
        ({"$id": "https://a.example/s", "$defs": {"a": {"$id": "t"}}}, "t", "/$defs/a"),
        (
            {"$id": "https://a.example/s", "$defs": {"a": {"$id": "t", "items": {}}}},
            "https://a.example/t#/items",
            "/$defs/a/items",
        ),
        ({"definitions": {"a": {"$id": "#here"}}}, "#here", "/definitions/a"),
        ({}, "#", ""),
    ],
)
def test_a_reference_inside_the_schema_is_found(schema, reference, pointer):
    root = {**schema, "$ref": reference}
    found = SchemaReferences(root).targets(root)
    assert found is not None
    assert [each for each, _ in found] == [pointer]


@pytest.mark.parametrize(
    "reference",
    [
        "https://a.example/s",
        "file:///etc/hostname",
        "#/$defs/no",
        "#no",
        "other",
        "http://[",
        3,
        None,
        "#/x/",
    ],
)
def test_a_reference_out_of_the_schema_or_to_nothing_is_none(reference):
    root = {"$ref": reference}
    assert SchemaReferences(root).targets(root) is None
