import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ferrule.values.schema.fast_check import quick_check

NAMES = st.sampled_from(["a", "b", "c"])
SCHEMAS = st.deferred(
    lambda: (
        st.just(True)
        | st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(
                    ["string", "integer", "number", "boolean", "null", "array", "object", ["string", "null"], ["integer", "array"]],
                ),
                "items": SCHEMAS,
                "properties": st.dictionaries(NAMES, SCHEMAS, max_size=3),
                "required": st.lists(NAMES, max_size=2, unique=True),
                "additionalProperties": st.just(False) | SCHEMAS,
                "anyOf": st.lists(SCHEMAS, min_size=1, max_size=2),
                "enum": st.lists(st.sampled_from(["a", "x", ""]), min_size=1, max_size=2, unique=True),
                "minimum": st.integers(-3, 3),
                "exclusiveMaximum": st.integers(-3, 3),
                "minLength": st.integers(0, 2),
                "maxItems": st.integers(0, 2),
                "description": st.just("text"),
            },
        )
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 4) | st.sampled_from([0.5, 1.0, "", "a", "x", "abc"]),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(SCHEMAS, VALUES)
def test_a_yes_is_always_jsonschemas_yes(schema, value):
    """U15: a shortcut, never another rule."""
    check = quick_check(schema)
    if check is not None and check(value):
        assert Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"pattern": "a"},
        {"$ref": "#"},
        {"oneOf": []},
        {"enum": [1]},
        {"const": 1},
        {"type": "strange"},
        {"minimum": "3"},
        {"properties": {"a": {"not": {}}}},
        3,
        {"type": []},
    ],
)
def test_what_it_does_not_know_it_leaves_to_jsonschema(schema):
    """ours."""
    assert quick_check(schema) is None


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "integer"}, 1, True),
        ({"type": "integer"}, True, False),
        ({"type": "number"}, float("nan"), False),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}, {"a": "x"}, True),
        ({"type": "object", "additionalProperties": False}, {"a": 1}, False),
        ({"enum": ["a"]}, "a", True),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}]}, [1, 2], True),
    ],
)
def test_plain_values_are_seen_to_fit(schema, value, fits):
    """ours: else the shortcut would be of no use."""
    assert quick_check(schema)(value) is fits
