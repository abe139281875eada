from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import jsonschema
import pytest
from annotated_types import Len, MultipleOf
from hypothesis import given
from hypothesis import strategies as st
from pydantic import UUID4, AnyUrl, BaseModel, ConfigDict, Field, IPvAnyAddress, TypeAdapter

from ferrule.testing.offline.example import example


class Colour(Enum):
    red = "RED"
    blue = "BLUE"


class Leaf(BaseModel):
    name: str
    size: int = 3


class Tree(BaseModel):
    leaf: Leaf
    children: list[Tree]
    next: Tree | None


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: Annotated[int, Field(gt=3, lt=5)]
    b: Literal["x", "y"]


KINDS = [
    int,
    float,
    bool,
    str,
    None,
    list[int],
    dict[str, int],
    tuple[int, str],
    set[int],
    Any,
    Colour,
    Literal[3, "x"],
    Leaf,
    Tree,
    Strict,
    list[Tree],
    Leaf | None,
    int | str,
    date,
    datetime,
    UUID,
    UUID4,
    ZoneInfo,
    IPv4Network,
    IPv6Network,
    IPv4Interface,
    IPv6Interface,
    IPvAnyAddress,
    AnyUrl,
    Decimal,
    Annotated[int, Field(ge=7)],
    Annotated[int, Field(gt=7)],
    Annotated[int, Field(le=-7)],
    Annotated[int, Field(lt=-7)],
    Annotated[int, MultipleOf(7), Field(gt=7)],
    Annotated[float, Field(gt=0.25, lt=0.5)],
    Annotated[float, Field(gt=0)],
    Annotated[float, Field(lt=0)],
    Annotated[str, Field(min_length=11)],
    Annotated[str, Field(max_length=2)],
    Annotated[str, Field(pattern=r"^[A-Z]{3}-\d{4}(x|y)?$")],
    Annotated[str, Field(pattern=r"^(?:ab|cd)[^a]\w+\s.$")],
    Annotated[list[int], Len(3)],
    Annotated[set[int], Len(3)],
    Annotated[set[str], Len(2)],
    Annotated[set[Literal["a", "b", "c"]], Len(2)],
    Annotated[dict[str, int], Len(2)],
]


@pytest.mark.parametrize("kind", KINDS, ids=range(len(KINDS)))
def test_an_example_fits_the_type_it_was_made_for(kind):
    adapter = TypeAdapter(kind)
    schema = adapter.json_schema()
    value = example(schema)
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(
        value,
    )
    adapter.validate_python(value)


def test_only_what_is_required_is_filled_in():
    assert example(Leaf.model_json_schema()) == {"name": "text"}
    assert example({"type": "object", "properties": {"a": {}, "b": {}}}) == {}


def test_defaults_inside_are_used():
    assert example(
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "default": 9}},
            "required": ["a"],
        },
    ) == {"a": 9}


def test_parts_of_all_of_are_one():
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"const": 4}}, "required": ["b", "a"]},
        ],
    }
    assert example(schema) == {"a": 1, "b": 4}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        None,
        3,
        {"type": "made-up"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"type": ["null", "integer"]},
        {"enum": []},
    ],
    ids=range(10),
)
def test_an_odd_schema_gives_something_and_no_error(schema):
    example(schema)


def test_a_schema_that_only_ends_in_null_ends():
    schema = {
        "$ref": "#/$defs/n",
        "$defs": {
            "n": {
                "type": "object",
                "properties": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                "required": ["n"],
            },
        },
    }
    jsonschema.validate(example(schema), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}},
            "required": ["a", "b"],
        },
        {"type": "array", "items": {"$ref": "#"}, "minItems": 3},
        {"type": "array", "minItems": 10**9},
        {"type": "object", "minProperties": 10**9},
        {"type": "string", "minLength": 10**9},
    ],
    ids=range(5),
)
def test_a_schema_that_nothing_fits_does_not_take_for_ever(schema):
    example(schema)


@given(st.from_regex(r"[a-c\d.?*+()\[\]|^$\\]{0,12}"))
def test_any_pattern_gives_text(pattern):
    value = example({"type": "string", "pattern": pattern})
    assert isinstance(value, str)


@given(st.integers(-50, 50), st.integers(0, 40), st.integers(1, 9))
def test_numbers_keep_to_their_bounds(low, width, step):
    schema = {"type": "integer", "minimum": low, "maximum": low + width + step, "multipleOf": step}
    jsonschema.validate(example(schema), schema)


def test_a_pattern_that_repeats_too_often_is_left_alone():
    assert example({"type": "string", "pattern": "a{100000}"}) == "text"
    assert re.fullmatch("a{900}", example({"type": "string", "pattern": "a{900}"}))


WORDS = (
    {
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "items",
        "prefixItems",
        "minItems",
        "uniqueItems",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "a",
    }
    | {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "default",
    }
    | {"additionalProperties", "minProperties"}
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["#", "#/a", "object", "null", "string", "a", "date"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(WORDS)), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(WORDS)), JSON, max_size=6))
def test_any_schema_gives_something_in_finite_time(schema):
    example(schema)
