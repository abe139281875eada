"""A call that needs consent runs as soon as a person allows it, whatever else of its step waits."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from agent_script import native_step

from ferrule import (
    Grant,
    Limits,
    MemoryStore,
    Policy,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    ToolCall,
    context,
    deny,
    events,
    tool,
)
from ferrule.errors import LimitReachedError
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from pathlib import Path

PAID: list[str] = []
DONE = native_step(None, "finish", {"answer": "ok"})


@tool(require_confirmation=True)
def pay(to: str, amount: int = 1) -> str:
    """Pay."""
    PAID.append(f"{to} {amount}")
    return f"paid {to}"


@tool(require_confirmation=True, effect="read")
def look(at: str) -> str:
    """Look."""
    PAID.append(f"look {at}")
    return f"saw {at}"


@tool
def note(text: str) -> str:
    """Note."""
    PAID.append(f"note {text}")
    return "noted"


@pytest.fixture(autouse=True)
def nothing_is_paid() -> None:
    PAID.clear()


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def start(agent: Any, driver: str, **options: Any) -> Run:
    if driver == "async":
        return asyncio.run(agent.bind(q="?").astart(**options))
    return agent.bind(q="?").start(**options)


def resume(run: Run, driver: str, **options: Any) -> Run:
    return asyncio.run(run.aresume(**options)) if driver == "async" else run.resume(**options)


def step(*calls: tuple[str, dict[str, Any]]) -> Response:
    return Response(
        "",
        tuple(
            ToolCall(name=name, args=args, id=f"c{number}")
            for number, (name, args) in enumerate(calls)
        ),
    )


def pays(*names: str) -> Response:
    return step(*[("pay", {"to": name}) for name in names])


def asked(run: Run) -> list[Any]:
    return [question.call.args.get("to") for question in run.pending]


def agent(*tools: Any, **options: Any) -> ReAct:
    return ReAct("q -> answer", list(tools or (pay, note)), native=True, **options)


def observations(run: Run) -> list[Any]:
    return [result.content for result in run.trajectory.steps[0].results]


# -- one step with several questions


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
def test_an_approved_call_runs_while_the_other_questions_of_its_step_wait(
    driver: str, order: str
) -> None:
    with context(lm=ScriptedLM([pays(*"abc"), DONE])):
        run = start(agent(), driver)
        for number, name in enumerate(order):
            assert asked(run) == [each for each in "abc" if each not in order[:number]]
            [question] = [each for each in run.pending if each.call.args["to"] == name]
            run.answer(question.approve())
            resume(run, driver)
            assert PAID[-1] == f"{name} 1"
        assert run.status == "done"
    assert [f"{name} 1" for name in order] == PAID
    assert observations(run) == ["paid a", "paid b", "paid c"]


def test_what_was_decided_in_any_way_is_done_while_the_rest_waits(driver: str) -> None:
    with context(lm=ScriptedLM([pays(*"abcd"), DONE])):
        run = start(agent(), driver)
        first, second, third, _ = run.pending
        run.answer(third.approve(amount=7))
        resume(run, driver)
        run.answer(first.deny("no"))
        resume(run, driver)
        run.answer(second.reply("ask Ada"))
        resume(run, driver)
        assert (PAID, asked(run)) == (["c 7"], ["d"])
        run.answer(run.pending[0].approve())
        assert resume(run, driver).status == "done"
    assert PAID == ["c 7", "d 1"]
    contents = observations(run)
    assert "no" in contents[0]
    assert contents[1:2] == ["ask Ada"]
    assert contents[2].endswith("paid c")
    assert '"amount":7' in contents[2]


def test_calls_without_a_question_run_before_it_is_asked_and_only_once(driver: str) -> None:
    seen: list[str] = []

    def watch(event: Any) -> None:
        if isinstance(event, (events.CallFinished, events.QuestionAsked)):
            seen.append(type(event).__name__)

    calls = step(("pay", {"to": "a"}), ("note", {"text": "n"}), ("pay", {"to": "b"}))
    with context(lm=ScriptedLM([calls, DONE]), callbacks=[watch]):
        run = start(agent(), driver)
        assert seen == ["CallFinished", "QuestionAsked", "QuestionAsked"]
        for question in run.pending:
            run.answer(question.approve())
            resume(run, driver)
    assert PAID == ["note n", "a 1", "b 1"]
    assert observations(run) == ["paid a", "noted", "paid b"]


def test_an_edit_that_no_longer_fits_asks_again_while_the_rest_goes_on(driver: str) -> None:
    def paying(limit: int) -> Any:
        def checked_pay(to: str, amount: int = 1) -> str:
            """Pay."""
            PAID.append(f"{to} {amount}")
            return f"paid {to}"

        schema = {
            "type": "object",
            "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}},
        }
        if limit:
            schema["properties"]["amount"]["maximum"] = limit
        return tool(checked_pay, schema=schema, require_confirmation=True)

    calls = step(("checked_pay", {"to": "a"}), ("checked_pay", {"to": "b"}))
    with context(lm=ScriptedLM([calls, DONE])):
        run = start(agent(paying(0)), driver)
        run.answer(run.pending[0].approve(amount=9))
        later = Run.from_json(run.to_json(), agent(paying(5)))
        resume(later, driver)
        assert PAID == []
        assert asked(later) == ["a", "b"]
        later.answer(later.pending[1].approve())
        resume(later, driver)
        assert PAID == ["b 1"]
        later.answer(later.pending[0].approve(amount=5))
        assert resume(later, driver).status == "done"
    assert PAID == ["b 1", "a 5"]


# -- with agents below


def nested(name: str) -> Any:
    return ReAct("task -> answer", [pay], native=True).as_tool(name, "Helps.")


def test_own_questions_and_those_of_agents_below_are_pending_together(driver: str) -> None:
    """Each of them is decided alone, and what it allows runs then."""

    def answer(request: Any) -> Response:
        is_outer = any(each["function"]["name"] == "helper" for each in request.tools)
        if request.messages[-1].role == "tool":
            return native_step("", "finish", {"answer": "ok"})
        if not is_outer:
            return pays("inner")
        return step(("helper", {"task": "one task"}), ("pay", {"to": "own"}))

    for first, second in (("inner", "own"), ("own", "inner")):
        PAID.clear()
        with context(lm=ScriptedLM(by=answer)):
            run = start(agent(pay, nested("helper")), driver)
            assert asked(run) == ["inner", "own"]
            for name in (first, second):
                [question] = [each for each in run.pending if each.call.args["to"] == name]
                run.answer(question.approve())
                resume(run, driver)
            assert run.status == "done"
        assert [f"{first} 1", f"{second} 1"] == PAID


# -- limits, policies, grants


def test_the_limit_of_calls_holds_in_whatever_order_calls_are_allowed(driver: str) -> None:
    with context(lm=ScriptedLM([pays(*"ab"), DONE])):
        run = start(agent(limits=Limits(tool_calls=1)), driver)
        run.answer(run.pending[1].approve())
        resume(run, driver)
    assert PAID == ["b 1"]
    assert run.pending == ()  # the other call cannot run any more, whatever a person says
    assert isinstance(run.error, LimitReachedError)
    assert "limit of tool calls" in observations(run)[0]


def test_a_denied_call_uses_up_no_call_of_the_limit(driver: str) -> None:
    with context(lm=ScriptedLM([pays(*"ab"), DONE])):
        run = start(agent(limits=Limits(tool_calls=1)), driver)
        run.answer(run.pending[0].deny())
        resume(run, driver)
        run.answer(run.pending[0].approve())
        resume(run, driver)
    assert PAID == ["b 1"]


def test_a_policy_that_denies_by_now_holds_for_what_still_waits_alone(driver: str) -> None:
    with context(lm=ScriptedLM([pays(*"ab"), DONE])):
        run = start(agent(), driver)
        run.answer(run.pending[0].approve())
        resume(run, driver)
        policy = Policy([deny("pay", reason="broke")])
        assert resume(run, driver, policy=policy).status == "done"
    assert PAID == ["a 1"]
    contents = observations(run)
    assert contents[0] == "paid a"
    assert "broke" in contents[1]


def test_a_grant_given_with_one_question_allows_the_others_of_its_step(driver: str) -> None:
    with context(lm=ScriptedLM([pays(*"aaa"), DONE])):
        run = start(agent(), driver)
        run.answer(run.pending[1].approve(always=Grant(calls=1)))
        resume(run, driver)
        assert (PAID, asked(run)) == (["a 1", "a 1"], ["a"])
        restored = Run.from_json(run.to_json(), agent())
        resume(restored, driver)
        assert (PAID, asked(restored)) == (["a 1", "a 1"], ["a"])


# -- other processes


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_decision_made_elsewhere_while_the_first_call_runs_is_taken_next(
    driver: str, kind: str, tmp_path: Path
) -> None:
    store: Any = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "runs.db")
    runs: list[Run] = []

    @tool(require_confirmation=True)
    def pay(to: str) -> str:
        """Pay."""
        PAID.append(to)
        others = [each for each in runs[0].pending if each.call.args["to"] not in PAID]
        for question in others:
            store.decide(runs[0].id, question.approve())
        return f"paid {to}"

    program = agent(pay)
    with context(lm=ScriptedLM([pays(*"ab"), DONE])):
        runs.append(start(program, driver, store=store))
        store.decide(runs[0].id, runs[0].pending[0].approve())
        run = Run.load(store, runs[0].id, program)
        resume(run, driver)
        again = Run.load(store, run.id, program)
        if again.status == "waiting":
            assert asked(again) == ["b"]
            resume(again, driver)
        assert again.status == "done"
    assert PAID == ["a", "b"]


def test_a_crash_after_one_of_two_approved_calls_repeats_neither(driver: str) -> None:
    """The journal is cut after each of its entries, as a crash would; what began is asked about."""
    with context(lm=ScriptedLM([pays(*"ab"), DONE])):
        whole = start(agent(), driver)
        for question in whole.pending:
            whole.answer(question.approve())
        document = whole.to_json()
        resume(whole, driver)
    for end in range(1, len(whole.journal.entries)):
        PAID.clear()
        run = Run.from_json(document, agent())
        run.journal.entries[:] = whole.journal.entries[:end]
        begun = {entry.slot for entry in run.journal.entries if entry.kind == "begun"}
        has_result = {entry.slot for entry in run.journal.entries if entry.kind == "result"}
        with context(lm=ScriptedLM([DONE])):
            resume(run, driver)
        unknown = [question.kind for question in run.pending]
        assert unknown == ["unknown"] * len(begun - has_result)
        assert len(PAID) == 2 - len(begun)


def test_many_threads_decide_at_once_and_each_call_runs_once(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    names = "abcdefgh"
    with context(lm=ScriptedLM([pays(*names), DONE])):
        run = agent().bind(q="?").start(store=store)
        start_line = threading.Barrier(len(names))

        def decide(question: Any) -> None:
            start_line.wait()
            store.decide(run.id, question.approve())

        threads = [threading.Thread(target=decide, args=(each,)) for each in run.pending]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Run.load(store, run.id, agent()).resume().status == "done"
    assert sorted(PAID) == [f"{name} 1" for name in names]
