import contextlib
import copy
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import FerruleError, ToolDefinitionError
from ferrule.tools.mcp_definition import MCPDefinition, as_plain, read_definition, schema_problem
from ferrule.tools.tool import Tool

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
SCHEMAS = {
    "no arguments": {"$schema": DRAFT_7, "type": "object", "properties": {}},
    "nothing but its type": {"type": "object"},
    "types in a list": {
        "$schema": DRAFT_7,
        "type": "object",
        "properties": {
            "more": {"description": "go on?", "type": ["boolean", "string"]},
            "number": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
            "branch": {"type": "integer"},
        },
        "required": ["more", "number"],
    },
    "anyOf with null and a default of null": {
        "type": "object",
        "properties": {
            "since": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "default": None,
                "title": "Since",
            },
        },
        "title": "Log",
    },
    "a format and exclusive bounds": {
        "type": "object",
        "properties": {
            "url": {"format": "uri", "minLength": 1, "type": "string"},
            "most": {
                "default": 5000,
                "exclusiveMaximum": 1000000,
                "exclusiveMinimum": 0,
                "type": "integer",
            },
        },
        "required": ["url"],
    },
    "lists of objects in lists": {
        "$schema": DRAFT_7,
        "type": "object",
        "properties": {
            "entities": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "notes": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["name"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["entities"],
        "additionalProperties": False,
    },
    "an enum with a default": {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"], "default": "a"}},
    },
    "recursive": {
        "type": "object",
        "$defs": {
            "N": {
                "type": "object",
                "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/N"}}},
            },
        },
        "properties": {"n": {"$ref": "#/$defs/N"}},
    },
    "words of 2020-12": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/one",
        "type": "object",
        "$defs": {"a": {"$anchor": "here", "type": "string"}},
        "properties": {
            "x": {"$ref": "#here"},
            "y": {"prefixItems": [{"const": 1}], "unevaluatedItems": False},
        },
        "dependentRequired": {"x": ["y"]},
        "if": {"required": ["x"]},
        "then": {"minProperties": 2},
    },
    "a reference out of it": {
        "type": "object",
        "properties": {"x": {"$ref": "https://example.com/never-fetched.json#/a"}},
    },
    "a pattern that Python cannot read": {
        "type": "object",
        "properties": {"x": {"type": "string", "pattern": r"^\p{L}+$"}},
    },
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_a_schema_stays_as_it_was_given(schema):
    """Byte for byte, on the definition and on the tool."""
    tool = Tool.from_mcp_tool({"name": "t", "inputSchema": schema}, "s")
    assert json.dumps(tool.schema) == json.dumps(schema)
    assert json.dumps(tool.parameters) == json.dumps(schema)
    assert tool.mcp is not None
    assert tool.mcp.input_schema == schema
    assert tool.mcp.input_schema is not schema


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_a_declaration_is_the_schema_as_it_was_given(schema):
    """Every target's lowering takes it."""
    from ferrule.schema.lowering.lower import TARGETS, lower_schema

    tool = Tool.from_mcp_tool({"name": "t", "inputSchema": schema}, "s")
    shown = tool.declaration["function"]["parameters"]
    assert json.dumps(shown) == json.dumps(schema)
    for target in TARGETS:
        assert lower_schema(shown, target).schema
    assert tool.format()
    assert tool.to_dict()["properties"]["name"]["const"] == "t"
    assert tool.args.keys() == tool.arg_types.keys() == schema.get("properties", {}).keys()


FULL = {
    "name": "get-thing",
    "title": "Get thing",
    "description": "Gets it.",
    "inputSchema": {"type": "object", "properties": {"x": {"type": "string", "default": None}}},
    "outputSchema": {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
    "icons": [{"src": "data:image/png;base64,AA=="}],
    "execution": {"taskSupport": "forbidden"},
    "_meta": {"k": 1},
}


def test_all_of_an_entry_is_on_the_tool():
    tool = Tool.from_mcp_tool(FULL, "s")
    assert (tool.name, tool.title, tool.description, tool.mcp_server) == (
        "get-thing",
        "Get thing",
        "Gets it.",
        "s",
    )
    assert tool.output_schema == FULL["outputSchema"]
    assert (tool.annotations, tool.icons, tool.execution, tool.meta) == tuple(
        FULL[k] for k in ("annotations", "icons", "execution", "_meta")
    )
    assert tool.mcp.as_json() == FULL
    tool.annotations["readOnlyHint"] = False
    assert tool.annotations == FULL["annotations"]


def test_a_local_tool_has_none_of_it():
    tool = Tool(lambda x: x, name="f")
    assert [
        tool.mcp,
        tool.title,
        tool.icons,
        tool.annotations,
        tool.output_schema,
        tool.meta,
        tool.execution,
    ] == [None] * 7


def test_tools_of_the_sdk_of_both_generations_and_dicts_read_alike():
    types = pytest.importorskip("mcp_types")
    modern = types.Tool.model_validate(FULL)
    older = SimpleNamespace(
        **{
            **FULL,
            "annotations": SimpleNamespace(**FULL["annotations"]),
            "meta": FULL["_meta"],
            "icons": None,
            "execution": None,
        },
    )
    older.annotations = FULL["annotations"]
    expected = read_definition(FULL)
    assert read_definition(modern) == expected
    assert read_definition(older).input_schema == expected.input_schema
    assert (read_definition(older).meta, read_definition(older).output_schema) == (
        expected.meta,
        expected.output_schema,
    )
    snake = {
        "name": "get-thing",
        "input_schema": FULL["inputSchema"],
        "output_schema": FULL["outputSchema"],
        "meta": {"k": 1},
    }
    assert read_definition(snake).output_schema == FULL["outputSchema"]
    assert read_definition(expected) is expected


def test_a_default_of_null_survives_the_sdk():
    """Dumping the SDK's object without its nulls would lose it."""
    types = pytest.importorskip("mcp_types")
    assert read_definition(types.Tool.model_validate(FULL)).input_schema["properties"]["x"] == {
        "type": "string",
        "default": None,
    }


def test_the_title_may_stand_among_the_annotations():
    assert (
        read_definition(
            {"name": "t", "inputSchema": {"type": "object"}, "annotations": {"title": "T"}},
        ).title
        == "T"
    )


def test_a_description_of_null_is_none():
    assert (
        read_definition(
            {"name": "t", "description": None, "inputSchema": {"type": "object"}},
        ).description
        == ""
    )


BAD = {
    "no name": ({"inputSchema": {"type": "object"}}, "has a name"),
    "a blank name": ({"name": "  ", "inputSchema": {"type": "object"}}, "has a name"),
    "no schema": ({"name": "t"}, "inputSchema"),
    "an empty schema": ({"name": "t", "inputSchema": {}}, '"type": "object"'),
    "a schema of a list": ({"name": "t", "inputSchema": {"type": "array"}}, '"type": "object"'),
    "a hint that is no boolean": (
        {
            "name": "t",
            "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": "yes please"},
        },
        "readOnlyHint",
    ),
    "annotations that are no object": (
        {"name": "t", "inputSchema": {"type": "object"}, "annotations": 3},
        "annotations",
    ),
    "properties that are none": (
        {"name": "t", "inputSchema": {"type": "object", "properties": []}},
        "properties",
    ),
    "an unknown type": (
        {"name": "t", "inputSchema": {"type": "object", "properties": {"x": {"type": "strin"}}}},
        "strin",
    ),
    "a broken output schema": (
        {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"type": "objekt"}},
        "outputSchema",
    ),
    "a schema dialect that is no text": (
        {"name": "t", "inputSchema": {"type": "object", "$schema": 3}},
        r"\$schema",
    ),
    "a description that is no text": (
        {"name": "t", "inputSchema": {"type": "object"}, "description": 3},
        "description",
    ),
}


@pytest.mark.parametrize(("entry", "said"), BAD.values(), ids=BAD.keys())
def test_an_entry_that_cannot_be_called_is_refused_with_the_reason(entry, said):
    with pytest.raises(ToolDefinitionError, match=said):
        read_definition(entry)


def test_a_schema_too_deep_for_python_is_refused():
    """Never `RecursionError`."""
    deep: dict = {"type": "object"}
    for _ in range(20_000):
        deep = {"type": "object", "properties": {"x": deep}}
    with pytest.raises(ToolDefinitionError, match="too deeply"):
        read_definition({"name": "t", "inputSchema": deep})
    while deep.get("properties"):  # taken apart, as freeing it at once would go as deep
        deep = deep["properties"].pop("x")


def test_a_task_is_known_as_one():
    made = read_definition(
        {"name": "t", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
    )
    assert made.needs_task
    assert not read_definition(FULL).needs_task


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=8), inside, max_size=4)
    ),
    max_leaves=12,
)
WORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "anyOf",
        "$ref",
        "$defs",
        "enum",
        "required",
        "minimum",
        "pattern",
        "additionalProperties",
        "$id",
        "x",
    ],
)
VALUES = st.sampled_from(
    [
        "object",
        "string",
        "#/$defs/x",
        "#",
        "[",
        "https://example.com/x",
        3,
        True,
        None,
        [],
        {},
        ["string", "null"],
    ],
)
SCHEMA_LIKE = st.recursive(
    VALUES,
    lambda inside: st.dictionaries(WORDS, inside, max_size=4) | st.lists(inside, max_size=3),
    max_leaves=14,
).map(
    lambda each: (
        {**each, "type": "object"}
        if isinstance(each, dict)
        else {"type": "object", "properties": {"x": each}}
    ),
)


@given(
    JSON
    | st.dictionaries(
        st.sampled_from(["name", "inputSchema", "annotations", "icons", "_meta", "title"]),
        JSON,
        max_size=6,
    ),
)
def test_junk_raises_nothing_but_our_errors(entry):
    with contextlib.suppress(FerruleError):
        read_definition(entry)


@given(SCHEMA_LIKE, st.dictionaries(st.sampled_from(["x", "y"]), JSON, max_size=2))
def test_odd_schemas_are_refused_or_work(schema, args):
    """Whatever passes can be shown and be checked against."""
    before = copy.deepcopy(schema)
    try:
        tool = Tool.from_mcp_tool({"name": "t", "inputSchema": schema, "outputSchema": schema}, "s")
    except ToolDefinitionError:
        return
    assert tool.schema == before == schema
    assert tool.declaration
    assert tool.format()
    assert isinstance(tool.arg_types, dict)
    with contextlib.suppress(FerruleError):
        tool.prepare(args)


@given(SCHEMA_LIKE)
def test_a_definition_reads_back_from_its_json(schema):
    if schema_problem(schema) or not isinstance(schema.get("properties", {}), dict):
        return
    made = MCPDefinition("t", schema, description="d", annotations={"readOnlyHint": False})
    assert read_definition(made.as_json()) == made


def test_plain_data_is_left_as_it_is():
    assert as_plain({"a": [1]}) == {"a": [1]}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"type": "object", "properties": None}, {"type": "object"}),
        (
            {"type": "object", "properties": {}, "required": None, "description": None},
            {"type": "object", "properties": {}},
        ),
        (
            {
                "type": "object",
                "properties": {
                    "properties": {"type": "object", "properties": None, "default": None},
                },
                "$defs": None,
            },
            {"type": "object", "properties": {"properties": {"type": "object", "default": None}}},
        ),
    ],
    ids=["properties", "required", "within"],
)
def test_a_keyword_of_null_is_none(given: dict, read: dict):
    """As servers in Go write a tool without arguments."""
    assert read_definition({"name": "x", "inputSchema": given}).input_schema == read


def test_null_is_kept_where_it_is_a_value():
    schema = {
        "type": "object",
        "properties": {"a": {"const": None}, "b": {"enum": [None], "default": None}},
    }
    assert read_definition({"name": "x", "inputSchema": schema}).input_schema == schema
