"""Observers are told of direct calls: of tools and models that code calls itself, outside a run and
inside one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_script import fields, native_step

from ferrule import (
    AdapterParseError,
    ChainOfThought,
    ChatAdapter,
    JSONAdapter,
    Module,
    Predict,
    Prediction,
    ReAct,
    Response,
    Signature,
    Tool,
    ToolCalls,
    context,
    inspect_history,
)
from ferrule.errors import AsyncToolError, BadRequestError, ScriptError, ToolArgumentsError
from ferrule.events import (
    CallFinished,
    CallStarted,
    Formatted,
    ModelAnswered,
    ModelCalled,
    ParseFinished,
    ParseStarted,
    RunFinished,
    RunStarted,
)
from ferrule.testing import ScriptedLM


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


async def later(a: int) -> int:
    """Add later."""
    return a + 1


def fails() -> None:
    """Fail."""
    raise ValueError("no")


def told(act: Any, **settings: Any) -> list[Any]:
    seen: list[Any] = []
    with context(callbacks=[seen.append], **settings):
        act()
    return seen


# -- tools


@pytest.mark.parametrize(
    "act",
    [
        lambda: Tool(add)(2, b=3),
        lambda: Tool(add)(a=2, b=3),
        lambda: asyncio.run(Tool(add).acall(2, 3)),
        lambda: Tool(add).call_result(a="2", b=3),
        lambda: asyncio.run(Tool(add).acall_result(a=2, b=3)),
        lambda: asyncio.run(Tool(add).call(None, a=2, b=3)),
        lambda: ToolCalls(tool_calls=[{"name": "add", "args": {"a": 2, "b": 3}}]).execute_all(
            [Tool(add)],
        ),
    ],
    ids=["positional", "by name", "acall", "call_result", "acall_result", "call", "execute_all"],
)
def test_a_direct_call_of_a_tool_is_told_with_named_arguments(act: Any) -> None:
    begun, ended = told(act)
    assert isinstance(begun, CallStarted)
    assert isinstance(ended, CallFinished)
    assert (begun.call.name, begun.call.args) == ("add", {"a": 2, "b": 3})
    assert (ended.call, ended.result.content, ended.result.call_id) == (
        begun.call,
        "5",
        begun.call.id,
    )
    assert begun.span_id == ended.span_id == begun.run_id == begun.call.id != ""
    assert (begun.parent_id, begun.parent_span_id, [begun.number, ended.number]) == ("", "", [0, 1])


def test_a_direct_call_of_an_async_tool_in_sync_code_is_told_if_it_runs() -> None:
    assert [
        type(each) for each in told(lambda: Tool(later)(a=1), allow_tool_async_sync_conversion=True)
    ] == [CallStarted, CallFinished]

    def refused() -> None:
        with pytest.raises(AsyncToolError):
            Tool(later)(a=1)

    [_, ended] = told(refused)
    assert isinstance(ended.result.error, AsyncToolError)


def test_an_error_of_a_direct_call_is_told_and_raised() -> None:
    def act() -> None:
        with pytest.raises(ValueError, match="no"):
            Tool(fails)()

    begun, ended = told(act)
    assert isinstance(begun, CallStarted)
    assert isinstance(ended.result.error, ValueError)
    assert ended.result.is_error


def test_a_direct_call_with_arguments_that_do_not_fit_does_not_begin() -> None:
    def act() -> None:
        with pytest.raises(ToolArgumentsError):
            Tool(add)(a="x")

    assert told(act) == []


def test_no_two_direct_calls_have_one_id() -> None:
    seen = told(lambda: [Tool(add)(1), Tool(add)(1)])
    assert len({each.span_id for each in seen}) == 2
    assert [seen[k].span_id == seen[k + 1].span_id for k in (0, 2)] == [True, True]


# -- adapters

ASKED = Signature("question -> answer")
ANSWER = "[[ ## answer ## ]]\nRome"


class Loud(ChatAdapter):
    """Overrides both, and calls what it overrides."""

    def format(self, signature: Any, demos: Any, inputs: Any) -> Any:
        return super().format(signature, demos, inputs)

    def parse(self, signature: Any, completion: str) -> Any:
        return super().parse(signature, completion)


@pytest.mark.parametrize("adapter", [ChatAdapter(), Loud()], ids=["as it is", "overridden"])
def test_a_direct_call_of_an_adapter_is_told(adapter: Any) -> None:
    [formatted] = told(lambda: adapter.format(ASKED, [], {"question": "x"}))
    assert isinstance(formatted, Formatted)
    assert (formatted.adapter, formatted.messages, formatted.tools, formatted.attempt) == (
        type(adapter).__name__,
        2,
        0,
        1,
    )
    begun, ended = told(lambda: adapter.parse(ASKED, ANSWER))
    assert (type(begun), type(ended)) == (ParseStarted, ParseFinished)
    assert (ended.adapter, ended.outputs, ended.error) == (
        type(adapter).__name__,
        ("answer",),
        None,
    )
    assert begun.span_id == ended.span_id == begun.run_id != formatted.span_id
    assert begun.parent_span_id == formatted.parent_span_id == ""


def test_an_error_of_an_adapter_that_is_called_directly_is_told_and_raised() -> None:
    def act() -> None:
        with pytest.raises(AdapterParseError):
            JSONAdapter().parse(ASKED, "no")

    _, ended = told(act)
    assert isinstance(ended.error, AdapterParseError)
    assert ended.outputs == ()


def test_hooks_are_told_of_direct_calls_of_adapters() -> None:
    seen: list[Any] = []

    class Hooks:
        def on_adapter_format_end(self, call_id: str, outputs: Any, exception: Any) -> None:
            seen.append(outputs)

        def on_adapter_parse_end(self, call_id: str, outputs: Any, exception: Any) -> None:
            seen.append(outputs["outputs"])

    with context(callbacks=[Hooks()]):
        ChatAdapter().format(ASKED, [], {"question": "x"})
        ChatAdapter().parse(ASKED, ANSWER)
    assert seen == [{"messages": 2, "tools": 0}, ("answer",)]


@pytest.mark.parametrize("adapter", [ChatAdapter(), Loud()], ids=["as it is", "overridden"])
def test_a_run_tells_once_what_its_adapter_does(adapter: Any) -> None:
    seen = told(lambda: Predict(ASKED)(question="x"), lm=ScriptedLM([ANSWER]), adapter=adapter)
    kinds = [type(each).__name__ for each in seen]
    assert kinds == [
        "RunStarted",
        "Formatted",
        "ModelCalled",
        *kinds[3:-4],
        "ModelAnswered",
        "ParseStarted",
        "ParseFinished",
        "RunFinished",
    ]
    assert not {"Formatted", "ParseStarted", "ParseFinished"} & {*kinds[3:-4]}


def test_a_direct_call_of_an_adapter_in_a_program_belongs_to_its_run() -> None:
    class Mine(Module):
        def forward(self) -> Any:
            return Prediction(**ChatAdapter().parse(ASKED, ANSWER))

    started, begun, ended, _ = told(lambda: Mine()())
    assert isinstance(begun, ParseStarted)
    assert begun.run_id == started.run_id
    assert begun.parent_span_id == started.span_id
    assert begun.span_id == ended.span_id != started.span_id


# -- models


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_direct_call_of_a_model_is_told(is_async: bool) -> None:
    lm = ScriptedLM(["hello"])
    begun, ended = told(
        lambda: (
            asyncio.run(lm.acall("hi", temperature=0.5)) if is_async else lm("hi", temperature=0.5)
        ),
    )
    assert isinstance(begun, ModelCalled)
    assert isinstance(ended, ModelAnswered)
    assert (begun.request.messages[-1].text, dict(begun.request.settings), begun.lm) == (
        "hi",
        {"temperature": 0.5},
        lm,
    )
    assert (ended.response and ended.response.text, ended.error) == ("hello", None)
    assert begun.call_id == ended.call_id == begun.span_id == ended.span_id


def test_an_error_of_a_model_is_told_and_raised() -> None:
    def act() -> None:
        with pytest.raises(BadRequestError):
            ScriptedLM([BadRequestError("no")])("hi")

    [_, ended] = told(act)
    assert isinstance(ended.error, BadRequestError)


def test_without_observers_nothing_is_told_and_nothing_costs() -> None:
    assert Tool(add)(1) == 2
    assert ScriptedLM(["hello"])("hi") == "hello"


# -- inside a run


class Desk(Module):
    """Calls a tool, a model and a program."""

    def forward(self, question: str, *more: int, kind: str = "plain", **rest: Any) -> Prediction:
        Tool(add)(a=1)
        ScriptedLM(["hm"])("think")
        return Predict("question -> answer")(question=question)


def test_direct_calls_inside_a_program_are_told_below_it() -> None:
    seen = told(lambda: Desk()(question="q"), lm=ScriptedLM([fields(answer="a")]))
    run = seen[0]
    direct = [each for each in seen if isinstance(each, (CallStarted, CallFinished))]
    assert [each.run_id for each in seen] == [run.run_id] * len(seen)
    assert [each.parent_span_id for each in direct] == [run.span_id] * 2
    models = [each for each in seen if isinstance(each, ModelCalled)]
    program = next(each for each in seen if isinstance(each, RunStarted) and each.depth == 1)
    assert [each.parent_span_id for each in models] == [run.span_id, program.span_id]
    assert program.parent_span_id == run.span_id


def test_every_event_knows_its_own_id_and_that_of_what_is_around_it() -> None:
    """A tree of programs, calls and models, over runs inside tools, too."""

    def ask(question: str) -> str:
        """Ask somebody: a run of its own."""
        Tool(add)(a=1)
        return ChainOfThought("question -> answer")(question=question).answer

    scout = ReAct("place -> report", [ask], native=True)
    guide = ReAct("question -> answer", [scout.as_tool("scout")], native=True)
    script = [
        native_step("s", "scout", {"place": "Rome"}),
        native_step("a", "ask", {"question": "?"}),
        fields(reasoning="r", answer="a"),
        native_step("f", "finish", {"report": "r"}),
        native_step("f", "finish", {"answer": "x"}),
    ]
    seen = told(lambda: guide(question="q"), lm=ScriptedLM(script))
    kinds = (RunStarted, CallStarted, ModelCalled)
    starts = {each.span_id: each for each in seen if isinstance(each, kinds)}
    assert len(starts) == sum(isinstance(each, kinds) for each in seen) == 11
    ends = [
        each.span_id
        for each in seen
        if isinstance(each, (RunFinished, CallFinished, ModelAnswered))
    ]
    assert sorted(ends) == sorted(starts)
    names = {
        key: each.program.name
        if isinstance(each, RunStarted)
        else getattr(each, "call", None) and each.call.name
        for key, each in starts.items()
    }

    def line(key: str) -> list[Any]:
        return [*line(starts[key].parent_span_id), names[key] or "model"] if key else []

    tree = sorted({"/".join(map(str, line(key))) for key in starts})
    assert tree == [
        "ReAct", "ReAct/model", "ReAct/scout", "ReAct/scout/ReAct", "ReAct/scout/ReAct/ask", "ReAct/scout/ReAct/ask/ChainOfThought",
        "ReAct/scout/ReAct/ask/ChainOfThought/model", "ReAct/scout/ReAct/ask/add", "ReAct/scout/ReAct/model",
    ]  # fmt: skip
    everywhere = {each.parent_span_id for each in seen} - {""}
    assert everywhere <= starts.keys()  # an adapter's events, too
    assert {each.root_id for each in seen} == {seen[0].run_id}
    assert seen[0].as_json()["span_id"] == seen[0].run_id


# -- inputs, and objects with hooks


def test_positional_inputs_of_a_program_are_named() -> None:
    for depth, act in ((0, lambda: Desk()("q", 1, 2, other=3)), (1, lambda: Outer()(question="q"))):
        seen = told(act, lm=ScriptedLM([fields(answer="a")]))
        begun = next(each for each in seen if isinstance(each, RunStarted) and each.depth == depth)
        assert begun.inputs == {"question": "q", "more": (1, 2), "other": 3}


class Outer(Module):
    def forward(self, question: str) -> Any:
        return Desk()(question, 1, 2, other=3)


def test_inputs_that_do_not_fit_are_told_as_they_are() -> None:
    def act() -> None:
        with pytest.raises(TypeError):
            Desk()(kind="odd")

    assert told(act)[0].inputs == {"kind": "odd"}


class Hooks:
    """As DSPy's users write them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_") or name == "on_event":
            raise AttributeError(name)
        return lambda call_id, *_: self.seen.append((name, call_id))

    def __dir__(self) -> list[str]:
        return ["on_module_start"]


def test_hooks_come_in_pairs_with_one_id() -> None:
    """DSPy's order, with the adapter's own."""
    hooks = Hooks()
    with context(callbacks=[hooks], lm=ScriptedLM(["nothing to read", fields(answer="a")])):
        Predict("question -> answer")(question="q")
        Tool(add)(1)
    asked = [
        "on_adapter_format_start",
        "on_adapter_format_end",
        "on_lm_start",
        "on_lm_end",
        "on_adapter_parse_start",
        "on_adapter_parse_end",
    ]
    assert [name for name, _ in hooks.seen] == [
        "on_module_start",
        *asked,
        *asked,
        "on_module_end",
        "on_tool_start",
        "on_tool_end",
    ]
    opened: dict[str, str] = {}
    for name, call_id in hooks.seen:
        if name.endswith("_start"):
            assert call_id not in opened, "an id of its own"
            opened[call_id] = name.removesuffix("_start")
        else:
            assert opened[call_id] == name.removesuffix("_end")


# -- whole answers, and the history


def test_a_direct_question_is_answered_with_the_whole_response_on_wish() -> None:
    lm = ScriptedLM([Response("hello", reasoning="Hm."), Response("again")])
    found = lm.respond("hi", temperature=0.5)
    assert (found.text, found.reasoning) == ("hello", "Hm.")
    assert asyncio.run(lm.arespond(messages=[{"role": "user", "content": "hi"}])).text == "again"
    assert [dict(each.settings) for each in lm.requests] == [{"temperature": 0.5}, {}]


def test_direct_calls_are_in_the_history_too(capsys: pytest.CaptureFixture[str]) -> None:
    lm = ScriptedLM(["hello"])
    lm("hi")
    with pytest.raises(ScriptError):
        lm("more")
    inspect_history(2)
    out = capsys.readouterr().out
    assert out.index("hi") < out.index("hello") < out.index("more") < out.index("--- failed")
