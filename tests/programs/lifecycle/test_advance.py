"""Runs that are submitted, and carried on a segment at a time: `submit`, `advance`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from agent_script import native_step

from ferrule import (
    Context,
    MemoryStore,
    Module,
    Policy,
    Predict,
    ReAct,
    Response,
    Run,
    RunError,
    SQLiteStore,
    aadvance,
    advance,
    ask,
    context,
    events,
    tool,
)
from ferrule.concurrency.offload import background_loop
from ferrule.concurrency.pool import ThreadPool
from ferrule.errors import RunTakenError, StoreError
from ferrule.programs.lifecycle.advance import _interrupt, advance_in_thread
from ferrule.runs.life import Execution
from ferrule.testing import ScriptedLM

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
    assert (line.id, line.program, line.status, line.leased, line.questions) == (
        run_id,
        "ReAct",
        "queued",
        False,
        (),
    )
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
def test_a_store_without_an_engine_refuses_what_only_an_engine_does(
    store: SQLiteStore,
    order: dict[str, Any],
) -> None:
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
    with context(
        lm=ScriptedLM([native_step("look", "look", {"path": "a"}), DONE]),
        policy=Policy([ask("look", expires_s=3600)]),
    ):
        assert advance(store, "r", agent(look)) == "waiting"
        assert advance(store, "r", agent(look)) == "waiting"
        now = store.now
        monkeypatch.setattr(store, "now", lambda: now() + 7200)
        assert advance(store, "r", agent(look)) == "done"
    assert RAN == []


def test_of_two_at_once_one_works_and_the_other_is_told(store: SQLiteStore) -> None:
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


def test_a_run_that_another_took_between_look_and_lease_is_taken(
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent().submit(store=store, task="x", run_id="r")
    before = store.summary("r")
    _held = store.take("r", after=0)
    monkeypatch.setattr(store, "summary", lambda _: before)
    assert advance(store, "r", agent()) == "taken"


@pytest.mark.parametrize("head", ['{"program": "ReA', "[]", "{}", '{"program": 3}'])
def test_a_damaged_head_is_an_error_of_the_store(tmp_path: Path, head: str) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    agent().submit(store=store, task="x", run_id="r")
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE ferrule_runs SET head = ?", (head,))
    with pytest.raises(StoreError, match="the head of a run"):
        advance(store, "r", agent())
    store.close()


def test_without_a_fitting_program_a_run_stays_queued_with_the_reason(store: SQLiteStore) -> None:
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
    """An exact one is preferred."""
    agent().submit(store=store, task="x", run_id="r")
    agent().submit(store=store, task="x", run_id="s")
    Predict("a -> b").submit(store=store, a="x", run_id="t")
    with context(lm=ScriptedLM([DONE, RM])):
        assert advance(store, "r", [agent(look)], any_version=True) == "done"
        assert (
            advance(store, "s", [agent(look), agent()], any_version=True) == "waiting"
        )  # only the second has `rm`
    assert advance(store, "t", Predict("c -> b"), any_version=True) == "queued"
    assert "no input `a`" in (store.summary("t").error or "")


def test_a_decision_that_a_newer_version_does_not_ask_for_is_no_work(store: SQLiteStore) -> None:
    """Else a worker would take the run up again and again. The version that asked still uses it."""
    described = tool(name="rm", description="Remove for good.", require_confirmation=True)(
        lambda path: RAN.append(path),
    )
    with context(lm=ScriptedLM([RM, DONE])):
        agent().start(store=store, task="x", run_id="r")
        store.decide("r", store.summary("r").questions[0].approve())
        assert advance(store, "r", [agent(described)], any_version=True) == "waiting"
        found, before = store.summary("r"), store.load("r")
        assert found.decided == ()
        assert advance(store, "r", [agent(described)], any_version=True) == "waiting"
        assert (store.summary("r"), store.load("r"), RAN) == (found, before, [])
        assert Run.load(store, "r", agent()).resume().status == "done"
    assert RAN == ["a"]


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
    """Drained workers leave it to others."""
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


class Threads:
    """A worker's event loop and its threads, and tools that tell when they begin and wait to be let
    go.
    """

    def __init__(self) -> None:
        self.pool = ThreadPool(4, runs_tools=False)
        self.began, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()

    def stuck(self) -> str:
        """Be stuck."""
        self.began.set()
        self.go_on.wait(60)
        self.ended.set()
        return "over"

    async def linger(self) -> str:
        """Linger."""
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return "never"

    def advance(self, store: SQLiteStore, program: Any, *steps: Any) -> str:
        async def work() -> str:
            with context(lm=ScriptedLM([*steps])):
                return await advance_in_thread(self.pool, store, "r", program)

        return asyncio.run(work())

    def drain(self, store: SQLiteStore, program: Any, *steps: Any) -> None:
        """Cancel the segment when its tool has begun."""

        async def work() -> None:
            with context(lm=ScriptedLM([*steps])):
                task = asyncio.ensure_future(advance_in_thread(self.pool, store, "r", program))
                while not self.began.is_set():
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(work())


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads()
    yield made
    made.go_on.set()


def test_a_worker_carries_a_run_on_in_one_of_its_threads(
    store: SQLiteStore,
    threads: Threads,
) -> None:
    names: set[str] = set()

    def name(event: events.Event) -> None:
        if isinstance(event, events.ModelCalled):
            names.add(threading.current_thread().name)

    program = agent(rm)
    program.submit(store=store, task="x", run_id="r")
    with context(callbacks=[name]):
        assert threads.advance(store, program, RM) == "waiting"
    assert threads.advance(store, program) == "waiting"
    store.decide("r", store.summary("r").questions[0].approve())
    assert threads.advance(store, program, DONE) == "done"
    assert names == {"ferrule-worker-1"}
    assert RAN == ["a"]


def test_the_tools_of_a_run_in_a_thread_run_at_once(store: SQLiteStore, threads: Threads) -> None:
    """As in any other thread: only those that run a tool themselves run the others one by one."""
    both = threading.Barrier(2)

    @tool(effect="read")
    def meet(n: int) -> str:
        """Wait for the other call."""
        both.wait(60)
        return f"{n}"

    program = agent(meet)
    program.submit(store=store, task="x", run_id="r")
    calls = [call for n in (1, 2) for call in native_step("meet", "meet", {"n": n}).tool_calls]
    assert threads.advance(store, program, Response("both", tuple(calls)), DONE) == "done"


def test_a_cancelled_segment_in_a_thread_cancels_its_async_tool_and_goes_back_to_the_queue(
    store: SQLiteStore,
    threads: Threads,
) -> None:
    program = agent(tool(effect="read")(threads.linger))
    program.submit(store=store, task="x", run_id="r")
    threads.drain(store, program, native_step("linger", "linger"))
    line = store.summary("r")
    assert (line.status, line.leased, line.error, line.recoveries) == ("queued", False, None, 0)
    assert threads.ended.is_set()


def test_a_segment_whose_execution_ends_just_now_can_be_cancelled() -> None:
    """Its thread may end it between any two lines of the one that interrupts it."""

    class Ending:
        def __init__(self) -> None:
            self.executions = [Execution(None, grace_s=None)]

        @property
        def executing(self) -> Execution | None:
            return self.executions.pop() if self.executions else None

    async def interrupt() -> None:
        working: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        working.set_result("done")
        await _interrupt(working, [cast("Run", ending)])

    ending = Ending()
    [execution] = ending.executions
    asyncio.run(interrupt())
    assert execution.is_stopped


def test_a_cancelled_segment_leaves_a_blocked_thread_behind_which_writes_nothing_more(
    store: SQLiteStore,
    threads: Threads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tool or a model that blocks its thread does not hold up the end of a worker; R3: the call
    has begun, and is not repeated.
    """
    monkeypatch.setattr("ferrule.programs.lifecycle.advance._GRACE_S", 0.0)
    program = agent(tool(threads.stuck))
    program.submit(store=store, task="x", run_id="r")
    threads.drain(store, program, native_step("stuck", "stuck"), DONE)
    line = store.summary("r")
    assert (line.status, line.leased, line.error, line.recoveries) == ("queued", False, None, 0)
    written = len(store.load("r").entries)
    threads.go_on.set()
    assert threads.ended.wait(60)
    assert threads.advance(store, agent(tool(threads.stuck)), DONE) == "waiting"
    [asked] = store.summary("r").questions
    assert (asked.kind, len(store.load("r").entries)) == ("unknown", written)


def test_a_blocked_model_call_is_left_behind_and_made_again(
    store: SQLiteStore,
    threads: Threads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ferrule.programs.lifecycle.advance._GRACE_S", 0.0)

    class Blocked(ScriptedLM):
        def complete(self, request: Any) -> Any:
            threads.stuck()
            return super().complete(request)

    program = agent()
    program.submit(store=store, task="x", run_id="r")
    program.set_lm(Blocked([DONE]))
    threads.drain(store, program)
    assert (store.summary("r").status, store.summary("r").leased) == ("queued", False)
    program.set_lm(ScriptedLM([DONE]))
    assert threads.advance(store, program) == "done"


def test_a_decision_is_not_lost_with_a_segment_that_is_given_up(
    store: SQLiteStore,
    threads: Threads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ferrule.programs.lifecycle.advance._GRACE_S", 0.0)
    program = agent(rm, tool(threads.stuck, effect="read"))
    program.submit(store=store, task="x", run_id="r")
    assert threads.advance(store, program, RM) == "waiting"
    store.decide("r", store.summary("r").questions[0].approve())
    threads.drain(store, program, native_step("stuck", "stuck"))
    assert (store.summary("r").status, store.summary("r").questions, RAN) == ("queued", (), ["a"])
    threads.go_on.set()
    assert threads.advance(store, program, DONE) == "done"
    assert RAN == ["a"]


@pytest.mark.parametrize("is_drained", [False, True])
def test_an_async_program_runs_on_the_background_loop(
    store: SQLiteStore,
    threads: Threads,
    is_drained: bool,
) -> None:
    """With the async tools of the other programs, so that what they share is used on one loop."""
    loops: list[Any] = []

    class Walk(Module):
        async def aforward(self, task: str) -> str:
            loops.append(asyncio.get_running_loop())
            return await threads.linger() if is_drained else task

    Walk().submit(store=store, task="x", run_id="r")
    if is_drained:
        threads.drain(store, Walk())
        assert threads.ended.is_set()
    else:
        assert threads.advance(store, Walk()) == "done"
    assert loops == [background_loop()]
    assert (store.summary("r").status, store.summary("r").leased) == (
        "queued" if is_drained else "done",
        False,
    )


@pytest.mark.parametrize("exit_error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", ["tool", "async tool", "async program"])
def test_code_that_exits_ends_its_segment_and_not_the_event_loop_of_the_worker(
    store: SQLiteStore,
    threads: Threads,
    where: str,
    exit_error: BaseException,
) -> None:
    @tool
    def leave() -> str:
        """Leave."""
        raise exit_error

    @tool
    async def leave_async() -> str:
        """Leave."""
        raise exit_error

    class Leave(Module):
        async def aforward(self, task: str) -> str:
            raise exit_error

    programs = {"tool": agent(leave), "async tool": agent(leave_async), "async program": Leave()}
    program = programs[where]
    name = "leave_async" if where == "async tool" else "leave"
    program.submit(store=store, task="x", run_id="r")
    with pytest.raises(RunError, match=type(exit_error).__name__):
        threads.advance(store, program, native_step("leave", name))
    line = store.summary("r")
    assert (line.status, line.leased) == ("failed", False)
    assert line.error == f"its code exited with {exit_error!r}"
    assert threads.advance(store, program) == "failed"


def test_a_decision_that_comes_while_the_run_goes_on_is_used_at_its_next_rest(
    store: SQLiteStore,
) -> None:
    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        RAN.append(f"pay {euros}")
        return "paid"

    both = agent(pay)
    calls = [
        call for euros in (1, 2) for call in native_step("pay", "pay", {"euros": euros}).tool_calls
    ]
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
