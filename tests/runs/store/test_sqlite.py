"""The store by hand: leases and fences, decisions, lists, and what is forgotten. In a file and in memory alike."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

import ferrule.runs.store.sqlite as module
from ferrule.errors import DecisionError, StoreError
from ferrule.runs.journal.encode import record_form
from ferrule.runs.protocols import Lease
from ferrule.runs.store import fencing, sqlite_file
from ferrule.runs.store.fencing import INSERT
from ferrule.runs.store.sqlite import MemoryStore, SQLiteStore
from ferrule.values.calls.call import ToolCall
from ferrule.values.confirmation.question import Decision, Question
from ferrule.values.conversation.exchange import Usage
from ferrule.values.run.forms import usage_form

QUESTION = Question("confirm", "Sure?", ToolCall(name="pay", args={"euros": 3}), id="q1")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Any:
    made = MemoryStore(clock=clock) if request.param == "memory" else SQLiteStore(tmp_path / "runs.db", clock=clock)
    yield made
    made.close()


def head(*questions: Question, error: Any = None, **more: Any) -> str:
    return json.dumps({"questions": [record_form(each) for each in questions], "error": error, "answers": [], **more})


def waiting(store: SQLiteStore, run_id: str = "r") -> None:
    store.release(store.create(run_id, program="P", head=head()), status="waiting", head=head(QUESTION))


def another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (module, fencing):
        monkeypatch.setattr(each, "owner_name", lambda: "elsewhere pid 1")


# -- leases ------------------------------------------------------------------------------------------------------------------------


def test_entries_come_back_in_order_and_from_where_one_wants(store: SQLiteStore) -> None:
    """A3: a run is its head and its entries."""
    lease = store.create("r", program="P", head=head())
    assert [store.append(lease, text) for text in "abc"] == [True] * 3
    assert store.load("r").entries == ["a", "b", "c"]
    store.release(lease, status="waiting", head=head())
    assert store.take("r", after=2).entries == ["c"]


def test_an_entry_has_the_time_at_which_it_was_written(store: SQLiteStore, clock: Clock) -> None:
    """W1: the times stand beside the entries, and an event loop's entries have them as well."""
    lease = store.create("r", program="P", head=head())
    for text in "ab":
        clock.now += 5
        store.append(lease, text)
    clock.now += 5
    asyncio.run(store.aappend(lease, "c"))
    found = store.load("r")
    assert (found.entries, found.times) == (["a", "b", "c"], [1005.0, 1010.0, 1015.0])


def test_a_reader_takes_the_entries_that_it_does_not_have_yet(store: SQLiteStore) -> None:
    """W1: reading does not take the lease, and the run goes on."""
    lease = store.create("r", program="P", head=head())
    for text in "abc":
        store.append(lease, text)
    found = store.load("r", after=2)
    assert (found.entries, found.times) == (["c"], [1000.0])
    assert store.load("r", after=3).entries == store.load("r", after=9).entries == []
    store.append(lease, "d")
    assert store.load("r", after=3).entries == ["d"]


def test_the_head_of_a_run_that_executes_can_be_replaced(store: SQLiteStore) -> None:
    """O12: its state and its entries stay."""
    lease = store.create("r", program="P", head=head())
    store.append(lease, "a")
    store.note(lease, head(notes={"by": "a"}))
    found = store.load("r")
    assert (found.status, found.head, found.entries) == ("running", head(notes={"by": "a"}), ["a"])


def test_a_run_is_made_once(store: SQLiteStore) -> None:
    """A3: an id names one run."""
    store.create("r", program="P", head=head())
    with pytest.raises(StoreError, match="has a run 'r' already"):
        store.create("r", program="P", head=head())


def test_a_run_that_is_not_there_is_named(store: SQLiteStore) -> None:
    """A3."""
    with pytest.raises(StoreError, match="has no run 'r'"):
        store.load("r")


def test_while_one_is_at_work_another_is_refused_until_the_lease_ends(
    store: SQLiteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3: one writer a run; a run left by a process of which nothing is known is taken over when its lease is over."""
    another_machine(monkeypatch)
    old = store.create("r", program="P", head=head())
    with pytest.raises(StoreError, match=r"at work on the run 'r' \(elsewhere pid 1\)"):
        store.take("r", after=0)
    clock.now += 31
    assert store.take("r", after=0).lease == Lease("r", old.token + 1)


def test_the_run_of_a_process_that_is_dead_is_taken_over_at_once(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: nobody waits for the lease of a process that is known to be gone."""
    monkeypatch.setattr(module, "is_dead", lambda owner: True)
    store.create("r", program="P", head=head())
    assert store.take("r", after=0).lease is not None


def test_a_lease_is_renewed_while_the_process_lives(store: SQLiteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: a tool may run longer than a lease."""
    lease = store.create("r", program="P", head=head())
    clock.now += 20
    left = store._file.leases.left()
    fencing.tend(store._file, store._file.leases.held(), left)
    clock.now += 20
    another_machine(monkeypatch)
    with pytest.raises(StoreError, match="Another process is at work"):
        store.take("r", after=0)
    del lease


def test_whoever_lost_the_lease_writes_nothing_any_more(store: SQLiteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q4: a process that comes back finds its next write refused, each kind of it."""
    another_machine(monkeypatch)
    old = store.create("r", program="P", head=head())
    clock.now += 31
    store.take("r", after=0)
    for write in (lambda: store.append(old, "late"), lambda: store.note(old, "{}"), lambda: store.release(old, status="done", head=head())):
        with pytest.raises(StoreError, match="taken over by another process"):
            write()
    with pytest.raises(StoreError, match="taken over"):
        store.transact(old, lambda db: pytest.fail(f"{db} is not for a lease that was lost"))
    assert store.load("r").entries == []


def test_a_run_that_kills_its_process_again_and_again_is_parked(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """R14: after five recoveries it is failed, and stays so; one that came to a rest in between starts over."""

    def take_in_another_process() -> Lease | None:
        found = store.take("r", after=0)
        store._file.leases.clear()  # what a process knows is gone with it
        return found.lease

    monkeypatch.setattr(module, "is_dead", lambda owner: True)
    store.release(store.create("r", program="P", head=head()), status="waiting", head=head())
    for _ in range(4):
        lease = take_in_another_process()
    assert lease is not None
    store.release(lease, status="waiting", head=head())
    for _ in range(6):
        take_in_another_process()
    with pytest.raises(StoreError, match="crashed 6 times"):
        store.take("r", after=0)
    [found] = store.list()
    assert (found.status, found.error, found.recoveries) == ("failed", "crashed 6 times, and was parked", 6)
    assert json.loads(store.load("r").head)["error"]["text"] == found.error
    with pytest.raises(StoreError, match="crashed 6 times"):
        store.take("r", after=0)


def test_whoever_works_on_a_run_that_was_deleted_does_not_write_to_the_next_one_of_its_id(store: SQLiteStore) -> None:
    """Q4: a lease is of one run, not of an id."""
    old = store.create("r", program="P", head=head())
    store.delete("r")
    store.create("r", program="Q", head=head())
    with pytest.raises(StoreError, match="nothing was written"):
        store.append(old, "x")
    with pytest.raises(StoreError, match="nothing was written"):
        store.release(old, status="done", head=head())
    assert (store.load("r").status, store.load("r").entries) == ("running", [])


def test_a_process_that_has_the_lease_by_a_fork_alone_writes_nothing(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q4: both know the token; one took it."""
    lease = store.create("r", program="P", head=head())
    another_machine(monkeypatch)
    for write in (lambda: store.append(lease, "x"), lambda: store.release(lease, status="done", head=head())):
        with pytest.raises(StoreError, match="not to this process; nothing was written"):
            write()
    with pytest.raises(StoreError, match="at work"):
        store.take("r", after=0)
    assert store.load("r").entries == []


def test_a_lease_that_could_not_be_given_back_is_taken_over_by_its_own_process(store: SQLiteStore) -> None:
    """A3: nobody is at work under it, and nobody crashed."""
    lease = store.create("r", program="P", head=head())
    store._file.read(lambda db: db.execute("PRAGMA query_only=ON"))
    with pytest.raises(StoreError, match="readonly"):
        store.release(lease, status="done", head=head())
    store._file.read(lambda db: db.execute("PRAGMA query_only=OFF"))
    taken = store.take("r", after=0)
    assert taken.lease == Lease("r", lease.token + 1)
    assert store.list()[0].recoveries == 0
    with pytest.raises(StoreError, match="at work"):
        store.take("r", after=0)


def test_writes_of_many_tasks_are_all_there_and_a_lost_lease_hurts_nobody_else(store: SQLiteStore) -> None:
    """F5, Q4: commits of several runs go together; who may not write is told so alone."""
    leases = [store.create(f"r{i}", program="P", head=head()) for i in range(5)]

    async def write() -> list[Any]:
        lost = store.aappend(Lease("r0", 9), "x")
        return await asyncio.gather(*(store.aappend(lease, str(k)) for k in range(4) for lease in leases), lost, return_exceptions=True)

    *good, bad = asyncio.run(write())
    assert good == [True] * 20
    assert isinstance(bad, StoreError)
    assert [store.load(f"r{i}").entries for i in range(5)] == [["0", "1", "2", "3"]] * 5


def test_what_is_written_in_a_transaction_is_there_with_its_entry_or_not_at_all(store: SQLiteStore) -> None:
    """R6: a tool's rows and its result are one commit."""
    lease = store.create("r", program="P", head=head())

    def make(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE paid (n)")
        store.append(lease, "result")

    def fail(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO paid VALUES (1)")
        store.append(lease, "never")
        raise ZeroDivisionError

    store.transact(lease, make)
    with pytest.raises(ZeroDivisionError):
        store.transact(lease, fail)
    assert store.transact(lease, lambda db: db.execute("SELECT count(*) FROM paid").fetchone()) == (0,)
    assert store.load("r").entries == ["result"]


# -- cancelling --------------------------------------------------------------------------------------------------------------------


def test_cancelling_takes_effect_before_the_next_effect_is_begun(store: SQLiteStore) -> None:
    """R15: what was already done is still written; a tool is not begun."""
    lease = store.create("r", program="P", head=head())
    store.cancel("r")
    assert store.append(lease, "result") is False
    assert store.append(lease, "begun", starts=True) is False
    assert store.load("r").entries == ["result"]


def test_a_run_at_rest_is_cancelled_at_once(store: SQLiteStore) -> None:
    """R15."""
    waiting(store)
    store.cancel("r")
    assert store.load("r").status == "cancelled"
    assert store.take("r", after=0).status == "cancelled"


def test_of_a_run_that_was_cancelled_at_rest_nothing_waits_any_more(store: SQLiteStore) -> None:
    """R15, A15: neither its questions nor what was decided on them."""
    waiting(store)
    store.decide("r", QUESTION.approve())
    store.cancel("r")
    [found] = store.list()
    assert (found.questions, found.decided, store.load("r").decisions) == ((), (), [])
    with pytest.raises(DecisionError, match="No question 'q1' waits in the run 'r'; it is cancelled"):
        store.decide("r", QUESTION.approve())


def test_a_run_that_is_cancelled_just_before_it_waits_does_not_wait(store: SQLiteStore) -> None:
    """R15: between its last entry and its rest."""
    lease = store.create("r", program="P", head=head())
    store.cancel("r")
    store.release(lease, status="waiting", head=head(QUESTION))
    assert [(each.status, each.questions, each.leased) for each in store.list()] == [("cancelled", (), False)]


def test_while_a_run_executes_nothing_waits_in_it(store: SQLiteStore) -> None:
    """V5: what it asked is asked again, or not, when it comes to its rest."""
    waiting(store)
    store.take("r", after=0)
    assert store.list()[0].questions == ()
    with pytest.raises(DecisionError, match="it is running"):
        store.decide("r", QUESTION.approve())


def test_a_run_that_ended_is_not_cancelled(store: SQLiteStore) -> None:
    """R15: what is done is done."""
    store.release(store.create("r", program="P", head=head()), status="done", head=head())
    with pytest.raises(StoreError, match="is done already"):
        store.cancel("r")


# -- decisions ---------------------------------------------------------------------------------------------------------------------


def test_a_decision_waits_in_the_store_until_an_entry_takes_it_up(store: SQLiteStore) -> None:
    """A8, V5: the decision and what goes on from it are one transaction."""
    waiting(store)
    store.decide("r", QUESTION.approve())
    assert len(store.load("r").decisions) == 1
    lease = store.take("r", after=0).lease
    assert lease is not None
    store.append(lease, "decision", consumes="q1")
    assert store.load("r").decisions == []


def test_deciding_twice_says_who_was_first_and_the_same_again_is_passed_over(store: SQLiteStore) -> None:
    """V5, U92: a double press is harmless, a second opinion is told of the first."""
    waiting(store)
    store.decide("r", QUESTION.approve().signed(by="ann"))
    store.decide("r", QUESTION.approve().signed(by="ann"))
    store.decide("r", QUESTION.approve())
    for second in (QUESTION.deny("no").signed(by="bob"), QUESTION.approve().signed(by="bob"), QUESTION.deny("no").signed(by="ann")):
        with pytest.raises(DecisionError, match=r"decided already by ann: approved at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\."):
            store.decide("r", second)
    assert '"by":"ann"' in store.load("r").decisions[0]


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        pytest.param(Decision("q9", "approve"), "No question 'q9' waits in the run 'r'; waiting are: q1", id="unknown question"),
        pytest.param(Decision("q1", "approve", shown="else"), "made on something else", id="something else shown"),
        pytest.param(Decision("q1", "edit"), "An edit changes arguments", id="contradictory"),
    ],
)
def test_a_decision_that_fits_no_question_is_refused_and_not_kept(store: SQLiteStore, decision: Decision, said: str) -> None:
    """A5, U90, U93, U94."""
    waiting(store)
    with pytest.raises(DecisionError, match=said):
        store.decide("r", decision)
    assert store.load("r").decisions == []


# -- lists, forgetting -------------------------------------------------------------------------------------------------------------


def test_the_list_tells_what_waits_and_which_of_it_is_decided(store: SQLiteStore, clock: Clock) -> None:
    """R19: without executing or even loading anything."""
    waiting(store)
    clock.now += 5
    lease = store.create("busy", program="P", head=head())
    store.decide("r", QUESTION.approve())
    busy, found = store.list()
    assert (busy.id, busy.status, busy.leased, busy.created_at) == ("busy", "running", True, 1005.0)
    assert (found.id, found.program, found.questions, found.decided, found.leased) == ("r", "P", (QUESTION,), ("q1",), False)
    assert [each.id for each in store.list(status="waiting")] == ["r"]
    assert [each.id for each in store.list(limit=1)] == ["busy"]
    del lease


def test_a_page_of_the_list_begins_where_the_one_before_ended(store: SQLiteStore, clock: Clock) -> None:
    """W2: also for runs that changed at one time."""
    for k in range(7):
        clock.now += k % 2
        store.release(store.create(f"r{k}", program="PQ"[k % 2], head=head()), status=("done", "waiting")[k % 3 == 0], head=head())
    everything = store.list()
    assert [each.id for each in everything] == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]
    pages, before = list[str](), None
    while page := store.list(limit=2, before=before):
        pages += [each.id for each in page]
        before = (page[-1].updated_at, page[-1].id)
    assert pages == [each.id for each in everything]
    assert [each.id for each in store.list(program="Q")] == ["r5", "r3", "r1"]
    assert [each.id for each in store.list(program="P", status="waiting", before=(clock.now, "r6"))] == ["r0"]


def test_the_list_has_the_latest_hundred_runs_unless_another_limit_is_given(store: SQLiteStore, clock: Clock) -> None:
    """W2."""
    for k in range(102):
        clock.now += 1
        store.release(store.create(f"r{k}", program="P", head=head()), status="done", head=head())
    assert [each.id for each in store.list()] == [f"r{k}" for k in range(101, 1, -1)]
    assert len(store.list(limit=None)) == 102


def test_a_line_has_tokens_and_cost_as_of_the_last_rest(store: SQLiteStore) -> None:
    """W2, O17."""
    lease = store.create("r", program="P", head=head())
    assert (store.summary("r").usage, store.summary("r").cost) == (Usage(), None)
    spent = Usage(10, 5, 4, 2, 3, 1, 0.25, {"m": Usage(10, 5, 4, 2, 3, 1, 0.25)})
    store.release(lease, status="waiting", head=head(usage=usage_form(spent)))
    store.take("r", after=0)
    [found] = store.list()
    assert (found.usage, found.usage.by_model, found.cost) == (spent, spent.by_model, 0.25)


def test_old_runs_that_ended_are_pruned(store: SQLiteStore, clock: Clock) -> None:
    """R18: those that wait stay, however long."""
    waiting(store)
    store.release(store.create("old", program="P", head=head()), status="done", head=head())
    clock.now += 100
    store.release(store.create("new", program="P", head=head()), status="done", head=head())
    assert store.prune(older_than_s=50) == 1
    assert {each.id for each in store.list()} == {"r", "new"}
    assert store.prune(older_than_s=50) == 0


@pytest.mark.parametrize("how", ["delete", "redact"])
def test_what_is_forgotten_is_gone_from_the_file(how: str, tmp_path: Path) -> None:
    """R18: inputs, arguments and results, also from the bytes of the file and its log."""
    store = SQLiteStore(tmp_path / "runs.db")
    lease = store.create("r", program="P", head=head(inputs={"x": "MARK-input"}))
    store.append(lease, "MARK-entry")
    asked = Question("confirm", "MARK-question", QUESTION.call, id="q1")
    store.release(lease, status="waiting", head=head(asked, inputs={"x": "MARK-input"}))
    store.decide("r", asked.deny("MARK-reason"))
    assert b"MARK" in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with pytest.raises(StoreError, match="cancel it before"):
        store.redact("r")
    store.cancel("r")
    getattr(store, how)("r")
    assert b"MARK" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [each.status for each in store.list()] == (["cancelled"] if how == "redact" else [])
    store.close()


# -- waiting, with nobody there ----------------------------------------------------------------------------------------------------


def test_what_is_deleted_while_another_reads_is_said_to_stand_in_the_log_and_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18."""
    monkeypatch.setattr(sqlite_file, "_WAIT_FOR_READERS_MS", 1)
    monkeypatch.setattr(sqlite_file, "_TRY_AGAIN_S", 0.0)
    store = SQLiteStore(tmp_path / "runs.db")
    for run_id in ("r", "other"):
        store.release(store.create(run_id, program="P", head=head(inputs={run_id: "t0p s3cret"})), status="done", head=head())

    def left() -> int:
        return sum(path.read_bytes().count(b"t0p s3cret") for path in tmp_path.iterdir())

    reader = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM runs").fetchone()
    with pytest.warns(RuntimeWarning, match=r"stands in the bytes of .*runs\.db-wal"):
        store.delete("r")
    assert left()
    store.cancel(store.create("third", program="P", head=head()).run_id)  # still read: tried, and no reason to say it again
    reader.execute("COMMIT")
    reader.close()
    store.cancel("third")
    assert not left()
    assert store._file._truncate_at is None
    store.close()


def test_a_run_that_waits_for_a_week_holds_no_lease_no_thread_and_no_memory(
    store: SQLiteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V1: a thousand of them; each is a row of the store and nothing else, and goes on seven days later."""
    another_machine(monkeypatch)
    for i in range(20):
        waiting(store, f"early{i}")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(1000):
            waiting(store, f"r{i}")
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 1000 * 400  # a tenth of what is allowed
    assert not store._file.leases
    clock.now += 7 * 86_400
    store.decide("r7", QUESTION.approve())
    taken = store.take("r7", after=0)
    assert (taken.status, len(taken.decisions)) == ("waiting", 1)
    assert len([each for each in store.list(status="waiting", limit=2000) if not each.leased]) == 1019


# -- files -------------------------------------------------------------------------------------------------------------------------


def test_a_file_is_a_write_ahead_log_that_is_on_disk_when_a_write_is_over(tmp_path: Path) -> None:
    """A3, R1: WAL, `synchronous=FULL` unless it is given up, and nothing that the SQLite of this Python does not have."""
    for full_sync, level in ((True, 2), (False, 1)):
        store = SQLiteStore(tmp_path / f"{level}.db", full_sync=full_sync)
        store.create("r", program="P", head=head())
        pragmas = ("journal_mode", "synchronous")
        found = [store._file.read(lambda db, each=each: db.execute(f"PRAGMA {each}").fetchone()[0]) for each in pragmas]
        assert found == ["wal", level]
        store.close()


def test_runs_are_kept_without_any_service_or_engine(tmp_path: Path) -> None:
    """R1: in a fresh process, from `import ferrule` to a run out of the file, no engine is imported, and no client of a service."""
    code = """
import sys
import ferrule
from ferrule import MemoryStore, ReAct, Run, ScriptedLM, SQLiteStore, context, tool

@tool(require_confirmation=True)
def pay() -> str:
    return "paid"

agent = ReAct("task -> answer", [pay])
for store in (SQLiteStore(), MemoryStore()):
    with context(lm=ScriptedLM([{"name": "pay", "args": {}}, {"name": "finish", "args": {"answer": "x"}}])):
        agent.start(task="t", store=store, run_id="r")
        run = Run.load(store, "r", agent)
        run.answer(run.pending[0].approve())
        assert run.resume().prediction.answer == "x"
    store.close()
heavy = {"dbos", "sqlalchemy", "psycopg", "psycopg2", "temporalio", "prefect", "redis", "pysqlite3", "httpx", "opentelemetry", "mcp"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    assert (tmp_path / "ferrule.db").exists()


def test_a_newer_schema_is_refused_by_its_number(tmp_path: Path) -> None:
    """R11: a file of a newer ferrule is not touched."""
    with sqlite3.connect(tmp_path / "runs.db") as db:
        db.execute("PRAGMA user_version=9")
    db.close()
    with pytest.raises(StoreError, match="has schema 9; this ferrule knows schemas up to 3"):
        SQLiteStore(tmp_path / "runs.db").list()


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    """A3: a clear error, and the file stays as it is."""
    path = tmp_path / "runs.db"
    path.write_text("not a database at all, but a letter to my aunt" * 50)
    with pytest.raises(StoreError, match=r"runs\.db' could not do its work: file is not a database"):
        SQLiteStore(path).list()


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """A3: the write that does not fit is undone as a whole, and said; when there is room again, the run goes on."""
    store = SQLiteStore(tmp_path / "runs.db")
    lease = store.create("r", program="P", head=head())
    store.append(lease, "kept")
    pages = store._file.read(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    store._file.read(lambda db: db.execute(f"PRAGMA max_page_count={pages}"))
    with pytest.raises(StoreError, match=r"full.*Nothing of it was written"):
        store.append(lease, "x" * 100_000)
    store._file.read(lambda db: db.execute("PRAGMA max_page_count=100000"))
    assert store.append(lease, "then")
    assert store.load("r").entries == ["kept", "then"]
    store.close()


def test_a_file_that_may_only_be_read_is_said_so(tmp_path: Path) -> None:
    """A3: clear, and nothing half done."""
    store = SQLiteStore(tmp_path / "runs.db")
    lease = store.create("r", program="P", head=head())
    store._file.read(lambda db: db.execute("PRAGMA query_only=ON"))
    with pytest.raises(StoreError, match="readonly"):
        store.append(lease, "x")
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_child_of_a_fork_writes_through_a_connection_of_its_own(tmp_path: Path) -> None:
    """A3: fork safe, although the parent holds the lock, a connection and a thread at that moment."""
    store = SQLiteStore(tmp_path / "runs.db")
    store.create("parent", program="P", head=head())
    mine = store._file._connection

    def fork(_: sqlite3.Connection) -> int:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                lease = store.create("child", program="P", head=head())
                code = 0 if asyncio.run(store.aappend(lease, "x")) and store._file._connection is not mine else 2
            finally:
                os._exit(code)
        return pid

    pid = store._file.read(fork)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert {each.id for each in store.list()} == {"parent", "child"}
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_until_no_thread_is_inside_sqlite(tmp_path: Path) -> None:
    """A3: else the child would find a lock of SQLite's own taken, and hang (six of seventeen forks did)."""
    store, stop = SQLiteStore(tmp_path / "runs.db"), threading.Event()

    def write(name: str) -> None:
        other = SQLiteStore(tmp_path / f"{name}.db")
        for at in itertools.count():
            other.create(f"r{at}", program="P", head=head())
            other._file.close()  # the next use opens it again
            time.sleep(0.001)
            if stop.is_set():
                return

    def drop(name: str) -> None:
        while not stop.is_set():
            file = sqlite_file.SQLiteFile(str(tmp_path / f"{name}.db"), full_sync=False)
            file.read(lambda _: None)
            del file  # closes it
            time.sleep(0.001)

    threads = [threading.Thread(target=work, args=(name,)) for name, work in (("a", write), ("b", write), ("c", drop), ("d", drop))]
    for each in threads:
        each.start()
    codes: list[int] = []
    try:
        for at in range(12):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                try:
                    store.create(f"child {at}", program="P", head=head())
                    os._exit(0)
                finally:
                    os._exit(1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert codes == [0] * 12
    store.close()


def test_what_stands_in_the_entries_before_is_not_read_to_write_one(tmp_path: Path) -> None:
    """F5: the place of an entry is found by a whole number, however large the rows are."""
    explain = f"EXPLAIN QUERY PLAN {INSERT}"
    plan = SQLiteStore(tmp_path / "runs.db")._file.read(lambda db: [row[-1] for row in db.execute(explain, (0, 0, 1, "{}", 0.0))])
    assert [line for line in plan if "entries" in line] == ["SEARCH entries USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]


def test_runs_beside_one_another_keep_their_entries_apart(store: Any) -> None:
    """A3: also where one between them is deleted."""
    leases = [store.create(name, program="P", head=head()) for name in "abc"]
    for at in range(3):
        for lease in leases:
            store.append(lease, f"{lease.run_id}{at}")
    store.delete("b")
    new = store.create("d", program="P", head=head())
    store.append(new, "d0")
    assert {name: store.load(name).entries for name in "acd"} == {"a": ["a0", "a1", "a2"], "c": ["c0", "c1", "c2"], "d": ["d0"]}


def test_a_run_cancelled_at_work_leaves_no_decision_behind(store: SQLiteStore) -> None:
    """R15: as one that was cancelled at rest."""
    waiting(store)
    store.decide("r", QUESTION.approve())
    taken = store.take("r", after=0)
    assert taken.lease is not None
    store.release(taken.lease, status="cancelled", head=head())
    assert store.load("r").decisions == []


def test_the_same_decision_twice_is_one_whatever_it_was_made_of(store: SQLiteStore) -> None:
    """U89: also where JSON has another word for what is in it."""
    waiting(store)
    for _ in range(2):
        store.decide("r", QUESTION.approve(euros=(1, 2)))
    assert len(store.load("r").decisions) == 1


# -- interrupts and stores that are not closed -------------------------------------------------------------------------------------


def test_an_interrupt_while_the_write_lock_is_awaited_leaves_no_transaction_open(tmp_path: Path) -> None:
    """A15: SQLite hears of Ctrl-C when it has the lock; the handler runs after `BEGIN`, and before anything else."""
    store = SQLiteStore(tmp_path / "runs.db")
    lease = store.create("r", program="P", head=head())
    other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        other.execute("ROLLBACK")

    timer = threading.Timer(0.2, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        store.append(lease, "x")
    timer.join()
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()
    assert store.append(lease, "y")
    assert store.load("r").entries == ["y"]
    store.close()


def test_what_stands_open_all_the_same_is_undone_before_the_next_work(store: SQLiteStore) -> None:
    """A15: whatever left it there."""
    lease = store.create("r", program="P", head=head())
    connection = store._file._connection
    assert connection is not None
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM runs")
    assert store.append(lease, "x")
    assert store.load("r").entries == ["x"]


def test_a_lease_whose_holder_is_gone_is_taken_at_once_and_is_no_crash(store: SQLiteStore) -> None:
    """A15: an execution that was interrupted has no lease object any more."""
    lease = store.create("r", program="P", head=head())
    with pytest.raises(StoreError, match=r"^This process is at work on the run 'r' .*in another `Run`"):
        store.take("r", after=0)
    del lease
    assert store.take("r", after=0).lease is not None
    assert store.list()[0].recoveries == 0


def test_stores_of_one_path_share_a_connection_and_a_thread(tmp_path: Path) -> None:
    """V1: one store for each request; ten thousand of them hold no more than one does."""
    stores = [SQLiteStore(tmp_path / "runs.db") for _ in range(50)]
    leases = [each.create(f"r{i}", program="P", head=head()) for i, each in enumerate(stores)]
    assert len({id(each._file) for each in stores}) == 1
    stores[0].close()
    for each, lease in zip(stores, leases, strict=True):
        assert each.append(lease, "x")
        each.release(lease, status="done", head=head())
    for each in stores:
        each.close()
    assert stores[0].load("r7").entries == ["x"]


def test_a_store_that_is_forgotten_is_closed(tmp_path: Path) -> None:
    """V1: without `close`; its thread ends by itself, and does not hold it meanwhile."""
    store = SQLiteStore(tmp_path / "runs.db")
    store.release(store.create("r", program="P", head=head()), status="done", head=head())
    file, thread = ref(store._file), store._file.thread._thread
    del store
    if thread is not None:
        thread.join(60)
    assert file() is None


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="handles are counted in /proc")
@pytest.mark.parametrize("is_one_path", [True, False], ids=["one path", "a path each"])
def test_hundreds_of_stores_that_are_opened_and_dropped_leave_no_handle_and_no_thread(tmp_path: Path, is_one_path: bool) -> None:
    """V1: 600 stores, more than 1,024 handles would hold."""

    def counted() -> tuple[int, int]:
        gc.collect()
        handles: list[str] = []
        for each in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the one that reads the folder
                handles.append(str(each.readlink()))
        threads = [each for each in threading.enumerate() if each.name == "ferrule-store"]
        return sum(str(tmp_path) in each for each in handles), len(threads)

    _, threads_before = counted()
    for i in range(600):
        store = SQLiteStore(tmp_path / ("runs.db" if is_one_path else f"runs{i % 60}.db"), full_sync=False)
        store.release(store.create(f"r{i}", program="P", head=head()), status="done", head=head())
        del store
    deadline = time.monotonic() + 60
    while (found := counted())[0] or found[1] > threads_before:
        assert time.monotonic() < deadline, f"{found[0]} handles and {found[1]} threads are left"
        time.sleep(0.05)


def test_a_file_that_was_deleted_and_made_anew_is_another_one(tmp_path: Path) -> None:
    """A3: a store that is still open on the deleted one writes nothing into the new one, and the reverse."""
    first = SQLiteStore(tmp_path / "runs.db")
    first.list()
    for path in tmp_path.iterdir():
        path.unlink()
    second = SQLiteStore(tmp_path / "runs.db")
    second.release(second.create("r", program="P", head=head()), status="done", head=head())
    assert first.list() == []
    assert (tmp_path / "runs.db").exists()
    assert [each.id for each in second.list()] == ["r"]
    first.close()
    second.close()


def test_a_file_that_was_never_used_is_closed_without_being_made(tmp_path: Path) -> None:
    """Ours."""
    file = sqlite_file.SQLiteFile(str(tmp_path / "runs.db"), full_sync=True)
    file.close()
    assert list(tmp_path.iterdir()) == []


def test_one_run_is_summarised_as_in_the_list(store: SQLiteStore) -> None:
    """W10: a page of one run does not read the others."""
    waiting(store, "a")
    waiting(store, "b")
    store.decide("b", QUESTION.approve())
    assert [store.summary("b"), store.summary("a")] == sorted(store.list(), key=lambda each: each.id, reverse=True)
    with pytest.raises(StoreError, match="has no run 'c'"):
        store.summary("c")


def test_a_change_by_any_connection_is_seen_as_another_number_and_reading_is_not(store: SQLiteStore) -> None:
    """W3: what a page polls."""
    seen = [store.changes()]

    def changed(change: Any) -> bool:
        change()
        seen.append(store.changes())
        return seen[-1] != seen[-2]

    assert changed(lambda: waiting(store))
    assert not changed(store.list)
    assert not changed(lambda: store.load("r"))
    assert changed(lambda: store.decide("r", QUESTION.approve()))
    assert changed(lambda: store.cancel("r"))
    assert not changed(lambda: None)


@pytest.mark.parametrize("full_sync", [True, False])
def test_a_change_by_another_process_is_seen(tmp_path: Path, full_sync: bool) -> None:
    """W3."""
    store = SQLiteStore(tmp_path / "runs.db", full_sync=full_sync)
    before = store.changes()
    program = f"from ferrule import SQLiteStore; SQLiteStore({store.path!r}).create('r', program='p', head='{{}}')"
    subprocess.run([sys.executable, "-c", program], check=True)
    after = store.changes()
    assert after != before
    store.close()
    assert isinstance(store.changes(), int), "a closed store opens again"
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_child_of_a_fork_watches_through_a_connection_of_its_own(tmp_path: Path) -> None:
    """W3."""
    store = SQLiteStore(tmp_path / "runs.db")
    store.changes()
    pid = os.fork()
    if pid == 0:
        before = store.changes()
        store.create("r", program="p", head="{}")
        os._exit(0 if store.changes() != before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.close()
