"""Runs that are kept: written before they go on, and gone on with from anywhere."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import ferrule
from ferrule.errors import ReplayMismatch, RunCancelled, RunError, StoreError
from ferrule.lms.scripted import ScriptedLM
from ferrule.programs.module import Module
from ferrule.programs.react import ReAct
from ferrule.runs.run import Run
from ferrule.runs.sqlite_store import MemoryStore, SQLiteStore
from ferrule.runs.store import Lease
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
    """A3, F5: what is in the store while the tool runs: the model's answer, and that the tool began."""
    seen: list[list[str]] = []
    hotel.at_look = lambda: seen.append([entry["kind"] for entry in map(_json, hotel.store.load("r").entries)])
    run = hotel.start(LOOK, FINISH, driver=driver, run_id="r")
    assert run.prediction.answer == "yes"
    assert seen == [["model", "begun"]]
    assert [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)] == ["model", "begun", "result", "model"]
    assert hotel.store.list()[0].status == "done"


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_run_that_waits_is_gone_on_with_by_whoever_loads_it(hotel: Hotel, driver: str) -> None:
    """A3, U99, U105: nothing is asked or run again; inputs and trajectory are there."""
    first = hotel.start(LOOK, ASK, driver=driver)
    loaded = hotel.load(first.id)
    assert (loaded.status, loaded.pending, loaded.inputs) == ("waiting", first.pending, {"task": "x"})
    loaded.answer(loaded.pending[0].approve())
    hotel.go_on(loaded, FINISH, driver=driver)
    assert loaded.prediction.answer == "yes"
    assert hotel.did == ["look 7", "book 7"]
    with ferrule.context(lm=ScriptedLM([])):
        assert hotel.load(first.id).trajectory == loaded.trajectory


def test_a_run_that_waits_and_that_nobody_holds_is_in_the_store_alone(hotel: Hotel) -> None:
    """V1: no memory of the process, no lease, no thread; whoever loads it goes on."""
    run = hotel.start(LOOK, ASK)
    key, known = run.id, weakref.ref(run)
    del run
    gc.collect()
    assert known() is None
    assert [each.leased for each in Run.list(hotel.store)] == [False]
    assert hotel.load(key).pending


def test_what_keeps_a_finished_run_from_being_replayed_is_raised_and_it_stays_done(hotel: Hotel) -> None:
    """A2: no model is asked, but which way a program goes may depend on what the model can do."""
    again = hotel.load(hotel.start(FINISH).id)
    with pytest.raises(ferrule.ConfigurationError):
        _ = again.prediction
    assert again.status == "done"
    with ferrule.context(lm=ScriptedLM([])):
        assert again.prediction.answer == "yes"


def test_a_decision_put_elsewhere_is_found_when_the_run_is_resumed(hotel: Hotel) -> None:
    """A8, U99: by another process, while this one still has the run in its hands."""
    run = hotel.start(ASK)
    hotel.store.decide(run.id, run.pending[0].deny("too dear").signed(by="ann"))
    hotel.go_on(run, FINISH)
    assert "too dear" in run.trajectory["observation_0"]
    assert [decision.by for decision in run.decisions] == ["ann"]
    assert hotel.did == []


def test_an_answer_given_here_is_there_for_others_at_once(hotel: Hotel) -> None:
    """A8, U92: whoever decides second is told."""
    run = hotel.start(ASK)
    other = hotel.load(run.id)
    run.answer(run.pending[0].approve())
    assert hotel.load(run.id).answers == run.answers
    with pytest.raises(ferrule.DecisionError, match="decided already: approved"):
        other.answer(other.pending[0].deny())


def test_two_who_resume_one_run_execute_it_once(hotel: Hotel) -> None:
    """U111, V4: the second finds it carried to its end."""
    run = hotel.start(ASK)
    other = hotel.load(run.id)
    run.answer(run.pending[0].approve())
    hotel.go_on(run, FINISH)
    with pytest.raises(RunError, match="carried to its end elsewhere"):
        hotel.go_on(other, FINISH)
    assert hotel.did == ["book 7"]


def test_a_run_that_went_further_elsewhere_is_caught_up_with(hotel: Hotel) -> None:
    """A3: what this process has of the journal is a beginning of what the store has."""
    run = hotel.start(ASK)
    other = hotel.load(run.id)
    other.answer(other.pending[0].approve())
    hotel.go_on(other, ASK)
    assert other.status == "waiting"
    hotel.store.decide(run.id, other.pending[0].approve())
    hotel.go_on(run, FINISH)
    assert run.status == "done"
    assert hotel.did == ["book 7", "book 7"]


def test_a_changed_program_is_refused_when_the_run_is_loaded(hotel: Hotel) -> None:
    """R12."""
    run = hotel.start(ASK)
    with pytest.raises(ReplayMismatch, match="tool `book` of `react` absent"):
        Run.load(hotel.store, run.id, ReAct("task -> answer", []))
    assert Run.load(hotel.store, run.id, ReAct("task -> answer", []), migrate=True).status == "waiting"


@pytest.mark.parametrize("change", ["description", "args", "effect"])
def test_an_approval_does_not_reach_a_remote_tool_whose_definition_changed(hotel: Hotel, change: str) -> None:
    """P72, V3: what a server says of its tool today is not what a person agreed to; it is refused, and asked about anew if tried."""
    definition: dict[str, Any] = {"description": "Book.", "args": {"room": {"type": "integer"}}, "effect": "once"}
    others = {
        "description": "Book, and pay.",
        "args": {"room": {"type": "integer"}, "pay": {"type": "boolean", "default": True}},
        "effect": "idempotent",
    }

    def remote(**definition: Any) -> ReAct:
        """As a server would define it: a name, words, a schema; its function sends the call there."""
        sent = Tool(lambda **args: hotel.did.append(str(args)), "far_book", require_confirmation=True, **definition)
        return ReAct("task -> answer", [sent])

    with ferrule.context(lm=ScriptedLM([{"name": "far_book", "args": {"room": 7}}])):
        run = remote(**definition).start(task="x", store=hotel.store, run_id="r")
    question = run.pending[0]
    run.answer(question.approve())
    changed = remote(**{**definition, change: others[change]})
    if change != "effect":  # of that the model is not told, so only the question knows it
        with pytest.raises(ReplayMismatch, match="tool `far_book`"):
            Run.load(hotel.store, "r", changed)
    tried = Run.load(hotel.store, "r", changed, migrate=True)
    with ferrule.context(lm=ScriptedLM([FINISH])):
        tried.resume()
    assert hotel.did == []
    assert tried.status == ("waiting" if change == "effect" else "failed")
    assert question.id not in {each.id for each in tried.pending}


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_cancelling_from_elsewhere_stops_before_the_next_tool(hotel: Hotel, driver: str) -> None:
    """R15, A15: the tool that ran is on record, the next is not begun, and the run can be gone on with."""
    hotel.at_look = lambda: hotel.store.cancel("r")
    run = hotel.start(LOOK, LOOK, FINISH, driver=driver, run_id="r")
    assert run.status == "cancelled"
    assert isinstance(run.error, RunCancelled)
    assert hotel.did == ["look 7"]
    assert [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)] == ["model", "begun", "result"]
    hotel.at_look = lambda: None
    assert hotel.go_on(hotel.load("r"), LOOK, FINISH).prediction.answer == "yes"
    assert hotel.did == ["look 7", "look 7"]


def test_a_tool_is_not_begun_once_the_run_is_cancelled(hotel: Hotel) -> None:
    """R15: also where the cancelling comes between the model's answer and the call."""

    class Cancelling(ScriptedLM):
        def complete(self, request: Any) -> Any:
            hotel.store.cancel("r")
            return super().complete(request)

    with ferrule.context(lm=Cancelling([LOOK, FINISH])):
        run = hotel.agent.start(task="x", store=hotel.store, run_id="r")
    assert run.status == "cancelled"
    assert hotel.did == []


def test_a_run_cancelled_while_it_waits_starts_nothing_when_an_old_hand_resumes_it(hotel: Hotel) -> None:
    """R15: whoever had it before is told; resuming once more is a decision of its own."""
    run = hotel.start(ASK)
    run.answer(run.pending[0].approve())
    hotel.store.cancel(run.id)
    with pytest.raises(RunCancelled, match="cancelled from elsewhere"):
        hotel.go_on(run, FINISH)
    assert run.status == "cancelled"
    assert hotel.did == []
    assert hotel.go_on(run, FINISH).status == "done"


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_run_whose_lease_was_lost_stops_at_its_next_write(hotel: Hotel, driver: str) -> None:
    """Q4: it is fenced; what another process does meanwhile is untouched."""
    hotel.at_look = lambda: _steal(hotel.store)
    run = hotel.start(LOOK, FINISH, driver=driver, run_id="r")
    assert (run.status, type(run.error)) == ("failed", StoreError)
    assert [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)] == ["model", "begun"]
    assert hotel.store.list()[0].status == "running"


def test_after_a_failed_write_nothing_more_is_written_even_if_the_program_goes_on(hotel: Hotel) -> None:
    """A3: what is kept never has a gap."""
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
    assert [entry["kind"] for entry in map(_json, hotel.store.load("r").entries)] == ["model", "begun"]


def test_a_task_cancelled_while_its_entry_is_written_leaves_no_doubt_behind(hotel: Hotel) -> None:
    """A15: whether the entry got to disk or not, the next execution goes by the disk."""

    async def go() -> Run:
        run = Run(hotel.agent, (), {"task": "x"}, run_id="r")
        run.keep(hotel.store)
        original = hotel.store.aappend

        async def written_and_cancelled(*args: Any, **keywords: Any) -> bool:
            await original(*args, **keywords)
            hotel.store.aappend = original
            raise asyncio.CancelledError

        hotel.store.aappend = written_and_cancelled
        with pytest.raises(asyncio.CancelledError):
            await run.aresume()
        return run

    with ferrule.context(lm=ScriptedLM([LOOK, FINISH])):
        run = asyncio.run(go())
        assert (run.status, len(run.journal)) == ("cancelled", 0)
        assert run.resume().prediction.answer == "yes"
    assert hotel.did == ["look 7"]


def test_a_task_cancelled_while_its_run_is_leased_gives_the_lease_back(hotel: Hotel) -> None:
    """A15: the thread that leases is not stopped; the run is at rest all the same, and can be gone on with."""

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


def test_deps_are_given_anew_and_never_kept(tmp_path: Path) -> None:
    """A2, R17: connections and keys are the process's own."""
    store = SQLiteStore(tmp_path / "runs.db")
    hotel = Hotel(store)
    run = hotel.start(ASK, deps={"key": "s3cr3t"})
    assert run.deps == {"key": "s3cr3t"}
    assert hotel.load(run.id).deps is None
    assert Run.load(store, run.id, hotel.agent, deps=7).deps == 7
    store.close()
    assert b"s3cr3t" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_secret_that_a_model_wrote_is_in_no_question(tmp_path: Path) -> None:
    """A2, R17: not in the question that waits, nor in what a person is shown. The conversation is kept as it was: see docs/runs.md."""
    got: list[str] = []

    @ferrule.tool(require_confirmation=True)
    def login(user: str, password: SecretStr) -> str:
        """Log in."""
        got.append(password.get_secret_value())
        return f"in as {user}"

    store = SQLiteStore(tmp_path / "runs.db")
    with ferrule.context(lm=ScriptedLM([{"name": "login", "args": {"user": "ann", "password": "s3cr3t"}}, FINISH])):
        run = ReAct("task -> answer", [login]).start(task="x", store=store)
        shown = f"{run.pending[0]!r} {run.pending[0].changes} {store.load(run.id).head} {Run.list(store)}"
        run.answer(run.pending[0].approve())
        run.resume()
    store.close()
    assert got == ["s3cr3t"]
    assert "s3cr3t" not in shown


def test_an_input_that_cannot_be_kept_is_refused_before_anything_runs(hotel: Hotel) -> None:
    """A2: and no half run is in the store."""

    class Plain(Module):
        def forward(self, thing: Any) -> Any:
            raise AssertionError

    with pytest.raises(RunError, match="needs inputs that JSON can hold"):
        Plain().start(thing=object(), store=hotel.store)
    assert Run.list(hotel.store) == []


def test_a_redacted_run_is_not_loaded(hotel: Hotel) -> None:
    """R18: that it was is known, and no more."""
    run = hotel.start(FINISH)
    hotel.store.redact(run.id)
    with pytest.raises(StoreError, match="was redacted"):
        hotel.load(run.id)
    assert [each.status for each in Run.list(hotel.store, status="done")] == ["done"]


def _json(text: str) -> Any:
    import json

    return json.loads(text)


def _steal(store: Any) -> None:
    with store._file.writing() as db:
        db.execute("UPDATE runs SET token = token + 1")


def _fail_once(store: Any) -> None:
    original = store.append

    def failing(lease: Lease, entry: str, **more: Any) -> bool:
        del lease, entry, more
        store.append = original
        raise StoreError("no room")

    store.append = failing
