import pytest

from ferrule.schema.nodes import admitted_types, alternatives, find_pointer


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"$ref": "#/$defs/L"}, {"const": True}]}, {"string", "boolean"}),
        ({"enum": [1, "a", None, 1.5]}, {"integer", "string", "null", "number"}),
        ({"allOf": [{"type": "string"}]}, {"string"}),
        ({"allOf": [{"minLength": 1}, {"type": "string"}]}, {"string"}),
        ({"allOf": [{"$ref": "#/$defs/Self"}, {"type": "string"}]}, {"string"}),
        ({}, None),
        (True, None),
        ({"anyOf": [{"type": "integer"}, {}]}, None),
        ({"$ref": "#/$defs/Gone"}, None),
        ({"$ref": "#/$defs/Loop"}, None),
    ],
)
def test_admitted_types(schema, wanted):
    """ours: repairs are made only where this is certain."""
    root = {
        "$defs": {
            "L": {"type": "string"},
            "Loop": {"$ref": "#/$defs/Loop"},
            "Self": {"allOf": [{"$ref": "#/$defs/Self"}]},
        },
    }
    found = admitted_types(schema, root)
    assert found == (frozenset(wanted) if wanted is not None else None)


def test_alternatives_of_a_circle_end():
    root = {
        "$defs": {
            "A": {"anyOf": [{"$ref": "#/$defs/B"}, {"type": "null"}]},
            "B": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "string"}]},
        },
    }
    assert alternatives({"$ref": "#/$defs/A"}, root) == [{"type": "null"}, {"type": "string"}]


def test_an_alternative_that_stands_twice_is_one():
    null = {"type": "null"}
    assert alternatives({"anyOf": [null, {"anyOf": [null, {"type": "string"}]}]}, {}) == [
        null,
        {"type": "string"},
    ]


def test_pointers_are_followed_only_inside():
    """ours."""
    root = {"$defs": {"a/b~c": 1}, "anyOf": [{"x": 2}]}
    assert find_pointer("#/$defs/a~1b~0c", root) == 1
    assert find_pointer("#/anyOf/0/x", root) == 2
    assert find_pointer("#", root) == root
    for outside in ("#/gone", "#/anyOf/7", "#name", "other.json", "https://x/y#/a"):
        assert find_pointer(outside, root) is None
