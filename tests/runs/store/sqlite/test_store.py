"""The store by hand: leases and fences, decisions, lists, and what is forgotten.

In a file and in memory alike.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import json
import math
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ferrule.runs.store.sqlite.store as module
from ferrule import ReAct, Tool, context
from ferrule.approval.question import Question
from ferrule.errors import ConfigurationError, DecisionError, FerruleError, StoreError
from ferrule.forms import record_form
from ferrule.runs.protocols import Lease
from ferrule.runs.store.postgres.store import PostgresStore
from ferrule.runs.store.sqlite import batch
from ferrule.runs.store.sqlite import file as sqlite_file
from ferrule.runs.store.sqlite.batch import APPEND_ONE, Append
from ferrule.runs.store.sqlite.file import SQLiteFile, _Connection
from ferrule.runs.store.sqlite.store import MemoryStore, SQLiteStore
from ferrule.runs.store.sqlite.writer_thread import WriterThread
from ferrule.testing import ScriptedLM
from ferrule.values.calls.call import ToolCall

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
    made = (
        MemoryStore(clock=clock)
        if request.param == "memory"
        else SQLiteStore(tmp_path / "runs.db", clock=clock)
    )
    yield made
    made.close()


def head(*questions: Question, error: Any = None, **more: Any) -> str:
    return json.dumps(
        {
            "questions": [record_form(each) for each in questions],
            "error": error,
            "answers": [],
            **more,
        },
    )


def waiting(store: SQLiteStore, run_id: str = "r") -> None:
    store.release(
        store.create(run_id, program="P", head=head()),
        status="waiting",
        head=head(QUESTION),
    )


def appended(
    lease: Lease,
    text: str,
    *,
    starts: bool = False,
    consumes: str | None = None,
) -> Append:
    return Append(lease, text, starts, consumes, 0.0)


def another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (module, batch):
        monkeypatch.setattr(each, "owner_name", lambda: "elsewhere pid 1")


# -- leases


def test_a_lease_is_renewed_while_the_process_lives(
    store: SQLiteStore,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tool may run longer than a lease."""
    lease = store.create("r", program="P", head=head())
    clock.now += 20
    left = store._file.leases.left()
    batch.tend(store._file, store._file.leases.held(), left)
    clock.now += 20
    another_machine(monkeypatch)
    with pytest.raises(StoreError, match="Another process is at work"):
        store.take("r", after=0)
    del lease


def test_a_lease_that_could_not_be_given_back_is_taken_over_by_its_own_process(
    store: SQLiteStore,
) -> None:
    """Nobody is at work under it, and nobody crashed."""
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


class Busy:
    """A store whose file another thread keeps busy, and threads that write to it meanwhile."""

    def __init__(self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self._go, self._put = store, threading.Event(), threading.Semaphore(0)
        self.transactions = 0
        write, put = SQLiteFile.write, WriterThread._put

        def counted(file: SQLiteFile, work: Any) -> Any:
            self.transactions += (
                file is store._file
            )  # threads of earlier tests may still give leases back
            return write(file, work)

        def told(*given: Any) -> None:
            put(*given)
            self._put.release()

        monkeypatch.setattr(SQLiteFile, "write", counted)
        monkeypatch.setattr(WriterThread, "_put", told)

    def __call__(self, *works: Any) -> list[Any]:
        """Do the works, each in a thread of its own, once all of them wait for the file; the result
        or error of each.
        """
        held = threading.Event()
        holder = threading.Thread(
            target=self.store._file.read,
            args=(lambda _: (held.set(), self._go.wait(60)),),
        )
        holder.start()
        assert held.wait(60)
        with ThreadPoolExecutor(len(works)) as pool:
            doing = [pool.submit(each) for each in works]
            for _ in works:
                self.wait_for_one()
            self._go.set()
            found = [each.exception(60) or each.result() for each in doing]
        holder.join(60)
        return found

    def wait_for_one(self) -> None:
        """Until one more write waits for the file."""
        assert self._put.acquire(timeout=60)


def test_what_many_threads_write_while_the_file_is_busy_is_committed_together(
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit waits for the disk, so threads that wait for one commit share the next."""
    leases = [store.create(f"r{i}", program="P", head=head()) for i in range(10)]
    busy = Busy(store, monkeypatch)
    works = [partial(store.append, lease, "x") for lease in leases]
    works += [partial(store.create, f"s{i}", program="P", head=head()) for i in range(10)]
    found = busy(*works)
    assert found[:10] == [True] * 10
    assert [lease.run_id for lease in found[10:]] == [f"s{i}" for i in range(10)]
    assert busy.transactions <= 2  # the thread takes the first that comes, then the others
    assert [store.load(f"r{i}").entries for i in range(10)] == [["x"]] * 10


def test_what_is_refused_among_the_writes_of_others_is_refused_alone(
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lost lease, an id that exists."""
    lease = store.create("r", program="P", head=head())
    lost = Lease("r", lease.token + 1)
    busy = Busy(store, monkeypatch)
    good, bad, twice = busy(
        partial(store.append, lease, "x"),
        partial(store.append, lost, "y"),
        partial(store.create, "r", program="P", head=head()),
    )
    assert good is True
    assert isinstance(bad, StoreError)
    assert "already" in str(twice)
    assert store.load("r").entries == ["x"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda store: store.score("e", {"r": None}), AttributeError),
        (lambda store: store.delete("caf\udce9"), StoreError),
        (lambda store: store.append(Lease("r", 1), "\ud800"), UnicodeEncodeError),
    ],
    ids=["type", "id", "entry"],
)
def test_a_wrong_argument_among_the_writes_of_others_fails_alone(
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Any,
    error: type[Exception],
) -> None:
    """No run fails by the fault of another caller."""
    leases = [store.create(name, program="P", head=head()) for name in ("r", "s")]
    busy = Busy(store, monkeypatch)
    bad, *good = busy(partial(wrong, store), *(partial(store.append, each, "x") for each in leases))
    assert isinstance(bad, error)
    assert good == [True, True]
    assert [store.load(each.run_id).entries for each in leases] == [["x"], ["x"]]


@pytest.mark.parametrize(
    "error",
    [DecisionError("after all not"), sqlite3.DataError("string or blob too big")],
    ids=["refused", "failed"],
)
def test_what_wrote_before_it_failed_is_undone_and_the_others_are_written(
    store: SQLiteStore,
    error: Exception,
) -> None:
    """No half of a write is ever committed, and no run fails by the fault of another."""
    lease = store.create("r", program="P", head=head())

    def half(db: sqlite3.Connection) -> None:
        db.execute("UPDATE ferrule_runs SET status = 'done'")
        raise error

    first, failed, last = batch.write_all(
        store._file,
        [appended(lease, "x"), half, appended(lease, "y")],
    )
    assert (first, last) == (True, True)
    assert str(error) in str(failed)
    assert (store.load("r").entries, store.load("r").status) == (["x", "y"], "running")


def test_an_error_whose_message_is_not_text_is_a_store_error_for_its_caller_alone(
    store: SQLiteStore,
) -> None:
    """Python raises it in place of SQLite's error, which quotes bytes of a damaged file."""
    lease = store.create("r", program="P", head=head())

    def quoting(_: sqlite3.Connection) -> None:
        b"\x80".decode()

    failed, written = batch.write_all(store._file, [quoting, appended(lease, "x")])
    assert isinstance(failed, StoreError)
    assert "The file is damaged" in str(failed)
    assert written is True


@pytest.mark.parametrize("beside", ["alone", "beside others"])
def test_entries_of_many_runs_are_written_by_one_statement(store: SQLiteStore, beside: str) -> None:
    """Each statement gives Python's lock away, and a thread that computes may keep it for 5 ms."""
    leases = [store.create(f"r{k}", program="P", head=head()) for k in range(100)]
    said: list[str] = []
    store._file.read(lambda db: db.set_trace_callback(lambda sql: said.append(sql.split()[0])))
    others: list[Any] = [lambda db: db.execute("SELECT 1").fetchone()] if beside != "alone" else []
    entries = [appended(each, f"{k}") for k in range(3) for each in leases]
    assert batch.write_all(store._file, [*entries, *others])[:300] == [True] * 300
    store._file.read(lambda db: db.set_trace_callback(None))
    assert said.count("INSERT") == 1
    assert [store.load(each.run_id).entries for each in leases] == [["0", "1", "2"]] * 100


def test_a_batch_that_cannot_begin_fails_at_once_for_all(
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process may hold the lock, and each attempt waits ten seconds for it."""
    attempts: list[Any] = []
    write = SQLiteFile.write

    def locked(file: SQLiteFile, work: Any) -> Any:
        if (
            file is not store._file
        ):  # a thread that a former test left may renew the lease of a run in its own file
            return write(file, work)
        attempts.append(work)
        raise StoreError("database is locked")

    monkeypatch.setattr(SQLiteFile, "write", locked)
    with pytest.raises(StoreError, match="database is locked"):
        batch.write_all(store._file, [lambda _: None] * 3)
    assert len(attempts) == 1


def test_a_large_statement_needs_no_folder_for_temporary_files(store: SQLiteStore) -> None:
    """That may be full, or read-only in a container; and text that is to be deleted may not lie
    there.
    """
    assert store._file.read(lambda db: db.execute("PRAGMA temp_store").fetchone()) == (2,)


class Piece(NamedTuple):
    """What one of many callers wants to be written."""

    run: int
    kind: str

    def work(self, lease: Lease, text: str) -> Callable[[sqlite3.Connection], Any]:
        def fails(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO ferrule_decisions VALUES ('none', ?, '{}', 0, FALSE)", (text,))
            raise DecisionError("after all not")

        if self.kind == "fails":
            return fails
        if self.kind == "another":
            return lambda db: (
                db.execute(
                    "UPDATE ferrule_runs SET head = ? WHERE id = ?", (text, lease.run_id)
                ).rowcount
            )
        long = text * 5000 if self.kind == "too large" else text
        return appended(
            lease,
            long,
            starts=self.kind == "starts",
            consumes="q" if self.kind == "consumes" else None,
        )


KINDS = ("entry", "starts", "consumes", "another", "fails", "too large")
PIECES = st.builds(Piece, st.integers(0, 4), st.sampled_from(KINDS))


TABLES = (
    "place, entry FROM ferrule_entries ORDER BY place",
    "id, head, cancelled FROM ferrule_runs",
    "* FROM ferrule_decisions",
)
STATES = {
    "here": "id = id",
    "cancelled": "cancelled = TRUE",
    "lost": "owner = 'elsewhere pid 1'",
    "gone": "id = id || ' gone'",
}


@given(
    st.lists(PIECES, min_size=1, max_size=9),
    st.lists(st.sampled_from([*STATES]), min_size=5, max_size=5),
)
def test_what_is_written_for_many_ends_as_if_each_was_alone(
    pieces: list[Piece],
    runs: list[str],
) -> None:
    """Whether they share a statement, a transaction or nothing."""
    found: list[Any] = []
    for one_by_one in (True, False):
        store = MemoryStore()
        file = store._file
        leases = [store.create(f"r{k}", program="P", head=head()) for k in range(5)]
        file.write(
            lambda db: [
                db.execute(f"UPDATE ferrule_runs SET {STATES[each]} WHERE id = ?", (f"r{k}",))
                for k, each in enumerate(runs)
            ],
        )
        limit = file.read(lambda db: db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4000))
        works = [each.work(leases[each.run], f"{k}") for k, each in enumerate(pieces)]
        answers: list[Any] = []
        for group in [[each] for each in works] if one_by_one else [works]:
            try:
                answers += batch.write_all(file, group)
            except FerruleError as error:
                answers.append(error)
        file.read(lambda db, to=limit: db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, to))
        entries, heads, decisions = file.read(
            lambda db: [db.execute(f"SELECT {each}").fetchall() for each in TABLES],
        )
        for no, group in itertools.groupby(
            (place for place, _ in entries),
            key=lambda place: place >> 32,
        ):
            places = [*group]
            assert places == [*range(no << 32, (no << 32) + len(places))]
        assert decisions == []
        found.append(
            (
                [str(each) for each in answers],
                sorted((place >> 32, entry) for place, entry in entries),
                heads,
            ),
        )
        store.close()
    assert found[0] == found[1]


def test_a_transaction_writes_its_own_entries_though_others_wait(
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that writes for others waits for this transaction; it must not wait for that
    thread.
    """
    lease, other = (store.create(run_id, program="P", head=head()) for run_id in "rs")
    busy = Busy(store, monkeypatch)
    waiting = [
        threading.Thread(target=store.append, args=(other, str(k)), daemon=True) for k in range(3)
    ]

    def work(_: sqlite3.Connection) -> None:
        for each in waiting:
            each.start()
            busy.wait_for_one()  # the thread that writes has taken the first and waits for the file: the others stand in its queue
        store.append(lease, "x")

    threads = [threading.Thread(target=store.transact, args=(lease, work), daemon=True), *waiting]
    threads[0].start()
    for each in threads:
        each.join(60)
        assert not each.is_alive()
    assert store.load("r").entries == ["x"]
    assert sorted(store.load("s").entries) == ["0", "1", "2"]


def test_the_main_thread_writes_by_itself(
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C reaches it alone, and then an entry is on disk or will never be."""
    lease = store.create("r", program="P", head=head())
    monkeypatch.setattr(SQLiteFile, "is_busy", True)
    monkeypatch.setattr(WriterThread, "wait", None)
    assert store.append(lease, "x")


# -- cancelling


# -- decisions


# -- lists, forgetting


@pytest.mark.parametrize("how", ["delete", "redact"])
def test_what_is_forgotten_is_gone_from_the_file(how: str, tmp_path: Path) -> None:
    """Inputs, arguments and results, also from the bytes of the file and its log."""
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


# -- waiting, with nobody there


def test_what_is_deleted_while_another_reads_is_said_to_stand_in_the_log_and_goes_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite_file, "_WAIT_FOR_READERS_MS", 1)
    monkeypatch.setattr(sqlite_file, "_TRY_AGAIN_S", 0.0)
    store = SQLiteStore(tmp_path / "runs.db")
    for run_id in ("r", "other"):
        store.release(
            store.create(run_id, program="P", head=head(inputs={run_id: "t0p s3cret"})),
            status="done",
            head=head(),
        )

    def left() -> int:
        return sum(path.read_bytes().count(b"t0p s3cret") for path in tmp_path.iterdir())

    reader = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM ferrule_runs").fetchone()
    with pytest.warns(RuntimeWarning, match=r"stays in the bytes of .*runs\.db-wal"):
        store.delete("r")
    assert left()
    store.cancel(
        store.create("third", program="P", head=head()).run_id,
    )  # still read: tried, and no reason to say it again
    reader.execute("COMMIT")
    reader.close()
    store.cancel("third")
    assert not left()
    assert store._file._truncate_at is None
    store.close()


def test_a_run_that_waits_for_a_week_holds_no_lease_no_thread_and_no_memory(
    store: SQLiteStore,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of them; each is a row of the store and nothing else, and goes on seven days
    later.
    """
    another_machine(monkeypatch)
    for i in range(20):
        waiting(store, f"early{i}")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(300):
            waiting(store, f"r{i}")
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 300 * 400  # a tenth of what is allowed
    assert not store._file.leases
    clock.now += 7 * 86_400
    store.decide("r7", QUESTION.approve())
    taken = store.take("r7", after=0)
    assert (taken.status, len(taken.decisions)) == ("waiting", 1)
    assert (
        len([each for each in store.list(status="waiting", limit=2000) if not each.leased]) == 319
    )


# -- files


def test_a_file_is_a_write_ahead_log_that_is_on_disk_when_a_write_is_over(tmp_path: Path) -> None:
    """WAL, `synchronous=FULL` unless it is given up, and nothing that the SQLite of this Python
    does not have.
    """
    for full_sync, level in ((True, 2), (False, 1)):  # and on macOS through the disk's own cache
        store = SQLiteStore(tmp_path / f"{level}.db", full_sync=full_sync)
        store.create("r", program="P", head=head())
        pragmas = ("journal_mode", "synchronous", "fullfsync")
        found = [
            store._file.read(lambda db, each=each: db.execute(f"PRAGMA {each}").fetchone()[0])
            for each in pragmas
        ]
        assert found == ["wal", level, full_sync]
        store.close()


def test_runs_are_kept_without_any_service_or_engine(tmp_path: Path) -> None:
    """In a fresh process, from `import ferrule` to a run out of the file, no engine is imported,
    and no client of a service.
    """
    code = """
import sys
import ferrule
from ferrule import DBOSEngine, MemoryStore, PostgresStore, ReAct, Run, SQLiteStore, context, tool
from ferrule.testing import ScriptedLM

DBOSEngine(worker_concurrency=2)

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
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[]\n"
    assert (tmp_path / "ferrule.db").exists()


def test_several_processes_create_one_file_at_once(tmp_path: Path) -> None:
    """SQLite does not wait when it makes a file a write-ahead log, and said at once that the
    database is locked.
    """
    path, code = (
        tmp_path / "runs.db",
        "import sys\nfrom ferrule import SQLiteStore\nSQLiteStore(sys.argv[1]).list()",
    )
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("CREATE TABLE t (x)")
    blocker.execute("BEGIN EXCLUSIVE")
    with subprocess.Popen(
        [sys.executable, "-c", code, path],
        stderr=subprocess.PIPE,
        text=True,
    ) as other:
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.5)
        blocker.execute("COMMIT")
        assert other.communicate(timeout=60)[1] == ""
    blocker.close()


@pytest.mark.parametrize("path", [None, 5, "a\0b.db"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    """An environment variable that is not set made a file named `None`."""
    with pytest.raises(ConfigurationError, match="path"):
        SQLiteStore(path)


@pytest.mark.parametrize(
    "wrong",
    [{"lease_s": each} for each in (0, -1, "30", True, math.nan, math.inf)]
    + [{"max_recoveries": each} for each in (-1, "5", 1.5)],
)
@pytest.mark.parametrize("kind", [SQLiteStore, MemoryStore, PostgresStore])
def test_a_store_that_could_keep_no_lease_is_refused(
    kind: Any,
    wrong: dict[str, Any],
    tmp_path: Path,
) -> None:
    """With a lease of 0 seconds, any process took the run of a living one."""
    place = {
        SQLiteStore: (tmp_path / "runs.db",),
        PostgresStore: ("postgresql://localhost/x",),
        MemoryStore: (),
    }[kind]
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        kind(*place, **wrong)


def test_another_schema_is_refused_by_its_number(tmp_path: Path) -> None:
    """A file of a newer ferrule is not touched."""
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
        db.execute("PRAGMA user_version=9")
    with pytest.raises(StoreError, match="has schema 9; this ferrule reads schema 2"):
        SQLiteStore(tmp_path / "runs.db").list()


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    """A clear error, and the file stays as it is."""
    path = tmp_path / "runs.db"
    path.write_text("not a database at all, but a letter to my aunt" * 50)
    with pytest.raises(StoreError, match=r"runs\.db' failed: file is not a database"):
        SQLiteStore(path).list()


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """The write that does not fit is undone as a whole, and said; when there is room again, the run
    goes on.
    """
    store = SQLiteStore(tmp_path / "runs.db")
    lease = store.create("r", program="P", head=head())
    store.append(lease, "kept")
    pages = store._file.read(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    store._file.read(lambda db: db.execute(f"PRAGMA max_page_count={pages}"))
    with pytest.raises(StoreError, match=r"full.*Nothing was written"):
        store.append(lease, "x" * 100_000)
    store._file.read(lambda db: db.execute("PRAGMA max_page_count=100000"))
    assert store.append(lease, "then")
    assert store.load("r").entries == ["kept", "then"]
    store.close()


def test_a_file_that_may_only_be_read_is_said_so(tmp_path: Path) -> None:
    """Clear, and nothing half done."""
    store = SQLiteStore(tmp_path / "runs.db")
    lease = store.create("r", program="P", head=head())
    store._file.read(lambda db: db.execute("PRAGMA query_only=ON"))
    with pytest.raises(StoreError, match="readonly"):
        store.append(lease, "x")
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_child_of_a_fork_writes_through_a_connection_of_its_own(tmp_path: Path) -> None:
    """Fork safe, although the parent holds the lock, a connection and a thread at that moment."""
    store = SQLiteStore(tmp_path / "runs.db")
    store.create("parent", program="P", head=head())
    mine = store._file._connection

    def fork(_: sqlite3.Connection) -> int:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                lease = store.create("child", program="P", head=head())
                code = (
                    0
                    if asyncio.run(store.aappend(lease, "x"))
                    and store._file._connection is not mine
                    else 2
                )
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
    """Else the child would find a lock of SQLite's own taken, and hang (six of seventeen forks
    did).
    """
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

    threads = [
        threading.Thread(target=work, args=(name,))
        for name, work in (("a", write), ("b", write), ("c", drop), ("d", drop))
    ]
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
    """The place of an entry is found by a whole number, however large the rows are."""
    explain = f"EXPLAIN QUERY PLAN {APPEND_ONE}"
    plan = SQLiteStore(tmp_path / "runs.db")._file.read(
        lambda db: [row[-1] for row in db.execute(explain, ("r", 1, "me", False, 0, "{}", 0.0))],
    )
    assert [line for line in plan if "entries" in line] == [
        "SEARCH ferrule_entries USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    ]


# -- interrupts and stores that are not closed


@pytest.mark.parametrize("what", ["an entry", "a head"])
def test_an_interrupt_while_the_write_lock_is_awaited_leaves_no_transaction_open(
    tmp_path: Path,
    what: str,
) -> None:
    """SQLite hears of Ctrl-C when it has the lock; the handler runs after `BEGIN`, or after the one
    statement that writes an entry.
    """
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
        store.append(lease, "x") if what == "an entry" else store.note(lease, head(error="new"))
    timer.join()
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()
    assert store.append(lease, "y")
    assert store.load("r").entries == (["x", "y"] if what == "an entry" else ["y"])
    assert store.load("r").head == head()
    store.close()


def test_what_stands_open_all_the_same_is_undone_before_the_next_work(store: SQLiteStore) -> None:
    """Whatever left it there."""
    lease = store.create("r", program="P", head=head())
    connection = store._file._connection
    assert connection is not None
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM ferrule_runs")
    assert store.append(lease, "x")
    assert store.load("r").entries == ["x"]


def test_stores_of_one_path_share_a_connection_and_a_thread(tmp_path: Path) -> None:
    """One store for each request; ten thousand of them hold no more than one does."""
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
    """Without `close`; its thread ends by itself, and does not hold it meanwhile."""
    store = SQLiteStore(tmp_path / "runs.db")
    store.release(store.create("r", program="P", head=head()), status="done", head=head())
    file, thread = ref(store._file), store._file.thread._thread
    del store
    if thread is not None:
        thread.join(60)
    assert file() is None


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="handles are counted in /proc")
@pytest.mark.parametrize("is_one_path", [True, False], ids=["one path", "a path each"])
def test_hundreds_of_stores_that_are_opened_and_dropped_leave_no_handle_and_no_thread(
    tmp_path: Path,
    is_one_path: bool,
) -> None:
    """200 stores, each with three handles while it is open."""

    def counted() -> tuple[int, int]:
        handles: list[str] = []
        for each in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the one that reads the folder
                handles.append(str(each.readlink()))
        threads = [each for each in threading.enumerate() if each.name == "ferrule-store"]
        return sum(str(tmp_path) in each for each in handles), len(threads)

    _, threads_before = counted()
    for i in range(200):
        store = SQLiteStore(
            tmp_path / ("runs.db" if is_one_path else f"runs{i % 20}.db"),
            full_sync=False,
        )
        store.release(store.create(f"r{i}", program="P", head=head()), status="done", head=head())
        del store
    gc.collect()
    left, since = counted(), time.monotonic()
    while left[0] or left[1] > threads_before:
        assert time.monotonic() < since + 60, (
            f"{left[0]} handles and {left[1]} threads are left, and stay"
        )
        time.sleep(0.05)
        if (found := counted()) != left:
            left, since = found, time.monotonic()


WORKS_AT_THE_END = """
import sys, threading, time
from ferrule import SQLiteStore
store = SQLiteStore(sys.argv[1])
store.list()
COUNT = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000000) SELECT count(*) FROM n"
inside = threading.Event()
threading.Thread(target=store._file.write, args=(lambda db: (inside.set(), db.execute(COUNT), db.execute(COUNT)),), daemon=True).start()
inside.wait()
time.sleep(0.1)
"""


def test_a_process_ends_well_while_a_thread_is_inside_sqlite(tmp_path: Path) -> None:
    """To close a connection that another thread uses is a segmentation fault."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", WORKS_AT_THE_END, tmp_path / "runs.db"], check=True)


def test_a_file_that_was_deleted_and_made_anew_is_another_one(tmp_path: Path) -> None:
    """A store that is still open on the deleted one writes nothing into the new one, and the
    reverse.
    """
    first = SQLiteStore(tmp_path / "runs.db")
    first.list()
    for path in tmp_path.iterdir():
        path.unlink()
    second = SQLiteStore(tmp_path / "runs.db")
    second.release(second.create("r", program="P", head=head()), status="done", head=head())
    for use in (first.list, first.changes, lambda: first.create("s", program="P", head=head())):
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            use()
    assert (tmp_path / "runs.db").exists()
    assert [each.id for each in second.list()] == ["r"]
    first.close()
    second.close()


def test_a_run_whose_file_was_deleted_is_told_at_an_entry_soon_after_or_at_its_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries that follow each other within a moment do not look for the file each time."""
    store, now = SQLiteStore(tmp_path / "runs.db"), time.monotonic()
    monkeypatch.setattr(sqlite_file, "monotonic", lambda: now)
    lease = store.create("r", program="P", head=head())
    for path in tmp_path.iterdir():
        path.unlink()
    store.append(lease, "x")
    with pytest.raises(StoreError, match="deleted, moved or replaced"):
        store.release(lease, status="done", head=head())
    for _ in range(2):
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            store.append(lease, "y")
    second = SQLiteStore(tmp_path / "runs.db")
    lease = second.create("r", program="P", head=head())
    for path in tmp_path.iterdir():
        path.unlink()
    now += 1
    with pytest.raises(StoreError, match="deleted, moved or replaced"):
        second.append(lease, "x")
    store.close()
    second.close()


def test_a_file_that_was_moved_works_again_once_it_is_back(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    store.release(store.create("r", program="P", head=head()), status="done", head=head())
    aside = tmp_path / "aside"
    aside.mkdir()
    for path in tmp_path.glob("runs.db*"):
        path.rename(aside / path.name)
    with pytest.raises(StoreError, match="Put the file back, or start this process again"):
        store.summary("r")
    for path in aside.iterdir():
        path.rename(tmp_path / path.name)
    assert store.summary("r").status == "done"
    store.close()


@pytest.mark.parametrize(
    "make",
    [lambda path: SQLiteStore(path / "runs.db"), lambda _: MemoryStore()],
    ids=["file", "memory"],
)
def test_a_store_is_a_block_that_closes_it(
    make: Callable[[Path], SQLiteStore],
    tmp_path: Path,
) -> None:
    with make(tmp_path) as store:
        assert not store.list()
        assert "_file" in vars(store)
    assert "_file" not in vars(store)


def test_a_file_that_was_never_used_is_closed_without_being_made(tmp_path: Path) -> None:
    file = sqlite_file.SQLiteFile(str(tmp_path / "runs.db"), full_sync=True)
    file.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("full_sync", [True, False])
def test_a_change_by_another_process_is_seen(tmp_path: Path, full_sync: bool) -> None:
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
    store = SQLiteStore(tmp_path / "runs.db")
    store.changes()
    pid = os.fork()
    if pid == 0:
        before = store.changes()
        store.create("r", program="p", head="{}")
        os._exit(0 if store.changes() != before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.close()


def test_a_store_that_only_reads_sees_others_writes_and_refuses_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a b#?.db"
    with pytest.raises(StoreError, match="unable to open"):
        SQLiteStore(path, read_only=True).list()
    assert not path.exists()
    writer, reader = SQLiteStore(path), SQLiteStore(path, read_only=True)
    lease = writer.create("x", program="P", head="{}")
    before = reader.changes()
    assert [each.id for each in reader.list()] == ["x"]
    writer.append(lease, "an entry")
    assert reader.changes() != before
    assert reader.load("x").entries == ["an entry"]
    for write in (
        lambda: reader.cancel("x"),
        lambda: reader.delete("x"),
        lambda: reader.create("y", program="P", head="{}"),
    ):
        with pytest.raises(StoreError, match="readonly"):
            write()
    reader.close()
    writer.close()


def test_a_store_that_only_reads_makes_no_tables_in_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    with pytest.raises(StoreError, match="holds no runs yet"):
        SQLiteStore(path, read_only=True).list()
    assert path.stat().st_size == 0


@pytest.mark.parametrize(
    "damage",
    [
        "questions = '['", "questions = '{\"a\": 1}'", "questions = CAST(x'5bff5d' AS TEXT)", "questions = x'ff'", "error = '7'",
        "usage = '{\"calls\": \"x\"}'", "program = x'ff'", "created_at = 9e999", "updated_at = 'x'", "recoveries = 'x'",
        "owner = x'ff', until = 9e999",
    ],
)  # fmt: skip
def test_a_damaged_row_hides_no_other_run_and_is_named(store: SQLiteStore, damage: str) -> None:
    for run_id in ("a", "bad", "z"):
        waiting(store, run_id)
    whole = {each.id: each for each in store.list() if each.id != "bad"}
    store._file.write(lambda db: db.execute(f"UPDATE ferrule_runs SET {damage} WHERE id = 'bad'"))
    for limit in (None, 100):
        found = {each.id: each for each in store.list(limit=limit)}
        bad = found.pop("bad")
        assert found == whole
        assert bad.status == "waiting"
        assert str(bad.error).startswith(
            "The run 'bad' in the store cannot be read: damaged or changed by hand",
        )
    assert store.summary("a") == whole["a"]
    with pytest.raises(StoreError, match="The run 'bad' in the store cannot be read"):
        store.summary("bad")
    store.decide("a", QUESTION.approve())
    store.delete("bad")
    assert {each.id for each in store.list()} == {"a", "z"}


def test_a_row_with_a_damaged_status_does_not_keep_others_from_being_pruned(
    store: SQLiteStore,
) -> None:
    for run_id in ("a", "bad", "z"):
        waiting(store, run_id)
    store._file.write(
        lambda db: db.execute(
            "UPDATE ferrule_runs SET status = CAST(x'ff' AS TEXT) WHERE id = 'bad'"
        ),
    )
    assert store.prune(older_than_s=0, statuses=["waiting"]) == 2
    assert [each.id for each in store.list()] == ["bad"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("SQLITE_IOERR_SHMSIZE", "Free space on its disk, and resume the run"),
        ("SQLITE_IOERR_WRITE", "may write files of this size, and resume the run"),
        ("SQLITE_IOERR_READ", "integrity_check"),
    ],
)
def test_what_to_do_about_an_error_of_the_disk_depends_on_what_failed(
    store: SQLiteStore, name: str, remedy: str
) -> None:
    """SQLite says no more than that it is an I/O error."""

    def fail(_: Any) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = name
        raise error

    with pytest.raises(StoreError, match=remedy):
        store._file.write(fail)


def test_a_deep_copy_is_the_same_store_whether_it_was_used_or_not(store: Any) -> None:
    """A copy of an unused `MemoryStore` would keep its runs for itself."""
    assert copy.deepcopy({"store": store})["store"] is store
    store.list()
    assert copy.deepcopy({"store": store})["store"] is store


def test_a_pickled_store_of_a_file_opens_it_again_and_one_in_memory_is_refused(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "runs.db", lease_s=7)
    store.list()
    other = pickle.loads(pickle.dumps(store))
    assert (other.path, other.lease_s, other.list()) == (store.path, 7, [])
    with pytest.raises(TypeError, match=r"cannot pickle a `MemoryStore`: .* Use a `SQLiteStore`"):
        pickle.dumps(MemoryStore())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes of files")
def test_a_file_that_others_could_read_is_private_once_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        store.create("r", program="P", head="{}")
        for file in tmp_path.iterdir():
            file.chmod(0o644)
        code = f"from ferrule import SQLiteStore; SQLiteStore({str(path)!r}).list()"
        subprocess.run([sys.executable, "-c", code], check=True)
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("runs.db", "runs.db-wal", "runs.db-shm"), 0o600)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes of files")
def test_a_folder_that_is_passed_by_mistake_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(StoreError, match="unable to open"):
        SQLiteStore(tmp_path).list()
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes of files")
def test_a_new_file_and_the_files_beside_it_are_private(tmp_path: Path) -> None:
    """They hold conversations, arguments, and what the model wrote for secrets."""
    before = os.umask(0o022)
    try:
        with SQLiteStore(tmp_path / "runs.db") as store:
            store.create("r", program="P", head="{}")
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("runs.db", "runs.db-wal", "runs.db-shm"), 0o600)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="Python warns of it since 3.13")
def test_a_connection_that_an_interrupt_let_go_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = SQLiteFile._connect

    def interrupted(file: SQLiteFile) -> sqlite3.Connection:
        connect(file)
        raise KeyboardInterrupt

    monkeypatch.setattr(SQLiteFile, "_connect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SQLiteStore(tmp_path / "runs.db").list()
    gc.collect()  # a warning would fail this test


@pytest.mark.parametrize("is_opened", [True, False])
def test_a_connection_is_closed_when_python_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_opened: bool
) -> None:
    """The names of its module may then be gone."""
    connection = _Connection.__new__(_Connection)
    if is_opened:
        connection.__init__(tmp_path / "runs.db")
    with monkeypatch.context() as ended:
        for name in vars(sqlite_file):
            if not name.startswith("__"):
                ended.setattr(sqlite_file, name, None)
        connection.__del__()
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")


def test_all_names_in_the_file_begin_with_ferrules_so_that_tools_may_use_any_other() -> None:
    """`ctx.db` writes into the same file."""
    store = MemoryStore()
    names = store._file.read(lambda db: db.execute("SELECT name FROM sqlite_master").fetchall())
    assert [
        name for (name,) in names if not name.startswith(("ferrule_", "sqlite_autoindex_ferrule_"))
    ] == []
    store.close()


@pytest.mark.parametrize(
    "now",
    [math.nan, math.inf, -1.0, 1.8e12, 10**30, True, "1e9", None],
    ids=["nan", "infinite", "before 1970", "milliseconds", "huge", "bool", "text", "none"],
)
def test_a_clock_that_tells_no_time_stops_a_run_before_it_does_anything(now: Any) -> None:
    """In milliseconds, tools ran, and then the run was said to be damaged."""
    store, ran = MemoryStore(clock=lambda: now), list[int]()

    def pay(euros: int) -> str:
        ran.append(euros)
        return "paid"

    lm = ScriptedLM([{"name": "pay", "args": {"euros": 3}}])
    with pytest.raises(StoreError, match="clock"):
        ReAct("task -> answer", [pay], lm=lm).start(task="Pay.", store=store)
    assert (ran, lm.requests) == ([], [])


def test_a_clock_that_breaks_stops_the_run_and_it_goes_on_with_one_that_works() -> None:
    now, ran = [1e9], list[int]()
    store = MemoryStore(clock=lambda: now[0])

    def pay(euros: int) -> str:
        ran.append(euros)
        now[0] = math.nan if len(ran) == 1 else 1e9
        return "paid"

    calls = [{"name": "pay", "args": {"euros": n}} for n in (1, 2)]
    agent = ReAct("task -> answer", [Tool(pay, effect="idempotent")], native=True)
    with context(lm=ScriptedLM([*calls, {"name": "finish", "args": {"answer": "ok"}}])):
        run = agent.start(task="Pay.", store=store)
        assert isinstance(run.error, StoreError)
        assert ran == [1]
        now[0] = 1e9
        assert run.resume().prediction.answer == "ok"


def test_a_clock_is_a_function() -> None:
    with pytest.raises(ConfigurationError, match="clock"):
        MemoryStore(clock=1e9)  # pyright: ignore[reportArgumentType]
