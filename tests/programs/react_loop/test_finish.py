"""`finish` beside other calls: it counts only if each of them succeeded as the model wrote it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from agent_script import STEPS, fields, text_step

from ferrule import (
    Limits,
    Load,
    MemoryStore,
    Module,
    Policy,
    Predict,
    Prediction,
    ReAct,
    Response,
    Run,
    Signature,
    Tool,
    Toolbox,
    ToolCall,
    ToolRetry,
    context,
    deny,
    tool,
)
from ferrule.errors import BadRequestError, TooManyFaultsError
from ferrule.events import CallRefused
from ferrule.testing import ScriptedLM

GUESS, ANSWER = "I refunded 50 euros.", "Nothing was refunded."
Decide = Callable[[Any], Any]


@tool(require_confirmation=True)
def refund(amount: int) -> str:
    """Refund an amount."""
    return f"refunded {amount}"


@tool(effect="read")
def look(number: int, note: str = "") -> str:
    """Look up an order."""
    return f"order {number}{note}"


@tool
def broken(number: int) -> str:
    """Fail."""
    raise OSError(f"no order {number}")


@tool
def picky(number: int) -> str:
    """Want another number."""
    raise ToolRetry(f"not {number}")


@tool(timeout_s=0.01)
async def slow() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@tool(name="pay")
def forbidden(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Failing(Module):
    """A program that fails."""

    signature = Signature("job -> outcome")

    def forward(self, job: str) -> Prediction:
        raise LookupError(job)


def refused_by_its_model() -> Tool:
    refusing = ScriptedLM(by=lambda _: BadRequestError("no"))
    return ReAct("job -> outcome", [look], lm=refusing, native=True).as_tool("nested")


class Crashing:
    """A tool whose process stops in its first call."""

    def __init__(self, unknown: Any) -> None:
        self.calls = 0
        self.tool = Tool(self.send, "send", "Send.", effect="once", unknown=unknown)

    def send(self) -> str:
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return "sent"


class Case:
    """A call beside `finish`, what the tools are, and what a person decides."""

    def __init__(
        self,
        name: str,
        args: dict[str, Any],
        *,
        tools: Callable[[], list[Any]] = lambda: [refund, look, broken, picky, slow],
        decide: Decide | None = None,
        **options: Any,
    ) -> None:
        self.name, self.args, self.tools, self.decide = name, args, tools, decide
        self.options = options


FAILED = {
    "denied": Case("refund", {"amount": 50}, decide=lambda asked: asked.deny("no")),
    "edited": Case("refund", {"amount": 50}, decide=lambda asked: asked.approve(amount=5)),
    "answered by hand": Case("refund", {"amount": 50}, decide=lambda asked: asked.reply("done")),
    "raised": Case("broken", {"number": 1}),
    "asked for another call": Case("picky", {"number": 1}),
    "timed out": Case("slow", {}),
    "invalid arguments": Case("look", {"number": "many"}),
    "unknown tool": Case("nosuch", {}),
    "denied by a policy": Case(
        "pay", {"amount": 1}, tools=lambda: [forbidden], policy=Policy([deny("pay")])
    ),
    "nested agent failed": Case("nested", {"job": "j"}, tools=lambda: [refused_by_its_model()]),
    "nested program failed": Case(
        "failing", {"job": "j"}, tools=lambda: [Failing().as_tool("failing")]
    ),
    "clarification answered": Case(
        "user_clarification",
        {"question": "Which?"},
        decide=lambda asked: asked.reply("A1"),
        enable_user_clarification=True,
    ),
    "clarification affirmed": Case(
        "user_clarification",
        {"question": "Shall I?"},
        decide=lambda asked: asked.approve(),
        enable_user_clarification=True,
    ),
    "clarification denied": Case(
        "user_clarification",
        {"question": "Which?"},
        decide=lambda asked: asked.deny(),
        enable_user_clarification=True,
    ),
    "interrupted, outcome unknown": Case("send", {}, tools=lambda: [Crashing("tell").tool]),
    "interrupted, outcome told by a person": Case(
        "send", {}, tools=lambda: [Crashing("ask").tool], decide=lambda asked: asked.reply("sent")
    ),
}
SUCCEEDED = {
    "a result": Case("look", {"number": 1}),
    "converted arguments": Case("look", {"number": "1", "note": 5}),
    "approved": Case("refund", {"amount": 50}, decide=lambda asked: asked.approve()),
    "a nested agent": Case(
        "nested",
        {"job": "j"},
        tools=lambda: [
            Predict("job -> outcome", lm=ScriptedLM(by=lambda _: fields(outcome="o"))).as_tool(
                "nested"
            )
        ],
    ),
    "interrupted and run again": Case(
        "send", {}, tools=lambda: [Crashing("ask").tool], decide=lambda asked: asked.approve()
    ),
}


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["before", "after"])
def order(request: pytest.FixtureRequest) -> str:
    return request.param


WAYS = ("started", "async", "streamed", "stored")
FORMS = tuple(product(("text", "native"), ("before", "after")))


def each_way(cases: dict[str, Case]) -> pytest.MarkDecorator:
    """Each case in each way to run it, and in one form; the other forms are long tests."""
    variants = []
    for (case_number, case), (way_number, how) in product(enumerate(cases), enumerate(WAYS)):
        for form_number, (mode, order) in enumerate(FORMS):
            is_long = form_number != (case_number + way_number) % len(FORMS)
            marks = [pytest.mark.long] if is_long else []
            variants.append(pytest.param(case, mode, how, order, marks=marks))
    return pytest.mark.parametrize(("case", "mode", "how", "order"), variants)


def answer_of(mode: str, calls: list[tuple[str, dict[str, Any]]]) -> Any:
    """One answer of the model with several calls."""
    if mode == "native":
        return Response("", tuple(ToolCall(name=name, args=args) for name, args in calls))
    names = [name for name, _ in calls]
    return text_step("both", json.dumps(names), json.dumps([args for _, args in calls]))


def finish_beside(mode: str, order: str, name: str, args: dict[str, Any]) -> Any:
    calls = [(name, args), ("finish", {"answer": GUESS})]
    if order == "before":
        calls.reverse()
    return answer_of(mode, calls)


def begin(agent: ReAct, how: str, store: MemoryStore) -> Run:
    inputs: dict[str, Any] = {"question": "?", "store": store, "run_id": "r"}
    try:
        if how == "async":
            return asyncio.run(agent.astart(**inputs))
        if how == "streamed":
            with agent.stream(**inputs) as stream:
                list(stream)
            return stream.run
        return agent.start(**inputs)
    except KeyboardInterrupt:  # the process stops; another one goes on
        return go_on(agent, Run.load(store, "r", agent), how, store)


def go_on(agent: ReAct, run: Run, how: str, store: MemoryStore) -> Run:
    if how == "async":
        return asyncio.run(run.aresume())
    if how == "streamed":
        with agent.stream(resume_state=run) as stream:
            list(stream)
        return stream.run
    if how == "stored":
        run = Run.load(store, "r", agent)
    return run.resume()


def outcome(case: Case, mode: str, how: str, order: str) -> tuple[Run, ScriptedLM]:
    """The run of an agent whose model finishes beside the call of the case."""
    agent = ReAct("question -> answer", case.tools(), native=mode == "native", **case.options)
    store = MemoryStore()
    lm = ScriptedLM(
        [
            finish_beside(mode, order, case.name, case.args),
            STEPS[mode]("so", "finish", {"answer": ANSWER}),
        ]
    )
    with context(lm=lm):
        run = begin(agent, how, store)
        if run.status == "waiting":
            assert case.decide is not None
            run.answer(case.decide(run.pending[0]))
            run = go_on(agent, run, how, store)
        if how == "stored":
            prediction = Run.load(store, "r", agent).prediction
            assert (prediction, prediction.trajectory) == (run.prediction, run.trajectory)
    return run, lm


@each_way(FAILED)
def test_finish_does_not_count_beside_a_call_that_did_not_succeed_as_written(
    case: str, mode: str, how: str, order: str
) -> None:
    run, lm = outcome(FAILED[case], mode, how, order)
    assert run.prediction.answer == ANSWER
    assert run.prediction.reason is None
    [_, verdict] = run.trajectory.steps[0].results
    assert (verdict.name, verdict.is_error) == ("finish", True)
    assert f"`{FAILED[case].name}`" in str(verdict.content)
    assert "not accepted" in "\n".join(message.text for message in lm.requests[1].messages)


@each_way(SUCCEEDED)
def test_finish_counts_beside_a_call_that_succeeded_as_written(
    case: str, mode: str, how: str, order: str
) -> None:
    run, lm = outcome(SUCCEEDED[case], mode, how, order)
    assert run.prediction.answer == GUESS
    assert len(lm.requests) == 1


def written(arguments: str) -> Response:
    """A native answer whose call of `look` has these arguments as text."""
    read = ToolCall.read({"name": "look", "arguments": arguments, "id": "1"})
    return Response("", (read, ToolCall(name="finish", args={"answer": GUESS}, id="2")))


def test_a_call_that_lost_a_part_when_it_was_read_is_not_the_call_as_written() -> None:
    lm = ScriptedLM([written('{"number": 5}}'), STEPS["native"]("", "finish", {"answer": ANSWER})])
    agent = ReAct("question -> answer", [look], native=True)
    assert agent(question="?", lm=lm).answer == ANSWER
    assert "extra_closing_brace" in lm.requests[1].messages[-1].text


def test_a_repair_that_only_rewrites_counts_as_written() -> None:
    lm = ScriptedLM([written("{'number': 5,}")])
    assert ReAct("question -> answer", [look], native=True)(question="?", lm=lm).answer == GUESS


def test_a_call_over_a_limit_voids_finish(mode: str, order: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("look", {"number": 1}), ("look", {"number": 2})]
    calls.insert(0 if order == "before" else 2, ("finish", {"answer": GUESS}))
    lm = ScriptedLM([answer_of(mode, calls), STEPS[mode]("", "finish", {"answer": ANSWER})])
    agent = ReAct("question -> answer", [look], native=mode == "native")
    with context(lm=lm):
        run = agent.start(question="?", limits=Limits(tool_calls=1))
    assert run.trajectory.steps[0].results[-1].is_error


def test_each_call_that_did_not_succeed_is_named_and_the_others_are_not() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("broken", {"number": 1}),
        ("look", {"number": 1}),
        ("nosuch", {}),
        ("finish", {"answer": GUESS}),
    ]
    lm = ScriptedLM([answer_of("native", calls), STEPS["native"]("", "finish", {"answer": ANSWER})])
    run = ReAct("question -> answer", [look, broken], native=True).start(question="?", lm=lm)
    verdict = str(run.trajectory.steps[0].results[-1].content)
    assert [f"`{name}`" in verdict for name, _ in calls[:3]] == [True, False, True]


def test_observers_hear_that_finish_was_refused() -> None:
    seen: list[Any] = []
    lm = ScriptedLM(
        [
            finish_beside("native", "after", "broken", {"number": 1}),
            STEPS["native"]("", "finish", {"answer": ANSWER}),
        ]
    )
    with context(callbacks=[seen.append]):
        ReAct("question -> answer", [broken], native=True)(question="?", lm=lm)
    assert [event.call.name for event in seen if isinstance(event, CallRefused)] == ["finish"]


def test_the_outputs_of_a_void_finish_are_no_part_of_what_a_stream_has_so_far() -> None:
    lm = ScriptedLM(
        [
            finish_beside("native", "after", "broken", {"number": 1}),
            STEPS["native"]("", "finish", {"answer": ANSWER}),
        ]
    )
    steps: list[dict[str, Any]] = []
    with ReAct("question -> answer", [broken], native=True).stream(question="?", lm=lm) as stream:
        for event in stream:
            if event.type == "StepFinished":
                steps.append(stream.partial())
    assert steps == [{}, {"answer": ANSWER}]


# -- several calls of `finish`, and outputs that do not fit


def test_finish_twice_with_equal_outputs_is_one_answer(mode: str) -> None:
    twice: Any = [("finish", {"answer": GUESS})] * 2
    lm = ScriptedLM([answer_of(mode, twice)])
    agent = ReAct("question -> answer", [look], native=mode == "native")
    prediction = agent(question="?", lm=lm)
    assert prediction.answer == GUESS
    assert [message.role for message in prediction.messages[-2:]] == ["user", "assistant"]


def test_finish_twice_with_different_outputs_is_no_answer(mode: str) -> None:
    twice: Any = [("finish", {"answer": GUESS}), ("finish", {"answer": "Another."})]
    lm = ScriptedLM([answer_of(mode, twice), STEPS[mode]("", "finish", {"answer": ANSWER})])
    agent = ReAct("question -> answer", [look], native=mode == "native")
    prediction = agent(question="?", lm=lm)
    assert prediction.answer == ANSWER
    assert [result.is_error for result in prediction.trajectory.steps[0].results] == [True, True]


def test_a_void_finish_is_refused_for_the_other_calls_before_its_outputs_are_looked_at() -> None:
    first = answer_of("native", [("broken", {"number": 1}), ("finish", {"count": "many"})])
    lm = ScriptedLM([first, STEPS["native"]("", "finish", {"count": 5})])
    agent = ReAct("question -> count: int", [broken], native=True)
    prediction = agent(question="?", lm=lm)
    assert prediction.count == 5
    assert "`broken`" in str(prediction.trajectory.steps[0].results[-1].content)


def test_nothing_is_extracted_from_calls_that_never_succeeded() -> None:
    """Refused outputs are extracted in the end; an answer beside calls that fail is not."""
    bad = finish_beside("native", "after", "look", {"number": "many"})
    agent = ReAct("question -> answer", [look], native=True, limits=Limits(same_error=3))
    with pytest.raises(TooManyFaultsError):
        agent(question="?", lm=ScriptedLM([bad] * 3))


# -- what else stands in an answer


def test_tools_that_were_loaded_beside_a_void_finish_are_there_in_the_next_step() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("load", {}),
        ("broken", {"number": 1}),
        ("finish", {"answer": GUESS}),
    ]
    lm = ScriptedLM(
        [
            answer_of("native", calls),
            STEPS["native"]("", "look", {"number": 1}),
            STEPS["native"]("", "finish", {"answer": ANSWER}),
        ]
    )
    load = Tool(lambda: Load("look"), "load", "Load more tools.")
    agent = ReAct("question -> answer", Toolbox([broken, load], shelf=[look]), native=True)
    prediction = agent(question="?", lm=lm)
    assert (prediction.answer, prediction.trajectory["observation_1"]) == (ANSWER, "order 1")


def test_the_answer_to_a_clarification_is_read_though_a_tool_would_end_the_run(mode: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("user_clarification", {"question": "Which?"}),
        ("look", {"number": 1}),
    ]
    lm = ScriptedLM([answer_of(mode, calls), STEPS[mode]("", "finish", {"answer": ANSWER})])
    agent = ReAct(
        "question -> answer",
        [look],
        native=mode == "native",
        stop_at_tools=[look],
        enable_user_clarification=True,
    )
    with context(lm=lm):
        run = agent.start(question="?")
        run.answer(run.pending[0].reply("A1"))
        run.resume()
    assert run.prediction.answer == ANSWER
    assert "A1" in "\n".join(message.text for message in lm.requests[1].messages)


def test_predict_drops_an_answer_beside_calls() -> None:
    """In `Predict`, an answer without calls is the end: outputs beside calls never count."""
    calls = json.dumps([{"name": "broken", "args": {"number": 1}}])
    lm = ScriptedLM(
        [fields(tool_calls=calls, answer=GUESS), fields(tool_calls="[]", answer=ANSWER)]
    )
    predict = Predict("question -> answer", tools=[broken], native=False)
    assert predict(question="?", lm=lm).answer == ANSWER
