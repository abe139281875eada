import copy
from enum import IntEnum
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ferrule.schema.inline import SchemaGenerator, inline_definitions, strip_titles


class Leaf(BaseModel):
    title: str


class Pair(BaseModel):
    left: Leaf
    right: Leaf = Field(description="the other")


class Tree(BaseModel):
    leaf: Leaf
    kids: list["Tree"] = []


class Ping(BaseModel):
    pong: "Pong | None" = None


class Pong(BaseModel):
    ping: Ping | None = None


def schema_of(kind):
    return inline_definitions(
        strip_titles(TypeAdapter(kind).json_schema(schema_generator=SchemaGenerator)),
    )


def test_definitions_are_put_where_they_are_used():
    leaf = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    found = schema_of(Pair)
    assert found["properties"] == {"left": leaf, "right": {**leaf, "description": "the other"}}
    assert "$defs" not in found


def test_definitions_that_contain_themselves_stay():
    found = schema_of(TypedDict("Args", {"tree": Tree, "ping": Ping}))
    assert found["$defs"].keys() == {"Tree", "Ping", "Pong"}
    assert found["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert "$ref" not in str(found["$defs"]["Tree"]["properties"]["leaf"])


def test_only_definitions_that_are_still_needed_stay():
    """ours."""
    schema = {
        "properties": {"x": {"$ref": "#/$defs/Leaf"}},
        "$defs": {"Leaf": {"type": "string"}, "Unused": {"type": "null"}},
    }
    assert inline_definitions(schema) == {"properties": {"x": {"type": "string"}}}


def test_models_that_double_at_every_level_stay_references():
    """ours: inlining them would need more memory than there is."""
    definitions = {
        f"L{i}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/L{i + 1}"} for side in "ab"},
        }
        for i in range(60)
    }
    definitions["L60"] = {"type": "string"}
    found = inline_definitions({"$ref": "#/$defs/L0", "$defs": definitions})
    assert "$defs" in found
    assert len(str(found)) < 1_000_000


def test_the_names_of_an_object_are_texts_also_for_an_enum_of_integers():
    """`propertyNames` of integers would allow no name at all."""

    class Level(IntEnum):
        LOW = 1
        HIGH = 2

    found = schema_of(tuple[dict[Level, str], dict[Level, int], Level])
    names = {"enum": ["1", "2"], "type": "string"}
    assert [each.get("propertyNames") for each in found["prefixItems"]] == [names, names, None]
    assert found["prefixItems"][2] == {"enum": [1, 2], "type": "integer"}
    assert "$defs" not in found


def test_keywords_beside_a_reference_win():
    """ours: JSON Schema 2020-12 lets both hold; descriptions and defaults stand beside."""
    schema = {
        "properties": {"x": {"$ref": "#/$defs/L", "default": 1, "description": "mine"}},
        "$defs": {"L": {"type": "integer", "description": "its"}},
    }
    assert inline_definitions(schema)["properties"]["x"] == {
        "type": "integer",
        "description": "mine",
        "default": 1,
    }


def test_generated_titles_go_and_chosen_ones_and_properties_stay():
    class Book(BaseModel):
        title: str
        named: int = Field(title="A chosen title")

    found = schema_of(TypedDict("Args", {"book": Book, "title": Book}))
    assert found["properties"]["book"] == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "named": {"type": "integer", "title": "A chosen title"},
        },
        "required": ["title", "named"],
    }
    assert found["properties"]["title"] == found["properties"]["book"]


def test_data_that_looks_like_a_schema_is_left_alone():
    schema = {
        "properties": {
            "$ref": {
                "default": {"$ref": "#/$defs/L", "title": "L"},
                "const": {"title": "L"},
                "enum": [{"$ref": "#/$defs/L"}],
            },
            "examples": {"examples": [{"properties": {"$ref": "#/$defs/L"}}]},
        },
        "$defs": {"L": {"type": "string", "title": "L"}},
    }
    found = inline_definitions(strip_titles(schema))
    assert found["properties"] == schema["properties"]


def test_nothing_that_comes_in_is_changed():
    schema = TypeAdapter(Tree).json_schema()
    before = copy.deepcopy(schema)
    made = inline_definitions(strip_titles(schema))
    made["$defs"]["Tree"]["properties"].clear()
    assert schema == before


def test_the_mapping_of_a_discriminator_never_points_at_nothing():
    class Cat(BaseModel):
        kind: Literal["cat"]

    class Dog(BaseModel):
        kind: Literal["dog"]

    found = schema_of(TypedDict("Args", {"pet": Annotated[Cat | Dog, Field(discriminator="kind")]}))
    assert "#/$defs" not in str(found)


def test_the_tag_of_a_discriminated_union_is_required_even_if_it_has_a_default():
    """pydantic refuses a value without it; its schema does not say so."""

    class Cat(BaseModel):
        kind: Literal["cat"] = "cat"
        lives: int

    class Dog(BaseModel):
        kind: Literal["dog"] = "dog"

    pet = Annotated[Cat | Dog, Field(discriminator="kind")]
    found = schema_of(TypedDict("Args", {"pet": pet, "cat": Cat}))
    assert [each["required"] for each in found["properties"]["pet"]["oneOf"]] == [
        ["kind", "lives"],
        ["kind"],
    ]
    assert found["properties"]["pet"]["oneOf"][1]["properties"] == {
        "kind": {"const": "dog", "type": "string"},
    }
    assert found["properties"]["cat"]["required"] == ["lives"]
    assert found["properties"]["cat"]["properties"]["kind"]["default"] == "cat"
    with pytest.raises(ValidationError, match="Unable to extract tag"):
        TypeAdapter(pet).validate_python({"lives": 9})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "$ref",
                    "properties",
                    "items",
                    "anyOf",
                    "$defs",
                    "title",
                    "x",
                    "default",
                    "enum",
                ],
            ),
            each,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["type", "$ref", "properties", "items", "anyOf", "$defs", "title", "default"],
        ),
        JSON,
        max_size=5,
    ),
)
def test_surgery_on_anything_ends_and_changes_nothing_that_came_in(schema):
    """ours."""
    before = copy.deepcopy(schema)
    inline_definitions(strip_titles(schema))
    assert schema == before
