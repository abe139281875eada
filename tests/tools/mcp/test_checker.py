import socket

import pytest

from ferrule.errors import ToolArgumentsError
from ferrule.schema.explain import SchemaCheck
from ferrule.tools.mcp.checker import MCPChecker

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def checker(properties, *, lenient=True, **more):
    return MCPChecker("t", {"type": "object", "properties": properties, **more}, lenient=lenient)


def problems(found, args):
    with pytest.raises(ToolArgumentsError) as caught:
        found.prepare(args)
    return dict(caught.value.problems)


FITS = {
    "types in a list": ({"x": {"type": ["boolean", "string"]}}, {"x": "a"}),
    "anyOf with null": ({"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, {"x": None}),
    "oneOf": ({"x": {"oneOf": [{"type": "integer"}, {"const": "all"}]}}, {"x": "all"}),
    "an optional one that is left out": ({"x": {"type": "integer"}}, {}),
    "another name": ({"x": {"type": "integer"}}, {"y": 1}),
}


@pytest.mark.parametrize(("properties", "args"), FITS.values(), ids=FITS.keys())
def test_what_fits_goes_out_as_it_is(properties, args):
    """Nothing is filled in or turned into something else."""
    found = checker(properties).prepare(args)
    assert (found.named, found.shown, found.positional, found.repairs) == (args, args, (), ())
    assert found.named is not args


def test_what_does_not_fit_is_told_with_its_path_and_what_may_stand_there():
    found = checker(
        {
            "kind": {"enum": ["a", "b"]},
            "of": {
                "type": "array",
                "items": {"type": "object", "properties": {"n": {"type": "integer"}}},
            },
        },
        required=["kind", "gone"],
    )
    assert problems(found, {"kind": "c", "of": [{"n": "x"}]}) == {
        "kind": 'expected one of "a", "b", got "c"',
        "of.0.n": 'expected an integer, got "x"',
        "gone": "is missing",
    }


def test_names_by_pattern_are_known_names():
    found = checker(
        {"a": {"type": "string"}},
        patternProperties={"^x-": {"type": "integer"}},
        additionalProperties=False,
    )
    assert found.prepare({"x-1": 3}).named == {"x-1": 3}
    assert "y" in problems(found, {"y": 1})


def test_a_recursive_schema_is_checked_all_the_way_down():
    found = MCPChecker(
        "t",
        {
            "type": "object",
            "$defs": {
                "N": {
                    "type": "object",
                    "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/N"}}},
                },
            },
            "properties": {"n": {"$ref": "#/$defs/N"}},
        },
        lenient=True,
    )
    assert found.prepare({"n": {"c": [{"c": []}]}}).named == {"n": {"c": [{"c": []}]}}
    assert "n.c.0.c" in problems(found, {"n": {"c": [{"c": 3}]}})


def test_each_draft_is_checked_by_its_own_rules():
    """A list of `items` is a tuple in draft 7, and `prefixItems` is a word of 2020-12 alone."""
    old = MCPChecker(
        "t",
        {
            "$schema": DRAFT_7,
            "type": "object",
            "properties": {"x": {"items": [{"type": "integer"}], "prefixItems": False}},
        },
        lenient=False,
    )
    assert old.prepare({"x": [1, "a"]}).named == {"x": [1, "a"]}
    assert problems(old, {"x": ["a"]})
    new = checker({"x": {"prefixItems": [{"type": "integer"}], "items": False}}, lenient=False)
    assert problems(new, {"x": [1, "a"]})


def test_a_reference_that_leads_out_is_never_fetched(monkeypatch):
    """What it says is the server's to check."""

    def connect(*args, **kwargs):
        raise AssertionError("something was fetched")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "create_connection", connect)
    found = checker(
        {
            "x": {"$ref": "https://example.com/s.json#/a/b"},
            "y": {"$ref": "http://127.0.0.1:9/s.json"},
            "n": {"type": "integer"},
        },
    )
    assert found.prepare({"x": 1, "y": 2, "n": 3}).named == {"x": 1, "y": 2, "n": 3}
    assert list(problems(found, {"x": 1, "y": 2, "n": "a"})) == ["n"]


def test_a_reference_to_nothing_refuses_nothing():
    found = checker({"x": {"$ref": "#/$defs/gone"}, "n": {"type": "integer"}})
    assert list(problems(found, {"x": 1, "n": "a"})) == ["n"]


def test_a_reference_by_anchor_or_dynamic_is_followed():
    found = MCPChecker(
        "t",
        {
            "type": "object",
            "$defs": {
                "a": {"$anchor": "here", "type": "string"},
                "b": {"$dynamicAnchor": "there", "type": "integer"},
            },
            "properties": {"x": {"$ref": "#here"}, "y": {"$dynamicRef": "#there"}},
        },
        lenient=False,
    )
    assert problems(found, {"x": 1, "y": "a"}).keys() == {"x", "y"}
    assert found.prepare({"x": "a", "y": 1}).named == {"x": "a", "y": 1}


def test_a_pattern_that_cannot_be_read_is_left_to_the_server():
    found = checker(
        {
            "x": {"type": "string", "pattern": "^(1"},
            "y": {"type": "string", "pattern": "^a"},
            "z": {"type": "string", "pattern": "^[[a]$"},
            "v": {"type": "string", "pattern": 5},
        },
    )
    fits = {"x": "1", "z": "[", "v": "a"}
    assert found.prepare(fits).named == fits
    assert list(problems(found, {**fits, "y": "b"})) == ["y"]
    assert found.prepare({"y": "a\ud800"}).named == {"y": "a\ud800"}


def test_a_pattern_with_look_around_is_checked():
    found = checker({"x": {"type": "string", "pattern": "^(?!1)"}})
    assert found.prepare({"x": "2"}).named == {"x": "2"}
    assert problems(found, {"x": "1"}) == {"x": '"1" does not match the pattern ^(?!1)'}


SLOW, TEXT = "^(a+)+$", "a" * 64 + "!"
"""With Python's `re` this takes longer than the universe is old."""


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "string", "pattern": SLOW}, TEXT, False),
        ({"type": "object", "patternProperties": {SLOW: {"type": "integer"}}}, {TEXT: "x"}, True),
        (
            {"type": "object", "patternProperties": {SLOW: {}}, "additionalProperties": False},
            {TEXT: 1},
            False,
        ),
        (
            {"type": "object", "patternProperties": {"^(?!1)": {}}, "additionalProperties": False},
            {"2": 1},
            True,
        ),
        (
            {
                "type": "object",
                "allOf": [{"patternProperties": {SLOW: {}}}],
                "unevaluatedProperties": False,
            },
            {TEXT: 1},
            False,
        ),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, {"ab": "x"}, False),
        (
            {
                "type": "object",
                "patternProperties": {"^a": {}},
                "additionalProperties": {"type": "integer"},
            },
            {"ab": "x", "b": 1},
            True,
        ),
        (
            {
                "type": "object",
                "patternProperties": {"^a": {}},
                "additionalProperties": {"type": "integer"},
            },
            {"ab": "x", "b": "x"},
            False,
        ),
        (
            {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
            {"b": 1},
            False,
        ),
    ],
    ids=[
        "pattern",
        "names",
        "others",
        "others_unread",
        "unevaluated",
        "by_name",
        "other_fits",
        "other_does_not",
        "unevaluated_told",
    ],
)
def test_no_pattern_of_a_stranger_stops_the_process(schema, value, fits):
    """On the way in and on the way out."""
    assert (SchemaCheck(schema)(value) == ()) is fits


def test_what_nearly_fits_is_mended_and_reported():
    found = checker(
        {"n": {"type": "integer"}, "o": {"type": "object"}, "s": {"type": "string"}},
        required=["n"],
    )
    prepared = found.prepare({"n": "3", "o": '{"a": 1}', "s": None})
    assert prepared.named == {"n": 3, "o": {"a": 1}}
    assert prepared.repairs == ("string_to_number", "stringified_object", "null_as_default")


def test_nothing_is_mended_where_that_is_off():
    found = checker({"n": {"type": "integer"}}, lenient=False)
    assert problems(found, {"n": "3"}) == {"n": 'expected an integer, got "3"'}
    assert found.prepare(None).named == {}
    assert "" in problems(found, '{"n": 3}')


def test_arguments_are_json_on_their_way_out():
    from pathlib import Path

    assert checker({}).prepare({"x": (1, 2), "p": Path("a")}).named == {"x": [1, 2], "p": "a"}


def test_arguments_that_are_nested_too_deeply_are_refused():
    deep: list = []
    for _ in range(150):
        deep = [deep]
    found = MCPChecker(
        "t",
        {"type": "object", "properties": {"x": {"type": "array", "not": {"const": 3}}}},
        lenient=True,
    )
    assert problems(found, {"x": deep})


def test_a_schema_that_only_refers_to_itself_is_left_to_the_server():
    """Never `RecursionError`."""
    assert (
        SchemaCheck({"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}})({"x": 1})
        == ()
    )


def test_characters_that_nobody_sees_are_not_shown_to_the_model():
    """In what is shown; the schema that is checked against is the original."""
    schema = {
        "type": "object",
        "properties": {
            "x": {"type": "string", "description": "a\u200bb\U000e0041", "const": "k\u200b"},
        },
    }
    assert MCPChecker("t", schema, lenient=True).parameters.schema == {
        "type": "object",
        "properties": {"x": {"type": "string", "description": "ab", "const": "k\u200b"}},
    }
    assert schema["properties"]["x"]["description"] == "a\u200bb\U000e0041"
