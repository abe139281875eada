"""Runs that are submitted, and carried on a segment at a time: `submit`, `advance`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_script import native_step

from ferrule import (
    Context,
    MemoryStore,
    Policy,
    Predict,
    ReAct,
    Response,
    Run,
    RunError,
    RunTakenError,
    ScriptedLM,
    SQLiteStore,
    StoreError,
    aadvance,
    advance,
    ask,
    context,
    tool,
)

DONE = native_step("done", "finish", {"answer": "ok"})
RM = native_step("remove it", "rm", {"path": "a"})
RAN: list[str] = []


@tool(require_confirmation=True)
def rm(path: str) -> str:
    """Remove."""
    RAN.append(path)
    return f"removed {path}"


@tool
def look(path: str) -> str:
    """Look."""
    RAN.append(f"look {path}")
    return path


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLiteStore]:
    made = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "runs.db")
    yield made
    made.close()


def agent(*tools: Any) -> ReAct:
    return ReAct("task -> answer", tools or [rm])


def test_a_submitted_run_is_kept_and_nothing_of_it_runs(store: SQLiteStore) -> None:
    run_id = agent().submit(store=store, task="x")
    [line] = store.list(status="queued")
    assert (line.id, line.program, line.status, line.leased, line.questions) == (run_id, "ReAct", "queued", False, ())
    assert json.loads(store.load(run_id).head)["inputs"] == {"task": "x"}
    assert store.load(run_id).entries == []


def test_a_submitted_run_begins_when_it_is_resumed(store: SQLiteStore) -> None:
    run_id = agent().submit(store=store, task="x", run_id="mine")
    with context(lm=ScriptedLM([DONE])):
        run = Run.load(store, run_id, agent())
        assert (run_id, run.status) == ("mine", "queued")
        with pytest.raises(RunError, match="queued; it has no prediction yet"):
            _ = run.prediction
        assert run.resume().prediction.answer == "ok"
    assert store.summary("mine").status == "done"


def test_a_run_is_submitted_on_an_event_loop_and_by_bind(store: SQLiteStore) -> None:
    one = asyncio.run(agent().asubmit(store=store, task="x"))
    two = agent().bind(task="x").submit(store=store)
    assert {each.id for each in store.list(status="queued")} == {one, two}


def test_what_a_run_cannot_keep_is_refused_when_it_is_submitted(store: SQLiteStore) -> None:
    with pytest.raises(RunError, match="JSON can represent"):
        Predict("thing -> answer").submit(store=store, thing=object())
    agent().submit(store=store, task="x", run_id="r")
    with pytest.raises(StoreError, match="has a run 'r' already"):
        agent().submit(store=store, task="x", run_id="r")
    assert [each.id for each in store.list()] == ["r"]


@pytest.mark.parametrize("order", [{"priority": 1}, {"delay_s": 2.0}, {"queue_key": "a"}])
def test_a_store_without_an_engine_refuses_what_only_an_engine_does(store: SQLiteStore, order: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="need an engine"):
        agent().submit(store=store, task="x", **order)
    assert store.list() == []


def test_a_queued_run_is_cancelled_and_is_not_redacted_before(store: SQLiteStore) -> None:
    agent().submit(store=store, task="x", run_id="r")
    with pytest.raises(StoreError, match="queued; cancel it before"):
        store.redact("r")
    store.cancel("r")
    assert advance(store, "r", agent()) == "cancelled"
    assert store.summary("r").status == "cancelled"


def test_advance_carries_a_run_from_rest_to_rest(store: SQLiteStore) -> None:
    agent().submit(store=store, task="x", run_id="r")
    with context(lm=ScriptedLM([RM, DONE])):
        assert advance(store, "r", [Predict("a -> b"), agent()]) == "waiting"
        assert advance(store, "r", [agent()]) == "waiting"  # nobody decided: nothing is done
        [question] = store.summary("r").questions
        store.decide("r", question.approve().signed("ann", "cli"))
        assert RAN == []
        assert advance(store, "r", agent()) == "done"
        assert advance(store, "r", agent()) == "done"
    assert RAN == ["a"]


def test_advance_on_an_event_loop(store: SQLiteStore) -> None:
    agent(look).submit(store=store, task="x", run_id="r")
    with context(lm=ScriptedLM([native_step("look", "look", {"path": "b"}), DONE])):
        assert asyncio.run(aadvance(store, "r", [agent(look)])) == "done"
        assert asyncio.run(aadvance(store, "r", [agent(look)])) == "done"
    assert RAN == ["look b"]


def test_an_expired_question_is_work(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    agent(look).submit(store=store, task="x", run_id="r")
    with context(lm=ScriptedLM([native_step("look", "look", {"path": "a"}), DONE]), policy=Policy([ask("look", expires_s=3600)])):
        assert advance(store, "r", agent(look)) == "waiting"
        assert advance(store, "r", agent(look)) == "waiting"
        now = store.now
        monkeypatch.setattr(store, "now", lambda: now() + 7200)
        assert advance(store, "r", agent(look)) == "done"
    assert RAN == []


def test_of_two_at_once_one_works_and_the_other_is_told(store: SQLiteStore) -> None:
    """Q22."""
    inside, go_on = threading.Event(), threading.Event()

    @tool
    def hold() -> str:
        """Hold."""
        inside.set()
        assert go_on.wait(30)
        return "held"

    agent(hold).submit(store=store, task="x", run_id="r")
    found: list[str] = []

    def work() -> None:
        with context(lm=ScriptedLM([native_step("hold", "hold"), DONE])):
            found.append(advance(store, "r", agent(hold)))

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    assert advance(store, "r", agent(hold)) == "taken"
    with pytest.raises(RunTakenError):
        Run.load(store, "r", agent(hold)).resume()
    go_on.set()
    thread.join()
    assert found == ["done"]


def test_a_run_that_another_took_between_look_and_lease_is_taken(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    agent().submit(store=store, task="x", run_id="r")
    before = store.summary("r")
    _held = store.take("r", after=0)
    monkeypatch.setattr(store, "summary", lambda _: before)
    assert advance(store, "r", agent()) == "taken"


@pytest.mark.parametrize("head", ['{"program": "ReA', "[]", "{}", '{"program": 3}'])
def test_a_damaged_head_is_an_error_of_the_store(tmp_path: Path, head: str) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    agent().submit(store=store, task="x", run_id="r")
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE runs SET head = ?", (head,))
    db.close()
    with pytest.raises(StoreError, match="the head of a run"):
        advance(store, "r", agent())
    store.close()


def test_without_a_fitting_program_a_run_stays_queued_with_the_reason(store: SQLiteStore) -> None:
    """Q13."""
    agent().submit(store=store, task="x", run_id="r")
    assert advance(store, "r", [Predict("a -> b")]) == "queued"
    assert store.summary("r").error == "No worker has its program `ReAct`; there are: Predict."
    assert advance(store, "r", [agent(look)]) == "queued"
    error = store.summary("r").error
    assert error is not None
    assert "No worker has this version of its program `ReAct`: tool `" in error
    with context(lm=ScriptedLM([DONE])):
        assert advance(store, "r", [agent(look), agent()]) == "done"
    assert store.summary("r").error is None


def test_a_newer_version_may_be_allowed_to_take_a_run_up(store: SQLiteStore) -> None:
    """Q13: an exact one is preferred."""
    agent().submit(store=store, task="x", run_id="r")
    agent().submit(store=store, task="x", run_id="s")
    Predict("a -> b").submit(store=store, a="x", run_id="t")
    with context(lm=ScriptedLM([DONE, RM])):
        assert advance(store, "r", [agent(look)], any_version=True) == "done"
        assert advance(store, "s", [agent(look), agent()], any_version=True) == "waiting"  # only the second has `rm`
    assert advance(store, "t", Predict("c -> b"), any_version=True) == "queued"
    assert "no input `a`" in (store.summary("t").error or "")


def test_a_run_without_its_deps_stays_queued_with_the_reason(store: SQLiteStore) -> None:
    @tool
    def name(ctx: Context[str]) -> str:
        """Name."""
        return ctx.deps

    agent(name).submit(store=store, task="x", run_id="r")
    with context(lm=ScriptedLM([native_step("name", "name"), DONE])):
        assert advance(store, "r", agent(name)) == "queued"
        assert "deps" in (store.summary("r").error or "")
        assert advance(store, "r", agent(name), deps="ann") == "done"


def test_a_failed_run_is_not_begun_again(store: SQLiteStore) -> None:
    agent().submit(store=store, task="x", run_id="r")
    with context(lm=ScriptedLM([])):
        assert advance(store, "r", agent()) == "failed"
        assert advance(store, "r", agent()) == "failed"
    assert advance(store, "r", agent()) == "failed"
    with pytest.raises(StoreError, match="no run 'q'"):
        advance(store, "q", agent())


def test_a_run_whose_task_is_cancelled_goes_back_to_the_queue(store: SQLiteStore) -> None:
    """Q17: drained workers leave it to others."""
    began = threading.Event()

    @tool(effect="read")
    async def linger() -> str:
        """Linger."""
        began.set()
        await asyncio.sleep(30)
        return "over"

    @tool(effect="read", name="linger")
    async def hurry() -> str:
        """Linger."""
        return "over"

    agent(linger).submit(store=store, task="x", run_id="r")

    async def drain() -> None:
        with context(lm=ScriptedLM([native_step("linger", "linger")])):
            task = asyncio.ensure_future(aadvance(store, "r", agent(linger)))
            while not began.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(drain())
    line = store.summary("r")
    assert (line.status, line.leased, line.error) == ("queued", False, None)
    with context(lm=ScriptedLM([DONE])):
        assert advance(store, "r", agent(hurry)) == "done"
    assert Run.load(store, "r", agent(hurry)).status == "done"


def test_a_decision_that_comes_while_the_run_goes_on_is_used_at_its_next_rest(store: SQLiteStore) -> None:
    """Q12."""

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        RAN.append(f"pay {euros}")
        return "paid"

    both = agent(pay)
    calls = [call for euros in (1, 2) for call in native_step("pay", "pay", {"euros": euros}).tool_calls]
    both.submit(store=store, task="x", run_id="r")
    with context(lm=ScriptedLM([Response("pay", tuple(calls)), DONE])):
        assert advance(store, "r", both) == "waiting"
        first, second = store.summary("r").questions
        store.decide("r", first.approve())
        taken = store.take("r", after=0)
        assert taken.lease is not None
        store.decide("r", second.approve())  # the process that has the run does not know of it
        store.release(taken.lease, status="waiting", head=taken.head)
        assert set(store.summary("r").decided) == {first.id, second.id}
        assert advance(store, "r", both) == "done"
    assert sorted(RAN) == ["pay 1", "pay 2"]
