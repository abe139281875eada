"""Tools as functions of code: what the model reads, and what its code is checked against."""

from __future__ import annotations

import keyword
from importlib.util import find_spec
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from ferrule import Tool, tool
from ferrule.programs.code_mode.interpreter import CodeMode, CodeSession
from ferrule.programs.code_mode.stubs import (
    checked_stubs,
    functions_of,
    stubs_of,
)

pytestmark = pytest.mark.skipif(
    find_spec("pydantic_monty") is None, reason="needs the extra: pip install 'ferrule[code]'"
)


def named(*names: str) -> list[Tool]:
    return [Tool(lambda: 1, name, "Do it.") for name in names]


def described(schema: dict[str, Any], name: str = "do", desc: str = "Do it.") -> Tool:
    def do(**arguments: Any) -> Any:
        return arguments

    return Tool(do, name, desc, schema)


def problems(tools: list[Tool], code: str) -> str:
    """What the checker says of code."""
    functions = functions_of(tools, {})
    stubs = checked_stubs(functions.values())
    session = CodeSession(CodeMode(), stubs, seed=1, time_s=0.0, is_replay=False)
    try:
        stop = session.start(f"async def never():\n    {code}", functions, is_checked=True)
    finally:
        session.close()
    if stop is None:
        return ""
    return stop.reason


class Order(TypedDict):
    """An order."""

    number: int
    state: Literal["open", "paid"]


def test_a_function_has_types_defaults_a_docstring_and_records() -> None:
    @tool
    def find(text: str, states: list[Literal["open", "paid"]], limit: int = 5) -> list[Order]:
        """Find orders.

        Args:
            text: What to look for.
        """
        raise NotImplementedError

    assert stubs_of(functions_of([find], {}).values()) == (
        "class FindOrder(TypedDict):\n"
        "    number: int\n"
        "    state: Literal['open', 'paid']\n"
        "\n"
        "async def find(text: str, states: list[Literal['open', 'paid']], limit: int = 5)"
        " -> list[FindOrder]:\n"
        '    """Find orders.\n'
        "\n"
        "    Args:\n"
        '        text: What to look for."""\n'
        "    ..."
    )


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("get-weather", "get_weather"),
        ("a.b/c", "a_b_c"),
        ("2fa", "tool_2fa"),
        ("list", "list_"),
        ("class", "class_"),
        ("print", "print_"),
        ("json", "json_"),
        ("Any", "Any_"),
        ("ToolError", "ToolError_"),
        ("result_1", "result_1_"),
        ("größe", "größe"),
        ("\ufb01nd", "find"),  # a ligature, which Python reads as two letters
        ("€5", "tool_5"),
        ("_private", "private"),
        ("-", "tool"),
    ],
)
def test_a_name_becomes_one_that_code_can_write_and_needs_for_nothing_else(
    name: str, function: str
) -> None:
    [found] = functions_of(named(name), {})
    assert found == function


def test_a_tool_keeps_its_name_when_others_come_and_go() -> None:
    names: dict[str, str] = {}
    assert list(functions_of(named("a-b", "a.b"), names)) == ["a_b", "a_b_2"]
    assert list(functions_of(named("a.b"), names)) == ["a_b_2"]
    assert list(functions_of(named("a/b", "a.b", "a-b"), names)) == ["a_b_3", "a_b_2", "a_b"]


def test_a_tool_named_like_a_type_leaves_the_type_to_the_others() -> None:
    schema = {
        "type": "object",
        "properties": {"numbers": {"type": "array", "items": {"type": "integer"}}},
        "required": ["numbers"],
    }
    tools = [*named("list", "dict", "int"), described(schema, "add")]
    assert problems(tools, "await add([1])") == ""
    assert "invalid-argument-type" in problems(tools, "await add(['x'])")


def test_records_of_two_tools_do_not_get_one_name() -> None:
    def record(of: str) -> dict[str, Any]:
        inner = {"type": "object", "properties": {"x": {"type": of}}, "required": ["x"]}
        return {"type": "object", "properties": {"value": inner}, "required": ["value"]}

    tools = [described(record("integer"), "a_b"), described(record("string"), "A_b")]
    assert problems(tools, "await a_b({'x': 1})\n    await A_b({'x': 'y'})") == ""
    assert "error" in problems(tools, "await a_b({'x': 'y'})")
    assert "error" in problems(tools, "await A_b({'x': 1})")


@pytest.mark.parametrize("name", ["2fa", "_private", "-", "_", "0", "€5"])
def test_a_tool_whose_name_begins_with_no_letter_can_be_called(name: str) -> None:
    record = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tool = described({"type": "object", "properties": {"any": record}, "required": ["any"]}, name)
    [function] = functions_of([tool], {})
    assert problems([tool], f"await {function}({{'x': 1}})") == ""
    assert "error" in problems([tool], f"await {function}({{'x': ''}})")


@pytest.mark.parametrize(("tool_name", "place"), [("key", "error"), ("base", "exception")])
def test_no_record_takes_a_name_that_code_needs(tool_name: str, place: str) -> None:
    record = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tool = described({"type": "object", "properties": {place: record}}, tool_name)
    assert problems([tool], "raise KeyError('x') from BaseException('y')") == ""


@pytest.mark.parametrize("field", ["NotRequired", "Any", "Literal", "list", "TypedDict"])
def test_a_field_named_like_a_word_of_annotations_is_not_taken_for_it(field: str) -> None:
    fields = {
        field: {"type": "integer"},
        "any": {},
        "items": {"type": "array", "items": {"type": "string"}},
        "state": {"enum": ["open"]},
    }
    record = {"type": "object", "properties": fields, "required": ["items"]}
    tool = described({"type": "object", "properties": {"value": record}, "required": ["value"]})
    whole = f"{{'{field}': 1, 'any': 2, 'items': ['a'], 'state': 'open'}}"
    for fits in (whole, "{'items': []}"):
        assert problems([tool], f"await do({fits})") == ""


NODES = {"$ref": "#/$defs/node_list"}


@pytest.mark.parametrize(
    ("definition", "fits", "fits_not"),
    [
        (
            {
                "type": "object",
                "properties": {"next": NODES, "x": {"type": "integer"}},
                "required": ["x"],
            },
            "{'x': 1, 'next': {'x': 2}}",
            "{'x': 1, 'next': {'x': ''}}",
        ),
        ({"type": "array", "items": NODES}, "[[], [[]]]", "1"),
        (
            {"anyOf": [{"type": "array", "items": NODES}, {"type": "integer"}]},
            "[1, [2, [3]]]",
            "''",
        ),
        (
            {"anyOf": [NODES, {"type": "object", "properties": {"x": NODES}}]},
            "{'x': {'x': {}}}",
            None,
        ),
        (NODES, "1", None),
    ],
    ids=["record", "list", "union", "union_with_itself", "itself"],
)
def test_a_definition_may_refer_to_itself(
    definition: dict[str, Any], fits: str, fits_not: str | None
) -> None:
    tool = described(
        {
            "type": "object",
            "properties": {"value": NODES},
            "required": ["value"],
            "$defs": {"node_list": definition},
        },
        "find-all",
    )
    assert problems([tool], f"await find_all({fits})") == ""
    if fits_not is not None:
        assert "error" in problems([tool], f"await find_all({fits_not})")


@pytest.mark.parametrize("text", ["\x00", 'ends with a "', '"""', "\\", "a\x0cb\u2028c", "\ud800"])
def test_a_docstring_may_have_any_text(text: str) -> None:
    assert (
        problems([described({"type": "object", "properties": {}}, desc=text)], "await do()") == ""
    )


VALUES = {
    "string": ("''", "1"),
    "integer": ("1", "''"),
    "number": ("1.5", "''"),
    "boolean": ("True", "''"),
    "array": ("[]", "1"),
    "object": ("{}", "1"),
}
LETTERS = st.characters(categories=["L", "Nd", "Pd", "Po", "Sc"])
NAMES = st.text(LETTERS, min_size=1, max_size=8) | st.sampled_from(
    ["list", "class", "others", "self", "Any", "do", "str", "x-y", "0", "_", "NotRequired"]
)
SCHEMAS = st.recursive(
    st.sampled_from([{"type": kind} for kind in VALUES])
    | st.builds(lambda values: {"enum": values}, st.lists(st.text() | st.integers(), min_size=1)),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(
            lambda fields: {"type": "object", "properties": fields, "required": list(fields)},
            st.dictionaries(NAMES, inner, max_size=3),
        )
    ),
    max_leaves=6,
)


@given(
    tool_names=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    schemas=st.lists(SCHEMAS, min_size=4, max_size=4),
    kind=st.sampled_from(sorted(VALUES)),
)
def test_whatever_other_tools_there_are_a_call_is_checked_as_it_should_be(
    tool_names: list[str], schemas: list[dict[str, Any]], kind: str
) -> None:
    others = [
        described({"type": "object", "properties": {"value": schema, name: schema}}, name)
        for name, schema in zip(tool_names, schemas, strict=False)
    ]
    checked = {"type": "object", "properties": {"value": {"type": kind}}, "required": ["value"]}
    tools = [*others, described(checked, "the_checked_one")]
    fits, fits_not = VALUES[kind]
    assert problems(tools, f"await the_checked_one({fits})") == ""
    assert "error" in problems(tools, f"await the_checked_one({fits_not})")
    for name in functions_of(tools, {}):
        assert name.isidentifier()
        assert not keyword.iskeyword(name)
