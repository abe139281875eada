"""Schemas of strangers, through every door by which they come in."""

import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from ferrule import Tool
from ferrule.errors import ToolArgumentsError, ToolDefinitionError
from ferrule.schema import nodes
from ferrule.schema.explain import SchemaCheck
from ferrule.schema.patterns import is_pattern
from ferrule.schema.words import describe_schema
from ferrule.tools.arguments import repairs
from ferrule.tools.mcp.checker import MCPChecker


def doubling(levels: int, keyword: str = "anyOf") -> dict[str, Any]:
    """An object schema whose definitions each refer twice to the next: 2^levels checks of one
    value.
    """
    made: dict[str, Any] = {
        f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)
    }
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "$defs": {**made, f"d{levels}": {"type": "string"}},
    }


HOSTILE = doubling(24)


def f(x: Any) -> str:
    """Do it."""
    return str(x)


def told(schema: dict[str, Any], **more: Any) -> Any:
    return SimpleNamespace(name="t", description="", inputSchema=schema, **more)


def test_it_is_small():
    assert len(json.dumps(HOSTILE)) < 2_000


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
@pytest.mark.parametrize("levels", [20, 24, 200])
def test_a_schema_by_hand_is_refused(keyword, levels):
    with pytest.raises(ToolDefinitionError, match="The schema of `f` cannot be used: "):
        Tool(f, schema=doubling(levels, keyword))
    with pytest.raises(ToolDefinitionError, match="cannot be used: "):
        Tool(f, args={"x": {"$ref": "#/$defs/d0", "$defs": doubling(levels, keyword)["$defs"]}})


@pytest.mark.parametrize(
    "schemas",
    [{"inputSchema": HOSTILE}, {"inputSchema": {"type": "object"}, "outputSchema": HOSTILE}],
    ids=["in", "out"],
)
def test_a_tool_of_an_mcp_server_is_refused(schemas):
    with pytest.raises(
        ToolDefinitionError,
        match="cannot be used: a value would take more than 5,000 checks",
    ):
        Tool.from_mcp_tool({"name": "t", "description": "", **schemas}, "server")


def test_a_call_gets_a_reason_where_no_tool_was_made():
    assert SchemaCheck(HOSTILE)({"x": 1}) == (
        "the schema cannot be used: a value would take more than 5,000 checks, as its references multiply",
    )
    with pytest.raises(ToolDefinitionError, match="references multiply"):
        MCPChecker("t", HOSTILE, lenient=True).prepare({"x": 1})


def recursive(size: int) -> dict[str, Any]:
    every = [{"items": {"$ref": f"#/$defs/d{i}"}, "type": "array"} for i in range(size)]
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "$defs": {f"d{i}": {"anyOf": every} for i in range(size)},
    }


def test_a_call_that_would_not_end_gets_a_reason():
    value: Any = 1
    for _ in range(25):
        value = [value]
    with pytest.raises(ToolArgumentsError, match="it takes too many checks") as caught:
        MCPChecker("t", recursive(18), lenient=True).prepare({"x": value})
    assert len(str(caught.value)) < 100_000
    assert MCPChecker("t", recursive(18), lenient=True).prepare({"x": [[]]}).named == {"x": [[]]}


def test_the_words_for_definitions_that_refer_to_each_other_do_not_multiply():
    few, many = len(describe_schema(recursive(20))), len(describe_schema(recursive(40)))
    assert many < 3 * few


@pytest.mark.parametrize("more", [{}, {"additionalProperties": False}], ids=["plain", "by hand"])
def test_of_very_many_unknown_arguments_the_first_are_named(more):
    tool = Tool(f, schema={"type": "object", "properties": {"x": {}}, **more}) if more else Tool(f)
    with pytest.raises(ToolArgumentsError) as caught:
        tool.prepare({f"k{i}": 1 for i in range(400_000)})
    assert caught.value.problems[0] == ("k0", "there is no such argument")
    assert caught.value.problems[-1] == ("", "there are 399,990 more arguments that do not exist")
    assert len(str(caught.value)) < 2_000


def test_of_very_many_unknown_arguments_of_an_mcp_tool_the_first_are_named():
    checker = MCPChecker(
        "t",
        {"type": "object", "properties": {"x": {}}, "additionalProperties": False},
        lenient=True,
    )
    with pytest.raises(ToolArgumentsError) as caught:
        checker.prepare({f"k{i}": 1 for i in range(400_000)})
    assert caught.value.problems[-1] == ("", "there are 399,990 more arguments that do not exist")


def items(values: list[int]) -> str:
    """Do it."""
    return str(values)


def test_of_very_many_wrong_items_the_first_are_told():
    tool = Tool(items)
    with pytest.raises(ToolArgumentsError) as caught:
        tool.prepare({"values": ["x"] * 20_000})
    assert len(caught.value.problems) == 50


@pytest.mark.parametrize("item", [True, None, "x", [], 1.5])
def test_of_very_many_wrong_items_of_any_type_the_first_are_told(item):
    tool = Tool(items)
    with pytest.raises(ToolArgumentsError) as caught:
        tool.prepare({"values": [item] * 2_000})
    assert [path for path, _ in caught.value.problems] == [f"values.{i}" for i in range(50)]


def test_what_very_many_items_spell_is_read_with_the_schema_looked_at_once(monkeypatch):
    looked = []
    spread = nodes.all_alternatives
    monkeypatch.setattr(
        nodes,
        "all_alternatives",
        lambda schemas, root: looked.append(1) or spread(schemas, root),
    )
    checker = MCPChecker(
        "t",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        lenient=True,
    )
    assert checker.prepare({f"k{i}": "7" for i in range(2_000)}).named["k1999"] == 7
    assert len(looked) < 500


def test_of_very_many_texts_that_spell_nothing_the_first_are_decoded(monkeypatch):
    decoded = []
    decode = repairs.decode_text
    monkeypatch.setattr(
        repairs,
        "decode_text",
        lambda text, wanted: decoded.append(text) or decode(text, wanted),
    )
    with pytest.raises(ToolArgumentsError):
        Tool(items).prepare({"values": ["x"] * 20_000})
    assert 0 < len(decoded) < 5_000


@pytest.mark.parametrize(
    "pattern",
    [
        "([ab]{1,100}){1,200}x",
        "(a{1,100}){1,200}",
        "(a{50}){300}",
        "a{20000}",
        "((a{3,}){90,}){90}",
        r"([\]}{,2]{1,150}|b){99}",
    ],
)
def test_a_pattern_that_repeats_repetitions_is_refused(pattern):
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}}
    assert is_pattern(pattern)
    with pytest.raises(
        ToolDefinitionError,
        match="cannot be used: a pattern repeats so much that it unfolds to more than 10,000 parts",
    ):
        Tool(f, schema=schema)
    with pytest.raises(ToolDefinitionError, match="repeats so much"):
        Tool.from_mcp_tool({"name": "t", "description": "", "inputSchema": schema}, "server")


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(\w{1,63}\.){1,8}\w{2,63}$",
        "^.{1,10000}$",
        r"^\{20000}$",
        "^[{20000}]$",
        "|".join(["word"] * 5_000),
    ],
)
def test_a_pattern_of_everyday_size_is_taken(pattern):
    tool = Tool(
        f,
        schema={"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}},
    )
    with pytest.raises(ToolArgumentsError, match="does not match the pattern"):
        tool.prepare({"x": ""})


def test_a_text_too_long_for_a_pattern_that_unfolds_gets_a_reason():
    tool = Tool(
        f,
        schema={
            "type": "object",
            "properties": {"x": {"type": "string", "pattern": "(.{1,100}){1,20}x"}},
        },
    )
    assert tool.prepare({"x": "ax"}).named == {"x": "ax"}
    for value in (
        "a" * 1_000_000,
        ["a" * 1_000] * 1_000,
        {"a" * 1_000_000: 1},
        [{"k": "é" * 1_000_000}],
    ):
        with pytest.raises(
            ToolArgumentsError,
            match="it is too large to be checked against its schema",
        ):
            tool.prepare({"x": value})


def test_words_for_what_is_no_schema_are_words():
    every: tuple[Any, ...] = (
        {"type": "object", "properties": {"a": {}}, "required": True},
        {"anyOf": 1},
        {"properties": [1]},
        {"oneOf": 1.5},
    )
    for schema in every:
        assert describe_schema(schema)
        assert isinstance(SchemaCheck(schema)({"a": True}), tuple)
        with suppress(ToolArgumentsError):
            MCPChecker("t", schema, lenient=True).prepare({"a": True, "b": 1})


def test_a_pattern_by_hand_that_python_could_not_match_in_time_is_matched():
    tool = Tool(
        f,
        schema={"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}},
    )
    with pytest.raises(ToolArgumentsError, match="does not match the pattern"):
        tool.prepare({"x": "a" * 64 + "!"})
