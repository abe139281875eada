"""Limits, shared and counted: what is reached ends with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest
from agent_script import STEPS, fields, native_step

from ferrule import (
    Limits,
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
from ferrule.errors import ConfigurationError, LimitReachedError
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


def resume(run: Run, driver: str) -> Run:
    return asyncio.run(run.aresume()) if driver == "async" else run.resume()


def looping(tools: int = 1, *, usage: Usage | None = None, cost: float | None = None) -> ScriptedLM:
    """A model that always looks again, and answers when it has no tools."""

    def answer(request: Any) -> Any:
        if not len(request.tools):
            return fields(reasoning="r", answer="extracted")
        calls = tuple(ToolCall(name="look", args={}) for _ in range(tools))
        return Response("", calls, usage=usage or Usage(), cost=cost)

    return ScriptedLM(by=answer)


def looker(then: Callable[[], Any] = lambda: "seen", **keywords: Any) -> ReAct:
    return ReAct(
        "question -> answer",
        [Tool(then, "look", "Look.", effect="read")],
        native=True,
        **keywords,
    )


# -- limits ---------------------------------------------------------------------------------------------------------


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
    """`Predict` has nothing to extract from; the limit is not journalled, so a resumed run may have another one."""

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
    """The limit is still reached when the run goes on, and the extracting call may be made all the same."""
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


def test_an_end_takes_a_few_calls_but_not_more_than_a_few() -> None:
    """A flow that does not stop is stopped."""
    made: list[int] = []

    class Stubborn(Module):
        def flow(self) -> Generator[Any, Any, Any]:
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
    assert (run.usage.calls, len(made)) == (5, 21)


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
