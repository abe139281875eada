from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ferrule.schema.explain import (
    dotted_path,
    explain_failures,
    missing_argument,
    unknown_arguments,
)
from ferrule.schema.failures import find_failures
from ferrule.schema.inline import SchemaGenerator, inline_definitions, strip_titles
from ferrule.schema.validator import Validator
from ferrule.tools.arguments.problems import explain_pydantic


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Args(TypedDict):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    plain: Cat | Dog
    by: dict[str, int]


class Floors(TypedDict):
    rooms: dict[int, list[str]]


def told(args, kind=Args):
    adapter = TypeAdapter(kind)
    schema = inline_definitions(strip_titles(adapter.json_schema(schema_generator=SchemaGenerator)))
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(args)
    return dict(
        explain_pydantic(caught.value, args, schema, {name: name for name in schema["properties"]}),
    )


CAT = {"kind": "cat", "lives": 9}


def test_the_chosen_branch_of_a_tagged_union_is_explained():
    assert told({"pet": {"kind": "cat", "lives": "x"}, "plain": CAT, "by": {}}) == {
        "pet.lives": 'expected an integer, got "x"',
    }
    assert "pet" in told({"pet": {"kind": "cow"}, "plain": CAT, "by": {}})


def test_a_union_nothing_fits_is_explained_as_a_whole():
    """One line, not one for each branch."""
    found = told({"pet": CAT, "plain": {"kind": "cow"}, "by": {}})
    assert found.keys() == {"plain"}
    assert found["plain"].startswith(
        'expected an object {"kind": "cat", "lives": integer} or an object {"kind": "dog", "name": string}, got ',
    )


def test_a_name_that_does_not_fit_is_not_explained_by_the_schema_of_its_value():
    said = told({"rooms": {"top": ["attic"], "0": "hall"}}, Floors)
    assert said["rooms.top"].startswith(
        'the name "top" does not fit: Input should be a valid integer',
    )
    assert said["rooms.0"] == 'expected a list of strings, got "hall"'


def test_keys_of_dictionaries_are_places():
    assert told({"pet": CAT, "plain": CAT, "by": {"a": 1, "b.c": "x"}}) == {
        "by.b.c": 'expected an integer, got "x"',
    }


SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 1, "maximum": 3},
        "b": {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^x"},
        "c": {
            "type": "array",
            "items": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "minItems": 1,
            "maxItems": 2,
        },
        "d": {
            "type": "object",
            "properties": {"e": {"const": 1}, "need": {"type": "boolean"}},
            "required": ["need", "more"],
            "additionalProperties": False,
        },
        "f": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "g": {"type": "integer", "multipleOf": 3},
        "h": {"not": {}},
    },
}


@pytest.mark.parametrize(
    ("args", "problems"),
    [
        ({"a": 0}, {"a": "0 is under the minimum 1"}),
        ({"a": 9}, {"a": "9 is over the maximum 3"}),
        ({"a": "9"}, {"a": 'expected an integer 1-3, got "9"'}),
        ({"b": "x"}, {"b": '"x" has fewer than 2 characters'}),
        ({"b": "xxxx"}, {"b": '"xxxx" has more than 3 characters'}),
        ({"b": "abc"}, {"b": '"abc" does not match the pattern ^x'}),
        ({"c": []}, {"c": "has 0 items, expected at least 1"}),
        (
            {"c": [0.5, 0, 1]},
            {
                "c": "has 3 items, expected at most 2",
                "c.1": "0 must be greater than 0",
                "c.2": "1 must be less than 1",
            },
        ),
        (
            {"d": {"e": 2}},
            {
                "d.e": "expected 1, got 2",
                "d.need": "is missing, expected true or false",
                "d.more": "is missing",
            },
        ),
        (
            {"d": {"need": True, "more": 1, "neeed": 1}},
            {
                "d.more": "there is no such argument",
                "d.neeed": "there is no such argument, did you mean `need`?",
            },
        ),
        ({"f": "x"}, {"f": 'expected an integer or null, got "x"'}),
        ({"g": 4}, {"g": '4 breaks the rule {"multipleOf":3}'}),
        ({"h": 1}, {"h": '1 breaks the rule {"not":{}}'}),
    ],
)
def test_what_a_schema_refuses_is_said_in_the_same_words(args, problems):
    assert dict(explain_failures(find_failures(Validator(SCHEMA), args), SCHEMA)) == problems


def test_names_and_paths_can_always_be_sent():
    """ours."""
    assert dotted_path(("a", 0, "\ud800")) == "a.0.\\ud800"
    for name in ("\ud800", 3, None, "x" * 9999):
        [(path, text)] = unknown_arguments([name], ["a"])
        assert len(path) < 300
        (path + text).encode()
    assert missing_argument("a", {"type": "integer"}, {}) == (
        "a",
        "is missing, expected an integer",
    )
    assert missing_argument("a", {}, {}) == ("a", "is missing")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (True, 'Input should be a valid integer, unable to parse string as an integer, got "x"'),
        (None, 'Input should be a valid integer, unable to parse string as an integer, got "x"'),
        (
            {"anyOf": [{"type": "null"}, {"items": {"type": "integer", "minimum": 3}}]},
            'expected an integer >= 3, got "x"',
        ),
    ],
    ids=["any value", "no such property", "the second alternative"],
)
def test_a_problem_inside_a_list_is_told_by_the_schema_as_far_as_it_goes(schema, said):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(TypedDict("Args", {"a": list[int]})).validate_python({"a": ["x"]})
    known = {"properties": {"a": schema} if schema is not None else {}}
    assert explain_pydantic(caught.value, {"a": ["x"]}, known, {"a": "a"}) == [("a.0", said)]
