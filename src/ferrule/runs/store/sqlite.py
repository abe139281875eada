"""`SQLiteStore`: runs in one SQLite file, for the processes of one machine; and `MemoryStore`, the same in memory.

Every write is on disk when it returns. Writes from event loops go through one thread, which commits concurrent writes in one
transaction; the same thread renews leases.
Needs SQLite 3.35 or newer. Not for network file systems, where SQLite's locks do not hold.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ferrule.errors import DecisionError, StoreError
from ferrule.runs.confirmation.decisions import accept, plain_decision, refuse_malformed
from ferrule.runs.journal.encode import parse_object, read_decision, read_question, record_form
from ferrule.runs.protocols import Lease, Stored, Summary
from ferrule.runs.store.lease import is_dead, owner_name
from ferrule.runs.store.sqlite_file import SQLiteFile
from ferrule.runs.store.writer_thread import StoreThread
from ferrule.values.confirmation.question import check_second
from ferrule.values.encoding.encode import json_text
from ferrule.values.encoding.stored import parse_json, reading

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Generator, Iterable
    from pathlib import Path

    from ferrule.values.confirmation.question import Decision

_MOST_ENTRIES = 1 << 32
"""The entries of run number `no` have the keys from `no * _MOST_ENTRIES` on."""
_INSERT = "INSERT INTO entries VALUES ((SELECT coalesce(max(place) + 1, ?1) FROM entries WHERE place >= ?1 AND place < ?2), ?3)"
_COLUMNS = "id, program, status, created_at, updated_at, questions, error, recoveries, owner, until"


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
        self._file = SQLiteFile(self.path, full_sync=full_sync)
        self._pid = 0
        self._writer()

    def _writer(self) -> StoreThread:
        """The thread of this process: a fork inherits neither threads nor leases."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._leases: set[Lease] = set()
            self._abandoned: set[Lease] = set()
            """Leases whose release failed: they are unused, so this process may take them over."""
            self._thread = StoreThread(self._append_all, self._renew, lambda: bool(self._leases), every_s=self.lease_s / 3)
        return self._thread

    def close(self) -> None:
        """Close the file. The next use of the store reopens it."""
        self._writer().stop()
        self._file.close()

    # -- leases --------------------------------------------------------------------------------------------------

    def create(self, run_id: str, *, program: str, head: str) -> Lease:
        """See `Store`."""
        now = self._clock()
        token = secrets.randbits(62)  # unlike that of a deleted run with this id, whose process must not write here
        with self._file.writing() as db:
            if db.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchone() is not None:
                raise StoreError(f"The store {self.path!r} has a run {run_id!r} already. Load it, or choose another `run_id`.")
            db.execute(
                "INSERT INTO runs (id, program, status, created_at, updated_at, questions, head, owner, until, token) "
                "VALUES (?, ?, 'running', ?, ?, '[]', ?, ?, ?, ?)",
                (run_id, program, now, now, head, owner_name(), now + self.lease_s, token),
            )
        return self._hold(Lease(run_id, token))

    @reading("A run in the store")
    def take(self, run_id: str, *, after: int) -> Stored:
        """See `Store`. A run whose process died too often is parked as failed; later calls raise."""
        now = self._clock()
        self._writer()
        with self._file.writing() as db:
            status, owner, until, token, recoveries = self._row(db, run_id, "status, owner, until, token, recoveries")
            is_left = owner == owner_name() and Lease(run_id, token) in self._abandoned
            if owner is not None and until > now and not is_left and not is_dead(owner):
                msg = f"Another process is at work on the run {run_id!r} ({owner}); its lease ends in {until - now:.0f} s unless renewed."
                raise StoreError(msg)
            recoveries += owner is not None and not is_left
            if recoveries > self.max_recoveries:
                self._park(db, run_id, recoveries)
            else:
                db.execute(
                    "UPDATE runs SET owner = ?, until = ?, token = ?, recoveries = ?, status = 'running', updated_at = ? WHERE id = ?",
                    (owner_name(), now + self.lease_s, token + 1, recoveries, now, run_id),
                )
                if status == "cancelled":
                    db.execute("UPDATE runs SET cancelled = 0 WHERE id = ?", (run_id,))
            found = self._stored(db, run_id, after, status)
        if recoveries > self.max_recoveries:
            msg = (
                f"The run {run_id!r} crashed {recoveries} times, and was parked as failed. Look at it with `ferrule show {run_id}`; "
                "to go on all the same, open the store with more `max_recoveries=`."
            )
            raise StoreError(msg)
        self._abandoned.discard(Lease(run_id, token))
        return Stored(status, found.head, found.entries, found.decisions, self._hold(Lease(run_id, token + 1)))

    def _park(self, db: sqlite3.Connection, run_id: str, times: int) -> None:
        error = {"type": "StoreError", "text": f"crashed {times} times, and was parked"}
        (head,) = self._row(db, run_id, "head")
        head = json_text({**parse_object(head, "the head of a run"), "error": error})
        db.execute(
            "UPDATE runs SET status = 'failed', head = ?, error = ?, recoveries = ?, owner = NULL, until = 0 WHERE id = ?",
            (head, json_text(error), times, run_id),
        )

    def _hold(self, lease: Lease) -> Lease:
        thread = self._writer()
        self._leases.add(lease)
        thread.start()
        return lease

    def _renew(self) -> None:
        """Called by the thread three times per lease period."""
        held = tuple(self._leases)
        if held:
            with self._file.writing() as db:
                until = self._clock() + self.lease_s
                for lease in held:
                    db.execute("UPDATE runs SET until = ? WHERE id = ? AND token = ?", (until, lease.run_id, lease.token))

    def release(self, lease: Lease, *, status: str, head: str) -> None:
        """See `Store`."""
        self._leases.discard(lease)
        form = parse_object(head, "the head of a run")
        error = json_text(form["error"]) if form["error"] is not None else None
        try:
            with self._file.writing() as db:
                cancelled, _ = self._fence(db, lease)
                db.execute(
                    "UPDATE runs SET owner = NULL, until = 0, recoveries = 0, cancelled = 0, status = ?, head = ?, questions = ?, "
                    "error = ?, updated_at = ? WHERE id = ?",
                    (status, head, json_text(form["questions"]), error, self._clock(), lease.run_id),
                )
                if status == "cancelled" or (cancelled and status == "waiting"):  # the latter: cancelled after its last step
                    self._cancel(db, lease.run_id)
        except BaseException:
            self._abandoned.add(lease)
            raise

    def _fence(self, db: sqlite3.Connection, lease: Lease) -> tuple[bool, int]:
        """Whether the run was cancelled, and the key of its first entry; raises `StoreError` if the lease was lost."""
        row = db.execute("SELECT token, owner, cancelled, no FROM runs WHERE id = ?", (lease.run_id,)).fetchone()
        if row is None or row[0] != lease.token:
            msg = f"The run {lease.run_id!r} {'was deleted' if row is None else 'was taken over by another process'}; nothing was written."
            raise StoreError(msg)
        if row[1] != owner_name():  # after a fork both processes know the token
            raise StoreError(f"The run {lease.run_id!r} is leased to {row[1] or 'no process'}, not to this process; nothing was written.")
        return bool(row[2]), row[3] * _MOST_ENTRIES

    # -- entries -------------------------------------------------------------------------------------------------

    def append(self, lease: Lease, entry: str, *, starts: bool = False, consumes: str | None = None) -> bool:
        """See `Store`."""
        with self._file.writing() as db:
            return self._append(db, lease, entry, starts=starts, consumes=consumes)

    async def aappend(self, lease: Lease, entry: str, *, starts: bool = False, consumes: str | None = None) -> bool:
        """See `Store`."""
        return await self._writer().submit((lease, entry, starts, consumes))

    def _append_all(self, items: list[Any]) -> list[bool | StoreError]:
        """Called by the thread: write all waiting entries in one transaction; a lost lease does not stop the others."""
        done: list[bool | StoreError] = []
        with self._file.writing() as db:
            for lease, entry, starts, consumes in items:
                try:
                    done.append(self._append(db, lease, entry, starts=starts, consumes=consumes))
                except StoreError as error:  # the lease was lost: none of it was written, so there is nothing to roll back
                    done.append(error)
        return done

    def _append(self, db: sqlite3.Connection, lease: Lease, entry: str, *, starts: bool, consumes: str | None) -> bool:
        cancelled, first = self._fence(db, lease)
        if cancelled and starts:
            return False
        db.execute(_INSERT, (first, first + _MOST_ENTRIES, entry))
        if consumes is not None:
            db.execute("UPDATE decisions SET taken = 1 WHERE run_id = ? AND question_id = ?", (lease.run_id, consumes))
        return not cancelled

    @contextmanager
    def transaction(self, lease: Lease) -> Generator[sqlite3.Connection]:
        """See `Store`. Other writers of this process are blocked meanwhile, so the block must not wait for one of them."""
        with self._file.writing() as db:
            self._fence(db, lease)
            yield db

    # -- reading and deciding ------------------------------------------------------------------------------------

    def _row(self, db: sqlite3.Connection, run_id: str, columns: str) -> Any:
        row = db.execute(f"SELECT {columns} FROM runs WHERE id = ?", (run_id,)).fetchone()  # noqa: S608  callers pass constant columns
        if row is None:
            raise StoreError(f"The store {self.path!r} has no run {run_id!r}.")
        return row

    def _stored(self, db: sqlite3.Connection, run_id: str, after: int, status: str) -> Stored:
        head, no = self._row(db, run_id, "head, no")
        first = no * _MOST_ENTRIES
        places = (first + after, first + _MOST_ENTRIES)
        entries = db.execute("SELECT entry FROM entries WHERE place >= ? AND place < ? ORDER BY place", places).fetchall()
        decided = db.execute("SELECT decision FROM decisions WHERE run_id = ? AND NOT taken ORDER BY decided_at", (run_id,)).fetchall()
        return Stored(status, head, [entry for (entry,) in entries], [decision for (decision,) in decided])

    @reading("A run in the store")
    def load(self, run_id: str) -> Stored:
        """See `Store`."""
        with self._file.reading() as db:
            return self._stored(db, run_id, 0, self._row(db, run_id, "status")[0])

    @reading("A run in the store")
    def decide(self, run_id: str, decision: Decision) -> None:
        """See `Store`."""
        refuse_malformed(decision)
        decision = plain_decision(decision)
        with self._file.writing() as db:
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
            text = json_text(record_form(made))
            db.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, 0)", (run_id, question_id, text, self._clock()))

    @reading("A run in the store")
    def cancel(self, run_id: str) -> None:
        """See `Store`."""
        with self._file.writing() as db:
            status, owner = self._row(db, run_id, "status, owner")
            if status in {"done", "failed"} and owner is None:
                raise StoreError(f"The run {run_id!r} is {status} already.")
            if owner is None or is_dead(owner):
                self._cancel(db, run_id)
            else:
                db.execute("UPDATE runs SET cancelled = 1, updated_at = ? WHERE id = ?", (self._clock(), run_id))

    def _cancel(self, db: sqlite3.Connection, run_id: str) -> None:
        """Cancel a run at rest: delete its pending questions and unused decisions."""
        db.execute(
            "UPDATE runs SET status = 'cancelled', questions = '[]', owner = NULL, until = 0, token = token + 1, updated_at = ? "
            "WHERE id = ?",
            (self._clock(), run_id),
        )
        db.execute("DELETE FROM decisions WHERE run_id = ? AND NOT taken", (run_id,))

    @reading("A run in the store")
    def list(self, *, status: str | None = None, limit: int | None = None) -> list[Summary]:
        """See `Store`."""
        where, values = ("", []) if status is None else ("WHERE status = ?", [status])
        order = f"ORDER BY updated_at DESC LIMIT {-1 if limit is None else int(limit)}"
        with self._file.reading() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM runs {where} {order}", values).fetchall()  # noqa: S608  all parts are constants above
            decided = db.execute("SELECT run_id, question_id FROM decisions WHERE NOT taken").fetchall()
        by_run: dict[str, list[str]] = {}
        for run_id, question_id in decided:
            by_run.setdefault(run_id, []).append(question_id)
        return [self._summary(row, tuple(by_run.get(row[0], ()))) for row in rows]

    def _summary(self, row: Any, decided: tuple[str, ...]) -> Summary:
        run_id, program, status, created_at, updated_at, questions, error, recoveries, owner, until = row
        return Summary(
            id=run_id, program=program, status=status, created_at=created_at, updated_at=updated_at, recoveries=recoveries,
            questions=tuple(map(read_question, parse_json(questions))) if status == "waiting" else (),
            error=str(parse_json(error)["text"]) if error is not None else None,
            leased=owner is not None and until > self._clock() and not is_dead(owner), decided=decided,
        )  # fmt: skip

    # -- forgetting ----------------------------------------------------------------------------------------------

    def delete(self, run_id: str) -> None:
        """See `Store`."""
        with self._file.writing() as db:
            self._row(db, run_id, "id")
            self._forget(db, run_id)
        self._file.truncate()

    def redact(self, run_id: str) -> None:
        """See `Store`."""
        with self._file.writing() as db:
            status, head = self._row(db, run_id, "status, head")
            if status in {"running", "waiting"}:
                raise StoreError(f"The run {run_id!r} is {status}; cancel it before you redact it.")
            form = parse_object(head, "the head of a run")
            bare = json_text({**form, "args": [], "inputs": {}, "questions": [], "answers": [], "error": None, "redacted": True})
            self._empty(db, run_id)
            db.execute("UPDATE runs SET head = ?, questions = '[]', error = NULL WHERE id = ?", (bare, run_id))
        self._file.truncate()

    def prune(self, *, older_than_s: float, statuses: Iterable[str] = ("done", "failed", "cancelled")) -> int:
        """See `Store`."""
        wanted = set(statuses)
        with self._file.writing() as db:
            rows = db.execute("SELECT id, status FROM runs WHERE updated_at < ?", (self._clock() - older_than_s,)).fetchall()
            old = [run_id for run_id, status in rows if status in wanted]
            for run_id in old:
                self._forget(db, run_id)
        if old:
            self._file.truncate()
        return len(old)

    def _forget(self, db: sqlite3.Connection, run_id: str) -> None:
        self._empty(db, run_id)
        db.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    @reading("A run in the store")
    def _empty(self, db: sqlite3.Connection, run_id: str) -> None:
        (no,) = self._row(db, run_id, "no")
        db.execute("DELETE FROM entries WHERE place >= ? AND place < ?", (no * _MOST_ENTRIES, (no + 1) * _MOST_ENTRIES))
        db.execute("DELETE FROM decisions WHERE run_id = ?", (run_id,))


class MemoryStore(SQLiteStore):
    """Keeps runs in memory while this process lives: for tests, and for runs that wait within one process."""

    def __init__(self, *, lease_s: float = 30.0, max_recoveries: int = 5, clock: Callable[[], float] = time.time) -> None:
        super().__init__(":memory:", lease_s=lease_s, max_recoveries=max_recoveries, clock=clock)
