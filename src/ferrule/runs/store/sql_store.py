"""`SQLStore`: the rules of a store, in SQL that SQLite and Postgres share.

A subclass provides the connections, the transactions, the clock, and the check whether an owner is
alive. Statements have `?` for values. A transaction that writes first reads its run with `_row` and
`_LOCK`, so that transactions on the same run follow each other.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_json, parse_object, reading
from ferrule.errors import DecisionError, StoreError
from ferrule.runs.protocols import Lease, Order, Stored, check_page, check_pruning
from ferrule.runs.store.lease import is_held, taken_by
from ferrule.runs.store.listing import condition, decision_in, summaries, written
from ferrule.runs.store.statements import (
    MOST_ENTRIES,
    cancel_at_rest,
    fence,
    give_back,
    insert,
    is_decided,
    park,
    release,
)

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable

    from ferrule.approval.question import Decision
    from ferrule.runs.protocols import Summary
    from ferrule.runs.store.lease import Leases
    from ferrule.runs.store.listing import Written

P = ParamSpec("P")
R = TypeVar("R")


def _writes(
    method: Callable[Concatenate[SQLStore, Any, P], R],
) -> Callable[Concatenate[SQLStore, P], R]:
    """Make a method run in one transaction; it gets the connection as its first argument."""

    @wraps(method)
    def write(self: SQLStore, /, *args: P.args, **keywords: P.kwargs) -> R:
        return self._write(lambda db: method(self, db, *args, **keywords))  # pyright: ignore[reportPrivateUsage]

    return write


class SQLStore:
    """Base class of the stores in SQL: everything that does not depend on the database."""

    max_recoveries: int
    engine: Any = None
    """The engine that calls workers; None without one."""
    _name: str
    """The place of the store, for messages."""
    _LOCK = ""
    """SQL that the dialect adds to a SELECT, so that the row stays as read until the transaction ends."""
    _ALSO_AT_REST = ""
    """SQL for further columns that the dialect sets in the row of a run that comes to rest."""
    _UNTIL = "until"
    """SQL expression for the time when the lease of a row of `runs` ends. Read it after the row is locked: a statement that waited for the
    lock sees the other tables as they were before, and would take an owner that came meanwhile for dead."""
    _LEASED: tuple[str, str]
    """A column that the dialect also sets in the row of a leased run, and the SQL expression of its value."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of a program share the store

    def _write(self, work: Callable[[Any], R]) -> R:
        """Call `work` with the connection in a transaction: committed when it returns, rolled back when it raises."""
        raise NotImplementedError

    def _read(self, work: Callable[[Any], R]) -> R:
        """Call `work` with the connection; everything that it reads comes from one snapshot."""
        raise NotImplementedError

    def _look(self, work: Callable[[Any], R]) -> R:
        """Call `work` with the connection, for reads that the dialect does in one statement."""
        return self._read(work)

    def _now(self, db: Any) -> float:
        raise NotImplementedError

    @property
    def _owner(self) -> str:
        """The name of this process as an owner of leases."""
        raise NotImplementedError

    @property
    def _leases(self) -> Leases:
        raise NotImplementedError

    def _hold(self, lease: Lease, now: float, written: int) -> Any:
        """Hold a lease that is about to be committed; its run has `written` entries. Returns the parameter for `_LEASED`."""
        raise NotImplementedError

    def _watch(self) -> None:
        """Start to renew leases, after one was committed."""
        raise NotImplementedError

    def _is_alive(self, owner: str, until: float | None, now: float) -> bool:
        """Whether the owner of a lease is alive, and so executes its runs."""
        raise NotImplementedError

    def _settles_s(self) -> float:
        """For how many seconds to take over no run: after a break that cut off all processes, a live owner may not be back yet."""
        return 0.0

    def _call_worker(
        self,
        db: Any,
        run_id: str,
        order: Order = Order(),  # noqa: B008  frozen
        *,
        after_s: float | None = None,
    ) -> None:
        """In this transaction, call a worker for a run at rest that has work, or will have it after `after_s`; needs an engine."""

    def _purge(self) -> None:
        """After runs were deleted, remove what is left of them outside the tables."""

    # -- the rules
    # -------------------------------------------------------------------------------------------------

    def create(self, run_id: str, *, program: str, head: str) -> Lease:
        """See `Store`."""
        lease = Lease(
            run_id,
            secrets.randbits(62),
        )  # random: the process of a deleted run with this id must not write here
        try:
            self._create(lease, program, head)
            self._watch()
        except BaseException:
            self._give_back(lease, "running")
            raise
        return lease

    @_writes
    def _create(self, db: Any, lease: Lease, program: str, head: str) -> None:
        now = self._now(db)
        more = {"owner": self._owner, self._LEASED[0]: self._hold(lease, now, 0)}
        insert(db, self._name, lease, now, program=program, status="running", head=head, **more)

    @_writes
    def submit(self, db: Any, run_id: str, *, program: str, head: str, order: Order) -> None:
        """See `Store`."""
        if order != Order() and self.engine is None:
            raise StoreError(
                f"`priority`, `delay_s` and `queue_key` need an engine; the store {self._name!r} has none.",
            )
        insert(
            db,
            self._name,
            Lease(run_id, secrets.randbits(62)),
            self._now(db),
            program=program,
            status="queued",
            head=head,
        )
        self._call_worker(db, run_id, order)

    @_writes
    def put_off(self, db: Any, run_id: str, why: str) -> None:
        """See `Store`."""
        values = json_text({"type": "StoreError", "text": why}), self._now(db), run_id
        db.execute(
            "UPDATE runs SET error = ?, updated_at = ? WHERE id = ? AND owner IS NULL",
            values,
        )

    def take(self, run_id: str, *, after: int) -> Stored:
        """See `Store`. Marks a run whose process died too often as failed, and raises `StoreError` for it."""
        taken: list[tuple[Lease, Stored]] = []
        try:
            recoveries = self._take(run_id, after, taken)
            self._watch()
        except BaseException:
            for lease, each in taken:  # Ctrl-C came just then
                self._give_back(lease, each.status)
            raise
        if not taken:
            msg = (
                f"The run {run_id!r} crashed {recoveries} times, and was marked as failed. Look at it with `ferrule show {run_id}`; "
                f"to continue anyway, open the store with `max_recoveries={recoveries}` or more."
            )
            raise StoreError(msg)
        [(lease, found)] = taken
        self._leases.forget(run_id, lease.token - 1)
        return found

    @_writes
    @reading("A run in the store")
    def _take(self, db: Any, run_id: str, after: int, taken: list[tuple[Lease, Stored]]) -> int:
        """Put the run with its lease into `taken`, unless it is marked as failed; returns how often it was recovered."""
        now = self._now(db)
        status, owner, token, recoveries, head, no = self._row(
            db,
            run_id,
            "status, owner, token, recoveries, head, no",
            self._LOCK,
        )
        is_own = is_held(run_id, token) if owner == self._owner else None
        until = self._row(db, run_id, self._UNTIL)[0] if owner is not None else None
        if (
            owner is not None
            and is_own is not False
            and (self._is_alive(owner, until, now) or self._settles_s())
        ):
            raise taken_by(
                owner,
                run_id,
                is_here=bool(is_own),
                own=self._owner,
                for_s=max((until or 0) - now, self._settles_s()),
            )
        recoveries += owner is not None and is_own is not False
        if recoveries > self.max_recoveries:
            park(db, run_id, head, recoveries)
            return recoveries
        lease = Lease(run_id, token + 1)
        entries, times, decisions = self._written(db, run_id, no, after)
        taken[:] = [(lease, Stored(status, head, entries, decisions, lease, times))]
        more, values = (
            " = ".join(self._LEASED),
            (self._owner, token + 1, recoveries, now, self._hold(lease, now, after + len(entries))),
        )
        db.execute(
            f"UPDATE runs SET owner = ?, token = ?, recoveries = ?, status = 'running', updated_at = ?, {more} WHERE id = ?",  # noqa: RUF100, S608
            (*values, run_id),
        )
        if status == "cancelled":
            db.execute("UPDATE runs SET cancelled = FALSE WHERE id = ?", (run_id,))
        return recoveries

    def _give_back(self, lease: Lease, status: str) -> None:
        """Undo a `take` or `create` that was interrupted, or failed."""
        self._leases.let_go(lease)
        self._write(
            partial(
                give_back,
                owner=self._owner,
                run_id=lease.run_id,
                token=lease.token,
                status=status,
            ),
        )
        self._leases.forget(lease.run_id, lease.token)

    @_writes
    def note(self, db: Any, lease: Lease, head: str) -> None:
        """See `Store`."""
        fence(db, lease, self._owner, self._LOCK)
        db.execute("UPDATE runs SET head = ? WHERE id = ?", (head, lease.run_id))

    def release(self, lease: Lease, *, status: str, head: str) -> None:
        """See `Store`."""
        try:
            self._release(lease, status, head)
        except StoreError:
            self._leases.let_go(lease)
            raise
        self._leases.forget(lease.run_id, lease.token)

    @_writes
    def _release(self, db: Any, lease: Lease, status: str, head: str) -> None:
        form = parse_object(head, "the head of a run")
        now = self._now(db)
        cancelled = release(
            db,
            lease,
            self._owner,
            now,
            status=status,
            head=head,
            form=form,
            also=self._ALSO_AT_REST,
        )
        if status == "cancelled" or (
            cancelled and status in {"waiting", "queued"}
        ):  # the latter: cancelled after its last entry
            cancel_at_rest(db, lease.run_id, now)
        elif status == "queued" or (
            status == "waiting" and is_decided(db, lease.run_id, form["questions"])
        ):
            self._call_worker(db, lease.run_id)
        elif ends := [
            asked["expires_at"]
            for asked in form["questions"]
            if asked.get("expires_at") is not None
        ]:
            self._call_worker(db, lease.run_id, after_s=max(min(ends) - now, 0))

    def _row(self, db: Any, run_id: str, columns: str, lock: str = "") -> Any:
        with suppress(UnicodeEncodeError):  # no run has an id with a lone surrogate
            if (
                row := db.execute(
                    f"SELECT {columns} FROM runs WHERE id = ?{lock}",
                    (run_id,),
                ).fetchone()
            ) is not None:
                return row
        raise self._missing(run_id)

    def _missing(self, run_id: str) -> StoreError:
        return StoreError(f"The store {self._name!r} has no run {run_id!r}.")

    def _written(self, db: Any, run_id: str, no: int, after: int) -> Written:
        return written(db, run_id, no, after)

    @reading("A run in the store")
    def load(self, run_id: str, *, after: int = 0) -> Stored:
        """See `Store`."""
        return self._look(lambda db: self._stored(db, run_id, after))

    def _stored(self, db: Any, run_id: str, after: int) -> Stored:
        status, head, no = self._row(db, run_id, "status, head, no")
        entries, times, decisions = self._written(db, run_id, no, after)
        return Stored(status, head, entries, decisions, None, times)

    @_writes
    @reading("A run in the store")
    def decide(self, db: Any, run_id: str, decision: Decision) -> None:
        """See `Store`."""
        # Late, with pydantic: few users decide.
        from ferrule.approval.decisions import (
            accept,
            check_second,
            plain_decision,
            read_decision,
            refuse_malformed,
        )
        from ferrule.runs.confirmation.decisions import caller_notes
        from ferrule.runs.journal.encode import read_question, record_form

        refuse_malformed(decision)
        decision = plain_decision(decision)
        now, (status, questions, no) = (
            self._now(db),
            self._row(db, run_id, "status, questions, no", self._LOCK),
        )
        waiting = (
            {form["id"]: form for form in parse_json(questions)}
            if status in {"waiting", "running"}
            else {}
        )
        question_id = decision.question_id
        row = db.execute(
            "SELECT decision FROM decisions WHERE run_id = ? AND question_id = ?",
            (run_id, question_id),
        ).fetchone()
        first = read_decision(parse_object(row[0], "a decision")) if row is not None else None
        if (
            first is None and question_id in waiting and status == "running"
        ):  # since the run resumed, a grant or a policy may have decided
            first = decision_in(self._written(db, run_id, no, 0)[0], question_id)
        if first is not None:
            check_second(first, decision)
            return
        if question_id not in waiting:
            there = (
                f"waiting are: {', '.join(waiting) or 'none'}"
                if status in {"waiting", "running"}
                else f"it is {status}"
            )
            raise DecisionError(
                f"No question {question_id!r} waits in the run {run_id!r}; {there}.",
            )
        form, caller = (
            record_form(accept(read_question(waiting[question_id]), decision, now=now)),
            caller_notes(),
        )
        made = json_text({**form, "caller": caller} if caller else form)
        db.execute(
            "INSERT INTO decisions VALUES (?, ?, ?, ?, FALSE)",
            (run_id, question_id, made, now),
        )
        if status == "waiting":
            self._call_worker(db, run_id)

    @_writes
    @reading("A run in the store")
    def cancel(self, db: Any, run_id: str) -> None:
        """See `Store`."""
        now, (status, owner) = self._now(db), self._row(db, run_id, "status, owner", self._LOCK)
        if status in {"done", "failed"} and owner is None:
            raise StoreError(f"The run {run_id!r} is {status} already.")
        if owner is None or not (
            self._is_alive(owner, self._row(db, run_id, self._UNTIL)[0], now) or self._settles_s()
        ):
            cancel_at_rest(db, run_id, now)
        else:
            db.execute(
                "UPDATE runs SET cancelled = TRUE, updated_at = ? WHERE id = ?",
                (now, run_id),
            )

    def list(
        self,
        *,
        status: str | None = None,
        program: str | None = None,
        limit: int | None = 100,
        before: tuple[float, str] | None = None,
    ) -> list[Summary]:
        """See `Store`."""
        where, values = condition(status, program, check_page(limit, before))
        return self._look(lambda db: self._summaries(db, where, values, limit))

    def summary(self, run_id: str) -> Summary:
        """See `Store`."""
        found = self._look(
            lambda db: self._summaries(db, "WHERE id = ?", (run_id,), 1, is_one=True),
        )
        if not found:
            raise self._missing(run_id)
        return found[0]

    @reading("A run in the store")
    def _summaries(
        self,
        db: Any,
        where: str,
        values: tuple[Any, ...],
        limit: int | None,
        **how: Any,
    ) -> builtins.list[Summary]:
        alive: Callable[[str, float | None], bool] = lambda owner, until: self._is_alive(  # noqa: E731
            owner,
            until,
            self._now(db),
        )
        return summaries(db, where, values, limit=limit, until=self._UNTIL, is_alive=alive, **how)

    def delete(self, run_id: str) -> None:
        """See `Store`."""
        self._write(lambda db: (self._row(db, run_id, "id", self._LOCK), self._forget(db, run_id)))
        self._purge()

    def redact(self, run_id: str) -> None:
        """See `Store`."""
        self._redact(run_id)
        self._purge()

    @_writes
    def _redact(self, db: Any, run_id: str) -> None:
        status, head = self._row(db, run_id, "status, head", self._LOCK)
        if status in {"queued", "running", "waiting"}:
            raise StoreError(f"The run {run_id!r} is {status}; cancel it before you redact it.")
        form = parse_object(head, "the head of a run")
        bare = json_text(
            {
                **form,
                "args": [],
                "inputs": {},
                "questions": [],
                "answers": [],
                "error": None,
                "notes": {},
                "redacted": True,
            },
        )
        self._empty(db, run_id)
        db.execute(
            "UPDATE runs SET head = ?, questions = '[]', error = NULL WHERE id = ?",
            (bare, run_id),
        )

    def prune(
        self,
        *,
        older_than_s: float,
        statuses: Iterable[str] = ("done", "failed", "cancelled"),
    ) -> int:
        """See `Store`."""
        count = self._prune(older_than_s, check_pruning(older_than_s, statuses))
        if count:
            self._purge()
        return count

    @_writes
    def _prune(self, db: Any, older_than_s: float, statuses: set[str]) -> int:
        wanted = ", ".join("?" * len(statuses)) or "NULL"
        sql = f"SELECT id FROM runs WHERE updated_at < ? AND status IN ({wanted}){self._LOCK}"  # noqa: RUF100, S608
        old = db.execute(sql, (self._now(db) - older_than_s, *statuses)).fetchall()
        for (run_id,) in old:
            self._forget(db, run_id)
        return len(old)

    def _forget(self, db: Any, run_id: str) -> None:
        self._empty(db, run_id)
        db.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    @reading("A run in the store")
    def _empty(self, db: Any, run_id: str) -> None:
        (no,) = self._row(db, run_id, "no")
        db.execute(
            "DELETE FROM entries WHERE place >= ? AND place < ?",
            (no * MOST_ENTRIES, (no + 1) * MOST_ENTRIES),
        )
        db.execute("DELETE FROM decisions WHERE run_id = ?", (run_id,))
