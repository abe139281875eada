import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.tools.arguments.repairs import decode_object, decode_text, repair, unwrap

ROOT = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "s": {"type": "string"},
        "xs": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
        "o": {
            "type": "object",
            "properties": {"deep": {"type": "array", "items": {"type": "integer"}}},
            "additionalProperties": {"type": "string"},
        },
        "t": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        "tree": {"$ref": "#/$defs/Tree"},
        "either": {
            "anyOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}},
                {"type": "object", "properties": {"a": {"type": "string"}}},
            ],
        },
        "any": {},
    },
    "required": ["n"],
    "$defs": {
        "Tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
            },
        },
    },
}


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ({"n": "7"}, {"n": 7}),
        ({"n": "x"}, {"n": "x"}),
        ({"s": 7}, {"s": "7"}),
        ({"s": True}, {"s": True}),
        ({"s": None}, {}),
        ({"n": None}, {"n": None}),
        ({"xs": "[1, null]"}, {"xs": [1, None]}),
        ({"xs": ["1.5", "null", "x"]}, {"xs": [1.5, None, "x"]}),
        ({"o": {"deep": '["1"]', "more": 3}}, {"o": {"deep": [1], "more": "3"}}),
        ({"t": ["1", 2, "x"]}, {"t": [1, "2", "x"]}),
        ({"tree": '{"kids": [{"value": "3"}]}'}, {"tree": {"kids": [{"value": 3}]}}),
        ({"either": {"a": "3"}}, {"either": {"a": "3"}}),
        ({"any": "[1]", "unknown": "[1]"}, {"any": "[1]", "unknown": "[1]"}),
    ],
)
def test_only_what_the_schema_refuses_and_what_is_plain_is_mended(args, wanted):
    notes = []
    assert repair(args, ROOT, notes) == wanted
    assert bool(notes) == (args != wanted)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
def test_a_value_that_was_turned_into_text_comes_back(value):
    """JSON and Python's own form."""
    kind = frozenset({"array" if isinstance(value, list) else "object"})
    assert decode_text(json.dumps(value), kind)[:2] == (value, True)
    assert decode_text(repr(value), kind)[:2] == (value, True)


@settings(deadline=None)
@given(st.text() | VALUES, st.dictionaries(st.text(max_size=4), VALUES, max_size=2))
def test_nothing_breaks_it(value, args):
    """ours."""
    notes = []
    decode_object(value, notes)
    unwrap(args, "tool", notes)
    repair(args, ROOT, notes)


def test_python_literals_that_json_does_not_have_are_left_alone():
    everything = frozenset({"array", "object", "string", "number", "integer", "boolean", "null"})
    for text in (
        "{1, 2}",
        "b'x'",
        "1j",
        "{1: 2}",
        "1,2",
        "[b'x']",
        "f(x)",
        "x",
        "",
        "NaN",
        "[" * 500,
        "...",
    ):
        assert decode_text(text, everything)[1] is False


def test_a_key_that_may_wrap_arguments_but_holds_none_is_an_argument():
    notes = []
    assert unwrap({"input": 5}, "tool", notes) is None
    assert notes == []
