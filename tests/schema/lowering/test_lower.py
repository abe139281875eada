"""Schemas as strict modes take them, what is lost on the way, and arguments back again.

The rule throughout: L6, and E15 for the way back.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ferrule.errors import ConfigurationError, ToolCallError
from ferrule.schema.lowering.lower import (
    TARGETS,
    LoweredSchema,
    SchemaLoss,
    Target,
    lower_schema,
    lower_tools,
)
from ferrule.schema.nodes import find_pointer
from ferrule.values.conversation.exchange import Declarations

STRICT: tuple[Target, ...] = ("openai-strict", "anthropic")


def of(**properties: Any) -> dict[str, Any]:
    """An object that requires all of these."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def one(schema: Any, target: Target) -> tuple[Any, list[tuple[str, str]]]:
    """A property's schema lowered, and where what was lost."""
    lowered = lower_schema(of(x=schema), target)
    return lowered.schema["properties"]["x"], [(loss.path, loss.keyword) for loss in lowered.losses]


def declared(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": "", "parameters": parameters},
    }


WORDS = ["type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "minItems", "maxItems",
         "minimum", "exclusiveMaximum", "pattern", "format", "anyOf", "oneOf", "allOf", "not", "$ref", "$defs", "default", "description", "title"]  # fmt: skip
_ODD = st.sampled_from(
    ["object", "array", "string", "#", "#/$defs/a", "", "a", None, True, False, 1, 2.5, -1],
)
ODD = st.recursive(
    _ODD,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*WORDS, "a"]), inner, max_size=3),
    ),
    max_leaves=5,
)


# -- objects


def test_openai_wants_objects_closed_and_everything_required() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 3}},
        "required": ["a"],
    }
    lowered = lower_schema(schema, "openai-strict")
    assert lowered == LoweredSchema(
        {
            "type": "object",
            "properties": {
                "a": {"type": "string"},
                "b": {"type": ["integer", "null"], "description": "Default: 3. Null: left out."},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        (),
        "openai-strict",
        frozenset({"/properties/b"}),
    )
    assert lowered.is_strict


def test_anthropic_wants_objects_closed_and_leaves_the_rest_optional() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 3}},
        "required": ["a"],
    }
    assert lower_schema(schema, "anthropic").schema == {**schema, "additionalProperties": False}


def test_gemini_has_no_strict_mode_and_takes_the_object_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "d": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    }
    lowered = lower_schema(schema, "gemini")
    assert (lowered.schema, lowered.losses, lowered.is_strict) == (schema, (), False)


def test_nested_objects_are_closed_too_wherever_they_stand() -> None:
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    closed = {**inner, "additionalProperties": False}
    schema = {
        **of(
            a=inner,
            b={"type": "array", "items": inner},
            c={"anyOf": [inner, {"type": "null"}]},
            d={"$ref": "#/$defs/I"},
        ),
        "$defs": {"I": inner},
    }
    for target in STRICT:
        lowered = lower_schema(schema, target)
        assert lowered.schema == {
            **of(
                a=closed,
                b={"type": "array", "items": closed},
                c={"anyOf": [closed, {"type": "null"}]},
                d={"$ref": "#/$defs/I"},
            ),
            "$defs": {"I": closed},
        }
        assert lowered.losses == ()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {}},
        {"type": "object", "additionalProperties": {"description": "Anything."}},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}},
        {"type": "object", "patternProperties": {"^a": {"type": "string"}, "^b": {"type": "integer"}}},
        {"type": ["object", "array"], "additionalProperties": {"type": "integer"}, "items": {"type": "string"}},
        {"type": "array"},
        {"type": "array", "items": {}},
        {},
        True,
        False,
        {"description": "Anything."},
        {"type": "array", "prefixItems": [{"type": "integer"}]},
        {"$ref": "https://example.org/schema"},
    ],
    ids=["bare", "of-any", "of-any-described", "open", "open-beside-names", "dictionary-beside-names", "by-patterns", "list-too", "bare-list",
         "list-of-any", "any", "true", "false", "described", "open-tuple", "elsewhere"],
)  # fmt: skip
@pytest.mark.parametrize("target", STRICT)
def test_what_has_no_said_form_cannot_be_strict(target: Target, schema: Any) -> None:
    lowered = lower_schema(of(x=schema), target)
    assert not lowered.is_strict
    assert {loss.path.split("/")[2] for loss in lowered.losses if loss.breaking} == {"x"}


@pytest.mark.parametrize("schema", [True, None, [], "object"])
def test_what_is_no_dict_is_an_error_that_says_so(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="A schema is lowered from a dict, found"):
        lower_schema(schema, "openai-strict")


def test_a_target_that_does_not_exist_is_an_error_that_lists_the_others() -> None:
    for lower in (lower_schema, lower_tools):
        with pytest.raises(
            ConfigurationError,
            match=r"for one of 'openai-strict'.*'gemini'.* found 'openai'",
        ):
            lower({}, "openai")  # type: ignore[arg-type]


def test_a_tool_without_arguments_is_an_empty_closed_object() -> None:
    for schema in ({}, {"type": "object"}, {"type": "object", "properties": {}}):
        lowered = lower_schema(schema, "openai-strict")
        assert lowered.schema == {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": False,
        }
        assert lowered.losses == ()


def test_a_property_that_is_required_but_not_described_is_any_value() -> None:
    schema = {"type": "object", "properties": {}, "required": ["x"]}
    lowered = lower_schema(schema, "openai-strict")
    assert [loss.path for loss in lowered.losses if loss.breaking] == ["/properties/x"]
    assert lower_schema(schema, "gemini").schema["properties"] == {"x": {}}


@pytest.mark.parametrize(
    ("schema", "nullable"),
    [
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"], "description": "Null: left out."}),
        ({"enum": ["a", 1]}, {"type": ["string", "integer", "null"], "enum": ["a", 1, None], "description": "Null: left out."}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "description": "Null: left out."}),
        ({"$ref": "#/$defs/T"}, {"anyOf": [{"$ref": "#/$defs/T"}, {"type": "null"}], "description": "Null: left out."}),
        ({"type": "string", "description": "A name"}, {"type": ["string", "null"], "description": "A name. Null: left out."}),
    ],
    ids=["types", "enum", "union", "reference", "described"],
)  # fmt: skip
def test_what_may_be_left_out_becomes_nullable(schema: Any, nullable: Any) -> None:
    root = {"type": "object", "properties": {"x": schema}, "$defs": {"T": {"type": "string"}}}
    lowered = lower_schema(root, "openai-strict")
    assert lowered.schema["properties"]["x"] == nullable
    assert lowered.restored({"x": None}) == {}


def test_what_is_nullable_already_keeps_its_null() -> None:
    """Where no default says that null is what leaving out means, that is a loss."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"], "default": None},
            "b": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        },
    }
    lowered = lower_schema(schema, "openai-strict")
    assert lowered.stand_ins == frozenset()
    assert lowered.restored({"a": None, "b": None}) == {"a": None, "b": None}
    assert [(loss.path, loss.keyword, loss.breaking) for loss in lowered.losses] == [
        ("/properties/b", "required", False),
    ]


# -- dictionaries


def pairs(value: Any, key: Any = None, **more: Any) -> dict[str, Any]:
    """The list that stands for a dictionary of these."""
    items = of(key={"type": "string", **(key or {})}, value=value)
    return {
        "type": "array",
        "items": items,
        "description": "A list of keys and values, each key once.",
        **more,
    }


@pytest.mark.parametrize(
    ("schema", "expected", "keywords"),
    [
        ({"type": "object", "additionalProperties": {"type": "integer"}}, pairs({"type": "integer"}), ["additionalProperties"]),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"enum": ["a", "b"]}, "title": "T", "description": "By name"},
            pairs({"type": "integer"}, {"enum": ["a", "b"]}, title="T", description="By name. A list of keys and values, each key once."),
            ["additionalProperties"],
        ),
        (
            {"type": "object", "patternProperties": {"^a": {"type": "string"}}, "additionalProperties": False},
            pairs({"type": "string"}, {"pattern": "^a"}),
            ["patternProperties"],
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 2, "propertyNames": {"minLength": 2}},
            pairs(
                {"type": "string"},
                {"description": "At least 2 characters."},
                description="At least 2 properties. A list of keys and values, each key once.",
            ),
            ["minProperties", "minLength", "additionalProperties"],
        ),
        (
            {"type": ["object", "null"], "additionalProperties": {"type": "object", "additionalProperties": {"type": "boolean"}}},
            {**pairs(pairs({"type": "boolean"})), "type": ["array", "null"]},
            ["additionalProperties", "additionalProperties"],
        ),
    ],
    ids=["plain", "names", "pattern", "bounds", "nested"],
)  # fmt: skip
@pytest.mark.parametrize("target", STRICT)
def test_a_dictionary_is_a_list_of_keys_and_values(
    target: Target,
    schema: Any,
    expected: Any,
    keywords: list[str],
) -> None:
    """It stays a dictionary, and is never an object without properties."""
    lowered, losses = one(schema, target)
    assert lowered == expected
    assert [keyword for _, keyword in losses] == keywords


def test_lists_of_keys_and_values_come_back_as_dictionaries() -> None:
    """Wherever they stand; and nulls in them that mean "left out" are left out."""
    entry = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}
    table = {"type": "object", "additionalProperties": entry}
    schema = {
        "type": "object",
        "properties": {
            "a": table,
            "b": {"anyOf": [table, {"type": "null"}]},
            "c": {"type": "array", "items": {"$ref": "#/$defs/T"}},
        },
        "$defs": {"T": table},
    }
    lowered = lower_schema(schema, "openai-strict")
    written = [{"key": "x", "value": {"n": None}}, {"key": "y", "value": {"n": 2}}]
    Draft202012Validator(lowered.schema).validate({"a": written, "b": None, "c": [written, []]})
    assert lowered.is_strict
    assert lowered.restored({"a": written, "b": None, "c": [written, []]}) == {
        "a": {"x": {}, "y": {"n": 2}},
        "b": None,
        "c": [{"x": {}, "y": {"n": 2}}, {}],
    }
    assert lowered.restored({"a": None, "b": written}) == {"b": {"x": {}, "y": {"n": 2}}}


@pytest.mark.parametrize(
    "written",
    [
        [{"key": "x"}],
        [{"key": 1, "value": 1}],
        [["x", 1]],
        {"x": 1},
        "x",
    ],
    ids=["no-value", "no-text", "no-objects", "a-dictionary", "a-text"],
)
def test_what_makes_no_dictionary_comes_back_as_it_is(written: Any) -> None:
    """No value is dropped; the check of the tool's own schema says what is wrong."""
    lowered = lower_schema(
        of(x={"type": "object", "additionalProperties": {"type": "integer"}}),
        "openai-strict",
    )
    assert lowered.restored({"x": written}) == {"x": written}


def test_a_key_that_comes_twice_is_an_error() -> None:
    """No strict mode forbids it, and no value is dropped."""
    lowered = lower_schema(
        of(x={"type": "object", "additionalProperties": {"type": "integer"}}),
        "anthropic",
    )
    with pytest.raises(ToolCallError, match="has the key 'x' twice"):
        lowered.restored({"x": [{"key": "x", "value": 1}, {"key": "x", "value": 2}]})


def test_a_union_of_a_list_and_a_dictionary_is_told() -> None:
    """An empty list may be either."""
    table = {"type": "object", "additionalProperties": {"type": "integer"}}
    for branches, told in (
        ([table, {"type": "array", "items": {"type": "string"}}], True),
        ([table, {"allOf": [{"type": "array", "items": {"type": "string"}}]}], True),
        ([{"allOf": [table]}, {"type": "array", "items": {"type": "string"}}], True),
        ([table, {"type": "string"}], False),
    ):
        lowered = lower_schema(of(x={"anyOf": branches}), "openai-strict")
        assert (
            SchemaLoss("/properties/x", "anyOf", lowered.losses[0].lost) in lowered.losses
        ) is told
        assert lowered.restored({"x": [{"key": "a", "value": 1}]}) == {"x": {"a": 1}}


# -- values


@pytest.mark.parametrize(
    ("schema", "kept_by"),
    [
        ({"type": "string", "minLength": 2}, ()),
        ({"type": "string", "maxLength": 2}, ()),
        ({"type": "string", "pattern": "^a+$"}, STRICT),
        ({"type": "string", "pattern": "^a{2,50}b{3}c{4,}$"}, STRICT),
        ({"type": "string", "pattern": "^a{1,51}$"}, ("openai-strict",)),
        ({"type": "string", "pattern": "^a{200,}$"}, ("openai-strict",)),
        ({"type": "string", "pattern": f"a{{{'9' * 5_000}}}"}, ("openai-strict",)),
        ({"type": "string", "pattern": "^(?=a)"}, ()),
        ({"type": "string", "pattern": r"(a)\1"}, ()),
        ({"type": "string", "format": "date"}, TARGETS),
        ({"type": "string", "format": "uuid"}, STRICT),
        ({"type": "string", "format": "uri"}, ("anthropic",)),
        ({"type": "string", "format": "color"}, ()),
        ({"type": "integer", "minimum": 1, "maximum": 7}, ("openai-strict", "gemini")),
        ({"type": "number", "exclusiveMinimum": 1}, ("openai-strict",)),
        ({"type": "number", "multipleOf": 5}, ("openai-strict",)),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, TARGETS),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, ("openai-strict", "gemini")),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 2}, ("openai-strict", "gemini")),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ()),
        ({"type": "array", "items": {"type": "string"}, "contains": {"const": "a"}}, ()),
        ({"type": "string", "not": {"const": "a"}}, ()),
        ({"type": "string", "if": {"const": "a"}, "then": False}, ()),
        ({**of(a={"type": "string"}), "minProperties": 1}, ()),
    ],
    ids=lambda value: None if isinstance(value, tuple) else str(value)[:90],
)  # fmt: skip
def test_a_bound_is_kept_or_said_in_the_description(
    schema: dict[str, Any],
    kept_by: tuple[Target, ...],
) -> None:
    for target in TARGETS:
        lowered, losses = one(schema, target)
        if target in kept_by:
            assert (lowered, losses) == (schema, [])
        else:
            assert losses
            assert {path for path, _ in losses} == {"/properties/x"}
            assert {keyword for _, keyword in losses} <= schema.keys()
            assert lowered["description"]
            assert lowered["type"] == schema["type"]


def test_sentences_stand_after_what_was_written() -> None:
    schema = {
        "type": "string",
        "description": "A code",
        "minLength": 2,
        "maxLength": 4,
        "examples": ["ab"],
        "default": "ab",
    }
    assert one(schema, "gemini")[0] == {
        "type": "string",
        "description": 'A code. Default: "ab". Examples: ["ab"]. At least 2 characters. At most 4 characters.',
    }


def test_words_that_bound_nothing_go_without_a_loss() -> None:
    schema = {
        "type": "integer",
        "$comment": "c",
        "deprecated": True,
        "x-order": 1,
        "minLength": 3,
        "readOnly": True,
    }
    for target in TARGETS:
        assert one(schema, target) == ({"type": "integer"}, [])


def test_gemini_takes_exclusive_bounds_of_whole_numbers_as_inclusive_ones() -> None:
    assert one({"exclusiveMinimum": 0, "type": "integer", "exclusiveMaximum": 10}, "gemini") == (
        {"type": "integer", "minimum": 1, "maximum": 9},
        [],
    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_constant_is_an_enumeration_of_one(target: Target) -> None:
    assert one({"const": "cat"}, target) == ({"type": "string", "enum": ["cat"]}, [])


def test_gemini_enumerates_texts_and_numbers_only() -> None:
    assert one({"enum": ["a", None]}, "gemini") == (
        {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
        [],
    )
    assert one({"enum": [True, False]}, "gemini") == ({"type": "boolean"}, [])
    assert one({"enum": [True]}, "gemini") == (
        {"type": "boolean", "description": "One of [true]."},
        [("/properties/x", "enum")],
    )


def test_one_is_not_true() -> None:
    """JSON Schema, 4.2.2: a number never equals a boolean."""
    assert one({"enum": [1, True]}, "openai-strict")[0] == {
        "type": ["integer", "boolean"],
        "enum": [1, True],
    }
    assert one({"type": "integer", "enum": [1, True]}, "openai-strict")[0] == {
        "type": "integer",
        "enum": [1],
    }
    assert not lower_schema(
        of(x={"allOf": [{"const": True}, {"const": 1}]}),
        "openai-strict",
    ).is_strict


def test_the_type_is_told_where_only_its_keywords_are() -> None:
    assert one({"properties": {"a": {"minimum": 1}}, "required": ["a"]}, "openai-strict")[0] == of(
        a={"type": "number", "minimum": 1},
    )


# -- lists


def test_gemini_takes_tuples() -> None:
    schema = {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": False,
        "minItems": 2,
    }
    expected = {"type": "array", "prefixItems": schema["prefixItems"], "minItems": 2, "maxItems": 2}
    assert one(schema, "gemini") == (expected, [])


def test_gemini_takes_what_follows_a_tuple() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}
    assert one(schema, "gemini") == (schema, [])


@pytest.mark.parametrize(
    ("target", "losses"),
    [
        ("openai-strict", []),
        ("anthropic", []),
        ("gemini", [("/properties/x", "unevaluatedProperties")]),
    ],
)
def test_an_object_that_takes_no_further_properties_is_closed_in_strict_modes(
    target: Target,
    losses: Any,
) -> None:
    lowered, lost = one(
        {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
            "unevaluatedProperties": False,
        },
        target,
    )
    assert (lowered.get("additionalProperties"), lost) == (None if losses else False, losses)


def test_strict_modes_lose_the_order_of_a_tuple() -> None:
    schema = {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
    }
    lowered, losses = one(schema, "openai-strict")
    assert lowered["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert (lowered["minItems"], lowered["maxItems"]) == (2, 2)
    assert lowered["description"] == 'Items in this order: [{"type":"integer"},{"type":"string"}].'
    assert losses == [("/properties/x", "prefixItems")]


def test_a_tuple_of_one_type_is_a_list_of_that_length() -> None:
    schema = {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "integer"}],
        "minItems": 2,
        "maxItems": 2,
    }
    assert one(schema, "openai-strict") == (
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        [],
    )
    assert ("/properties/x", "prefixItems") in one(schema, "anthropic")[1]


def test_a_tuple_of_draft_7_is_one_of_today() -> None:
    schema = {
        "type": "array",
        "items": [{"type": "integer"}, {"type": "string"}],
        "additionalItems": False,
    }
    assert one(schema, "gemini")[0] == {
        "type": "array",
        "prefixItems": schema["items"],
        "maxItems": 2,
    }


# -- unions

CAT = of(kind={"type": "string", "const": "cat"}, lives={"type": "integer"})
DOG = of(kind={"type": "string", "const": "dog"}, name={"type": "string"})


@pytest.mark.parametrize(
    ("branches", "losses"),
    [
        ([{"type": "string"}, {"type": "integer"}], []),
        ([CAT, DOG], []),
        ([{"const": 1}, {"const": 2}], []),
        ([{"const": "a"}, {"type": "integer"}], []),
        ([{"type": "integer"}, {"type": "number"}], ["oneOf"]),
        ([{"const": 1}, {"const": 1.0}], ["oneOf"]),
        ([{"const": 1}, {"type": "number"}], ["oneOf"]),
        ([of(a={"type": "string"}), of(b={"type": "string"})], ["oneOf"]),
    ],
    ids=["types", "discriminated", "constants", "constant-and-type", "number-and-integer", "equal-numbers", "constant-in-type", "look-alike"],
)  # fmt: skip
def test_one_of_is_any_of_and_a_loss_only_where_two_may_fit(
    branches: list[Any],
    losses: list[str],
) -> None:
    lowered, lost = one({"oneOf": branches, "description": "Either"}, "openai-strict")
    assert len(lowered["anyOf"]) == 2
    assert lowered["description"] == "Either"
    assert [keyword for _, keyword in lost] == losses


def test_what_stands_beside_a_union_moves_into_each_branch() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    lowered, losses = one(schema, "anthropic")
    properties = {"a": {"type": "string"}, "b": {"type": "string"}}
    closed = {"type": "object", "properties": properties, "additionalProperties": False}
    assert lowered == {"anyOf": [{**closed, "required": ["a"]}, {**closed, "required": ["b"]}]}
    assert losses == []


def test_what_beside_a_union_cannot_be_moved_into_it_is_a_loss_where_it_stood() -> None:
    schema = {"type": "string", "pattern": "^a", "anyOf": [{"pattern": "b$"}, {"enum": ["abc"]}]}
    lowered, losses = one(schema, "openai-strict")
    assert lowered == {
        "anyOf": [
            {"pattern": "b$", "type": "string"},
            {"enum": ["abc"], "type": "string", "pattern": "^a"},
        ],
    }
    assert losses == [("/properties/x", "pattern")]


def test_what_stands_beside_a_union_bounds_a_branch_that_takes_anything_too() -> None:
    assert one({"type": "string", "anyOf": [True, {"const": "a"}]}, "openai-strict")[0] == {
        "anyOf": [{"type": "string"}, {"enum": ["a"], "type": "string"}],
    }


def test_of_two_descriptions_both_stay() -> None:
    schema = {"description": "Outer", "anyOf": [{"type": "string", "description": "Inner"}]}
    assert one(schema, "openai-strict") == (schema, [])


def test_unions_in_unions_are_one_union() -> None:
    schema = {"anyOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"type": "null"}]}
    assert one(schema, "gemini")[0] == {
        "anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}],
    }


@pytest.mark.parametrize("target", TARGETS)
def test_no_tool_takes_a_union_of_arguments(target: Target) -> None:
    """Every provider: the root is an object."""
    schema = {
        "anyOf": [
            of(a={"type": "string"}, c={"type": "string"}),
            of(b={"type": "integer"}, c={"type": "string"}),
        ],
    }
    lowered = lower_schema(schema, target)
    assert lowered.schema["type"] == "object"
    assert lowered.schema["properties"].keys() == {"a", "b", "c"}
    assert "anyOf" not in lowered.schema
    assert [(loss.path, loss.keyword, loss.breaking) for loss in lowered.losses] == [
        ("", "anyOf", False),
    ]
    assert lowered.restored(
        {"a": None, "b": 1, "c": "x"} if target == "openai-strict" else {"b": 1, "c": "x"},
    ) == {"b": 1, "c": "x"}


# -- allOf


def test_the_parts_of_all_of_are_merged() -> None:
    schema = {
        "description": "Both",
        "allOf": [
            {"$ref": "#/$defs/A"},
            {
                "type": "object",
                "properties": {"n": {"maximum": 9}, "s": {"enum": ["b", "c"]}},
                "required": ["s"],
            },
        ],
    }
    definition = {
        "type": "object",
        "properties": {"n": {"type": "number", "minimum": 1}, "s": {"enum": ["a", "b"]}},
        "required": ["n"],
    }
    lowered = lower_schema({**of(x=schema), "$defs": {"A": definition}}, "openai-strict")
    assert lowered.schema["properties"]["x"] == {
        **of(n={"type": "number", "minimum": 1, "maximum": 9}, s={"type": "string", "enum": ["b"]}),
        "description": "Both",
    }
    assert lowered.losses == ()


def test_integers_are_numbers_when_types_are_merged() -> None:
    assert one(
        {"allOf": [{"type": "number"}, {"type": ["integer", "string"]}]},
        "openai-strict",
    ) == ({"type": "integer"}, [])


def test_a_reference_and_what_stands_beside_it_both_hold() -> None:
    """JSON Schema 2020-12, section 8.2.3.1: `$ref` is a keyword like others."""
    definition = {"type": "integer", "maximum": 3}
    for schema in (
        {"$ref": "#/$defs/A", "maximum": 5, "minimum": 1},
        {"allOf": [{"$ref": "#/$defs/A", "maximum": 5}, {"minimum": 1}]},
    ):
        lowered = lower_schema({**of(x=schema), "$defs": {"A": definition}}, "openai-strict")
        assert lowered.schema["properties"]["x"] == {"type": "integer", "minimum": 1, "maximum": 3}
        assert lowered.losses == ()


def test_a_root_may_be_a_reference() -> None:
    lowered = lower_schema(
        {"$ref": "#/$defs/A", "$defs": {"A": of(a={"type": "string"})}},
        "openai-strict",
    )
    assert (lowered.schema, lowered.losses) == (of(a={"type": "string"}), ())


def test_a_reference_to_nothing_is_a_loss_in_an_all_of_too() -> None:
    assert ("/properties/x", "$ref") in one(
        {"allOf": [{"$ref": "#/$defs/Gone"}, {"type": "string"}]},
        "gemini",
    )[1]


@pytest.mark.parametrize(
    ("one_part", "other"),
    [
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}),
        ({"type": "string"}, {"type": "integer"}),
        (of(a={"type": "string"}), of(b={"type": "string"})),
        ({"type": "array", "items": {"type": "string"}}, {"prefixItems": [{"const": "a"}], "maxItems": 1}),
        ({"type": "array", "items": [{"type": "string"}], "maxItems": 1}, {"items": {"const": "a"}}),
    ],
    ids=["patterns", "types", "closed", "tuple", "old-tuple"],
)  # fmt: skip
def test_what_cannot_be_merged_is_a_loss(one_part: Any, other: Any) -> None:
    assert ("/properties/x", "allOf") in one({"allOf": [one_part, other]}, "openai-strict")[1]


def test_all_of_one_reference_is_that_reference() -> None:
    schema = {
        **of(x={"allOf": [{"$ref": "#/definitions/A"}], "description": "An A."}),
        "definitions": {"A": {"type": "string"}},
    }
    lowered = lower_schema(schema, "openai-strict")
    assert lowered.schema["properties"]["x"] == {
        "anyOf": [{"$ref": "#/$defs/A"}],
        "description": "An A.",
    }
    assert lowered.schema["$defs"] == {"A": {"type": "string"}}


# -- references

TREE = {
    **of(tree={"$ref": "#/$defs/Node"}),
    "$defs": {
        "Node": of(
            v={"type": "integer"}, kids={"type": "array", "items": {"$ref": "#/$defs/Node"}}
        ),
    },
}


def test_openai_takes_what_contains_itself() -> None:
    lowered = lower_schema(TREE, "openai-strict")
    assert (lowered.schema, lowered.losses) == (TREE, ())


def test_anthropic_does_not_take_what_contains_itself_nor_gemini_where_it_is_required() -> None:
    for target in ("anthropic", "gemini"):
        lowered = lower_schema(TREE, target)
        assert lowered.schema["$defs"]["Node"]["properties"]["kids"] == {
            "type": "array",
            "items": {"type": "object"},
        }
        assert [(loss.path, loss.keyword, loss.breaking) for loss in lowered.losses] == [
            ("/$defs/Node/properties/kids/items", "$ref", target == "anthropic"),
        ]


NODE_REF = {"$ref": "#/$defs/Node"}


@pytest.mark.parametrize(
    ("node", "taken"),
    [
        ({"type": "object", "properties": {"next": NODE_REF}}, True),
        ({"type": "object", "properties": {"kids": {"type": "array", "items": NODE_REF}, "v": {"type": "integer"}}, "required": ["v"]}, True),
        ({"type": "object", "properties": {"next": {"anyOf": [NODE_REF, {"type": "null"}]}}}, True),
        ({"type": "object", "properties": {"other": {"$ref": "#/$defs/Other"}}}, True),
        (of(next={"anyOf": [NODE_REF, {"type": "null"}]}), False),
        ({"type": "object", "properties": {"a": NODE_REF, "b": NODE_REF}, "required": ["b"]}, False),
        ({"type": "object", "additionalProperties": NODE_REF}, False),
        (of(other={"$ref": "#/$defs/Other"}), False),
        ({"type": "object", "properties": {"next": NODE_REF}, "allOf": [{"required": ["next"]}]}, False),
        ({"type": "object", "properties": {"next": NODE_REF}, "anyOf": [{"required": ["next"]}, {"maxProperties": 0}]}, False),
    ],
    ids=["optional", "optional-list", "nullable", "by-another", "required", "one-required", "values", "by-another-required", "all-of", "any-of"],
)  # fmt: skip
def test_gemini_takes_what_contains_itself_in_optional_properties(node: Any, taken: bool) -> None:
    """Cyclic references "may only be used within non-required properties", and a nullable one is
    not enough.
    """
    schema = {**of(tree=NODE_REF), "$defs": {"Node": node, "Other": of(node=NODE_REF)}}
    lowered = lower_schema(schema, "gemini")
    assert any(loss.keyword == "$ref" for loss in lowered.losses) is not taken
    assert json.dumps(lowered.schema).count('"#/$defs/Node"') == (2 if taken else 1)
    if taken:
        assert (
            lowered.schema == schema
            if "other" in node["properties"]
            else lowered.schema["$defs"] == {"Node": node}
        )


EDGES = st.tuples(
    st.sampled_from("ABC"),
    st.sampled_from(["plain", "list", "nullable", "described"]),
    st.booleans(),
)


def definition(edges: Any) -> dict[str, Any]:
    """An object with a property for each edge: to what it leads, in which form, and whether it is
    required.
    """

    def leading(name: str, form: str) -> dict[str, Any]:
        to = {"$ref": f"#/$defs/{name}"}
        forms = {
            "list": {"type": "array", "items": to},
            "nullable": {"anyOf": [to, {"type": "null"}]},
            "described": {**to, "title": "T"},
        }
        return forms.get(form, to)

    properties = {f"p{i}": leading(name, form) for i, (name, form, _) in enumerate(edges)}
    return {
        "type": "object",
        "properties": properties,
        "required": [f"p{i}" for i, (*_, required) in enumerate(edges) if required],
    }


def reached(schema: Any) -> set[str]:
    """The definitions that a lowered schema refers to elsewhere than in optional properties."""
    if "$ref" in schema:
        return {schema["$ref"][8:]}
    inside = [
        each
        for name, each in schema.get("properties", {}).items()
        if name in schema.get("required", ())
    ]
    inside += [
        schema[key]
        for key in ("items", "additionalProperties")
        if isinstance(schema.get(key), dict)
    ]
    return {name for each in [*inside, *schema.get("anyOf", ())] for name in reached(each)}


def has_circle(definitions: dict[str, Any]) -> bool:
    """Whether some definition reaches itself without an optional property."""
    step = {name: reached(each) for name, each in definitions.items()}
    for _ in step:
        step = {name: found.union(*(step[each] for each in found)) for name, found in step.items()}
    return any(name in found for name, found in step.items())


@given(st.fixed_dictionaries({name: st.lists(EDGES, max_size=3) for name in "ABC"}))
def test_no_circle_without_an_optional_property_is_sent_to_gemini(graph: Any) -> None:
    """C28; and where there was none, nothing is lost."""
    definitions = {name: definition(edges) for name, edges in graph.items()}
    lowered = lower_schema({**of(x={"$ref": "#/$defs/A"}), "$defs": definitions}, "gemini")
    found = lowered.schema["$defs"]
    assert not has_circle(found)
    if not has_circle({name: definitions[name] for name in found}):
        assert lowered.losses == ()


def test_a_root_that_contains_itself() -> None:
    schema = {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}},
        "required": ["v"],
    }
    lowered = lower_schema(schema, "openai-strict")
    assert lowered.schema["properties"]["next"]["anyOf"][0] == {"$ref": "#"}
    assert lowered.losses == ()
    assert lowered.restored({"v": 1, "next": {"v": 2, "next": None}}) == {"v": 1, "next": {"v": 2}}


def test_a_reference_to_any_place_becomes_a_definition() -> None:
    schema = of(a={"type": "string", "pattern": "^a"}, b={"$ref": "#/properties/a"})
    lowered = lower_schema(schema, "openai-strict")
    assert lowered.schema["properties"]["b"] == {"$ref": "#/$defs/a"}
    assert lowered.schema["$defs"] == {"a": {"type": "string", "pattern": "^a"}}


def test_two_definitions_of_one_name_stay_two() -> None:
    schema = {
        **of(a={"$ref": "#/$defs/T"}, b={"$ref": "#/definitions/T"}),
        "$defs": {"T": {"type": "string"}},
        "definitions": {"T": {"type": "integer"}},
    }
    lowered = lower_schema(schema, "gemini")
    assert lowered.schema["$defs"] == {"T": {"type": "string"}, "T_2": {"type": "integer"}}
    assert lowered.schema["properties"]["b"] == {"$ref": "#/$defs/T_2"}


def test_names_with_slashes_and_tildes_are_found() -> None:
    """RFC 6901, section 3."""
    schema = {
        "type": "object",
        "properties": {"a/b~c": {"type": "integer"}, "r": {"$ref": "#/$defs/x~1y"}},
        "$defs": {"x/y": {"type": "string"}},
    }
    lowered = lower_schema(schema, "openai-strict")
    assert lowered.stand_ins == {"/properties/a~1b~0c", "/properties/r"}
    assert lowered.restored({"a/b~c": None, "r": None}) == {}
    Draft202012Validator(lowered.schema).validate({"a/b~c": None, "r": "s"})


@pytest.mark.parametrize("target", TARGETS)
def test_a_schema_that_unfolds_without_end_ends(target: Target) -> None:
    """Schemas come from strangers (MCP)."""
    circles = {**of(x={"$ref": "#/$defs/A"}), "$defs": {"A": {"allOf": [{"$ref": "#/$defs/B"}, of(a={"allOf": [{"$ref": "#/$defs/A"}, {"minProperties": 1}]})]}, "B": {"$ref": "#/$defs/B"}}}  # fmt: skip
    doubling = {
        f"D{i}": of(
            a={"allOf": [{"$ref": f"#/$defs/D{i + 1}"}, {"title": "t"}]},
            b={"allOf": [{"$ref": f"#/$defs/D{i + 1}"}, {"title": "u"}]},
        )
        for i in range(40)
    }
    wide = {**of(x={"$ref": "#/$defs/D0"}), "$defs": {**doubling, "D40": {"type": "string"}}}
    for schema in (circles, wide):
        assert any(loss.keyword == "$ref" for loss in lower_schema(schema, target).losses)


def doubling(keyword: str) -> dict[str, Any]:
    """Definitions that each refer twice to the next, sixty of them."""
    twice = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0", "minLength": 1}, "b": {"$ref": "#/$defs/d0"}},
        "$defs": {**twice, "d60": TEXT},
    }


TEXT = {"type": "string"}
LARGE: dict[str, Callable[[int], dict[str, Any]]] = {
    "all of": lambda _: doubling("allOf"),
    "any of": lambda _: doubling("anyOf"),
    "one of": lambda _: doubling("oneOf"),
    "required names": lambda many: {"type": "object", "properties": {f"p{i}": TEXT for i in range(many)}, "required": [f"p{i}" for i in range(many)]},
    "forms": lambda many: of(a={"oneOf": [{"const": i} for i in range(many)]}),
    "forms of the root": lambda many: {"anyOf": [{"type": "object", "required": [f"p{i}" for i in range(many)]}] * 2},
    "parts": lambda many: of(a={"allOf": [{"description": f"d{i}", **of(**{f"p{i}": TEXT})} for i in range(many // 4)]}),
    "definitions of one name": lambda many: {
        **of(**{f"p{i}": {"$ref": f"#/$defs/d{i}/x"} for i in range(many // 5)}), "$defs": {f"d{i}": {"x": TEXT} for i in range(many // 5)},
    },
}  # fmt: skip


@pytest.mark.parametrize("many", [1_500, pytest.param(12_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", LARGE)
def test_large_schemas_are_lowered_in_linear_work(name: str, many: int) -> None:
    """By counting; with a step for each pair, or for each way through definitions, none of these
    ends in minutes.
    """
    schema = LARGE[name](many)
    for target in TARGETS:
        assert lower_schema(schema, target).target == target


def test_many_large_definitions_that_contain_themselves_are_lowered() -> None:
    """After so many looks, a definition is taken to require itself."""
    nodes = {
        f"d{i}": {
            "type": "object",
            "properties": {"me": {"$ref": f"#/$defs/d{i}"}, "all": {"$ref": "#/$defs/all"}},
            "required": ["all"],
        }
        for i in range(400)
    }
    schema = {**of(**{name: {"$ref": f"#/$defs/{name}"} for name in nodes}), "$defs": {**nodes, "all": of(**{f"p{i}": TEXT for i in range(200)})}}  # fmt: skip
    lowered = lower_schema(schema, "gemini")
    assert len(lowered.schema["$defs"]) == 401
    assert 0 < len(lowered.losses) < 400
    assert {(loss.keyword, loss.path[-14:]) for loss in lowered.losses} == {
        ("$ref", "/properties/me"),
    }


@pytest.mark.parametrize("target", TARGETS)
def test_many_places_that_refer_to_many_parts_are_told(target: Target) -> None:
    parts = {"allOf": [{"minLength": i} for i in range(2_000)]}
    lowered = lower_schema(
        {
            **of(
                **{
                    f"p{i}": {"$ref": "#/$defs/d", "title": "t", "type": "string"}
                    for i in range(2_000)
                },
            ),
            "$defs": {"d": parts},
        },
        target,
    )
    [loss] = lowered.losses
    assert "too many to be merged" in loss.lost


@pytest.mark.parametrize("target", TARGETS)
def test_a_schema_that_is_nested_too_deeply_is_told(target: Target) -> None:
    """As above."""
    chain = {f"D{i}": of(a={"$ref": f"#/$defs/D{i + 1}"}) for i in range(2_000)}
    schema = {**of(x={"$ref": "#/$defs/D0"}), "$defs": {**chain, "D2000": {"type": "string"}}}
    lowered = lower_schema(schema, target)
    assert [(loss.path, loss.keyword) for loss in lowered.losses] == [("", "$schema")]
    assert not lowered.is_strict


def test_a_form_that_is_nothing_but_itself_does_not_stop_the_way_back() -> None:
    """As above."""
    itself = {
        "A": {"$ref": "#/$defs/A"},
        "B": {"anyOf": [{"$ref": "#/$defs/B"}, {"$ref": "#/$defs/A"}]},
    }
    for name in itself:
        schema = {
            "type": "object",
            "properties": {"a": {"type": "string"}, "x": {"$ref": f"#/$defs/{name}"}},
            "$defs": itself,
        }
        assert lower_schema(schema, "openai-strict").restored({"a": "s", "x": {"y": 1}}) == {
            "a": "s",
            "x": {"y": 1},
        }


@pytest.mark.parametrize("target", TARGETS)
@given(schema=st.dictionaries(st.sampled_from(WORDS), ODD, min_size=1, max_size=4))
def test_what_is_no_schema_is_told_or_lowered_but_never_raises(target: Target, schema: Any) -> None:
    """As above."""
    assert isinstance(lower_schema(of(x=schema), target), LoweredSchema)
    assert isinstance(lower_schema(schema, target), LoweredSchema)


# -- limits, and tools


def test_openai_s_limits_are_known() -> None:
    def nested(levels: int) -> dict[str, Any]:
        return of(x=nested(levels - 1)) if levels else {"type": "string"}

    for schema, is_strict in (
        (nested(10), True),
        (nested(11), False),
        (of(x={"enum": [f"{i}" for i in range(1_000)]}), True),
        (of(x={"enum": [f"{i}" for i in range(1_001)]}), False),
        (of(x={"enum": [f"{i:0100}" for i in range(251)]}), False),
        (of(x={"enum": [f"{i:0100}" for i in range(250)]}), True),
        (of(**{f"p{i}": {"type": "string"} for i in range(5_001)}), False),
        (of(**{f"{i:01000}": {"type": "string"} for i in range(121)}), False),
    ):
        assert lower_schema(schema, "openai-strict").is_strict is is_strict


def test_a_tool_that_strict_mode_does_not_take_goes_as_it_was() -> None:
    """What would merely not be enforced is not lost then."""
    plain = declared("plain", of(a={"type": "string"}))
    free = declared("free", of(d={"type": "object"}, s={"type": "string", "minLength": 2}))
    for target in STRICT:
        found = lower_tools(Declarations([plain, free]), target)
        assert found.tools == ({**plain, "function": {**plain["function"], "strict": True}}, free)
        assert found.losses.keys() == {"free"}
        assert [(loss.path, loss.keyword, loss.breaking) for loss in found.losses["free"]] == [
            ("/properties/d", "properties", True),
            ("", "strict", True),
        ]
        assert found.lowered.keys() == {"plain"}


def test_gemini_s_tools_all_go_lowered_and_never_strict() -> None:
    found = lower_tools([declared("t", of(s={"type": "string", "minLength": 2}))], "gemini")
    assert found.tools == (
        declared("t", of(s={"type": "string", "description": "At least 2 characters."})),
    )
    assert found.losses == {
        "t": (
            SchemaLoss(
                "/properties/s",
                "minLength",
                "not enforced; the description says it: At least 2 characters.",
            ),
        ),
    }


@pytest.mark.parametrize(
    ("parameters", "strict"),
    [
        (of(a={"type": "string"}), 20),
        ({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5)}}, 4),
        (of(**{f"p{i}": {"type": ["string", "null"]} for i in range(5)}), 3),
    ],
    ids=["tools", "optional", "unions"],
)  # fmt: skip
def test_anthropic_s_limits_of_a_request_leave_the_tools_beyond_them_unstrict(
    parameters: dict[str, Any],
    strict: int,
) -> None:
    found = lower_tools([declared(f"t{i}", parameters) for i in range(21)], "anthropic")
    assert [each["function"].get("strict", False) for each in found.tools] == [True] * strict + [
        False,
    ] * (21 - strict)
    assert list(found.losses) == [f"t{i}" for i in range(strict, 21)]


def test_as_many_tools_as_possible_are_strict_at_anthropic() -> None:
    """One with many optional properties does not take the room of all others."""
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(23)}}
    small = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3)}}
    found = lower_tools(
        [declared("wide", wide), *(declared(f"t{i}", small) for i in range(8))],
        "anthropic",
    )
    assert [each["function"].get("strict", False) for each in found.tools] == [False] + [True] * 8
    [[loss]] = found.losses.values()
    assert "other tools use up" in loss.lost


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        (
            {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(25)}},
            "24 optional properties; found 25",
        ),
        (of(**{f"p{i}": {"type": ["string", "null"]} for i in range(17)}), "16 unions; found 17"),
    ],
    ids=["optional", "unions"],
)
def test_a_schema_beyond_anthropic_s_limits_is_never_strict(
    parameters: dict[str, Any],
    what: str,
) -> None:
    lowered = lower_schema(parameters, "anthropic")
    assert not lowered.is_strict
    assert [loss.lost for loss in lowered.losses] == [f"strict mode allows {what}"]


def test_arguments_come_back_by_the_name_of_their_tool() -> None:
    found = lower_tools(
        [declared("t", {"type": "object", "properties": {"a": {"type": "integer"}}})],
        "openai-strict",
    )
    assert found.restored("t", {"a": None}) == {}
    assert found.restored("other", {"a": None}) == {"a": None}
    assert found.restored("t", "no object") == "no object"


def test_nulls_are_left_out_wherever_they_stand_for_it() -> None:
    """In lists, in unions by the form the model wrote, behind references."""
    inner = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": ["string", "null"], "default": None},
        },
    }
    pets = {
        "anyOf": [{**CAT, "required": ["kind"]}, {**DOG, "required": ["kind"]}, {"type": "null"}],
    }
    schema = {
        **of(
            many={"type": "array", "items": {"$ref": "#/$defs/I"}},
            pet=pets,
            maybe={"anyOf": [inner, {"type": "string"}]},
        ),
        "$defs": {"I": inner},
    }
    lowered = lower_schema(schema, "openai-strict")
    assert lowered.restored(
        {
            "many": [{"a": None, "b": None}, {"a": 1, "b": "x"}],
            "pet": {"kind": "dog", "name": None},
            "maybe": {"a": None, "b": "y"},
            "new": None,
        },
    ) == {
        "many": [{"b": None}, {"a": 1, "b": "x"}],
        "pet": {"kind": "dog"},
        "maybe": {"b": "y"},
        "new": None,
    }


def test_what_fits_no_form_comes_back_as_it_is() -> None:
    lowered = lower_schema(
        of(pet={"anyOf": [{**CAT, "required": ["kind"]}, {**DOG, "required": ["kind"]}]}),
        "openai-strict",
    )
    assert lowered.restored({"pet": {"kind": "bird", "name": None}}) == {
        "pet": {"kind": "bird", "name": None},
    }


# -- properties

NAMES = st.sampled_from(["a", "b", "c/d"])
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from(["", "a", "ab", "abc"]),
    st.sampled_from([0.5, 1.0]),
)
BOUND = st.integers(0, 4)


def some(**keywords: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def typed(kind: str, more: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return more.map(lambda found: {"type": kind, **found})


LEAVES = st.one_of(
    typed("string", some(minLength=BOUND, maxLength=BOUND, pattern=st.sampled_from(["^a", "b$", r"^(?!b)"]), default=st.just("a"))),
    typed("integer", some(minimum=BOUND, exclusiveMaximum=BOUND, multipleOf=st.just(2), description=st.just("A number"))),
    typed("number", some(maximum=BOUND, exclusiveMinimum=BOUND)),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}, {"type": ["integer", "string"]}, {"$ref": "#/$defs/Node"}, {"$ref": "#/$defs/Word"}, {}]),
    st.lists(SCALARS, min_size=1, max_size=3, unique_by=repr).map(lambda values: {"enum": values}),
    SCALARS.map(lambda value: {"const": value}),
)  # fmt: skip


def compounds(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    closing = st.one_of(
        st.just({}),
        st.just({}),
        st.just({"additionalProperties": False}),
        inner.map(lambda each: {"additionalProperties": each}),
    )
    objects = st.builds(
        lambda properties, required, closed: {"type": "object", "properties": properties, "required": [name for name in properties if name in required], **closed},
        st.dictionaries(NAMES, inner, min_size=1, max_size=3), st.sets(NAMES), closing,
    )  # fmt: skip
    tuples = st.lists(inner, min_size=1, max_size=2).map(
        lambda found: {"type": "array", "prefixItems": found, "maxItems": len(found)},
    )
    unions = st.lists(inner, min_size=1, max_size=3)
    names = st.sampled_from(
        [
            {},
            {},
            {"propertyNames": {"maxLength": 2}},
            {"propertyNames": {"enum": ["a", "ab"]}},
            {"maxProperties": 1},
        ],
    )
    dictionaries = st.builds(
        lambda each, more: {"type": "object", "additionalProperties": each, **more},
        inner,
        names,
    )
    by_pattern = inner.map(
        lambda each: {
            "type": "object",
            "patternProperties": {"^a": each},
            "additionalProperties": False,
        },
    )
    return st.one_of(
        objects,
        dictionaries,
        by_pattern,
        typed("array", some(minItems=BOUND, maxItems=BOUND, uniqueItems=st.booleans())).flatmap(
            lambda found: inner.map(lambda each: {**found, "items": each}),
        ),
        tuples,
        unions.map(lambda found: {"anyOf": found}),
        unions.map(lambda found: {"oneOf": found}),
        st.lists(inner, min_size=1, max_size=2).map(lambda found: {"allOf": found}),
    )


INNER = st.recursive(LEAVES, compounds, max_leaves=6)
NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}},
    "required": ["v"],
}
SCHEMAS = st.builds(
    lambda properties, required: {
        "type": "object", "properties": properties, "required": sorted(required & properties.keys()), "additionalProperties": False,
        "$defs": {"Node": NODE, "Word": {"type": "string", "maxLength": 2}},
    },
    st.dictionaries(NAMES, INNER, min_size=1, max_size=3), st.sets(NAMES),
)  # fmt: skip


@st.composite
def instances(draw: st.DrawFn, schema: Any, root: Any, depth: int = 0) -> Any:
    """Values that mostly fit; `root` is for references."""
    if not isinstance(schema, dict) or not schema:
        return draw(SCALARS)
    if "$ref" in schema:
        return draw(instances(find_pointer(schema["$ref"], root), root, depth + 1))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return draw(instances(draw(st.sampled_from(schema[key])), root, depth + 1))
    if "allOf" in schema:
        parts = [draw(instances(each, root, depth + 1)) for each in schema["allOf"]]
        return (
            {name: value for part in parts for name, value in part.items()}
            if all(isinstance(part, dict) for part in parts)
            else parts[0]
        )
    if "enum" in schema or "const" in schema:
        return draw(st.sampled_from(schema.get("enum") or [schema.get("const")]))
    kind = schema.get("type", "null")
    match draw(st.sampled_from(kind)) if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties", {})
            chosen = [
                name
                for name in properties
                if name in schema.get("required", ()) or (depth < 8 and draw(st.booleans()))
            ]
            found = {name: draw(instances(properties[name], root, depth + 1)) for name in chosen}
            others = schema.get("additionalProperties") or next(
                iter(schema.get("patternProperties", {}).values()),
                None,
            )
            if not properties and isinstance(others, dict) and depth < 8:
                names = draw(st.sets(st.sampled_from(["", "a", "ab", "abc"]), max_size=2))
                found = {name: draw(instances(others, root, depth + 1)) for name in sorted(names)}
            # Else it may fit an open object beside it, which is closed in a strict mode.
            is_valid = Draft202012Validator(root).evolve(schema=schema).is_valid(found)
            return found if is_valid else {}
        case "array":
            prefix = [
                draw(instances(each, root, depth + 1)) for each in schema.get("prefixItems", ())
            ]
            more = (
                draw(st.lists(instances(schema["items"], root, depth + 1), max_size=3))
                if "items" in schema and depth < 8
                else []
            )
            return (prefix + more)[: schema.get("maxItems", 9)]
        case "string":
            return draw(st.sampled_from(["", "a", "ab", "abc", "b"]))
        case "integer":
            return draw(st.integers(-1, 6))
        case "number":
            return draw(st.sampled_from([-1, 0, 0.5, 1, 2.5, 4]))
        case "boolean":
            return draw(st.booleans())
    return None


def translated(value: Any, schema: Any, root: Any, likely: int = 0) -> Any:
    """What a model would write: null for each property that it leaves out, a list for a dictionary;
    of a tuple's items, each in the form of its own place.
    """
    if "$ref" in schema:
        return translated(value, find_pointer(schema["$ref"], root), root)
    if "anyOf" in schema:
        branches = sorted(
            schema["anyOf"],
            key=lambda each: each not in schema["anyOf"][likely : likely + 1],
        )
        tried = [translated(value, each, root) for each in branches]
        return next(
            (
                found
                for found, each in zip(tried, branches, strict=True)
                if Draft202012Validator(root).evolve(schema=each).is_valid(found)
            ),
            value,
        )
    if isinstance(value, list):
        listed = schema.get("prefixItems", [])
        return [
            translated(each, listed[i] if i < len(listed) else schema.get("items", {}), root, i)
            for i, each in enumerate(value)
        ]
    if isinstance(value, dict):
        pair = (
            schema.get("items", {}).get("properties", {})
            if "array" in schema.get("type", ())
            else {}
        )
        if pair.keys() == {"key", "value"}:
            return [
                {"key": name, "value": translated(each, pair["value"], root)}
                for name, each in value.items()
            ]
        properties = schema.get("properties", {})
        nulls = {name: None for name in schema.get("required", ()) if name not in value}
        return {
            **{
                name: translated(each, properties.get(name, {}), root)
                for name, each in value.items()
            },
            **nulls,
        }
    return value


def places(error: Any, schema: Any) -> list[str]:
    """Where in a schema a keyword refused a value: its owner, references followed, and the parts of
    an `allOf` as their owner's.
    """
    node, at, last = schema, "", len(error.absolute_schema_path) - 1
    found: list[str] = []
    for i, each in enumerate(error.absolute_schema_path):
        while isinstance(node, dict) and "$ref" in node and each not in node:
            found.append(at)
            at = node["$ref"][1:]
            node = find_pointer(node["$ref"], schema)
        if i == last:
            break
        node = node[each]
        at += f"/{str(each).replace('~', '~0').replace('/', '~1')}"
    inside = [place for inner in error.context for place in places(inner, schema)]
    return [*(re.sub("/allOf/[0-9]+", "", place) for place in [*found[-1:], at]), *inside]


BRANCH = "/(any|one)Of/[0-9]+"
PROPERTY = settings(
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


LIST = {"type": "array", "items": {"type": "string"}}
DICTIONARY = {"type": "object", "additionalProperties": {"type": "string"}}


def test_each_item_of_a_tuple_comes_back_in_the_form_of_its_own_place() -> None:
    """A null may stand for "left out" at one place and be the value at the next."""
    first = {"type": "object", "properties": {"c": {"type": "string"}}}
    second = {"type": "object", "properties": {"c": {"const": None}}, "required": ["c"]}
    schema = {
        "type": "object",
        "properties": {"b": {"type": "array", "prefixItems": [first, second], "maxItems": 2}},
        "required": ["b"],
    }
    lowered = lower_schema(schema, "openai-strict")
    assert lowered.restored({"b": [{"c": None}, {"c": None}]}) == {"b": [{}, {"c": None}]}


@pytest.mark.parametrize(
    ("places", "rest"),
    [
        ([LIST, LIST, DICTIONARY], False),
        ([{"anyOf": [{"type": "string"}, LIST]}, DICTIONARY], False),
        ([LIST], DICTIONARY),
    ],
    ids=["the same form at two places", "two forms at one place", "a form for the rest"],
)
def test_an_item_of_a_tuple_that_may_be_read_as_another_form_is_told(
    places: list[Any], rest: Any
) -> None:
    """The forms of all places become one union, where an empty dictionary looks like a list."""
    items = {"type": "array", "prefixItems": places, "items": rest}
    schema = {"type": "object", "properties": {"a": items}, "required": ["a"]}
    losses = lower_schema(schema, "anthropic").losses
    assert [loss.path for loss in losses if "look the same" in loss.lost] == ["/properties/a"]


@pytest.mark.parametrize(
    "around",
    [
        lambda part: {"type": "object", "additionalProperties": part},
        lambda part: {"type": "array", "items": part},
        lambda part: {"type": "object", "properties": {"b": part}, "required": ["b"]},
    ],
    ids=["a dictionary", "a list", "an object"],
)
def test_forms_that_differ_inside_in_a_list_and_a_dictionary_may_be_read_for_each_other(
    around: Any,
) -> None:
    """One level below the union, too, an empty dictionary is written as an empty list is."""
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [around(DICTIONARY), around(LIST)]}},
        "required": ["a"],
    }
    lost = [
        loss.path
        for loss in lower_schema(schema, "anthropic").losses
        if "look the same" in loss.lost
    ]
    assert lost == ["/properties/a"]
    alike = {
        "type": "object",
        "properties": {"a": {"anyOf": [around(LIST), around({"type": "string"})]}},
        "required": ["a"],
    }
    assert not any("look the same" in loss.lost for loss in lower_schema(alike, "anthropic").losses)


@pytest.mark.parametrize("target", TARGETS)
@PROPERTY
@given(data=st.data(), schema=SCHEMAS)
def test_what_fits_the_schema_fits_the_lowered_one(
    target: Target,
    data: st.DataObject,
    schema: Any,
) -> None:
    """After the obvious translation, and whatever was merely not enforced; and E15: it comes back
    as it was.
    """
    lowered = lower_schema(schema, target)
    assume(lowered.is_strict or target == "gemini")
    assume(not any(loss.keyword in {"allOf", "false"} for loss in lowered.losses))
    value = data.draw(instances(schema, schema))
    assume(Draft202012Validator(schema).is_valid(value))
    written = translated(value, lowered.schema, lowered.schema)
    Draft202012Validator(lowered.schema).validate(written)
    if not any(
        loss.keyword == "required" or "look the same" in loss.lost for loss in lowered.losses
    ):
        assert lowered.restored(written) == value


@pytest.mark.parametrize("target", TARGETS)
@PROPERTY
@given(data=st.data(), schema=SCHEMAS)
def test_what_fits_the_lowered_schema_comes_back_fitting_or_a_loss_says_why_not(
    target: Target,
    data: st.DataObject,
    schema: Any,
) -> None:
    lowered = lower_schema(schema, target)
    assume(lowered.is_strict or target == "gemini")
    written = data.draw(instances(lowered.schema, lowered.schema))
    assume(Draft202012Validator(lowered.schema).is_valid(written))
    try:
        restored = lowered.restored(written)
    except ToolCallError:
        assert any("that keys are unique" in loss.lost for loss in lowered.losses)
        return
    for error in Draft202012Validator(schema).iter_errors(restored):
        found = [re.sub(BRANCH, "", at) for at in places(error, schema)]
        told = [
            re.sub(BRANCH, "", loss.path) for loss in lowered.losses
        ]  # what stands beside a union is told in its branches
        assert any(at.startswith(path) or path.startswith(at) for at in found for path in told), (
            error
        )


@pytest.mark.parametrize("target", TARGETS)
@PROPERTY
@given(schema=SCHEMAS)
def test_lowering_leaves_what_came_in_and_makes_a_schema_that_keeps_to_the_rules(
    target: Target,
    schema: Any,
) -> None:
    """On a copy.

    And what the pages of the providers demand, of every schema that is not reported as unfit.
    """
    before = copy.deepcopy(schema)
    lowered = lower_schema(schema, target)
    assert schema == before
    Draft202012Validator.check_schema(lowered.schema)
    waiting: list[Any] = [lowered.schema]
    while waiting:
        each = waiting.pop()
        assert not each.keys() & {"allOf", "oneOf", "const", "not"}
        assert "$ref" not in each or len(each) == 1
        if lowered.is_strict and "properties" in each:
            assert each["additionalProperties"] is False
            assert target != "openai-strict" or each["required"] == list(each["properties"])
        waiting += [
            *each.get("properties", {}).values(),
            *each.get("$defs", {}).values(),
            *each.get("anyOf", ()),
        ]
        waiting += [each["items"]] if "items" in each else []


@given(schema=SCHEMAS)
def test_lowering_twice_changes_nothing_more(schema: Any) -> None:
    """A lowered schema keeps to its own rules, but for sentences in descriptions."""
    lowered = lower_schema(schema, "anthropic")
    assume(lowered.is_strict)
    assert lower_schema(lowered.schema, "anthropic") == LoweredSchema(
        lowered.schema,
        (),
        "anthropic",
    )


@pytest.mark.parametrize("names", [{"const": ["a"]}, {"enum": [["a"], {"b": 1}, None]}])
def test_listed_names_that_are_no_texts_name_no_property(names: Any) -> None:
    """No property has such a name."""
    assert lower_schema({"type": "object", "propertyNames": names}, "grammar").schema == {
        "type": "object",
        "additionalProperties": False,
    }
