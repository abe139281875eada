"""Runs that are kept: written before they go on, and gone on with from anywhere."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import ferrule
from ferrule.approval.policy import Policy
from ferrule.concurrency import offload
from ferrule.errors import InputError, RunCancelledError, RunError, StoreError
from ferrule.programs.module import Module
from ferrule.programs.react import ReAct
from ferrule.runs.journal.entry import Entry
from ferrule.runs.protocols import Lease
from ferrule.runs.run import Run
from ferrule.runs.store.sqlite import store as sqlite_store
from ferrule.runs.store.sqlite.store import MemoryStore, SQLiteStore
from ferrule.runs.store.stored_run import StoredRun
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.outcome import Prediction

ASK = {"name": "book", "args": {"room": 7}}
LOOK = {"name": "look", "args": {"room": 7}}
FINISH = {"name": "finish", "args": {"answer": "yes"}}


class Hotel:
    """An agent with two tools, and what they did."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.did: list[str] = []
        self.at_look: Any = lambda: None

        def look(room: int) -> str:
            """See a room."""
            self.did.append(f"look {room}")
            self.at_look()
            return "nice"

        @ferrule.tool(require_confirmation=True)
        def book(room: int) -> str:
            """Book a room."""
            self.did.append(f"book {room}")
            return "booked"

        self.agent = ReAct("task -> answer", [look, book])

    def start(self, *script: Any, driver: str = "sync", **keywords: Any) -> Run:
        with ferrule.context(lm=ScriptedLM(list(script))):
            if driver == "async":
                return asyncio.run(self.agent.astart(task="x", store=self.store, **keywords))
            if driver == "stream":
                stream = self.agent.stream(task="x", store=self.store, **keywords)
                list(stream)
                return stream.run
            return self.agent.start(task="x", store=self.store, **keywords)

    def go_on(self, run: Run, *script: Any, driver: str = "sync") -> Run:
        with ferrule.context(lm=ScriptedLM(list(script))):
            return asyncio.run(run.aresume()) if driver == "async" else run.resume()

    def load(self, run_id: str) -> Run:
        return Run.load(self.store, run_id, self.agent)


@pytest.fixture
def hotel() -> Any:
    store = MemoryStore()
    yield Hotel(store)
    store.close()


@pytest.mark.parametrize("driver", ["sync", "async", "stream"])
def test_every_answer_is_kept_before_the_program_goes_on(hotel: Hotel, driver: str) -> None:
    """What is in the store while the tool runs: the model's answer, and that the tool began."""
    seen: list[list[str]] = []
    hotel.at_look = lambda: seen.append(
        [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)],
    )
    run = hotel.start(LOOK, FINISH, driver=driver, run_id="r")
    assert run.prediction.answer == "yes"
    assert seen == [["model", "begun"]]
    assert [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)] == [
        "model",
        "begun",
        "result",
        "model",
    ]
    assert hotel.store.list()[0].status == "done"


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_run_that_waits_is_gone_on_with_by_whoever_loads_it(hotel: Hotel, driver: str) -> None:
    """Nothing is asked or run again; inputs and trajectory are there."""
    first = hotel.start(LOOK, ASK, driver=driver)
    loaded = hotel.load(first.id)
    assert (loaded.status, loaded.pending, loaded.inputs) == (
        "waiting",
        first.pending,
        {"task": "x"},
    )
    loaded.answer(loaded.pending[0].approve())
    hotel.go_on(loaded, FINISH, driver=driver)
    assert loaded.prediction.answer == "yes"
    assert hotel.did == ["look 7", "book 7"]
    with ferrule.context(lm=ScriptedLM([])):
        assert hotel.load(first.id).trajectory == loaded.trajectory


def test_a_run_that_waits_and_that_nobody_holds_is_in_the_store_alone(hotel: Hotel) -> None:
    """No memory of the process, no lease, no thread; whoever loads it goes on."""
    run = hotel.start(LOOK, ASK)
    key, known = run.id, weakref.ref(run)
    del run
    gc.collect()
    assert known() is None
    assert [each.leased for each in Run.list(hotel.store)] == [False]
    assert hotel.load(key).pending


class Notes:
    """An observer that keeps something with each run: by which execution it was begun, and all
    before.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened: list[tuple[str, dict[str, str]]] = []
        self.events: list[str] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event.type)

    def open_run(self, event: Any, notes: dict[str, str]) -> None:
        self.opened.append(
            (
                f"{event.type} {event.program.name} {event.path}{event.span_id == event.run_id}",
                dict(notes),
            ),
        )
        notes["by"] = notes.get("by", "") + self.name


@pytest.mark.parametrize("driver", ["sync", "async", "stream"])
def test_what_observers_keep_with_a_run_reaches_the_next_execution(
    hotel: Hotel,
    driver: str,
) -> None:
    """It is in the store before the first act, also of an execution that gets no further."""
    first, second, third = Notes("a"), Notes("b"), Notes("c")
    hotel.at_look = lambda: seen.append(Run.load(hotel.store, run_id, hotel.agent).notes)
    seen: list[Any] = []
    run_id = "r"
    with ferrule.context(callbacks=[first]):
        hotel.start(LOOK, ASK, driver=driver, run_id=run_id)
    assert seen == [{"by": "a"}]
    assert first.opened == [("RunStarted ReAct True", {})]
    assert (first.events[0], first.events.count("RunStarted")) == ("RunStarted", 1)
    run = Run.load(hotel.store, run_id, hotel.agent)
    with ferrule.context(callbacks=[second]):
        hotel.go_on(run, driver=driver)
    assert second.opened == [("RunStarted ReAct True", {"by": "a"})]
    assert Run.load(hotel.store, run_id, hotel.agent).status == "waiting"
    assert Run.load(hotel.store, run_id, hotel.agent).notes == {"by": "ab"}
    run.answer(run.pending[0].approve())
    with ferrule.context(callbacks=[third]):
        done = hotel.go_on(run, FINISH, driver=driver)
    assert third.opened[0][1] == {"by": "ab"}
    assert "RunStarted" not in third.events
    assert "Resumed" in third.events
    assert (done.status, done.notes) == ("done", {"by": "abc"})
    assert Run.load(hotel.store, run_id, hotel.agent).notes == {"by": "abc"}
    assert Run.from_json(done.to_json(), hotel.agent).notes == {"by": "abc"}
    hotel.store.redact(run_id)
    assert '"by"' not in hotel.store.load(run_id).head


def test_an_observer_that_fails_when_a_run_opens_changes_nothing(hotel: Hotel) -> None:
    """It is passed over with a warning, and the others are asked."""

    class Broken(Notes):
        def open_run(self, event: Any, notes: dict[str, str]) -> None:
            raise ValueError("broken")

    after = Notes("b")
    with (
        ferrule.context(callbacks=[Broken("a"), after]),
        pytest.warns(RuntimeWarning, match="at the start of a run and was skipped"),
    ):
        run = hotel.start(LOOK, FINISH)
    assert (run.status, run.notes) == ("done", {"by": "b"})


def test_a_resumed_run_tells_its_program(hotel: Hotel) -> None:
    """At the place of the program, so that an observer knows whose run goes on."""
    told: list[Any] = []
    run = hotel.start(ASK)
    run.answer(run.pending[0].approve())
    with ferrule.context(callbacks=[told.append]):
        hotel.go_on(run, FINISH)
    [resumed] = [event for event in told if event.type == "Resumed"]
    assert (resumed.program, resumed.path, resumed.span_id) == (hotel.agent, "", run.id)
    assert resumed.as_json()["program"] == "ReAct"


def test_what_keeps_a_finished_run_from_being_replayed_is_raised_and_it_stays_done(
    hotel: Hotel,
) -> None:
    """No model is asked, but which way a program goes may depend on what the model can do."""
    again = hotel.load(hotel.start(FINISH).id)
    with pytest.raises(ferrule.errors.ConfigurationError):
        _ = again.prediction
    assert again.status == "done"
    with ferrule.context(lm=ScriptedLM([])):
        assert again.prediction.answer == "yes"


def test_a_decision_put_elsewhere_is_found_when_the_run_is_resumed(hotel: Hotel) -> None:
    """By another process, while this one still has the run in its hands."""
    run = hotel.start(ASK)
    hotel.store.decide(run.id, run.pending[0].deny("too dear").signed(by="ann"))
    hotel.go_on(run, FINISH)
    assert "too dear" in run.trajectory["observation_0"]
    assert [decision.by for decision in run.decisions] == ["ann"]
    assert hotel.did == []


def test_an_answer_given_here_is_there_for_others_at_once(hotel: Hotel) -> None:
    """Whoever decides second is told."""
    run = hotel.start(ASK)
    other = hotel.load(run.id)
    run.answer(run.pending[0].approve())
    assert hotel.load(run.id).answers == run.answers
    with pytest.raises(ferrule.errors.DecisionError, match="decided already: approved"):
        other.answer(other.pending[0].deny())


def test_two_who_resume_one_run_execute_it_once(hotel: Hotel) -> None:
    """The second finds it carried to its end."""
    run = hotel.start(ASK)
    other = hotel.load(run.id)
    run.answer(run.pending[0].approve())
    hotel.go_on(run, FINISH)
    with pytest.raises(RunError, match="finished elsewhere"):
        hotel.go_on(other, FINISH)
    assert hotel.did == ["book 7"]


def test_a_run_that_went_further_elsewhere_is_caught_up_with(hotel: Hotel) -> None:
    """What this process has of the journal is a beginning of what the store has."""
    run = hotel.start(ASK)
    other = hotel.load(run.id)
    other.answer(other.pending[0].approve())
    hotel.go_on(other, ASK)
    assert other.status == "waiting"
    hotel.store.decide(run.id, other.pending[0].approve())
    hotel.go_on(run, FINISH)
    assert run.status == "done"
    assert hotel.did == ["book 7", "book 7"]


def test_a_program_without_a_tool_that_the_run_had_loads(hotel: Hotel) -> None:
    run = hotel.start(ASK)
    assert (
        Run.load(hotel.store, run.id, ReAct("task -> answer", [])).changed[
            "tool `book` of `react`"
        ][1]
        == "absent"
    )
    assert (
        Run.load(hotel.store, run.id, ReAct("task -> answer", []), migrate=True).status == "waiting"
    )


@pytest.mark.parametrize("change", ["description", "args", "effect"])
def test_an_approval_does_not_reach_a_remote_tool_whose_definition_changed(
    hotel: Hotel,
    change: str,
) -> None:
    """What a server says of its tool today is not what a person agreed to; the question is asked
    anew.
    """
    definition: dict[str, Any] = {
        "description": "Book.",
        "args": {"room": {"type": "integer"}},
        "effect": "once",
    }
    others = {
        "description": "Book, and pay.",
        "args": {"room": {"type": "integer"}, "pay": {"type": "boolean", "default": True}},
        "effect": "idempotent",
    }

    def remote(**definition: Any) -> ReAct:
        """As a server would define it: a name, words, a schema; its function sends the call there."""
        sent = Tool(
            lambda **args: hotel.did.append(str(args)),
            "far_book",
            require_confirmation=True,
            **definition,
        )
        return ReAct("task -> answer", [sent])

    with ferrule.context(lm=ScriptedLM([{"name": "far_book", "args": {"room": 7}}])):
        run = remote(**definition).start(task="x", store=hotel.store, run_id="r")
    question = run.pending[0]
    run.answer(question.approve())
    changed = remote(**{**definition, change: others[change]})
    tried = Run.load(hotel.store, "r", changed)
    with ferrule.context(lm=ScriptedLM([FINISH])):
        tried.resume()
    assert hotel.did == []
    assert tried.status == "waiting"
    assert question.id not in {each.id for each in tried.pending}


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_cancelling_from_elsewhere_stops_before_the_next_tool(hotel: Hotel, driver: str) -> None:
    """The tool that ran is on record, the next is not begun, and the run can be gone on with."""
    hotel.at_look = lambda: hotel.store.cancel("r")
    run = hotel.start(LOOK, LOOK, FINISH, driver=driver, run_id="r")
    assert run.status == "cancelled"
    assert isinstance(run.error, RunCancelledError)
    assert hotel.did == ["look 7"]
    assert [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)] == [
        "model",
        "begun",
        "result",
    ]
    hotel.at_look = lambda: None
    assert hotel.go_on(hotel.load("r"), LOOK, FINISH).prediction.answer == "yes"
    assert hotel.did == ["look 7", "look 7"]


def test_a_tool_is_not_begun_once_the_run_is_cancelled(hotel: Hotel) -> None:
    """Also where the cancelling comes between the model's answer and the call."""

    class Cancelling(ScriptedLM):
        def complete(self, request: Any) -> Any:
            hotel.store.cancel("r")
            return super().complete(request)

    with ferrule.context(lm=Cancelling([LOOK, FINISH])):
        run = hotel.agent.start(task="x", store=hotel.store, run_id="r")
    assert run.status == "cancelled"
    assert hotel.did == []


def test_a_run_cancelled_while_it_waits_starts_nothing_when_an_old_hand_resumes_it(
    hotel: Hotel,
) -> None:
    """Whoever had it before is told; resumed once more, it asks again, for the cancellation
    discarded the approval.
    """
    run = hotel.start(ASK)
    run.answer(run.pending[0].approve())
    hotel.store.cancel(run.id)
    with pytest.raises(RunCancelledError, match="cancelled elsewhere"):
        hotel.go_on(run, FINISH)
    assert run.status == "cancelled"
    assert hotel.go_on(run).status == "waiting"
    assert hotel.did == []
    run.answer(run.pending[0].approve())
    assert hotel.go_on(run, FINISH).status == "done"


def test_a_run_that_another_hand_executes_is_cancelled_by_any_hand(hotel: Hotel) -> None:
    hotel.at_look = lambda: hotel.load("r").cancel()
    run = hotel.start(LOOK, LOOK, FINISH, run_id="r")
    assert run.status == hotel.store.summary("r").status == "cancelled"
    assert hotel.did == ["look 7"]


def test_a_run_that_a_crash_left_is_cancelled_at_once(hotel: Hotel) -> None:
    hotel.start(ASK, run_id="r")
    hotel.store._file.write(
        lambda db: db.execute("UPDATE ferrule_runs SET status = 'running', owner = NULL"),
    )
    run = hotel.load("r")
    assert run.status == "running"
    run.cancel()
    assert run.status == hotel.store.summary("r").status == "cancelled"


def test_a_write_of_an_execution_that_was_interrupted_does_not_fail_the_next_one(
    hotel: Hotel,
) -> None:
    """A thread that Ctrl-C left behind is in the middle of a write while the run is resumed."""
    lease = hotel.store.create("r", program="P", head="{}")
    run = hotel.start(FINISH)
    stored = StoredRun(hotel.store, run, is_new=False)
    stored.lease = Lease("r", lease.token + 1)  # of the execution that goes on
    late = RunError("x")
    stored._note_failure(lease, StoreError("The run 'r' was taken over."))
    stored._note_failure(lease, late)
    assert stored.broken is None
    stored._note_failure(stored.lease, StoreError("The disk is full."))
    assert "full" in str(stored.broken)
    entry = Entry("1", "once", "clock", 1)
    with pytest.raises(StoreError, match="has paused or ended; 1 is in the store"):
        stored._check_written(lease, entry, goes_on=True)


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_run_whose_lease_was_lost_stops_at_its_next_write(hotel: Hotel, driver: str) -> None:
    """It is fenced; what another process does meanwhile is untouched."""
    hotel.at_look = lambda: _steal(hotel.store)
    run = hotel.start(LOOK, FINISH, driver=driver, run_id="r")
    assert (run.status, type(run.error)) == ("failed", StoreError)
    assert [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)] == [
        "model",
        "begun",
    ]
    assert hotel.store.list()[0].status == "running"


def test_after_a_failed_write_nothing_more_is_written_even_if_the_program_goes_on(
    hotel: Hotel,
) -> None:
    """What is kept never has a gap."""
    broken: list[BaseException] = []

    class Stubborn(Module):
        def __init__(self) -> None:
            self.agent = hotel.agent

        def forward(self, task: str) -> Prediction:
            for _ in range(2):
                try:
                    self.agent(task=task)
                except StoreError as error:
                    broken.append(error)
            return Prediction(answer="fine")

    hotel.at_look = lambda: _fail_once(hotel.store)
    with ferrule.context(lm=ScriptedLM([LOOK, LOOK])):
        Stubborn().start(task="x", store=hotel.store, run_id="r")
    assert [str(error) for error in broken] == ["no room", "no room"]
    assert [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)] == [
        "model",
        "begun",
    ]


@pytest.mark.parametrize("fails", ["append", "transact"])
def test_a_run_whose_program_catches_a_failed_write_is_not_done(
    hotel: Hotel,
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
) -> None:
    """It was done, with what the program had made of the error, although its journal had no such
    end; now it goes on.
    """

    def fail(*_: Any, **__: Any) -> Any:
        raise StoreError("no room")

    @ferrule.tool(effect="transactional")
    def order(ctx: ferrule.Context) -> str:
        """Order."""
        ctx.db.execute("CREATE TABLE ordered (x)")
        return "ordered"

    class Stubborn(Module):
        def forward(self, task: str) -> Prediction:
            try:
                return Prediction(answer=ferrule.call_tool(order))
            except Exception as error:
                return Prediction(answer=f"went wrong: {error}")

    monkeypatch.setattr(hotel.store, fails, fail)
    run = Stubborn().start(task="x", store=hotel.store, run_id="r")
    assert (run.status, str(run.error)) == ("failed", "no room")
    monkeypatch.undo()
    assert Run.load(hotel.store, "r", Stubborn()).resume().prediction.answer == "ordered"


def test_a_task_cancelled_while_its_entry_is_written_leaves_no_doubt_behind(hotel: Hotel) -> None:
    """Whether the entry got to disk or not, the next execution goes by the disk."""

    async def go() -> Run:
        run = Run(hotel.agent, (), {"task": "x"}, run_id="r")
        run.keep(hotel.store)
        original = hotel.store.aappend

        async def written_and_cancelled(*args: Any, **keywords: Any) -> bool:
            await original(*args, **keywords)
            hotel.store.aappend = original
            task.cancel()
            await asyncio.sleep(0)
            return True

        hotel.store.aappend = written_and_cancelled
        task: Any = asyncio.current_task()
        with pytest.raises(asyncio.CancelledError):
            await run.aresume()
        return run

    with ferrule.context(lm=ScriptedLM([LOOK, FINISH])):
        run = asyncio.run(go())
        assert (run.status, len(run.journal)) == ("cancelled", 1)
        assert run.resume().prediction.answer == "yes"
    assert hotel.did == ["look 7"]


def test_a_write_that_fails_while_its_task_is_cancelled_is_not_in_the_journal(hotel: Hotel) -> None:
    """What is kept never has a gap, and memory has no more than the disk."""

    async def go() -> None:
        run = Run(hotel.agent, (), {"task": "x"}, run_id="r")
        run.keep(hotel.store)

        async def cancelled_and_failed(*_: Any, **__: Any) -> bool:
            task.cancel()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as cancelled:
                raise cancelled from StoreError("no room")
            return True

        hotel.store.aappend = cancelled_and_failed
        task: Any = asyncio.current_task()
        with pytest.raises(asyncio.CancelledError):
            await run.aresume()
        assert (run.status, len(run.journal), hotel.store.load("r").entries) == ("cancelled", 0, [])

    with ferrule.context(lm=ScriptedLM([LOOK])):
        asyncio.run(go())
    assert hotel.did == []


def test_a_task_cancelled_while_the_start_of_its_call_is_refused_has_begun_no_call(
    hotel: Hotel,
) -> None:
    """The run was cancelled elsewhere at the same moment."""

    async def go() -> Run:
        run = Run(hotel.agent, (), {"task": "x"}, run_id="r")
        run.keep(hotel.store)
        original = hotel.store.aappend

        async def cancelled_twice(
            lease: Any,
            entry: str,
            *,
            starts: bool = False,
            **more: Any,
        ) -> bool:
            if starts:
                hotel.store.cancel("r")
                task.cancel()
            return await original(lease, entry, starts=starts, **more)

        hotel.store.aappend = cancelled_twice
        task = asyncio.ensure_future(run.aresume())
        with pytest.raises(asyncio.CancelledError):
            await task
        return run

    with ferrule.context(lm=ScriptedLM([LOOK])):
        run = asyncio.run(go())
    assert (hotel.did, [entry.kind for entry in run.journal.entries]) == ([], ["model"])
    assert len(hotel.store.load("r").entries) == 1


def test_a_task_cancelled_while_its_run_is_leased_gives_the_lease_back(hotel: Hotel) -> None:
    """The thread that leases is not stopped; the run is at rest all the same, and can be gone on
    with.
    """

    async def go() -> Run:
        run = Run(hotel.agent, (), {"task": "x"}, run_id="r")
        run.keep(hotel.store)
        task = asyncio.ensure_future(run.aresume())
        original = hotel.store.create
        loop = asyncio.get_running_loop()

        def create(*args: Any, **keywords: Any) -> Any:
            loop.call_soon_threadsafe(task.cancel)
            return original(*args, **keywords)

        hotel.store.create = create
        with pytest.raises(asyncio.CancelledError):
            await task
        return run

    run = asyncio.run(go())
    assert run.status == "cancelled"
    assert [(each.status, each.leased) for each in Run.list(hotel.store)] == [("cancelled", False)]
    assert hotel.go_on(run, FINISH).prediction.answer == "yes"


def test_a_task_cancelled_while_its_end_waits_for_a_thread_gives_the_lease_back(
    hotel: Hotel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread comes to it any more, so it is done without one, and told."""
    told: list[str] = []

    async def go() -> None:
        task = asyncio.ensure_future(hotel.agent.astart(task="x", store=hotel.store, run_id="r"))
        original = offload.put

        def busy(pool: Any, function: Any, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
            if hotel.store.load("r").entries if hotel.store.list() else False:
                asyncio.get_running_loop().call_soon(task.cancel)
                return future
            return original(pool, function, future)

        monkeypatch.setattr(offload, "put", busy)
        with pytest.raises(asyncio.CancelledError):
            await task

    with ferrule.context(
        lm=ScriptedLM([FINISH]),
        callbacks=[lambda event: told.append(type(event).__name__)],
    ):
        asyncio.run(go())
    assert [(each.status, each.leased) for each in Run.list(hotel.store)] == [("done", False)]
    assert told[-1] == "RunFinished"


def test_a_run_whose_end_could_not_be_written_is_gone_on_with_at_once(hotel: Hotel) -> None:
    """When there is room again; it is no crash, and no other process is at work on it."""
    hotel.at_look = lambda: _read_only(hotel.store, "ON")
    run = hotel.start(LOOK, run_id="r")
    assert (run.status, type(run.error)) == ("failed", StoreError)
    _read_only(hotel.store, "OFF")
    hotel.at_look = lambda: None
    assert Run.list(hotel.store)[0].leased
    assert [question.kind for question in hotel.go_on(run).pending] == ["unknown"]
    assert [(each.status, each.recoveries) for each in Run.list(hotel.store)] == [("waiting", 0)]


@pytest.mark.parametrize("how", ["no model", "interrupted"])
def test_a_run_that_waits_goes_on_waiting_when_a_resume_gets_nowhere(
    hotel: Hotel,
    how: str,
) -> None:
    """Nothing was done, so nothing is lost: neither the question, nor what was decided."""
    run = hotel.start(ASK)
    [question] = run.pending
    before = hotel.store.load(run.id)
    loaded = hotel.load(run.id)
    if how == "no model":
        assert loaded.resume().status == "failed"
    else:
        with (
            pytest.raises(KeyboardInterrupt),
            ferrule.context(lm=ScriptedLM([]), policy=_Interrupting([])),
        ):
            loaded.resume()
    assert hotel.store.load(run.id) == before
    assert [each.questions for each in Run.list(hotel.store, status="waiting")] == [(question,)]
    hotel.store.decide(run.id, question.approve())
    assert hotel.load(run.id).resume().error is not None  # no model
    assert Run.list(hotel.store)[0].decided == (question.id,)
    assert hotel.go_on(hotel.load(run.id), FINISH).status == "done"
    assert hotel.did == ["book 7"]


def test_an_old_hand_does_not_go_on_with_another_run_of_the_same_id(hotel: Hotel) -> None:
    """Nor with what was redacted."""
    old = hotel.start(ASK, run_id="r")
    hotel.store.delete("r")
    new = hotel.start(ASK, run_id="r")
    with pytest.raises(StoreError, match="another one has its id"):
        hotel.go_on(old, FINISH)
    assert [(each.status, each.questions) for each in Run.list(hotel.store)] == [
        ("waiting", new.pending),
    ]
    hotel.store.cancel("r")
    hotel.store.redact("r")
    with pytest.raises(StoreError, match="was redacted"):
        hotel.go_on(new, FINISH)
    assert [(each.status, each.leased) for each in Run.list(hotel.store)] == [("cancelled", False)]
    assert '"redacted":true' in hotel.store.load("r").head


def test_what_the_program_does_to_its_inputs_is_not_kept(hotel: Hotel) -> None:
    """A replay starts from what was given; and a run whose inputs cannot be kept any more comes to
    its rest.
    """

    class Changing(Module):
        def forward(self, given: list[Any]) -> Prediction:
            given.append(object())
            return Prediction(count=len(given))

    run = Changing().start(given=[1], store=hotel.store)
    assert (run.status, Run.load(hotel.store, run.id, Changing()).inputs) == (
        "done",
        {"given": [1]},
    )


def test_a_finished_run_is_read_without_telling_anybody(hotel: Hotel) -> None:
    """All of it was told when it happened."""
    hotel.start(LOOK, FINISH, run_id="r")
    told: list[Any] = []
    with ferrule.context(lm=ScriptedLM([]), callbacks=[told.append]):
        assert hotel.load("r").prediction.answer == "yes"
    assert told == []


@pytest.mark.parametrize(
    "given",
    [
        pytest.param("", id="empty"),
        pytest.param("\ud800", id="half a character"),
        pytest.param(7, id="number"),
    ],
)
def test_an_id_that_no_store_could_write_is_refused(hotel: Hotel, given: Any) -> None:
    """And none is made up in its place."""
    with pytest.raises(InputError, match="`run_id` is a text"):
        hotel.start(FINISH, run_id=given)
    assert Run.list(hotel.store) == []


def test_a_parked_run_says_why(hotel: Hotel, monkeypatch: pytest.MonkeyPatch) -> None:
    hotel.store.max_recoveries = 0
    hotel.at_look = lambda: _steal(hotel.store)
    hotel.start(LOOK, run_id="r")
    monkeypatch.setattr(sqlite_store, "is_dead", lambda owner: True)
    with pytest.raises(StoreError, match="was marked as failed"):
        hotel.go_on(hotel.load("r"), FINISH)
    with pytest.raises(StoreError, match="crashed 1 times, and was marked as failed"):
        _ = hotel.load("r").prediction


def test_halves_of_a_character_from_a_tool_do_not_keep_a_run_from_its_end(hotel: Hotel) -> None:
    """What is asked after a load is what was asked before it."""

    def half() -> str:
        """Return an emoji as some JSON has it."""
        return "\ud83d" + "\ude00"

    hotel.agent = ReAct("task -> answer", [half, *hotel.agent.react.tools.values()])
    run = hotel.start({"name": "half", "args": {}}, ASK)
    hotel.store.decide(run.id, run.pending[0].approve())
    assert hotel.go_on(hotel.load(run.id), FINISH).error is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_after_a_fork_inside_a_tool_one_process_goes_on(tmp_path: Path) -> None:
    """The child has the program and the token, and ends when its tool returns."""
    store, codes = SQLiteStore(tmp_path / "runs.db"), list[int]()
    hotel = Hotel(store)

    def fork() -> None:
        hotel.at_look = lambda: None
        pid = os.fork()
        if pid:
            codes.append(os.waitpid(pid, 0)[1])

    hotel.at_look = fork
    run = hotel.start(LOOK, LOOK, FINISH, run_id="r")
    assert codes == [0]
    assert (run.status, hotel.did) == ("done", ["look 7", "look 7"])
    store.close()


def test_deps_are_given_anew_and_never_kept(tmp_path: Path) -> None:
    """Connections and keys are the process's own."""
    store = SQLiteStore(tmp_path / "runs.db")
    hotel = Hotel(store)
    run = hotel.start(ASK, deps={"key": "s3cr3t"})
    assert run.deps == {"key": "s3cr3t"}
    assert hotel.load(run.id).deps is None
    assert Run.load(store, run.id, hotel.agent, deps=7).deps == 7
    store.close()
    assert b"s3cr3t" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_secret_that_a_model_wrote_is_in_no_question(tmp_path: Path) -> None:
    """Not in the question that waits, nor in what a person is shown.

    The conversation is kept as it was: see docs/how-to/running/runs.md.
    """
    got: list[str] = []

    @ferrule.tool(require_confirmation=True)
    def login(user: str, password: SecretStr) -> str:
        """Log in."""
        got.append(password.get_secret_value())
        return f"in as {user}"

    store = SQLiteStore(tmp_path / "runs.db")
    with ferrule.context(
        lm=ScriptedLM([{"name": "login", "args": {"user": "ann", "password": "s3cr3t"}}, FINISH]),
    ):
        run = ReAct("task -> answer", [login]).start(task="x", store=store)
        shown = f"{run.pending[0]!r} {run.pending[0].changes} {store.load(run.id).head} {Run.list(store)}"
        run.answer(run.pending[0].approve())
        run.resume()
    store.close()
    assert got == ["s3cr3t"]
    assert "s3cr3t" not in shown


def test_an_input_that_cannot_be_kept_is_refused_before_anything_runs(hotel: Hotel) -> None:
    """And no half run is in the store."""

    class Plain(Module):
        def forward(self, thing: Any) -> Any:
            raise AssertionError

    with pytest.raises(RunError, match="needs inputs that JSON can represent"):
        Plain().start(thing=object(), store=hotel.store)
    assert Run.list(hotel.store) == []


def test_a_redacted_run_is_not_loaded(hotel: Hotel) -> None:
    """That it was is known, and no more."""
    run = hotel.start(FINISH)
    hotel.store.redact(run.id)
    with pytest.raises(StoreError, match="was redacted"):
        hotel.load(run.id)
    assert [each.status for each in Run.list(hotel.store, status="done")] == ["done"]


def _json(text: str) -> Any:
    import json

    return json.loads(text)


def _steal(store: Any) -> None:
    store._file.write(lambda db: db.execute("UPDATE ferrule_runs SET token = token + 1"))


class _Interrupting(Policy):
    def rule_for(self, tool: str, args: Any) -> Any:
        raise KeyboardInterrupt


def _read_only(store: Any, on_or_off: str) -> None:
    store._file.read(lambda db: db.execute(f"PRAGMA query_only={on_or_off}"))


def _fail_once(store: Any) -> None:
    original = store.append

    def failing(lease: Lease, entry: str, **more: Any) -> bool:
        del lease, entry, more
        store.append = original
        raise StoreError("no room")

    store.append = failing


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_run_that_met_a_full_disk_goes_on_when_there_is_room(tmp_path: Path, driver: str) -> None:
    """The error says so, nothing is lost, and what had run does not run again unasked."""
    did: list[str] = []
    store = SQLiteStore(tmp_path / "runs.db")

    def room(pages: int) -> None:
        store._file.read(lambda db: db.execute(f"PRAGMA max_page_count={pages}"))

    @ferrule.tool(effect="once")
    def fill(name: str) -> str:
        """Write much."""
        did.append(name)
        if name == "second":
            room(1)  # SQLite takes it for the pages there are: no more of them
        return name * 20_000

    agent = ReAct("task -> answer", [fill])
    script = [
        {"name": "fill", "args": {"name": "first"}},
        {"name": "fill", "args": {"name": "second"}},
        FINISH,
    ]
    with ferrule.context(lm=ScriptedLM(script)):
        keywords: dict[str, Any] = {"task": "x", "store": store, "run_id": "r"}
        failed = (
            asyncio.run(agent.astart(**keywords)) if driver == "async" else agent.start(**keywords)
        )
    assert failed.status == "failed"
    assert isinstance(failed.error, StoreError)
    assert "full" in str(failed.error)
    room(1_000_000)
    run = Run.load(store, "r", agent)
    with ferrule.context(lm=ScriptedLM([FINISH])):
        run.resume()
        [question] = run.pending
        assert question.kind == "unknown"
        run.answer(question.reply("second, as a person saw"))
        assert run.resume().status == "done"
    assert did == ["first", "second"]
    store.close()


def test_a_run_that_executes_is_not_taken_up_by_another_thread(hotel: Hotel) -> None:
    """The other thread is refused, and the run goes on."""
    asking = hotel.start(ASK, run_id="r")
    asking.answer(asking.pending[0].approve())
    refused: list[BaseException] = []

    def take_up() -> None:
        try:
            asking.resume()
        except RunError as error:
            refused.append(error)

    def at_look() -> None:
        other = threading.Thread(target=take_up)
        other.start()
        other.join(60)

    hotel.at_look = at_look
    assert hotel.go_on(asking, LOOK, FINISH).status == "done"
    assert hotel.did == ["book 7", "look 7"]
    assert [str(error) for error in refused] == ["The run r is executing already; wait for it."]


def test_a_run_cancelled_from_elsewhere_begins_no_tool_whose_consent_was_just_read(
    hotel: Hotel,
) -> None:
    """The cancellation comes after the model's answer was kept and before the tool began."""
    ran: list[int] = []

    def cancels(_: dict[str, Any]) -> bool:
        hotel.store.cancel("r")
        return False

    @ferrule.tool(require_confirmation=cancels)
    def enter(room: int) -> None:
        """Enter."""
        ran.append(room)

    agent = ReAct("task -> answer", [enter])
    with ferrule.context(lm=ScriptedLM([{"name": "enter", "args": {"room": 7}}])):
        run = agent.start(task="x", store=hotel.store, run_id="r")
    assert (run.status, hotel.store.list()[0].status) == ("cancelled", "cancelled")
    assert ran == []


def test_observers_hear_of_the_question_about_a_call_that_was_cut_off_and_of_its_decision(
    hotel: Hotel,
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    hotel.at_look = stop
    with pytest.raises(KeyboardInterrupt):
        hotel.start(LOOK, run_id="r")
    hotel.at_look = lambda: None
    run, heard = hotel.load("r"), list[str]()
    with ferrule.context(callbacks=[lambda event: heard.append(type(event).__name__)]):
        hotel.go_on(run)
        run.answer(run.pending[0].approve())
        hotel.go_on(run, FINISH)
    assert run.status == "done"
    assert [each for each in heard if each in {"QuestionAsked", "Decided"}] == [
        "QuestionAsked",
        "Decided",
    ]


class AskedStore(SQLiteStore):
    """Says when it is asked whether messages came, and answers only when it may."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def look(self, leases: Any) -> Any:
        self.is_asked.set()
        assert self.may_answer.wait(60)
        return super().look(leases)


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_loop_that_is_closed_under_a_run_lets_it_be_collected_and_resumed(
    tmp_path: Path, is_watched: bool
) -> None:
    """The garbage collector may take the run before the coroutine, whose end then finds none.

    The lease may outlive both. A thread that asks the store for messages to the run holds no run.
    """
    store, loop = AskedStore(tmp_path / "runs.db"), asyncio.new_event_loop()
    if not is_watched:
        store.may_answer.set()
    begun: list[str] = []

    async def wait(room: int) -> str:
        """Wait."""
        begun.append(f"{room}")
        await asyncio.sleep(0 if len(begun) > 1 else 60)
        return "done"

    def agent() -> ReAct:
        return ReAct("task -> answer", [Tool(wait, effect="read")], lm=ScriptedLM(by=answer))

    def answer(request: Any) -> Any:
        return FINISH if len(request.messages) > 2 else {"name": "wait", "args": {"room": 7}}

    async def turns() -> None:
        while not begun or (is_watched and not store.is_asked.is_set()):
            await asyncio.sleep(0.01)

    task = loop.create_task(agent().astart(task="x", store=store, run_id="r"))
    loop.run_until_complete(turns())
    task._log_destroy_pending = False  # type: ignore[attr-defined]  asyncio would log it
    loop.close()
    writing = [
        each for each in gc.get_objects() if isinstance(each, Lease)
    ]  # as the thread that has just written for the run
    del task
    gc.collect()
    writing.clear()
    store.may_answer.set()
    ends = time.monotonic() + 60
    while store.list()[0].leased and time.monotonic() < ends:
        time.sleep(0.05)
    assert Run.load(store, "r", agent()).resume().prediction.answer == "yes"
