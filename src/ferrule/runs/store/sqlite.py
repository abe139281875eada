"""`SQLiteStore`: runs in one SQLite file, for the processes of one machine; and `MemoryStore`, the same in memory.

Every write is on disk when it returns. Writes from event loops go through one thread, which commits concurrent writes in one
transaction; the same thread renews leases. Stores of one path share file and thread within a process.
Needs SQLite 3.35 or newer. Not for network file systems, where SQLite's locks do not hold.
"""

from __future__ import annotations

import os
import secrets
import time
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ferrule.errors import DecisionError, StoreError
from ferrule.runs.confirmation.decisions import accept, plain_decision, refuse_malformed
from ferrule.runs.journal.encode import parse_object, read_decision, read_question, record_form
from ferrule.runs.protocols import Lease, Stored
from ferrule.runs.store.fencing import MOST_ENTRIES, append, append_all, cancel_at_rest, fence, give_back, park, tend
from ferrule.runs.store.lease import is_dead, is_held, owner_name
from ferrule.runs.store.listing import condition, summaries
from ferrule.runs.store.sqlite_file import SQLiteFile, shared_file
from ferrule.runs.store.writer_thread import StoreThread
from ferrule.values.confirmation.question import check_second
from ferrule.values.encoding.encode import json_text
from ferrule.values.encoding.stored import parse_json, reading

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ferrule.runs.protocols import Summary
    from ferrule.values.confirmation.question import Decision

P = ParamSpec("P")
R = TypeVar("R")


def _writes(method: Callable[Concatenate[SQLiteStore, sqlite3.Connection, P], R]) -> Callable[Concatenate[SQLiteStore, P], R]:
    """A method whose whole work is one transaction; it gets the connection."""

    @wraps(method)
    def write(self: SQLiteStore, /, *args: P.args, **keywords: P.kwargs) -> R:
        return self._file.write(lambda db: method(self, db, *args, **keywords))  # pyright: ignore[reportPrivateUsage]

    return write


class SQLiteStore:
    """Keeps runs in a file, which is created at first use.

    With `full_sync=False`, a commit may be lost in a power cut (but not when the process dies). `lease_s` is how long a process keeps a
    run without renewing the lease; a process that died on this machine loses its runs at once. A run that killed its process
    `max_recoveries` times is parked as failed. `clock` returns seconds since 1970.
    """

    def __init__(
        self, path: str | Path = "ferrule.db", *, full_sync: bool = True, lease_s: float = 30.0, max_recoveries: int = 5,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.path = str(path)
        self.lease_s = lease_s
        self.max_recoveries = max_recoveries
        self._clock = clock
        self._place = self.path if self.path == ":memory:" else os.path.abspath(self.path)  # noqa: PTH100  a `Path` costs more
        self._full_sync = full_sync
        self._opened: SQLiteFile | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    @property
    def _file(self) -> SQLiteFile:
        file = self._opened
        if file is None:
            file = shared_file(self._place, full_sync=self._full_sync)
            file.users.add(self)
            self._opened = file
        return file

    def _thread(self) -> StoreThread:
        file = self._file
        if file.thread is None:
            file.thread = StoreThread(file, append_all, tend)
        return file.thread

    def close(self) -> None:
        """Close the file, unless a run executes or other stores of this process use it. The next use of the store reopens it."""
        file = self._opened
        if file is not None and not file.leases:
            self._opened = None
            file.users.discard(self)
            if not file.users:
                file.close()

    def create(self, run_id: str, *, program: str, head: str) -> Lease:
        """See `Store`."""
        lease = Lease(run_id, secrets.randbits(62))  # unlike that of a deleted run with this id, whose process must not write here
        try:
            self._create(lease, program, head)
            self._thread().look()
        except BaseException:
            self._give_back(lease, "running")
            raise
        return lease

    @_writes
    def _create(self, db: sqlite3.Connection, lease: Lease, program: str, head: str) -> None:
        if db.execute("SELECT 1 FROM runs WHERE id = ?", (lease.run_id,)).fetchone() is not None:
            raise StoreError(f"The store {self.path!r} has a run {lease.run_id!r} already. Load it, or choose another `run_id`.")
        now = self._clock()
        self._file.leases.hold(lease, self._clock, self.lease_s)
        db.execute(
            "INSERT INTO runs (id, program, status, created_at, updated_at, questions, head, owner, until, token) "
            "VALUES (?, ?, 'running', ?, ?, '[]', ?, ?, ?, ?)",
            (lease.run_id, program, now, now, head, owner_name(), now + self.lease_s, lease.token),
        )

    def take(self, run_id: str, *, after: int) -> Stored:
        """See `Store`. A run whose process died too often is parked as failed; later calls raise."""
        taken: list[tuple[Lease, Stored]] = []
        try:
            recoveries = self._take(run_id, after, taken)
            self._thread().look()
        except BaseException:
            for lease, each in taken:  # Ctrl-C came just then
                self._give_back(lease, each.status)
            raise
        if not taken:
            msg = (
                f"The run {run_id!r} crashed {recoveries} times, and was parked as failed. Look at it with `ferrule show {run_id}`; "
                "to go on all the same, open the store with more `max_recoveries=`."
            )
            raise StoreError(msg)
        [(lease, found)] = taken
        self._file.leases.forget(run_id, lease.token - 1)
        return found

    @_writes
    @reading("A run in the store")
    def _take(self, db: sqlite3.Connection, run_id: str, after: int, taken: list[tuple[Lease, Stored]]) -> int:
        """Put the run with its lease into `taken`, unless it is parked; returns how often it was recovered."""
        now = self._clock()
        status, owner, until, token, recoveries = self._row(db, run_id, "status, owner, until, token, recoveries")
        is_own = is_held(run_id, token) if owner == owner_name() else None
        if owner is not None and until > now and is_own is not False and not is_dead(owner):
            what = f"is at work on the run {run_id!r} ({owner})"
            if is_own:
                raise StoreError(f"This process {what}, in another `Run` of that id. Wait until that one rests.")
            whose = "Another process" if owner != owner_name() else "An earlier process with the id of this one"
            raise StoreError(f"{whose} {what}; its lease ends in {until - now:.0f} s unless renewed.")
        recoveries += owner is not None and is_own is not False
        if recoveries > self.max_recoveries:
            park(db, run_id, self._row(db, run_id, "head")[0], recoveries)
            return recoveries
        lease = Lease(run_id, token + 1)
        taken.append((lease, self._stored(db, run_id, after, status, lease)))
        self._file.leases.hold(lease, self._clock, self.lease_s)
        db.execute(
            "UPDATE runs SET owner = ?, until = ?, token = ?, recoveries = ?, status = 'running', updated_at = ? WHERE id = ?",
            (owner_name(), now + self.lease_s, token + 1, recoveries, now, run_id),
        )
        if status == "cancelled":
            db.execute("UPDATE runs SET cancelled = 0 WHERE id = ?", (run_id,))
        return recoveries

    def _give_back(self, lease: Lease, status: str) -> None:
        """Undo a `take` or `create` that was interrupted, or failed."""
        self._file.leases.let_go(lease)
        self._file.write(partial(give_back, run_id=lease.run_id, token=lease.token, status=status))
        self._file.leases.forget(lease.run_id, lease.token)

    @_writes
    def note(self, db: sqlite3.Connection, lease: Lease, head: str) -> None:
        """See `Store`."""
        fence(db, lease)
        db.execute("UPDATE runs SET head = ? WHERE id = ?", (head, lease.run_id))

    def release(self, lease: Lease, *, status: str, head: str) -> None:
        """See `Store`."""
        try:
            self._release(lease, status, head)
        except StoreError:
            self._file.leases.let_go(lease)
            raise
        self._file.leases.forget(lease.run_id, lease.token)

    @_writes
    def _release(self, db: sqlite3.Connection, lease: Lease, status: str, head: str) -> None:
        form = parse_object(head, "the head of a run")
        error, usage = (json_text(form[name]) if form.get(name) is not None else None for name in ("error", "usage"))
        cancelled, _ = fence(db, lease)
        db.execute(
            "UPDATE runs SET owner = NULL, until = 0, recoveries = 0, cancelled = 0, status = ?, head = ?, questions = ?, "
            "error = ?, usage = ?, updated_at = ? WHERE id = ?",
            (status, head, json_text(form["questions"]), error, usage, self._clock(), lease.run_id),
        )
        if status == "cancelled" or (cancelled and status == "waiting"):  # the latter: cancelled after its last step
            cancel_at_rest(db, lease.run_id, self._clock())

    def append(self, lease: Lease, entry: str, *, starts: bool = False, consumes: str | None = None) -> bool:
        """See `Store`."""
        now = self._clock()
        return self._file.write(lambda db: append(db, lease, entry, starts=starts, consumes=consumes, now=now))

    async def aappend(self, lease: Lease, entry: str, *, starts: bool = False, consumes: str | None = None) -> bool:
        """See `Store`."""
        return await self._thread().submit((lease, entry, starts, consumes, self._clock()))

    def transact(self, lease: Lease, work: Callable[[sqlite3.Connection], R]) -> R:
        """See `Store`. Other users of the file in this process are blocked meanwhile, so `work` must not wait for one of them."""

        def fenced(db: sqlite3.Connection) -> R:
            fence(db, lease)
            return work(db)

        return self._file.write(fenced)

    def _row(self, db: sqlite3.Connection, run_id: str, columns: str) -> Any:
        row = db.execute(f"SELECT {columns} FROM runs WHERE id = ?", (run_id,)).fetchone()  # noqa: S608  callers pass constant columns
        if row is None:
            raise StoreError(f"The store {self.path!r} has no run {run_id!r}.")
        return row

    def _stored(self, db: sqlite3.Connection, run_id: str, after: int, status: str, lease: Lease | None = None) -> Stored:
        head, no = self._row(db, run_id, "head, no")
        places = (no * MOST_ENTRIES + after, (no + 1) * MOST_ENTRIES)
        rows = db.execute("SELECT entry, written_at FROM entries WHERE place >= ? AND place < ? ORDER BY place", places).fetchall()
        decided = db.execute("SELECT decision FROM decisions WHERE run_id = ? AND NOT taken ORDER BY decided_at", (run_id,)).fetchall()
        return Stored(status, head, [row[0] for row in rows], [decision for (decision,) in decided], lease, [row[1] for row in rows])

    @reading("A run in the store")
    def load(self, run_id: str, *, after: int = 0) -> Stored:
        """See `Store`."""
        return self._file.read(lambda db: self._stored(db, run_id, after, self._row(db, run_id, "status")[0]))

    @_writes
    @reading("A run in the store")
    def decide(self, db: sqlite3.Connection, run_id: str, decision: Decision) -> None:
        """See `Store`."""
        refuse_malformed(decision)
        decision = plain_decision(decision)
        status, questions = self._row(db, run_id, "status, questions")
        waiting = {form["id"]: form for form in parse_json(questions)} if status == "waiting" else {}
        question_id = decision.question_id
        row = db.execute("SELECT decision FROM decisions WHERE run_id = ? AND question_id = ?", (run_id, question_id)).fetchone()
        if row is not None:
            check_second(read_decision(parse_object(row[0], "a decision")), decision)
            return
        if question_id not in waiting:
            there = f"waiting are: {', '.join(waiting) or 'none'}" if status == "waiting" else f"it is {status}"
            raise DecisionError(f"No question {question_id!r} waits in the run {run_id!r}; {there}.")
        made = accept(read_question(waiting[question_id]), decision, now=self._clock())
        db.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, 0)", (run_id, question_id, json_text(record_form(made)), self._clock()))

    @_writes
    @reading("A run in the store")
    def cancel(self, db: sqlite3.Connection, run_id: str) -> None:
        """See `Store`."""
        status, owner = self._row(db, run_id, "status, owner")
        if status in {"done", "failed"} and owner is None:
            raise StoreError(f"The run {run_id!r} is {status} already.")
        if owner is None or is_dead(owner):
            cancel_at_rest(db, run_id, self._clock())
        else:
            db.execute("UPDATE runs SET cancelled = 1, updated_at = ? WHERE id = ?", (self._clock(), run_id))

    @reading("A run in the store")
    def list(
        self, *, status: str | None = None, program: str | None = None, limit: int | None = 100, before: tuple[float, str] | None = None
    ) -> list[Summary]:
        """See `Store`."""
        where, values = condition(status, program, before)
        return self._file.read(lambda db: summaries(db, where, values, limit=limit, now=self._clock()))

    @reading("A run in the store")
    def summary(self, run_id: str) -> Summary:
        """See `Store`."""
        found = self._file.read(lambda db: summaries(db, "WHERE id = ?", (run_id,), limit=1, now=self._clock()))
        if not found:
            raise StoreError(f"The store {self.path!r} has no run {run_id!r}.")
        return found[0]

    def changes(self) -> int:
        """See `Store`."""
        return self._file.changes()

    def delete(self, run_id: str) -> None:
        """See `Store`."""
        self._file.write(lambda db: (self._row(db, run_id, "id"), self._forget(db, run_id)))
        self._file.truncate()

    def redact(self, run_id: str) -> None:
        """See `Store`."""
        self._redact(run_id)
        self._file.truncate()

    @_writes
    def _redact(self, db: sqlite3.Connection, run_id: str) -> None:
        status, head = self._row(db, run_id, "status, head")
        if status in {"running", "waiting"}:
            raise StoreError(f"The run {run_id!r} is {status}; cancel it before you redact it.")
        form = parse_object(head, "the head of a run")
        bare = json_text({**form, "args": [], "inputs": {}, "questions": [], "answers": [], "error": None, "notes": {}, "redacted": True})
        self._empty(db, run_id)
        db.execute("UPDATE runs SET head = ?, questions = '[]', error = NULL WHERE id = ?", (bare, run_id))

    def prune(self, *, older_than_s: float, statuses: Iterable[str] = ("done", "failed", "cancelled")) -> int:
        """See `Store`."""
        count = self._prune(older_than_s, set(statuses))
        if count:
            self._file.truncate()
        return count

    @_writes
    def _prune(self, db: sqlite3.Connection, older_than_s: float, statuses: set[str]) -> int:
        rows = db.execute("SELECT id, status FROM runs WHERE updated_at < ?", (self._clock() - older_than_s,)).fetchall()
        old = [run_id for run_id, status in rows if status in statuses]
        for run_id in old:
            self._forget(db, run_id)
        return len(old)

    def _forget(self, db: sqlite3.Connection, run_id: str) -> None:
        self._empty(db, run_id)
        db.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    @reading("A run in the store")
    def _empty(self, db: sqlite3.Connection, run_id: str) -> None:
        (no,) = self._row(db, run_id, "no")
        db.execute("DELETE FROM entries WHERE place >= ? AND place < ?", (no * MOST_ENTRIES, (no + 1) * MOST_ENTRIES))
        db.execute("DELETE FROM decisions WHERE run_id = ?", (run_id,))


class MemoryStore(SQLiteStore):
    """Keeps runs in memory while this process lives: for tests, and for runs that wait within one process."""

    def __init__(self, *, lease_s: float = 30.0, max_recoveries: int = 5, clock: Callable[[], float] = time.time) -> None:
        super().__init__(":memory:", lease_s=lease_s, max_recoveries=max_recoveries, clock=clock)
