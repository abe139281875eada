"""Native tool calling with an output for calls, in every adapter: declared, filled, checked, and
never executed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from agent_script import fields

from ferrule import (
    AdapterParseError,
    ChainOfThought,
    ChatAdapter,
    InputField,
    JSONAdapter,
    OutputField,
    Predict,
    ReAct,
    Response,
    Signature,
    Tool,
    ToolCall,
    ToolCalls,
    XMLAdapter,
    context,
)  # fmt: skip
from ferrule.errors import BoundaryError, ToolCallError
from ferrule.testing import ScriptedLM

RAN: list[Any] = []


def search(query: str, limit: int = 3) -> str:
    """Search the web."""
    RAN.append(query)
    return "never"


class Ask(Signature):
    """Answer the question."""

    question: str = InputField()
    tools: list[Tool] = InputField()
    tool_calls: ToolCalls | None = OutputField()
    answer: str | None = OutputField()


CALL = {
    "id": "call_abc",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query": "tea"}'},
}
ADAPTERS = {
    "chat": ChatAdapter(use_native_function_calling=True),
    "JSON": JSONAdapter(),
    "XML": XMLAdapter(use_native_function_calling=True),
}


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Any:
    return ADAPTERS[request.param]


@pytest.fixture(params=[Predict, ChainOfThought], ids=["Predict", "ChainOfThought"])
def program(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_tool_inputs_add_request_tools(adapter: Any, program: Any) -> None:
    lm = ScriptedLM([Response(tool_calls=(ToolCall.read(CALL),))])
    with context(adapter=adapter):
        program(Ask)(question="q", tools=[search], lm=lm)
    assert list(lm.requests[0].tools) == [
        {
            "type": "function",
            "function": {
                "name": "search",
                "description": "Search the web.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "query": {"type": "string"},
                        "limit": {"default": 3, "type": "integer"},
                    },
                    "required": ["query"],
                },
            },
        },
    ]


def test_structured_tool_calls_in_lm_response_populate_tool_calls_output_field(
    adapter: Any,
    program: Any,
) -> None:
    for said, answer in ((None, None), ("Let me look.", "Let me look.")):
        lm = ScriptedLM([Response(said, (ToolCall.read(CALL),))])
        with context(adapter=adapter):
            prediction = program(Ask)(question="q", tools=[search], lm=lm)
        [call] = prediction.tool_calls.tool_calls
        assert (call.name, call.args, call.id) == ("search", {"query": "tea"}, "call_abc")
        if program is Predict:
            assert prediction.answer == answer
        assert lm.requests[0].messages[-1].role == "user"


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"name": "search", "arguments": '{"query": tea'}, "invalid_tool_call_arguments"),
        ({"name": "search", "arguments": '["tea"]'}, "invalid_tool_call_arguments"),
        ({"name": "search", "arguments": "3"}, "invalid_tool_call_arguments"),
    ],
    ids=["no JSON", "a list", "a number"],
)
def test_malformed_tool_call_arguments_produce_tagged_errors(
    adapter: Any,
    program: Any,
    entry: Any,
    code: str,
) -> None:
    """The tool's name and the raw text, never `{}`."""
    answers = [Response(None, (ToolCall.read(entry),))] * 3
    with context(adapter=adapter), pytest.raises(BoundaryError) as raised:
        program(Ask)(question="q", tools=[search], lm=ScriptedLM(answers))
    assert isinstance(raised.value, AdapterParseError)
    assert raised.value.code == code
    assert raised.value.raw == entry["arguments"]
    assert "`search`" in str(raised.value)


def test_non_tool_signatures_unchanged(adapter: Any, program: Any) -> None:
    """Not one byte of the request, nothing of the answer, even if it has calls."""
    made = Signature("question -> answer")
    with context(adapter=adapter):
        lm = ScriptedLM([Response(adapter.format_assistant_message_content(made.prepend("reasoning", OutputField()), {"reasoning": "r", "answer": "a"}), (ToolCall.read(CALL),))])  # fmt: skip
        prediction = program(made)(question="q", lm=lm)
    [request] = lm.requests
    assert prediction.answer == "a"
    assert "tool_calls" not in prediction
    assert (len(request.tools), request.tool_choice, request.parallel) == (0, None, None)
    asked = made if program is Predict else program(made).predict.signature
    assert [message.json for message in request.messages] == [
        message.json for message in adapter.opening(asked, {"question": "q"})
    ]


def test_tools_are_not_said_twice(adapter: Any) -> None:
    lm = ScriptedLM([Response(tool_calls=(ToolCall.read(CALL),))])
    with context(adapter=adapter):
        Predict(Ask)(question="q", tools=[search], lm=lm)
    prompt = "".join(message.text for message in lm.requests[0].messages)
    assert "Search the web." not in prompt
    assert "tool_calls" not in prompt
    assert lm.requests[0].shape is None


def test_text_and_native_answers_give_equal_predictions() -> None:
    """The same program, equivalent scripts."""
    native = Predict(Ask, native=True)(
        question="q",
        tools=[search],
        lm=ScriptedLM([Response(tool_calls=(ToolCall.read(CALL),))]),
    )
    written = fields(
        tool_calls={"tool_calls": [{"name": "search", "args": {"query": "tea"}}]},
        answer=None,
    )
    text = Predict(Ask, native=False)(question="q", tools=[search], lm=ScriptedLM([written]))
    assert native == text
    plain = [
        Predict(Ask, native=native)(
            question="q",
            tools=[search],
            lm=ScriptedLM([fields(answer="tea")]),
        )
        for native in (True, False)
    ]
    assert plain[0] == plain[1]
    assert (plain[0].answer, plain[0]["tool_calls"]) == ("tea", None)


def test_calls_and_words_and_bad_calls_come_together() -> None:
    """A good call is kept, the bad one beside it is marked with its place."""
    calls = (
        ToolCall.read(CALL),
        ToolCall.read({"name": "search", "arguments": "{bad"}),
        ToolCall.read(CALL),
    )
    prediction = Predict(Ask, native=True)(
        question="q",
        tools=[search],
        lm=ScriptedLM([Response("Looking.", calls)]),
    )
    found = prediction["tool_calls"].tool_calls
    assert [call.fault.index if call.fault else None for call in found] == [None, 1, None]
    assert len({call.id for call in found}) == 3  # E32
    assert prediction.answer == "Looking."


def test_without_tools_there_is_no_tools_key() -> None:
    lm = ScriptedLM([fields(answer="a")])
    Predict(Ask, native=True)(question="q", tools=[], lm=lm)
    assert len(lm.requests[0].tools) == 0


def test_an_invalid_declaration_is_tagged_before_any_model_is_asked(program: Any) -> None:
    lm = ScriptedLM([])
    with pytest.raises(ToolCallError) as raised:
        program(Ask)(question="q", tools=[search, {"name": "x"}], lm=lm)
    assert (raised.value.code, raised.value.reason, raised.value.index) == (
        "invalid_tool_spec",
        "missing_key",
        1,
    )
    assert lm.requests == []


def test_the_adapter_does_not_execute_tools() -> None:
    """Native, written, and found as a last resort."""
    RAN.clear()
    spoken = (
        f"<tool_call>{json.dumps({'name': 'search', 'arguments': {'query': 'tea'}})}</tool_call>"
    )
    scripts = [
        (True, Response(tool_calls=(ToolCall.read(CALL),))),
        (False, fields(tool_calls=[{"name": "search", "args": {"query": "tea"}}])),
        (False, spoken),
    ]
    for native, answer in scripts:
        prediction = Predict(Ask, tools=[Tool(search, "own")], native=native)(
            question="q",
            tools=[search],
            lm=ScriptedLM([answer]),
        )
        assert [call.name for call in prediction["tool_calls"].tool_calls] == ["search"]
    assert RAN == []


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
def test_results_go_back_without_the_caller_building_dicts(native: bool) -> None:
    """Execution stays with the caller."""

    class Chat(Signature):
        """Chat."""

        history: Any = InputField()
        question: str = InputField()
        tools: list[Tool] = InputField()
        calls: ToolCalls | None = OutputField()
        answer: str | None = OutputField()

    from ferrule import History

    chat = Predict(Chat.with_updated_fields("history", History), native=native)
    call = (
        Response(tool_calls=(ToolCall.read(CALL),))
        if native
        else fields(calls=[{"name": "search", "args": {"query": "tea"}}])
    )
    lm = ScriptedLM([call, fields(answer="Earl Grey")])
    first = chat(history=History(), question="tea?", tools=[search], lm=lm)
    history = first.history
    history.add_tool_results(first.calls.execute_all({"search": lambda query: f"found {query}"}))
    second = chat(history=history, question="Which?", tools=[search], lm=lm)
    assert second.answer == "Earl Grey"
    roles = [message.role for message in lm.requests[1].messages]
    assert roles == ["system", "user", "assistant", "tool" if native else "user", "user"]
    assert "found tea" in lm.requests[1].messages[3].text
    if native:
        assert (
            lm.requests[1].messages[3].tool_call_id
            == lm.requests[1].messages[2].tool_calls[0].id
            == "call_abc"
        )


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
def test_react_works_as_it_did(adapter: Any, native: bool) -> None:
    """It runs its tools itself, in either way, through every adapter, and its requests have nothing
    of this in them.
    """
    RAN.clear()
    asked = Signature("-> next_thought, next_tool_name, next_tool_args: dict[str, Any]")

    def text(name: str, **args: Any) -> str:
        return adapter.format_assistant_message_content(
            asked,
            {"next_thought": "hm", "next_tool_name": name, "next_tool_args": args},
        )

    done = adapter.format_assistant_message_content(
        Signature("-> reasoning, answer"),
        {"reasoning": "r", "answer": "tea"},
    )
    script = (
        [Response("hm", (ToolCall.read(CALL),)), {"name": "finish", "args": {"answer": "tea"}}]
        if native
        else [text("search", query="tea"), text("finish"), done]
    )
    with context(adapter=adapter), ScriptedLM(script) as lm:
        found = ReAct("question -> answer", [search], native=native)(question="q", lm=lm)
    assert RAN == ["tea"]
    assert found.answer == "tea"
    assert found.trajectory["thought_0"] == "hm"
    assert (found.trajectory["tool_name_0"], found.trajectory["tool_args_0"]) == (
        "search",
        {"query": "tea"},
    )
    assert found.trajectory["observation_0"] == "never"
    declared = [[tool["function"]["name"] for tool in request.tools] for request in lm.requests]
    assert declared == ([["search", "finish"]] * 2 if native else [[]] * 3)
    assert all(
        "tool_calls" not in message.text for request in lm.requests for message in request.messages
    )
