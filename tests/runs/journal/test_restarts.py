"""`migrate="restart_turn"` with branches of `gather` and agents as tools: what happened is not done again, wherever it happened."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from ferrule import (
    BaseLM,
    Module,
    Once,
    Prediction,
    ReAct,
    ReplayMismatchError,
    Request,
    Run,
    ScriptedLM,
    SQLiteStore,
    Tool,
    gather,
)

did: list[str] = []
LAST = 2
"""The last version of a program of which there are several."""


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    did.clear()


def look(order: str) -> str:
    """Look an order up."""
    did.append(f"look {order}")
    return f"{order} is paid"


def refund(order: str) -> str:
    """Refund an order."""
    did.append(f"refund {order}")
    return f"refunded {order}"


def clerk(order: str) -> ReAct:
    return ReAct(
        "task -> answer",
        [look, Tool(refund, require_confirmation=True)],
        native=True,
        lm=ScriptedLM(by=works_on(order)),
    )


def works_on(order: str) -> Any:
    """A model that looks, refunds and finishes, by the results that it was shown."""
    steps = [
        ("look", {"order": order}),
        ("refund", {"order": order}),
        ("finish", {"answer": f"{order} done"}),
    ]

    def answer(request: Request) -> Any:
        name, args = steps[sum(message.role == "tool" for message in request.messages)]
        return {"name": name, "args": args}

    return answer


class Timed(Module):
    """A program that asks for the time first, as its second version does."""

    def __init__(self, agent: Any, *, is_timed: bool) -> None:
        self.agent, self.is_timed = agent, is_timed

    def flow(self, **inputs: Any) -> Generator[Any, Any, Prediction]:
        if self.is_timed:
            yield Once(lambda: 1.0, "clock")
        return (yield from self.agent.flow(**inputs))


class Reading(Module):
    """A program that reads something first, another thing in each version."""

    def __init__(self, agent: Any, *, what: str) -> None:
        self.agent, self.what = agent, what

    def flow(self, **inputs: Any) -> Generator[Any, Any, Prediction]:
        yield Once(lambda: 1.0, self.what)
        return (yield from self.agent.flow(**inputs))


class Clock(Module):
    """Asks for the time."""

    def flow(self) -> Generator[Any, Any, Prediction]:
        return Prediction(answer=str((yield Once(lambda: 1.0, "clock"))))


class Both(Module):
    """Two clerks at once; in the second version after a look at the clock, or with another first clerk."""

    def __init__(self, *, is_late: bool = False, is_timed: bool = False) -> None:
        self.first, self.second = (
            Timed(clerk("A1"), is_timed=is_timed),
            Timed(clerk("B2"), is_timed=False),
        )
        self.clock, self.is_late = Clock(), is_late

    async def aforward(self, task: str) -> Prediction:
        if self.is_late:
            await self.clock.acall()
        first, second = await gather(self.first.acall(task=task), self.second.acall(task=task))
        return Prediction(answer=f"{first.answer}, {second.answer}")


def decide_all(run: Run) -> None:
    for question in run.pending:
        run.answer(question.approve())


def test_a_program_that_is_called_before_the_branches_needs_no_restart(tmp_path: Any) -> None:
    """In a `forward`, programs and branches have places of their own."""
    store = SQLiteStore(tmp_path / "runs.db")
    asyncio.run(Both().astart(task="?", store=store, run_id="r"))
    again = Run.load(store, "r", Both(is_late=True))
    decide_all(again)
    asyncio.run(again.aresume())
    assert again.prediction.answer == "A1 done, B2 done"
    assert sorted(did) == ["look A1", "look B2", "refund A1", "refund B2"]


@pytest.mark.parametrize("decided", ["none", "one"])
def test_branches_that_restart_do_nothing_twice(tmp_path: Any, decided: str) -> None:
    """Each branch asks its model again, keeps its results, and asks for approval anew where nothing was done."""
    store = SQLiteStore(tmp_path / "runs.db")
    run = asyncio.run(Both().astart(task="?", store=store, run_id="r"))
    assert (sorted(did), len(run.pending)) == (["look A1", "look B2"], 2)
    if decided == "one":  # the refund of the second branch is made, the first one waits
        run.answer(
            next(
                question for question in run.pending if question.call.args == {"order": "B2"}
            ).approve(),
        )
        asyncio.run(run.aresume())
        assert did[2:] == ["refund B2"]

    refused = Run.load(store, "r", Both(is_timed=True))
    asyncio.run(refused.aresume())
    assert isinstance(refused.error, ReplayMismatchError)
    before = list(did)

    again = Run.load(store, "r", Both(is_timed=True), migrate="restart_turn")
    asyncio.run(again.aresume())
    assert (again.status, did) == ("waiting", before)
    expected = [{"order": "A1"}, {"order": "B2"}] if decided == "none" else [{"order": "A1"}]
    assert sorted((question.call.args for question in again.pending), key=str) == expected

    last = Run.load(
        store,
        "r",
        Both(is_timed=True),
    )  # as another process: the note in the journal says what was dropped
    decide_all(last)
    asyncio.run(last.aresume())
    assert last.prediction.answer == "A1 done, B2 done"
    assert sorted(did) == ["look A1", "look B2", "refund A1", "refund B2"]


class Chief(BaseLM):
    """Gives one order to the clerk, and then another one to itself."""

    name = "chief"

    def complete(self, request: Request) -> Any:
        results = sum(message.role == "tool" for message in request.messages)
        steps = [
            {"name": "clerk", "args": {"task": "A1"}},
            {"name": "refund", "args": {"order": "C3"}},
            {"name": "finish", "args": {"answer": "all done"}},
        ]
        return ScriptedLM([steps[results]]).complete(request)


def office(*, is_timed: bool) -> Timed:
    tools = [
        clerk("A1").as_tool("clerk", "Works on one order."),
        Tool(refund, require_confirmation=True),
    ]
    return Timed(ReAct("task -> answer", tools, native=True, lm=Chief()), is_timed=is_timed)


def test_an_agent_inside_a_restarted_turn_keeps_what_it_did(tmp_path: Any) -> None:
    """Its call had begun, so it starts again; the calls in it that have results are not repeated."""
    store = SQLiteStore(tmp_path / "runs.db")
    run = office(is_timed=False).start(task="?", store=store, run_id="r")
    assert ([question.call.args for question in run.pending], did) == (
        [{"order": "A1"}],
        ["look A1"],
    )
    run.answer(run.pending[0].approve())

    again = Run.load(store, "r", office(is_timed=True), migrate="restart_turn")
    again.resume()
    assert ([(question.kind, question.call.args) for question in again.pending], did) == (
        [("confirm", {"order": "A1"})],
        ["look A1"],
    )

    last = Run.load(store, "r", office(is_timed=True))
    for order in ("A1", "C3"):
        assert [question.call.args for question in last.pending] == [{"order": order}]
        decide_all(last)
        last.resume()
    assert (last.prediction.answer, did) == ("all done", ["look A1", "refund A1", "refund C3"])


def test_an_agent_that_was_done_is_not_asked_again_after_a_restart(tmp_path: Any) -> None:
    """The result of its call is a result like any other."""
    store = SQLiteStore(tmp_path / "runs.db")
    run = office(is_timed=False).start(task="?", store=store, run_id="r")
    decide_all(run)
    run.resume()
    assert [question.call.args for question in run.pending] == [{"order": "C3"}]

    again = Run.load(store, "r", office(is_timed=True), migrate="restart_turn")
    again.resume()
    assert [question.call.args for question in again.pending] == [{"order": "C3"}]
    assert did == ["look A1", "refund A1"]
    decide_all(again)
    assert again.resume().prediction.answer == "all done"
    assert did == ["look A1", "refund A1", "refund C3"]


def test_a_result_that_was_kept_is_used_once_in_all_processes_together(tmp_path: Any) -> None:
    """An equal call that comes later is a new one, also in the process after the restart."""
    steps = [("look", "A1"), ("refund", "A1"), ("look", "A1"), ("refund", "A1")]

    def model(request: Request) -> Any:
        results = sum(message.role == "tool" for message in request.messages)
        name, order = steps[results] if results < len(steps) else ("finish", "")
        return {"name": name, "args": {"order": order} if order else {"answer": "twice"}}

    def desk(*, is_timed: bool) -> Timed:
        tools = [look, Tool(refund, require_confirmation=True)]
        return Timed(
            ReAct("task -> answer", tools, native=True, lm=ScriptedLM(by=model)),
            is_timed=is_timed,
        )

    store = SQLiteStore(tmp_path / "runs.db")
    run = desk(is_timed=False).start(task="?", store=store, run_id="r")
    decide_all(run)
    run.resume()
    assert (run.status, did) == ("waiting", ["look A1", "refund A1", "look A1"])

    again = Run.load(store, "r", desk(is_timed=True), migrate="restart_turn")
    again.resume()
    assert (len(again.pending), did) == (
        1,
        ["look A1", "refund A1", "look A1"],
    )  # the second refund asks; the first is made

    last = Run.load(store, "r", desk(is_timed=True))
    decide_all(last)
    assert last.resume().prediction.answer == "twice"
    assert did == ["look A1", "refund A1", "look A1", "refund A1"]


def test_an_equal_call_of_the_next_process_is_a_new_one(tmp_path: Any) -> None:
    steps = [("look", "A1"), ("refund", "A1"), ("look", "A1")]

    def model(request: Request) -> Any:
        results = sum(message.role == "tool" for message in request.messages)
        name, order = steps[results] if results < len(steps) else ("finish", "")
        return {"name": name, "args": {"order": order} if order else {"answer": "done"}}

    def desk(*, is_timed: bool) -> Timed:
        tools = [look, Tool(refund, require_confirmation=True)]
        return Timed(
            ReAct("task -> answer", tools, native=True, lm=ScriptedLM(by=model)),
            is_timed=is_timed,
        )

    store = SQLiteStore(tmp_path / "runs.db")
    desk(is_timed=False).start(task="?", store=store, run_id="r")
    again = Run.load(store, "r", desk(is_timed=True), migrate="restart_turn")
    again.resume()
    assert (again.status, did) == ("waiting", ["look A1"])

    last = Run.load(store, "r", desk(is_timed=True))
    decide_all(last)
    assert last.resume().prediction.answer == "done"
    assert did == ["look A1", "refund A1", "look A1"]


class InTurn(Module):
    """A greeting, which the second version leaves out, and a clerk."""

    def __init__(self, *, greets: bool) -> None:
        hello = ScriptedLM(by=lambda _: {"name": "finish", "args": {"answer": "hello"}})
        self.greeter, self.clerk, self.greets = (
            ReAct("task -> answer", [], native=True, lm=hello),
            clerk("A1"),
            greets,
        )

    def forward(self, task: str) -> Prediction:
        if self.greets:
            self.greeter(task=f"greet {task}")
        return self.clerk(task=task)


def test_a_program_that_is_no_longer_called_is_dropped_by_a_restart(tmp_path: Any) -> None:
    """And nothing is repeated."""
    store = SQLiteStore(tmp_path / "runs.db")
    InTurn(greets=True).start(task="?", store=store, run_id="r")
    ended = Run.load(store, "r", InTurn(greets=False))
    decide_all(ended)
    ended.resume()
    assert isinstance(ended.error, ReplayMismatchError)
    assert did == ["look A1", "refund A1"]
    again = Run.load(store, "r", InTurn(greets=False), migrate="restart_turn")
    assert again.resume().prediction.answer == "A1 done"
    assert did == ["look A1", "refund A1"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_question_that_was_decided_before_a_restart_is_asked_and_decided_anew(
    tmp_path: Any,
    is_kept: bool,
) -> None:
    """With the same call at the same place, it would count as decided already, and the run could never go on."""
    store = SQLiteStore(tmp_path / "runs.db") if is_kept else None
    script = [
        {"name": "look", "args": {"order": "A1"}},
        {"name": "refund", "args": {"order": "A1"}},
    ]

    def version(number: int) -> Reading:
        lm = ScriptedLM(
            [*script, {"name": "finish", "args": {"answer": "A1 done"}}]
            if number == LAST
            else script,
        )  # else it fails then
        return Reading(
            ReAct("task -> answer", [look, Tool(refund, require_confirmation=True)], lm=lm),
            what=f"clock {number}",
        )

    run = version(0).start(task="?", store=store, run_id="r")
    asked = [run.pending[0].id]
    for number in range(1, LAST + 1):
        run.answer(run.pending[0].deny("Not now."))
        assert run.resume().status == "failed"
        program = version(number)
        run = (
            Run.load(store, "r", program, migrate="restart_turn")
            if store is not None
            else Run.from_json(run.to_json(), program, migrate="restart_turn")
        )
        asked.append(run.resume().pending[0].id)
        assert Run.from_json(run.to_json(), program).resume().pending[0].id == asked[-1]
    run.answer(run.pending[0].approve())
    assert run.resume().prediction.answer == "A1 done"
    assert len({*asked}) == LAST + 1
    assert did == ["look A1", "refund A1"]
