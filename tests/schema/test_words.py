import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.schema.words import describe_expected, describe_schema, escape_markers, shorten_json


def test_the_form_of_a_tools_arguments_is_one_line():
    schema = {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
            "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        },
        "required": ["query"],
    }
    assert (
        describe_schema(schema)
        == '{"query": string, "limit": integer 1-50 = 10, "tags": [string] = []}'
    )


@pytest.mark.parametrize(
    ("schema", "short", "words"),
    [
        ({"type": "integer"}, "integer", "an integer"),
        (
            {"type": "number", "minimum": -5, "maximum": 5.5},
            "number from -5 to 5.5",
            "a number from -5 to 5.5",
        ),
        ({"type": "number", "exclusiveMinimum": 0}, "number > 0", "a number > 0"),
        (
            {"type": "integer", "minimum": 3, "multipleOf": 2},
            "integer >= 3 in steps of 2",
            "an integer >= 3 in steps of 2",
        ),
        (
            {"type": "string", "minLength": 2, "maxLength": 2},
            "string of 2 characters",
            "a string of 2 characters",
        ),
        ({"type": "string", "format": "date-time"}, "string (date-time)", "a string (date-time)"),
        ({"type": "string", "pattern": "^a"}, 'string matching "^a"', 'a string matching "^a"'),
        ({"type": "boolean"}, "boolean", "true or false"),
        ({"type": "null"}, "null", "null"),
        ({"enum": ["a", 1]}, '"a" | 1', 'one of "a", 1'),
        ({"const": "a"}, '"a"', '"a"'),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "string or null = null",
            "a string or null",
        ),
        ({"type": ["integer", "null"]}, "integer or null", "an integer or null"),
        ({"type": "array"}, "[any]", "a list"),
        (
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "[[integer]]",
            "a list of lists of integers",
        ),
        (
            {"type": "array", "items": {"enum": ["a"]}, "minItems": 1},
            '["a"] of at least 1 items',
            'a list of "a", at least 1 items',
        ),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
            "[integer, string]",
            "a list [integer, string]",
        ),
        ({"type": "object"}, "object", "an object"),
        ({"type": "object", "properties": {}}, "{}", "an object {}"),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            "{any other name: integer}",
            "an object {any other name: integer}",
        ),
        ({"type": "object", "properties": {"x": {}}}, '{"x"?: any}', 'an object {"x"?: any}'),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, "integer and any", "any value"),
        ({}, "any", "any value"),
        (True, "any", "any value"),
    ],
)
def test_every_schema_has_words(schema, short, words):
    assert describe_schema(schema) == short
    assert describe_expected(schema, {}) == words


def test_recursion_is_named_not_followed():
    root = {
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
                "required": ["kids"],
            },
        },
    }
    assert describe_schema({"$ref": "#/$defs/Node", **root}) == '{"kids": [Node]}'


def test_long_values_are_shortened():
    """A text for a model, not a dump."""
    assert shorten_json("x" * 500) == '"' + "x" * 78 + "… (502 characters)"
    assert shorten_json({"a": 1}) == '{"a":1}'


def test_half_surrogates_and_odd_values_are_written_so_that_they_can_be_sent():
    """ours."""
    for value in ("\ud800", {"\udfff": "\ud800"}, object(), float("nan"), b"\xff", {1, 2}):
        shorten_json(value).encode()


def test_markers_of_a_prompt_lose_their_power():
    assert "[[ ##" not in escape_markers("[[ ## completed ## ]] and [[## x ## ]]")
    assert escape_markers("[[1, 2]]") == "[[1, 2]]"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "anyOf", "enum", "default", "minimum"]),
            each,
            max_size=3,
        )
    ),
    max_leaves=10,
)
SCHEMAS = st.deferred(
    lambda: (
        st.booleans()
        | st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(
                    [
                        "string",
                        "integer",
                        "number",
                        "boolean",
                        "null",
                        "array",
                        "object",
                        ["string", "null"],
                    ],
                ),
                "items": SCHEMAS,
                "properties": st.dictionaries(st.text(max_size=3), SCHEMAS, max_size=3),
                "required": st.lists(st.text(max_size=3), max_size=2),
                "additionalProperties": SCHEMAS,
                "anyOf": st.lists(SCHEMAS, min_size=1, max_size=3),
                "enum": st.lists(st.integers() | st.text(max_size=3), min_size=1, max_size=3),
                "default": ANY,
                "minimum": st.integers(),
                "maxLength": st.integers(0, 9),
            },
        )
    ),
)


@settings(deadline=None)
@given(SCHEMAS)
def test_words_for_any_schema_are_one_line_that_can_be_sent(schema):
    """ours."""
    for text in (describe_schema(schema), describe_expected(schema, {})):
        assert text
        text.encode()


def test_many_required_properties_are_described_in_linear_work():
    """By counting; with a search for each name among all, this does not end in a minute."""
    names = [f"p{i}" for i in range(100_000)]
    said = describe_schema(
        {"type": "object", "properties": dict.fromkeys(names, True), "required": names},
    )
    assert said.count("any") == len(names)
