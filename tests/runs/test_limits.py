"""Limits, shared and counted: what is reached ends with a reason."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Generator
from typing import Any

import pytest
from agent_script import STEPS, fields, native_step

from ferrule import (
    Limits,
    MemoryStore,
    Module,
    Predict,
    Prediction,
    ReAct,
    Response,
    Run,
    Tool,
    ToolCall,
    context,
    settings,
)
from ferrule.acts import Within
from ferrule.errors import AdapterParseError, BadRequestError, ConfigurationError, LimitReachedError
from ferrule.runs import limits as limits_module
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.journal.journal import Journal
from ferrule.runs.limits import Budget
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Usage


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands at the value in it."""
    now = [0.0]
    monkeypatch.setattr(limits_module, "clock", lambda: now[0])
    return now


def carry(program: Module, driver: str, **inputs: Any) -> Run:
    return asyncio.run(program.astart(**inputs)) if driver == "async" else program.start(**inputs)


def resume(run: Run, driver: str, limits: Limits | None = None) -> Run:
    if driver == "async":
        return asyncio.run(run.aresume(limits=limits))
    return run.resume(limits=limits)


def looping(tools: int = 1, *, usage: Usage | None = None, cost: float | None = None) -> ScriptedLM:
    """A model that always looks again, and answers when it has no tools."""

    def answer(request: Any) -> Any:
        if not len(request.tools):
            return fields(reasoning="r", answer="extracted")
        calls = tuple(ToolCall(name="look", args={}) for _ in range(tools))
        return Response("", calls, usage=usage or Usage(), cost=cost)

    return ScriptedLM(by=answer)


def looker(
    then: Callable[[], Any] = lambda: "seen", on_limit: Any = "extract", **keywords: Any
) -> ReAct:
    """An agent that answers at a limit, unless told otherwise."""
    return ReAct(
        "question -> answer",
        [Tool(then, "look", "Look.", effect="read")],
        native=True,
        on_limit=on_limit,
        **keywords,
    )


SPENT = Usage(8, 2, 0, 1)


# -- limits


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"tool_calls": 1.5}, {"tokens": True}, {"cost": 0}, {"wall_s": -1}, {"tool_s": float("inf")}, {"same_error": None}],
    ids=["steps", "tool_calls", "tokens", "cost", "wall_s", "tool_s", "same_error"],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Limits(**wrong)


def test_a_misspelled_limit_is_refused_with_the_nearest_one() -> None:
    """It was a bare TypeError."""
    wrong: dict[str, Any] = {"step": 3}
    with pytest.raises(
        ConfigurationError,
        match=r"`Limits` has no option `step`. Did you mean `steps`\?",
    ):
        Limits(**wrong)


def test_an_option_like_no_other_is_answered_with_those_that_there_are():
    with pytest.raises(
        ConfigurationError,
        match=r"`Limits` has no option `request_limit`\. It has: `steps`, `tool_calls`, `tokens`, `cost`",
    ):
        Limits(**dict[str, Any](request_limit=50))


@pytest.mark.parametrize(
    ("limits", "model", "seen"),
    [
        (Limits(steps=3), looping, 3),
        (Limits(tool_calls=2), looping, 2),
        (Limits(tokens=25), lambda: looping(usage=Usage(8, 2, 0, 1)), 3),
        (Limits(cost=0.5), lambda: looping(cost=0.25), 2),
    ],
    ids=["steps", "tool_calls", "tokens", "cost"],
)
def test_a_limit_ends_an_agent_with_a_reason_and_an_extracted_answer(
    driver: str,
    limits: Limits,
    model: Callable[[], ScriptedLM],
    seen: int,
) -> None:
    """No off by one; at the agent."""
    looks: list[str] = []
    with context(lm=model()):
        prediction = carry(
            looker(lambda: looks.append("look"), limits=limits),
            driver,
            question="q",
        ).prediction
    name = next(
        each
        for each in ("steps", "tool_calls", "tokens", "cost")
        if getattr(limits, each) is not None
    )
    assert (prediction.answer, prediction.reason, len(looks)) == (
        "extracted",
        f"limits.{name}",
        seen,
    )


LIMITS = {
    "steps": (Limits(steps=2), Limits(steps=4)),
    "tool_calls": (Limits(tool_calls=2), Limits(tool_calls=4)),
    "tokens": (Limits(tokens=20), Limits(tokens=40)),
    "cost": (Limits(cost=0.5), Limits(cost=1)),
    "wall_s": (Limits(wall_s=2), Limits(wall_s=4)),
}
"""A limit that two steps reach, and one that four steps reach."""


def carried_by(how: str, agent: ReAct, **inputs: Any) -> Run:
    """The failed run of an agent that reaches a limit."""
    store = MemoryStore()
    if how == "called":
        with pytest.raises(LimitReachedError) as raised:
            agent(**inputs)
        return raised.value.run
    if how == "awaited":
        with pytest.raises(LimitReachedError) as raised:
            asyncio.run(agent.acall(**inputs))
        return raised.value.run
    if how == "streamed":
        stream = agent.stream(**inputs)
        with pytest.raises(LimitReachedError):
            list(stream)
        return stream.run
    run = agent.start(**inputs, store=store, run_id="r")
    if how == "stored":
        run = Run.load(store, "r", agent)
    return run


def going_on(how: str, agent: ReAct, run: Run, limits: Limits) -> Run:
    if how == "called":
        with pytest.raises(LimitReachedError):
            agent(resume_state=run.error, limits=limits)
        return run
    if how == "awaited":
        return asyncio.run(run.aresume(limits=limits))
    if how == "streamed":
        with pytest.raises(LimitReachedError):
            list(agent.stream(resume_state=run.error, limits=limits))
        return run
    return run.resume(limits=limits)


@pytest.mark.parametrize("how", ["called", "awaited", "streamed", "started", "stored"])
@pytest.mark.parametrize("where", ["agent", "call", "settings"])
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_raises_an_error_whose_run_goes_on_with_a_larger_limit(
    name: str, where: str, how: str, seconds: list[float]
) -> None:
    """No call is made at a limit, and none is repeated after it."""
    small, large = LIMITS[name]
    looks: list[int] = []

    def look() -> str:
        looks.append(1)
        seconds[0] += 1
        return "seen"

    agent = looker(look, "raise", limits=small if where == "agent" else None)
    inputs = {"question": "q", **({"limits": small} if where == "call" else {})}
    lm = looping(usage=SPENT, cost=0.25)
    with context(lm=lm):
        with context(limits=small if where == "settings" else None):
            run = carried_by(how, agent, **inputs)
        error: Any = run.error
        assert (run.status, type(error), error.name) == ("failed", LimitReachedError, name)
        assert (error.limit, error.reason) == (getattr(small, name), f"limits.{name}")
        assert (error.run, error.usage, error.usage.calls, len(looks)) == (run, run.usage, 2, 2)
        if how != "stored":  # the steps of a loaded run are known once it is resumed
            assert len(error.trajectory.steps) == 2
        seconds[0] = 0
        run = going_on(how, agent, run, large)
    error = run.error
    # The clock counts one execution, the others count the run.
    more = 4 if name == "wall_s" else 2
    assert (error.name, error.limit) == (name, getattr(large, name))
    assert (error.usage.calls, len(error.trajectory.steps), len(looks)) == (2 + more,) * 3


def test_the_limits_of_a_resume_must_be_limits() -> None:
    run = Run(looker(), (), {"question": "q"})
    wrong: Any = {"steps": 3}
    with pytest.raises(ConfigurationError, match="limits"):
        run.resume(limits=wrong)


def test_on_limit_is_one_of_two_words() -> None:
    wrong: Any = "extrct"
    with pytest.raises(ConfigurationError, match="on_limit"):
        looker(on_limit=wrong)
    with context(lm=looping()), pytest.raises(ConfigurationError, match="on_limit"):
        looker()(question="q", on_limit=wrong)


def test_a_call_chooses_what_happens_at_its_limit(driver: str) -> None:
    with context(lm=looping(), limits=Limits(steps=2)):
        run = carry(looker(on_limit="raise"), driver, question="q", on_limit="extract")
        assert run.prediction.reason == "limits.steps"
        run = carry(looker(on_limit="extract"), driver, question="q", on_limit="raise")
        assert isinstance(run.error, LimitReachedError)


@pytest.mark.parametrize("name", LIMITS)
def test_an_answer_at_a_limit_takes_one_call_even_if_it_cannot_be_read(
    driver: str, name: str, seconds: list[float]
) -> None:
    asked: list[bool] = []

    def answer(request: Any) -> Any:
        asked.append(bool(len(request.tools)))
        seconds[0] += 1
        if asked[-1]:
            call = ToolCall(name="look", args={})
            return Response("", (call,), usage=SPENT, cost=0.25)
        return Response("What?", usage=SPENT, cost=0.25)

    agent = ReAct(
        "question -> number: int",
        [Tool(lambda: "seen", "look", "Look.")],
        native=True,
        limits=LIMITS[name][0],
        on_limit="extract",
    )
    with context(lm=ScriptedLM(by=answer)):
        run = carry(agent, driver, question="q")
    assert isinstance(run.error, LimitReachedError)
    assert asked == [True, True, False]


@pytest.mark.parametrize("native", [True, False])
def test_a_limit_says_why_the_answer_at_it_could_not_be_read(*, native: bool, driver: str) -> None:
    """The agent has tried to answer from its steps, so the error does not advise that."""
    agent = ReAct(
        "question -> number: int",
        [Tool(lambda: "seen", "look", "Look.", effect="read")],
        native=native,
        limits=Limits(tool_calls=1),
        on_limit="extract",
    )
    look = {"name": "look", "args": {}}
    store = MemoryStore()
    with context(lm=ScriptedLM([look, {"outputs": {"reasoning": "r", "number": "many"}}, "What?"])):
        run = carry(agent, driver, question="q", store=store)
    error = run.error
    assert isinstance(error, LimitReachedError)
    assert isinstance(error.__cause__, AdapterParseError)
    assert "`number`" in error.problem
    assert "many" in error.problem
    assert error.problem in str(error)
    assert "on_limit" not in str(error)
    assert "Limits(tool_calls=...)" in str(error)
    loaded = Run.load(store, run.id, agent)
    assert (str(loaded.error), loaded.error.problem) == (str(error), error.problem)
    copied = pickle.loads(pickle.dumps(LimitReachedError("steps", 2, problem="x")))
    assert copied.problem == "x"
    with context(lm=ScriptedLM([{"outputs": {"reasoning": "r", "number": 3}}])):
        loaded.resume(limits=Limits(tool_calls=5))
    assert loaded.error is None


def test_a_program_without_tools_says_it_too(driver: str) -> None:
    with context(lm=ScriptedLM([Response("many", usage=SPENT)]), limits=Limits(tokens=1)):
        run = carry(Predict("question -> number: int"), driver, question="q")
    assert isinstance(run.error, LimitReachedError)
    assert isinstance(run.error.__cause__, AdapterParseError)


def test_an_answer_at_a_limit_that_the_model_could_not_give_is_asked_for_again(driver: str) -> None:
    """A failed call is no answer: the one call is still there when the run goes on."""
    failing = [True]

    def answer(request: Any) -> Any:
        if len(request.tools):
            return native_step("l", "look")
        if failing[0]:
            raise BadRequestError("no")
        return fields(reasoning="r", answer="extracted")

    with context(lm=ScriptedLM(by=answer)):
        run = carry(looker(limits=Limits(steps=2)), driver, question="q")
        assert isinstance(run.error, BadRequestError)
        failing[0] = False
        assert resume(run, driver).prediction.answer == "extracted"


@pytest.mark.parametrize("on_limit", ["raise", "extract"])
def test_the_answer_after_max_iters_is_no_call_over_a_limit(driver: str, on_limit: str) -> None:
    """The steps ran out with the tokens: only `extract` asks for a call after that."""
    agent = looker(on_limit=on_limit, max_iters=2, limits=Limits(tokens=20))
    with context(lm=looping(usage=SPENT)):
        run = carry(agent, driver, question="q")
    if on_limit == "raise":
        assert (type(run.error), run.usage.calls) == (LimitReachedError, 2)
    else:
        assert run.prediction.reason == "limits.tokens"
        assert (run.prediction.answer, run.usage.calls) == ("extracted", 3)


# -- nested agents


def nested(on_limit: Any, looks: list[int], around: Any = "raise", **keywords: Any) -> ReAct:
    inner = ReAct(
        "job -> outcome",
        [Tool(lambda: looks.append(1) or "seen", "look", "Look.", effect="once")],
        native=True,
        on_limit=on_limit,
        **keywords,
    ).as_tool("worker")
    return ReAct("question -> answer", [inner], native=True, on_limit=around)


def working(request: Any) -> Any:
    """The agent calls the worker once; the worker looks five times."""
    names = [tool["function"]["name"] for tool in request.tools]
    results = sum(message.role == "tool" for message in request.messages)
    if not names:
        return Response(
            fields(reasoning="r", answer="extracted", outcome="extracted"), usage=SPENT, cost=0.25
        )
    if names[0] == "worker":
        name, args = ("finish", {"answer": "done"}) if results else ("worker", {"job": "j"})
    else:
        name, args = ("finish", {"outcome": "o"}) if results == 5 else ("look", {})
    return Response("", (ToolCall(name=name, args=args),), usage=SPENT, cost=0.25)


@pytest.mark.parametrize("where", ["settings", "inside"])
def test_a_limit_inside_an_agent_that_is_a_tool_ends_the_run_which_goes_on_there(
    driver: str, where: str
) -> None:
    looks: list[int] = []
    limits, none = Limits(tokens=40), None
    agent = nested("raise", looks, limits=limits if where == "inside" else none)
    with context(lm=ScriptedLM(by=working)):
        with context(limits=limits if where == "settings" else none):
            run = carry(agent, driver, question="q")
        assert isinstance(run.error, LimitReachedError)
        calls = run.usage.calls
        assert (calls, len(looks)) == ((4, 3) if where == "settings" else (4 + 1, 4))
        agent.tools["worker"].func.program.limits = Limits()
        # The limits of the settings at the start hold where the run resumes.
        run = resume(run, driver, Limits() if where == "settings" else none)
    assert (run.prediction.answer, run.usage.calls, len(looks)) == ("done", 1 + 6 + 1, 5)


def test_an_agent_that_answers_at_a_limit_goes_on_without_the_one_inside(driver: str) -> None:
    """The limit is that of the agent inside: the one around it has more to spend."""
    looks: list[int] = []
    agent = nested("raise", looks, "extract", limits=Limits(tokens=20))
    with context(lm=ScriptedLM(by=working)):
        run = carry(agent, driver, question="q")
    assert run.prediction.answer == "done"
    assert run.trajectory.steps[0].results[0].is_error


def test_calls_at_the_same_time_end_before_a_limit_inside_one_of_them_ends_the_run(
    driver: str,
) -> None:
    done: list[str] = []
    inner = looker(on_limit="raise", limits=Limits(steps=1)).as_tool("worker", description="Work.")
    pay = Tool(lambda: done.append("paid") or "paid", "pay", "Pay.", effect="once")
    calls = (ToolCall(name="worker", args={"question": "q"}), ToolCall(name="pay", args={}))

    def answer(request: Any) -> Any:
        names = [tool["function"]["name"] for tool in request.tools]
        if request.messages[-1].role == "tool":
            return native_step("", "finish", {"answer": "done"})
        if "worker" in names:
            return Response("", calls)
        return native_step("l", "look")

    agent = ReAct("question -> answer", [inner, pay], native=True)
    with context(lm=ScriptedLM(by=answer)):
        run = carry(agent, driver, question="q")
        assert (type(run.error), done) == (LimitReachedError, ["paid"])
        inner.func.program.limits = Limits()
        assert resume(run, driver).prediction.answer == "done"
    assert done == ["paid"]


@pytest.mark.parametrize("where", ["agent", "call", "run"])
def test_limits_are_given_to_the_agent_the_call_or_the_run(driver: str, where: str) -> None:
    limits = Limits(steps=2)
    agent = looker(limits=limits if where == "agent" else None)
    with context(lm=looping(), limits=limits if where == "run" else None):
        run = carry(agent, driver, question="q", **({"limits": limits} if where == "call" else {}))
    assert (run.prediction.reason, len(run.trajectory.steps)) == ("limits.steps", 2)


@pytest.mark.parametrize("mode", ["text", "native"])
def test_both_modes_end_alike(mode: str) -> None:
    steps = [STEPS[mode]("l", "look") for _ in range(2)]
    agent = ReAct(
        "question -> answer",
        [Tool(lambda: "seen", "look", "Look.")],
        native=mode == "native",
        limits=Limits(steps=2),
        on_limit="extract",
    )
    with ScriptedLM([*steps, fields(reasoning="r", answer="a")]) as lm:
        assert agent(question="q", lm=lm).reason == "limits.steps"


def test_calls_of_one_turn_over_the_limit_are_not_run(driver: str) -> None:
    """The model is told."""
    looks: list[str] = []
    with context(lm=looping(5)):
        run = carry(
            looker(lambda: looks.append("look") or "seen", limits=Limits(tool_calls=3)),
            driver,
            question="q",
        )
    results = run.trajectory.steps[0].results
    assert (len(looks), [result.is_error for result in results]) == (
        3,
        [False, False, False, True, True],
    )
    assert "limit of tool calls" in str(results[4].content)
    assert [entry.kind for entry in run.journal.entries if entry.slot == "1.4"] == ["result"]


def test_calls_that_a_lower_limit_refused_do_not_count_when_the_run_goes_on_with_more(
    driver: str,
) -> None:
    """They did not run."""
    ran: list[int] = []

    def answer(request: Any) -> Any:
        at = sum(bool(message.tool_calls) for message in request.messages)
        calls = tuple(ToolCall(name="send", args={"n": 10 * at + k}) for k in range(3))
        return Response("", calls) if at < 2 else fields(answer="x")

    program = Predict(
        "question -> answer",
        tools=[Tool(lambda n: ran.append(n) or "sent", "send", "Send.", arg_types={"n": int})],
        native=True,
    )
    with context(lm=ScriptedLM(by=answer)):
        with context(limits=Limits(tool_calls=1)):
            run = carry(program, driver, question="q")
        assert (run.status, ran) == ("failed", [0])
        with context(limits=Limits(tool_calls=1)):
            assert resume(run, driver).status == "failed"
        with context(limits=Limits(tool_calls=5)):
            assert resume(run, driver).status == "done"
    assert sorted(ran) == [0, 10, 11, 12]  # calls of one turn run at the same time


def test_a_program_that_cannot_make_an_end_raises_and_goes_on_with_more(driver: str) -> None:
    """`Predict` has nothing to extract from; the limit is not journalled, so a resumed run may have
    another one.
    """

    class Two(Module):
        def __init__(self) -> None:
            self.first, self.second = Predict("a -> b"), Predict("b -> c")

        def forward(self, a: str) -> Prediction:
            return Prediction(c=self.second(b=self.first(a=a).b).c)

    asked: list[int] = []

    def answer(request: Any) -> Response:
        del request
        asked.append(1)
        return Response(fields(b="B", c="C"), usage=Usage(10, 5, 0, 1))

    with context(lm=ScriptedLM(by=answer)):
        with context(limits=Limits(tokens=15)):
            run = carry(Two(), driver, a="x")
        assert run.status == "failed"
        assert isinstance(run.error, LimitReachedError)
        assert (run.error.name, run.error.limit) == ("tokens", 15)
        with context(limits=Limits(tokens=16)):
            assert "C" in resume(run, driver).prediction.c
    assert len(asked) == 2


def test_the_clock_ends_a_run_and_a_replay_by_another_clock_ends_alike(
    driver: str,
    seconds: list[float],
) -> None:
    """That the time was over is journalled, as no replay could see it."""
    crash = [True]

    def look() -> str:
        seconds[0] += 4
        return "seen"

    def answer(request: Any) -> Any:
        if len(request.tools):
            return native_step("l", "look")
        if crash[0]:
            raise KeyboardInterrupt
        return fields(reasoning="r", answer="extracted")

    with context(lm=ScriptedLM(by=answer)):
        run = Run(looker(look, limits=Limits(wall_s=10)), (), {"question": "q"})
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(aexecute(run)) if driver == "async" else execute(run)
        crash[0], seconds[0] = False, 0
        run = Run.from_json(run.to_json(), run.program)
        prediction = resume(run, driver).prediction
    assert (prediction.answer, prediction.reason, len(run.trajectory.steps)) == (
        "extracted",
        "limits.wall_s",
        3,
    )
    assert [entry.value for entry in run.journal.entries if entry.kind == "limit"] == [
        {"name": "wall_s", "limit": 10},
    ]


def test_the_end_that_a_program_makes_survives_a_crash(driver: str) -> None:
    """The limit is still reached when the run goes on, and the extracting call may be made all the
    same.
    """
    crash = [True]

    def answer(request: Any) -> Any:
        if len(request.tools):
            return native_step("l", "look")
        if crash[0]:
            raise KeyboardInterrupt
        return fields(reasoning="r", answer="extracted")

    with context(lm=ScriptedLM(by=answer)):
        run = Run(looker(limits=Limits(steps=2)), (), {"question": "q"})
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(aexecute(run)) if driver == "async" else execute(run)
        crash[0] = False
        assert resume(run, driver).prediction.answer == "extracted"


def test_the_stricter_of_two_limits_counts(driver: str) -> None:
    """An agent's own limits hold within the run's."""
    with context(lm=looping(), limits=Limits(steps=2)):
        run = carry(looker(limits=Limits(steps=5, tokens=1000)), driver, question="q")
    assert (run.prediction.reason, len(run.trajectory.steps)) == ("limits.steps", 2)


def test_tool_s_is_the_timeout_of_tools_without_one(driver: str) -> None:
    """Sync, async; a tool's own timeout goes first."""
    seen: list[float | None] = []

    def look() -> str:
        seen.append(None)
        return "seen"

    plain, own = Tool(look, "look"), Tool(look, "look", timeout_s=7)
    budget = Budget(Limits(tool_s=3), Budget(Limits(tool_s=5)))
    for tool in (plain, own):
        from ferrule.values.calls.call import CheckedCall

        checked = CheckedCall(ToolCall(name="look", args={}), tool, tool.prepare({}))
        timed = budget.with_timeout(checked)
        assert timed.tool.timeout_s == (3 if tool is plain else 7)
        assert budget.with_timeout(checked).tool is timed.tool
    stuck = asyncio.Event()

    async def wait() -> str:
        await stuck.wait()
        return ""

    with context(lm=looping()):
        agent = ReAct(
            "question -> answer",
            [Tool(wait, "look")],
            native=True,
            limits=Limits(tool_s=0.01, steps=1),
        )
        run = carry(agent, driver, question="q")
    assert "did not finish within 0.01 s" in run.trajectory["observation_0"]


def test_branches_and_children_share_one_budget(driver: str) -> None:
    """A `forward` that calls agents, one after another."""

    class Three(Module):
        def __init__(self) -> None:
            self.agent = looker()

        def forward(self) -> Prediction:
            return Prediction(reasons=[self.agent(question=str(n)).reason for n in range(3)])

    with context(lm=looping(), limits=Limits(steps=4)):
        found = carry(Three(), driver).prediction.reasons
    assert found == ["limits.steps"] * 3


@pytest.mark.parametrize("answers", [True, False])
def test_a_flow_that_answers_at_a_limit_has_one_call_for_it_and_another_has_none(
    answers: bool,
) -> None:
    """A flow that does not stop is stopped."""
    made: list[int] = []

    class Stubborn(Module):
        def flow(self) -> Generator[Any, Any, Any]:
            yield Within(answers_at_limit=answers)
            while True:
                made.append(1)
                try:
                    yield from Predict("a -> b").flow(a="x")
                except LimitReachedError:
                    if len(made) > 20:
                        raise

    with context(
        lm=ScriptedLM(by=lambda _: Response(fields(b="B"), usage=Usage(1, 0, 0, 1))),
        limits=Limits(tokens=1),
    ):
        run = Stubborn().start()
    assert isinstance(run.error, LimitReachedError)
    assert (run.usage.calls, len(made)) == (1 + answers, 21)


def test_without_limits_there_is_no_budget() -> None:
    """Performance: nothing on the way of a step."""
    seen = []
    with context(
        lm=ScriptedLM(by=lambda _: seen.append(settings.scope().frame) or Response(fields(b="B"))),
    ):
        Predict("a -> b")(a="x")
    assert [frame.budget for frame in seen] == [None]


def test_what_is_spent_inside_is_spent_outside() -> None:
    """One chain; the first limit from the inside counts."""
    outer = Budget(Limits(tokens=10, tool_calls=2))
    inner = Budget(Limits(tokens=5), outer)
    inner.spend(tokens=4, steps=1)
    assert (inner.reached(), outer.spent()) == (
        None,
        {"steps": 1, "tool_calls": 0, "tokens": 4, "cost": 0.0},
    )
    assert [inner.take_calls(5), inner.take_calls(1), outer.tool_calls] == [2, 0, 2]
    inner.spend(tokens=1)
    reached = inner.reached()
    assert reached is not None
    assert (reached.name, reached.limit, reached.reason) == ("tokens", 5, "limits.tokens")


def test_a_recorded_limit_answers_a_model_call() -> None:
    from ferrule.runs.journal.entry import Entry

    journal = Journal([Entry("0", "limit", "d", {"name": "steps", "limit": 1})])
    journal.rewind()
    assert journal.take("0", "model", "d") is journal.entries[0]
