"""Inputs that declare tools: what may be passed, what is refused, and that nothing is asked or
changed then.
"""

from __future__ import annotations

import asyncio
import copy
from types import SimpleNamespace
from typing import Any

import pytest
from agent_script import fields, native_step, text_step

from ferrule import (
    InputError,
    InputField,
    OutputField,
    Predict,
    ReAct,
    Response,
    Signature,
    Tool,
    ToolCall,
    ToolCalls,
    context,
)
from ferrule.errors import DuplicateToolError, ToolCallError
from ferrule.testing import ScriptedLM

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BARE = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
CANONICAL = {"type": "function", "function": BARE}


def add(a: int, b: int = 1) -> int:
    """Add two integers."""
    return a + b


class Ask(Signature):
    """Answer."""

    question: str = InputField()
    tools: list[Tool] | None = InputField(None)
    extra: Tool | None = InputField(None)
    calls: ToolCalls | None = OutputField()
    answer: str | None = OutputField()


def requested(**inputs: Any) -> Any:
    lm = ScriptedLM([Response("done")])
    Predict(Ask, native=True)(question="q", lm=lm, **inputs)
    return lm.requests[0]


@pytest.mark.parametrize(
    "given",
    [
        BARE,
        CANONICAL,
        Tool("weather", "The weather.", None, PARAMETERS),
        {**{key: BARE[key] for key in ("name", "description")}, "inputSchema": PARAMETERS},
        SimpleNamespace(name="weather", description="The weather.", inputSchema=PARAMETERS),
        SimpleNamespace(name="weather", description="The weather.", input_schema=PARAMETERS),
        {**BARE, "parameters": [{"name": "city", "type": "string"}]},
        {**BARE, "parameters": {"city": {"type": "string"}}},
    ],
    ids=[
        "bare",
        "canonical",
        "tool",
        "MCP dict",
        "MCP tool",
        "MCP tool v2",
        "list of arguments",
        "arguments by name",
    ],
)
def test_every_form_of_a_declaration_is_the_same_on_the_request(given: Any) -> None:
    """One canonical form."""
    before = copy.deepcopy(given) if isinstance(given, dict) else vars(given).copy()
    assert list(requested(tools=[given]).tools) == [CANONICAL]
    assert list(requested(extra=given).tools) == [CANONICAL]
    assert (given if isinstance(given, dict) else vars(given)) == before or isinstance(
        given,
        Tool,
    )  # E68


def test_a_function_declares_itself() -> None:
    [tool] = requested(tools=[add]).tools
    assert tool["function"]["name"] == "add"
    assert tool["function"]["parameters"]["required"] == ["a"]


def test_arguments_that_have_a_default_or_say_so_are_optional() -> None:
    """Required reflects real optionality."""
    arguments = [
        {"name": "a", "type": "string", "description": "A."},
        {"name": "b", "type": "integer", "default": 3},
        {"name": "c", "type": "string", "required": False},
        {"name": "d", "type": "string", "optional": True},
    ]
    [tool] = requested(tools=[{**BARE, "parameters": arguments}]).tools
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "description": "A."},
            "b": {"type": "integer", "default": 3},
            "c": {"type": "string"},
            "d": {"type": "string"},
        },
        "required": ["a"],
    }


def test_a_declaration_without_parameters_takes_no_arguments() -> None:
    [tool] = requested(tools=[{**BARE, "parameters": None}]).tools
    assert tool["function"]["parameters"]["properties"] == {}


def test_an_argument_may_be_called_like_a_keyword_of_schemas() -> None:
    """Arguments by name whose names are `type` and `properties`."""
    arguments = {"type": {"type": "string"}, "properties": {"type": "object"}}
    [tool] = requested(tools=[{**BARE, "parameters": arguments}]).tools
    assert tool["function"]["parameters"]["properties"] == arguments


@pytest.mark.parametrize("given", [None, [], ()], ids=["None", "empty list", "empty tuple"])
def test_nothing_given_puts_no_tools_on_the_request(given: Any) -> None:
    """No `tools` key at all."""
    assert len(requested(tools=given).tools) == 0
    assert len(requested().tools) == 0


def test_several_fields_are_merged_in_order_behind_the_programs_own() -> None:
    """The program's tools, then the fields' in declared order."""
    lm = ScriptedLM([Response("done")])
    program = Predict(Ask, tools=[Tool(add, "own")], native=True)
    program(
        question="q",
        extra=Tool(add, "third"),
        tools=[Tool(add, "first"), Tool(add, "second")],
        lm=lm,
    )
    assert [tool["function"]["name"] for tool in lm.requests[0].tools] == [
        "own",
        "first",
        "second",
        "third",
    ]


WRONG: dict[str, tuple[str, Any, str, int | None]] = {
    "one where a list is expected": ("tools", BARE, "list_expected", None),
    "a function where a list is expected": ("tools", add, "list_expected", None),
    "a text where a list is expected": ("tools", "add", "list_expected", None),
    "several where one is expected": ("extra", [BARE], "single_expected", None),
    "a number": ("tools", [BARE, 5], "unsupported_value", 1),
    "None in a list": ("tools", [None], "unsupported_value", 0),
    "a text": ("extra", "add", "unsupported_value", None),
    "no name": ("tools", [{"description": "", "parameters": {}}], "missing_key", 0),
    "no description": ("tools", [add, {"name": "x", "parameters": {}}], "missing_key", 1),
    "no parameters": ("tools", [{"name": "x", "description": ""}], "missing_key", 0),
    "an empty function": ("tools", [{"type": "function", "function": {}}], "missing_key", 0),
    "a name that is no text": ("tools", [{**BARE, "name": 5}], "invalid_name", 0),
    "an empty name": ("tools", [{**BARE, "name": ""}], "invalid_name", 0),
    "a function without a name": ("tools", [lambda a: a], "invalid_name", 0),
    "a name too long": ("tools", [{**BARE, "name": "x" * 65}], "invalid_name", 0),
    "a description that is no text": ("tools", [{**BARE, "description": 5}], "invalid_description", 0),
    "parameters that are a text": ("tools", [{**BARE, "parameters": "city"}], "invalid_parameters", 0),
    "parameters of no object": ("tools", [{**BARE, "parameters": {"type": "string"}}], "invalid_parameters", 0),
    "a broken schema": ("tools", [{**BARE, "parameters": {"type": "object", "properties": {"a": {"type": "strin"}}}}], "invalid_parameters", 0),
    "an argument without a name": ("tools", [{**BARE, "parameters": [{"type": "string"}]}], "invalid_parameters", 0),
    "an argument twice": ("tools", [{**BARE, "parameters": [{"name": "a"}, {"name": "a"}]}], "invalid_parameters", 0),
    "two tools of one name": ("tools", [add, BARE, add], "duplicate_name", 2),
}  # fmt: skip


@pytest.mark.parametrize(("field", "given", "reason", "index"), WRONG.values(), ids=WRONG)
def test_what_declares_no_tool_is_tagged_and_no_model_is_asked(
    field: str,
    given: Any,
    reason: str,
    index: int | None,
) -> None:
    """E9, E10, E53's twin at run time: a tag per cause, with index and reason."""
    lm = ScriptedLM([])
    with pytest.raises(ToolCallError, match=f"`{field}") as raised:
        Predict(Ask)(question="q", lm=lm, **{field: given})
    assert (raised.value.code, raised.value.reason, raised.value.index) == (
        "invalid_tool_spec",
        reason,
        index,
    )
    assert raised.value.raw is not None or given == [None]
    assert lm.requests == []


def test_a_name_used_in_two_fields_or_by_the_program_is_refused() -> None:
    for program in (Predict(Ask), Predict(Ask, tools=[add])):
        with pytest.raises(ToolCallError) as raised:
            program(question="q", tools=[add], extra=add, lm=ScriptedLM([]))
        assert raised.value.reason == "duplicate_name"


def test_the_error_is_the_same_in_sync_async_and_stream() -> None:
    program = Predict(Ask)
    found = []
    for call in (
        lambda: program(question="q", tools=[5], lm=ScriptedLM([])),
        lambda: asyncio.run(program.acall(question="q", tools=[5], lm=ScriptedLM([]))),
        lambda: list(program.stream(question="q", tools=[5], lm=ScriptedLM([]))),
    ):
        with pytest.raises(ToolCallError) as raised:
            call()
        found.append(
            (type(raised.value), raised.value.code, raised.value.reason, raised.value.index),
        )
    assert len(set(found)) == 1


def test_the_callers_tools_are_used_as_they_are() -> None:
    """No copy, no change."""
    tool = Tool(add)
    before = copy.deepcopy(tool.declaration)
    tools = [tool]
    assert requested(tools=tools).tools[0] is tool.declaration
    assert tools == [tool]
    assert tool.declaration == before


def test_tools_of_inputs_are_run_where_the_program_runs_its_own() -> None:
    """With tools of its own and no output for calls, `Predict` runs what the model calls."""

    class Work(Signature):
        """Work."""

        question: str = InputField()
        tools: list[Tool] = InputField()
        answer: str = OutputField()

    lm = ScriptedLM(
        [
            Response(
                tool_calls=(
                    ToolCall(name="add", args={"a": 1}),
                    ToolCall(name="own", args={"a": 5}),
                ),
            ),
            "done",
        ],
    )
    prediction = Predict(Work, tools=[Tool(add, "own")], native=True)(
        question="q",
        tools=[add],
        lm=lm,
    )
    assert [result.content for result in prediction.trajectory.steps[0].results] == ["2", "6"]


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
def test_an_agent_may_be_given_tools_with_its_inputs(native):
    """`ReAct` as well, and it runs them."""

    class Given(Signature):
        """Answer."""

        question: str = InputField()
        tools: list[Tool] = InputField()
        answer: int = OutputField()

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    step = native_step if native else text_step
    script = [
        step("hm", "add", {"a": 1, "b": 2}),
        step("done", "finish", {"answer": 3} if native else None),
    ]
    lm = ScriptedLM(script if native else [*script, fields(reasoning="r", answer=3)])
    with context(lm=lm):
        found = ReAct(Given, [], native=native)(question="1+2?", tools=[add])
    assert found.answer == 3
    assert found.trajectory.steps[0].results[0].content == "3"
    with pytest.raises(DuplicateToolError, match="finish"):
        ReAct(Given, [], native=native)(
            question="?",
            tools=[Tool(add, "finish")],
            lm=ScriptedLM([]),
        )


def test_what_an_argument_itself_requires_is_kept() -> None:
    """`required` of an argument is a yes or no, `required` of its schema a list."""
    inner = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    for parameters in ([{"name": "a", **inner}], {"a": inner}):
        [declared] = requested(tools=[{**BARE, "parameters": parameters}]).tools
        assert declared["function"]["parameters"] == {
            "type": "object",
            "properties": {"a": inner},
            "required": ["a"],
        }


def test_parameters_that_are_no_json_are_told() -> None:
    for bad in (
        {"type": "object", "properties": {"a": {"default": object()}}},
        {"type": "object", "default": float("nan")},
    ):
        with pytest.raises(ToolCallError, match="are not JSON") as raised:
            requested(tools=[{**BARE, "parameters": bad}])
        assert (raised.value.code, raised.value.reason) == (
            "invalid_tool_spec",
            "invalid_parameters",
        )
    cyclic: dict[str, Any] = {"type": "object", "properties": {}}
    cyclic["properties"]["again"] = cyclic
    with pytest.raises(InputError, match="contains itself"):
        requested(tools=[{**BARE, "parameters": cyclic}])
