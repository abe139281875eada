from typing import Any, Literal

import pytest

from ferrule.schema.python_types import (
    convert_input_schema_to_tool_args,
    model_of,
    python_type,
    typed_value,
)


def test_arguments_types_and_descriptions_of_an_input_schema():
    """Type lists, anyOf, references, optional ones without default."""
    args, types, texts = convert_input_schema_to_tool_args(
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "description": "how many"},
                "more": {"type": ["boolean", "string"]},
                "since": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "at": {"$ref": "#/$defs/At"},
                "names": {"type": "array", "items": {"type": "string"}},
                "kind": {"enum": ["a", "b"]},
                "by_name": {"type": "object", "additionalProperties": {"type": "number"}},
                "any": {},
            },
            "required": ["n"],
            "$defs": {
                "At": {
                    "type": "object",
                    "description": "a place",
                    "properties": {"zone": {"type": "string"}},
                },
            },
        },
    )
    assert args["n"] == {"type": "integer", "description": "how many"}
    assert args["at"] == {
        "type": "object",
        "description": "a place",
        "properties": {"zone": {"type": "string"}},
    }
    assert types == {
        "n": int,
        "more": bool | str,
        "since": str | None,
        "at": dict,
        "names": list[str],
        "kind": Literal["a", "b"],
        "by_name": dict[str, float],
        "any": Any,
    }
    assert texts == {"n": "how many", "at": "a place"}


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "object"}, {"type": "object", "properties": {}}],
    ids=["empty", "bare", "none"],
)
def test_a_schema_without_properties_has_no_arguments(schema):
    assert convert_input_schema_to_tool_args(schema) == ({}, {}, {})


def test_a_recursive_schema_ends():
    schema = {
        "$defs": {"N": {"type": "array", "items": {"$ref": "#/$defs/N"}}},
        "properties": {"n": {"$ref": "#/$defs/N"}},
    }
    args, types, _ = convert_input_schema_to_tool_args(schema)
    assert args == {"n": {"$ref": "#/$defs/N"}}
    assert str(types["n"]).startswith("list[list[")


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        pytest.param({"const": 1}, Literal[1], id="const"),
        pytest.param({"enum": [1.5]}, Any, id="an enum of what no Literal holds"),
        pytest.param({"type": "null"}, type(None), id="null"),
        pytest.param({"type": "array"}, list, id="a list of anything"),
        pytest.param({"oneOf": [{"type": "string"}, {}]}, Any, id="or anything"),
        pytest.param(True, Any, id="anything"),
    ],
)
def test_a_type_says_no_more_than_it_can(schema, kind):
    assert python_type(schema, {}) == kind


def test_a_model_of_an_output_schema():
    """Names that Python cannot have are reached through their alias, further fields are kept."""
    found = typed_value(
        {"n": 3, "class": "x", "items": [{"zone-id": "UTC"}], "more": 1},
        {
            "type": "object",
            "title": "Answer",
            "properties": {
                "n": {"type": "integer"},
                "class": {"type": "string"},
                "items": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"zone-id": {"type": "string"}}},
                },
                "gone": {"type": "string"},
            },
            "required": ["n"],
        },
    )
    assert type(found).__name__ == "Answer"
    assert (found.n, found.gone, found.more) == (3, None, 1)
    assert found.model_dump(by_alias=True, exclude_none=True) == {
        "n": 3,
        "class": "x",
        "items": [{"zone-id": "UTC"}],
        "more": 1,
    }


def test_a_model_takes_each_alternative():
    point = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    items = {"type": "array", "items": {"oneOf": [point, {"type": "string"}]}}
    model = model_of(
        {
            "type": "object",
            "properties": {
                "at": {"anyOf": [point, {"type": "null"}]},
                "items": items,
                "more": True,
            },
        },
    )
    made = model(at={"x": 1}, items=[{"x": 2}, "here"], more=[3])
    assert made.model_dump() == {"at": {"x": 1}, "items": [{"x": 2}, "here"], "more": [3]}


def test_a_model_of_what_contains_itself_ends():
    inside = model_of(
        {
            "$ref": "#/$defs/N",
            "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
        },
    )
    value: Any = None
    for _ in range(100):
        value = {"next": value}
    assert inside(**value).model_dump() == value


def test_a_value_that_a_server_put_into_an_object_is_taken_out():
    """FastMCP's mark."""
    schema = {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/P"}}},
        "$defs": {"P": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        "x-fastmcp-wrap-result": True,
    }
    [found] = typed_value({"result": [{"x": 1}]}, schema)
    assert found.x == 1


def test_a_value_that_does_not_fit_stays_as_it_came():
    assert typed_value(
        {"n": "no"},
        {"type": "object", "properties": {"n": {"type": "integer"}}},
    ) == {"n": "no"}
    assert typed_value({"n": "no"}, None, dict[str, int]) == {"n": "no"}
    assert typed_value([1], None) == [1]


def test_a_schema_that_says_nothing_has_no_model():
    assert model_of({}) is None
