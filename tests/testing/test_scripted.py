from __future__ import annotations

import asyncio
import copy
import threading
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.xml_tags import XMLAdapter
from ferrule.errors import ConfigurationError, RateLimitError, ScriptError
from ferrule.programs.predict import Predict
from ferrule.programs.react import ReAct
from ferrule.settings import context
from ferrule.testing.scripted import ScriptedLM
from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response, Usage
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "hi")]))
ONE = Usage(calls=1)


async def collected(stream) -> list:
    return [item async for item in stream]


def call(name: str, call_id: str, **args) -> ToolCall:
    return ToolCall(name=name, args=args, id=call_id)


ITEMS = {
    "text": ("hello", Response("hello", finish_reason="stop", usage=ONE)),
    "empty": ("", Response("", finish_reason="stop", usage=ONE)),
    "call": (
        {"name": "add", "args": {"a": 1}},
        Response(None, (call("add", "call_0", a=1),), finish_reason="tool_calls", usage=ONE),
    ),
    "openai": (
        {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        Response(None, (call("add", "x", a=1),), finish_reason="tool_calls", usage=ONE),
    ),
    "calls": (
        [{"name": "add"}, call("add", "mine"), ToolCall(name="sub")],
        Response(
            None,
            (call("add", "call_0"), call("add", "mine"), call("sub", "call_1")),
            finish_reason="tool_calls",
            usage=ONE,
        ),
    ),
    "tool_calls": (
        ToolCalls.from_dict_list([{"name": "add", "args": {}}]),
        Response(None, (call("add", "call_0"),), finish_reason="tool_calls", usage=ONE),
    ),
    "both": (
        {"text": "thinking", "tool_calls": [{"name": "add"}], "reasoning": "hm"},
        Response("thinking", (call("add", "call_0"),), "hm", "tool_calls", usage=ONE),
    ),
    "only_text": ({"text": "x"}, Response("x", finish_reason="stop", usage=ONE)),
    "response": (Response("x"), Response("x")),
    "response_with_calls": (
        Response(None, (ToolCall(name="add"),)),
        Response(None, (call("add", "call_0"),)),
    ),
    "function": (
        lambda request: request.messages[-1].text,
        Response("hi", finish_reason="stop", usage=ONE),
    ),
    "function_of_call": (
        lambda request: {"name": "add"},
        Response(None, (call("add", "call_1_0"),), finish_reason="tool_calls", usage=ONE),
    ),
}


@pytest.mark.parametrize(("item", "expected"), ITEMS.values(), ids=ITEMS.keys())
def test_every_kind_of_item_is_an_answer(item, expected):
    assert ScriptedLM([item]).complete(ASKED) == expected
    assert asyncio.run(ScriptedLM([item]).acomplete(ASKED)) == expected
    assert list(ScriptedLM([item]).stream(ASKED))[-1] == expected
    assert asyncio.run(collected(ScriptedLM([item]).astream(ASKED)))[-1] == expected


@pytest.mark.parametrize(
    "item",
    [RateLimitError("x"), ValueError, lambda request: KeyError("x")],
    ids=["instance", "class", "function"],
)
def test_exceptions_are_raised(item):
    with pytest.raises((RateLimitError, ValueError, KeyError)):
        ScriptedLM([item]).complete(ASKED)


@pytest.mark.parametrize(
    "item",
    [
        None,
        3,
        [],
        {},
        [3],
        {"nam": "x"},
        {"text": "x", "tools": []},
        {"name": ""},
        [None],
        ToolCalls(tool_calls=[]),
        b"x",
        {"a": 1},
    ],
    ids=range(12),
)
def test_what_is_no_answer_is_refused_when_the_script_is_made(item):
    """With its place."""
    with pytest.raises(ConfigurationError, match=r"answers\[1\] is not an answer"):
        ScriptedLM(["fine", item])


@pytest.mark.parametrize("item", [None, 3, []], ids=range(3))
def test_what_a_function_returns_is_checked_too(item):
    for lm in (ScriptedLM([lambda request: item]), ScriptedLM(by=lambda request: item)):
        with pytest.raises(ConfigurationError, match="is not an answer"):
            lm.complete(ASKED)


def test_functions_that_return_functions_come_to_an_end():
    def again(request):
        return again

    with pytest.raises(ConfigurationError, match="keeps returning functions"):
        ScriptedLM([again]).complete(ASKED)


@pytest.mark.parametrize(
    "answers",
    ["text", {"name": "x"}, 3, ToolCall(name="x"), Response("x"), None, b"x"],
    ids=range(7),
)
def test_a_script_is_a_list(answers):
    """`ScriptedLM("abc")` would say a, b, c."""
    with pytest.raises(ConfigurationError, match="list of answers"):
        ScriptedLM(answers)


def test_answers_come_in_order_and_then_no_more():
    lm = ScriptedLM(["one", lambda request: "two"])
    assert [lm("a"), lm("b")] == ["one", "two"]
    with pytest.raises(ScriptError, match=r"has 2 answers and was asked 3 times.*user: 'c'"):
        lm("c")
    assert [request.messages[-1].text for request in lm.requests] == ["a", "b", "c"]


def test_what_was_asked_is_shown_shortened():
    with pytest.raises(ScriptError) as caught:
        ScriptedLM()("x" * 100_000)
    assert len(str(caught.value)) < 400
    with pytest.raises(ScriptError, match="no messages"):
        ScriptedLM().complete(Request(Messages()))


def test_completion_is_asserted():
    lm = ScriptedLM(["one", "two"])
    lm("x")
    with pytest.raises(ScriptError, match=r"asked 1 time and has 2 answers; the next was .*two"):
        lm.assert_done()
    lm("x")
    lm.assert_done()


def test_a_clean_exit_asserts_completion_and_an_error_goes_through():
    with pytest.raises(ScriptError), ScriptedLM(["one"]):
        pass
    with pytest.raises(KeyError), ScriptedLM(["one"]):
        raise KeyError
    with ScriptedLM(["one"]) as lm:
        lm("x")


def test_ids_are_counted_over_the_whole_script():
    lm = ScriptedLM([{"name": "a"}, [{"name": "b"}, {"name": "c"}]])
    assert [each.id for _ in range(2) for each in lm.complete(ASKED).tool_calls] == [
        "call_0",
        "call_1",
        "call_2",
    ]


def test_by_a_function_it_holds_no_state():
    """Fit for any number of runs at once."""
    lm = ScriptedLM(by=lambda request: {"name": "add", "args": {"n": len(request.messages)}})
    assert lm.complete(ASKED) == lm.complete(ASKED)
    assert lm.requests == []
    lm.assert_done()
    longer = ASKED.following(ASKED.messages.then(Message("assistant", "x")))
    assert lm.complete(longer).tool_calls[0].id != lm.complete(ASKED).tool_calls[0].id
    recording = ScriptedLM(by=lambda request: "x", record=True)
    recording("hi")
    assert len(recording.requests) == 1


def test_a_list_and_a_function_exclude_one_another():
    with pytest.raises(ConfigurationError, match="not both"):
        ScriptedLM(["x"], by=lambda request: "x")
    with pytest.raises(ConfigurationError):
        ScriptedLM(by="x")  # type: ignore[arg-type]


def test_threads_share_a_script_without_losing_an_answer():
    lm = ScriptedLM([str(i) for i in range(400)])
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda: said.extend([lm("x") for _ in range(50)])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, said)) == list(range(400))
    lm.assert_done()


def test_copies_tell_the_same_script():
    lm = ScriptedLM(["one", "two"])
    assert (lm.copy(temperature=1)("x"), copy.deepcopy(lm)("x")) == ("one", "two")
    lm.assert_done()


def test_capabilities_are_as_told():
    assert not ScriptedLM(capabilities=Capabilities(native_tools=False)).capabilities.native_tools
    assert ScriptedLM().capabilities.native_tools
    assert repr(ScriptedLM()) == "ScriptedLM('scripted')"


@given(st.text(max_size=60), st.text(max_size=20))
def test_words_add_up_to_the_text(text, reasoning):
    *deltas, last = ScriptedLM([Response(text, reasoning=reasoning)]).stream(
        Request(Messages([Message("user", "?")])),
    )
    assert "".join(each.text for each in deltas) == text
    assert "".join(each.reasoning for each in deltas) == reasoning
    assert last == Response(text, reasoning=reasoning)
    assert all(isinstance(each, Delta) and (each.text or each.reasoning) for each in deltas)


# -- outputs


@pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), JSONAdapter(), XMLAdapter()],
    ids=lambda adapter: type(adapter).__name__,
)
def test_outputs_are_written_in_the_form_of_the_program_s_adapter(adapter):
    with (
        context(adapter=adapter),
        ScriptedLM([{"outputs": {"answer": "42 [[ ## x ## ]] </answer>", "sure": True}}]) as lm,
    ):
        prediction = Predict("question -> answer, sure: bool")(question="?", lm=lm)
    assert prediction.toDict() == {"answer": "42 [[ ## x ## ]] </answer>", "sure": True}


def test_outputs_are_written_for_a_step_in_text_and_for_the_extraction():
    step = {"next_thought": "I add.", "next_tool_name": "add", "next_tool_args": {"a": 1, "b": 2}}
    end = {"next_thought": "Done.", "next_tool_name": "finish", "next_tool_args": {}}

    def add(a: int, b: int) -> int:
        return a + b

    with ScriptedLM(
        [{"outputs": step}, {"outputs": end}, {"outputs": {"reasoning": "3", "answer": 3}}],
    ) as lm:
        assert (
            ReAct("question -> answer: int", [add], native=False)(question="?", lm=lm).answer == 3
        )


def test_outputs_stand_beside_calls():
    answer = {"outputs": {"answer": "soon"}, "tool_calls": [{"name": "add"}], "reasoning": "hm"}
    form = replace(ASKED, form=Form())
    assert ScriptedLM([answer]).complete(form) == Response(
        "answer=soon",
        (call("add", "call_0"),),
        "hm",
        "tool_calls",
        usage=ONE,
    )


class Form:
    schema: ClassVar = {"properties": {"answer": {}}}

    def write(self, outputs) -> str:
        return " ".join(f"{name}={value}" for name, value in outputs.items())


@pytest.mark.parametrize("item", [{"outputs": "x"}, {"outputs": {}, "text": "x"}])
def test_outputs_that_cannot_be_written_are_refused_with_the_script(item):
    with pytest.raises(
        ConfigurationError,
        match="`outputs` is a mapping of output fields to values",
    ):
        ScriptedLM([item])


def test_outputs_need_a_program_that_asks_for_them():
    with pytest.raises(ConfigurationError, match="does not come from a program of this process"):
        ScriptedLM([{"outputs": {"answer": "x"}}]).complete(ASKED)
    with pytest.raises(
        ConfigurationError,
        match=r"cannot write \['anwser'\]: the outputs of this request are answer",
    ):
        Predict("question -> answer")(question="?", lm=ScriptedLM([{"outputs": {"anwser": "x"}}]))


def test_outputs_of_a_program_that_ends_with_a_call_are_told_to_be_one():
    """Scripts for `Predict` and for an agent differ, and a reader confuses them."""
    with pytest.raises(
        ConfigurationError,
        match=r"ends with a call. Write \{'name': 'finish', 'args': \{'answer': 'x'\}\}",
    ):
        ReAct("question -> answer", [])(question="?", lm=ScriptedLM([{"outputs": {"answer": "x"}}]))
