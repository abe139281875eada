"""`SQLStore`: the rules of a store, in SQL that SQLite and Postgres share.

A run has one row in `runs`, which holds its status, its lease and its head; one row for each entry
of its journal in `entries`; and one for each decision on a question in `decisions`. A run with an
`owner` is leased to that process; without one it is at rest.

A subclass provides the connections, the transactions, the clock, and the check whether an owner is
alive. Statements have `?` for values. A transaction that writes first reads its run with `_row` and
`_LOCK`, so that transactions on the same run follow each other.
"""

from __future__ import annotations

import secrets
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from ferrule.approval.cancellation import (
    CallAtWork,
    on_call,
    on_question,
    unsent_cancellation,
)
from ferrule.approval.decisions import (
    accept,
    check_second,
    named_question,
    plain_decision,
    read_decision,
)
from ferrule.approval.message import (
    refuse_message,
    said_before,
    unsent_message,
    with_number,
)
from ferrule.encoding.encode import is_column_text, json_text
from ferrule.encoding.stored import parse_json, parse_object, reading
from ferrule.errors import StoreError
from ferrule.forms import record_fields
from ferrule.runs.about import (
    NOTHING,
    About,
    assignment_label,
    check_metadata,
    check_note,
    check_person,
    digests,
)
from ferrule.runs.cancelling import call_to_cancel
from ferrule.runs.decisions import caller_notes, deliveries
from ferrule.runs.evaluations import evaluations
from ferrule.runs.journal.encode import read_entry, read_question
from ferrule.runs.outline import NO_OUTLINE
from ferrule.runs.overview import overview
from ferrule.runs.protocols import (
    Lease,
    Order,
    RunNote,
    Stored,
    check_filter,
    check_name_kind,
    check_number,
    check_page,
    check_pruning,
    check_start,
    check_switch,
)
from ferrule.runs.store.lease import is_held, taken_error
from ferrule.runs.store.listing import (
    Filtered,
    condition,
    counts,
    decision_in,
    names,
    notes_of,
    order_by,
    order_column,
    questions_by_program,
    results_awaited_in,
    summaries,
)
from ferrule.runs.store.outliner import words_in
from ferrule.runs.store.statements import (
    MOST_ENTRIES,
    assign,
    cancel_at_rest,
    fence,
    give_back,
    insert,
    keep_score,
    note_questions,
    outline_run,
    park,
    release,
)

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Unpack

    from ferrule.approval.message import When
    from ferrule.approval.question import Decision, Question
    from ferrule.runs.evaluations import EvaluationFigures, ItemScore
    from ferrule.runs.outline import Outline
    from ferrule.runs.overview import Overview
    from ferrule.runs.protocols import NameKind, RunFilter, RunOrder, Summary
    from ferrule.runs.store.lease import Leases

P = ParamSpec("P")
R = TypeVar("R")

Written = tuple[list[str], list[float | None], list[str]]
"""The entries of a run from some number on, their times, and the decisions that it has not used."""


def _writes(
    method: Callable[Concatenate[SQLStore, Any, P], R],
) -> Callable[Concatenate[SQLStore, P], R]:
    """Make a method run in one transaction; it gets the connection as its first argument."""

    @wraps(method)
    def write(self: SQLStore, /, *args: P.args, **keywords: P.kwargs) -> R:
        def work(db: Any) -> R:
            return method(self, db, *args, **keywords)

        return self._write(work)  # pyright: ignore[reportPrivateUsage]  this class's own

    return write


class SQLStore:
    """Base class of the stores in SQL: everything that does not depend on the database."""

    max_recoveries: int
    engine: Any = None
    """The engine that calls workers; None without one."""
    _name: str
    """The place of the store, for messages."""
    _LOCK = ""
    """SQL that the dialect adds to a SELECT, so that the row stays as read until the transaction
    ends."""
    _ALSO_AT_REST = ""
    """SQL for further columns that the dialect sets in the row of a run that comes to rest."""
    _UNTIL = "until"
    """SQL expression for the time when the lease of a row of `runs` ends.

    Read it after the row is locked: a statement that waited for the lock sees the other tables as
    they were before, and would take an owner that came meanwhile for dead.
    """
    _LEASED: tuple[str, str]
    """A column that the dialect also sets in the row of a leased run, and the SQL expression of its
    value."""

    # -- what a dialect provides

    def _write(self, work: Callable[[Any], R]) -> R:
        """Call `work` with the connection in a transaction.

        The transaction is committed when `work` returns, and rolled back when it raises.
        """
        raise NotImplementedError

    def _read(self, work: Callable[[Any], R]) -> R:
        """Call `work` with a connection that only reads.

        In Postgres, each of its statements has a snapshot of its own.
        """
        raise NotImplementedError

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
        """Hold a lease that is about to be committed; its run has `written` entries.

        Returns the parameter for `_LEASED`.
        """
        raise NotImplementedError

    def _watch(self) -> None:
        """Start to renew leases, after one was committed."""
        raise NotImplementedError

    def _is_alive(self, owner: str, until: float | None, now: float) -> bool:
        """Whether the owner of a lease is alive, and so executes its runs."""
        raise NotImplementedError

    def _settles_s(self) -> float:
        """For how many seconds to take over no run.

        After a break that cut off all processes, a live owner may not be back yet.
        """
        return 0.0

    def _call_worker(
        self,
        db: Any,
        run_id: str,
        order: Order = Order(),  # noqa: B008  frozen
        *,
        after_s: float | None = None,
    ) -> None:
        """Call a worker for a run at rest that has work, or will have it after `after_s`.

        The call is part of this transaction. Does nothing without an engine.
        """

    def _index(self, db: Any, number: int, words: Sequence[str]) -> None:
        """Let searches find the run of this number by these words, and by no others."""
        raise NotImplementedError

    def _matching(self, words: Sequence[str]) -> tuple[str, str]:
        """SQL for the numbers of the runs that have all words, which may be beginnings of words.

        Returns it with its value.
        """
        raise NotImplementedError

    def _purge(self) -> None:
        """After runs were deleted, remove what is left of them outside the tables."""

    # -- leases

    def create(
        self,
        run_id: str,
        *,
        program: str,
        head: str,
        about: About = NOTHING,
        outline: Outline = NO_OUTLINE,
        entries: Sequence[str] = (),
        said: int = 0,
    ) -> Lease:
        """See `Store`."""
        # The token is random: the process of a deleted run with this id must not write here.
        lease = Lease(run_id, secrets.randbits(62), said)
        try:
            self._create(lease, program, head, about, outline, entries)
            self._watch()
        except BaseException:
            self._give_back(lease, "running")
            raise
        return lease

    @_writes
    def _create(
        self,
        db: Any,
        lease: Lease,
        program: str,
        head: str,
        about: About,
        outline: Outline,
        entries: Sequence[str],
    ) -> None:
        now = self._now(db)
        leased_column, _ = self._LEASED
        columns = {
            "program": program,
            "status": "running",
            "head": head,
            "owner": self._owner,
            "said": lease.said,
            leased_column: self._hold(lease, now, len(entries)),
        }
        number = insert(db, self._name, lease, now, about, outline, **columns)
        self._index(db, number, outline.words)
        self._insert_entries(db, number, entries, now)

    def _insert_entries(self, db: Any, number: int, entries: Sequence[str], now: float) -> None:
        """Give a new run, by its number, the entries with which it begins."""
        for index, entry in enumerate(entries):
            db.execute(
                "INSERT INTO ferrule_entries (place, entry, written_at) VALUES (?, ?, ?)",
                (number * MOST_ENTRIES + index, entry, now),
            )

    def take(self, run_id: str, *, after: int) -> Stored:
        """See `Store`.

        Marks a run whose process died too often as failed, and raises `StoreError` for it.
        """
        # `_take` puts its result into this list, because Ctrl-C may come after the commit and
        # before it returns: then the lease must be given back.
        taken: list[tuple[Lease, Stored]] = []
        try:
            recoveries = self._take(run_id, after, taken)
            self._watch()
        except BaseException:
            for lease, stored in taken:
                self._give_back(lease, stored.status)
            raise
        if not taken:
            msg = (
                f"The run {run_id!r} crashed {recoveries} times, and was marked as failed. "
                f"Look at it with `ferrule show {run_id}`; to continue anyway, open the store "
                f"with `max_recoveries={recoveries}` or more."
            )
            raise StoreError(msg)
        [(lease, stored)] = taken
        self._leases.forget(run_id, lease.token - 1)
        return stored

    @_writes
    @reading("A run in the store")
    def _take(self, db: Any, run_id: str, after: int, taken: list[tuple[Lease, Stored]]) -> int:
        """Put the run with its lease into `taken`, unless it is marked as failed.

        Returns how often it was recovered from a dead process.
        """
        now = self._now(db)
        columns = "status, owner, token, recoveries, head, said, no"
        row = self._row(db, run_id, columns, self._LOCK)
        status, owner, token, recoveries, head, said, number = row
        if owner is not None:
            recoveries += self._check_takeover(db, run_id, owner, token, now)
        if recoveries > self.max_recoveries:
            park(db, run_id, head, recoveries)
            return recoveries
        lease = Lease(run_id, token + 1, said)
        entries, times, decisions = self._written(db, run_id, number, after)
        taken[:] = [(lease, Stored(status, head, entries, decisions, lease, times))]
        leased_column, leased_value = self._LEASED
        leased_parameter = self._hold(lease, now, after + len(entries))
        db.execute(
            "UPDATE ferrule_runs SET owner = ?, token = ?, recoveries = ?, "
            f"status = 'running', updated_at = ?, {leased_column} = {leased_value} WHERE id = ?",
            (self._owner, token + 1, recoveries, now, leased_parameter, run_id),
        )
        if status == "cancelled":
            db.execute("UPDATE ferrule_runs SET cancelled = FALSE WHERE id = ?", (run_id,))
        return recoveries

    def _check_takeover(self, db: Any, run_id: str, owner: str, token: int, now: float) -> int:
        """Raise `RunTakenError` if the owner of a leased run is alive.

        Returns 1 if the owner died with the run, or 0 if this process itself dropped the lease.
        """
        is_held_here = None
        if owner == self._owner:
            is_held_here = is_held(run_id, token)
        if is_held_here is False:
            return 0
        until = self._row(db, run_id, self._UNTIL)[0]
        settles_s = self._settles_s()
        if self._is_alive(owner, until, now) or settles_s:
            raise taken_error(
                owner,
                run_id,
                is_here=bool(is_held_here),
                this_process=self._owner,
                for_s=max((until or 0) - now, settles_s),
            )
        return 1

    def _give_back(self, lease: Lease, status: str) -> None:
        """Undo a `take` or `create` that was interrupted, or failed."""
        self._leases.let_go(lease)
        undo = partial(
            give_back, owner=self._owner, run_id=lease.run_id, token=lease.token, status=status
        )
        self._write(undo)
        self._leases.forget(lease.run_id, lease.token)

    @_writes
    def note(self, db: Any, lease: Lease, head: str) -> None:
        """See `Store`."""
        fence(db, lease, self._owner, self._LOCK)
        db.execute("UPDATE ferrule_runs SET head = ? WHERE id = ?", (head, lease.run_id))

    @_writes
    def report(self, db: Any, lease: Lease, outline: Outline) -> None:
        """See `Store`."""
        fence(db, lease, self._owner, self._LOCK)
        self._outline(db, lease.run_id, outline)

    def _outline(self, db: Any, run_id: str, outline: Outline) -> None:
        number = outline_run(db, run_id, outline, self._now(db))
        self._index(db, number, outline.words)

    def release(
        self,
        lease: Lease,
        *,
        status: str,
        head: str,
        heard: int | None = None,
        outline: Outline | None = None,
    ) -> bool:
        """See `Store`."""
        try:
            is_released = self._release(lease, status, head, heard, outline)
        except StoreError:
            self._leases.let_go(lease)
            raise
        if is_released:
            self._leases.forget(lease.run_id, lease.token)
        return is_released

    @_writes
    def _release(
        self,
        db: Any,
        lease: Lease,
        status: str,
        head: str,
        heard: int | None,
        outline: Outline | None,
    ) -> bool:
        form = parse_object(head, "the head of a run")
        now = self._now(db)
        was_cancelled = release(
            db,
            lease,
            self._owner,
            now,
            status=status,
            head=head,
            form=form,
            heard=heard,
            also=self._ALSO_AT_REST,
        )
        if was_cancelled is None:
            return False
        if outline is not None:
            self._outline(db, lease.run_id, outline)
        # A run may be cancelled after its last entry, when it was about to wait.
        if status == "cancelled" or (was_cancelled and status in {"waiting", "queued"}):
            cancel_at_rest(db, lease.run_id, now)
            return True
        has_work = status == "queued"
        if status == "waiting":
            has_work = note_questions(db, lease.run_id, form["questions"])
        if has_work:
            self._call_worker(db, lease.run_id)
        else:
            self._call_worker_at_expiry(db, lease.run_id, form["questions"], now)
        return True

    def _call_worker_at_expiry(
        self, db: Any, run_id: str, questions: Iterable[Mapping[str, Any]], now: float
    ) -> None:
        ends = [question.get("expires_at") for question in questions]
        expiries = [end for end in ends if end is not None]
        if expiries:
            self._call_worker(db, run_id, after_s=max(min(expiries) - now, 0))

    # -- runs without a lease

    @_writes
    def submit(
        self,
        db: Any,
        run_id: str,
        *,
        program: str,
        head: str,
        order: Order,
        about: About = NOTHING,
        outline: Outline = NO_OUTLINE,
        entries: Sequence[str] = (),
        said: int = 0,
        messages: Sequence[Decision] = (),
    ) -> None:
        """See `Store`."""
        if order != Order() and self.engine is None:
            msg = (
                "`priority`, `delay_s` and `queue_key` need an engine; "
                f"the store {self._name!r} has none."
            )
            raise StoreError(msg)
        lease = Lease(run_id, secrets.randbits(62))
        now = self._now(db)
        columns = {"program": program, "status": "queued", "head": head}
        number = insert(
            db, self._name, lease, now, about, outline, **columns, said=said + len(messages)
        )
        self._index(db, number, outline.words)
        self._insert_entries(db, number, entries, now)
        for message in messages:
            form = record_fields(message)
            self._insert_decision(db, run_id, message.question_id, form, now)
        self._call_worker(db, run_id, order)

    @_writes
    def put_off(self, db: Any, run_id: str, why: str) -> None:
        """See `Store`."""
        error = json_text({"type": "StoreError", "text": why})
        db.execute(
            "UPDATE ferrule_runs SET error = ?, updated_at = ? WHERE id = ? AND owner IS NULL",
            (error, self._now(db), run_id),
        )

    def load(self, run_id: str, *, after: int = 0) -> Stored:
        """See `Store`."""
        check_start(after)
        with reading("A run in the store"):
            return self._read(lambda db: self._stored(db, run_id, after))

    def decide(self, run_id: str, decision: Decision) -> Decision:
        """See `Store`."""
        return self._decide(run_id, plain_decision(decision), caller_notes())

    @_writes
    @reading("A run in the store")
    def _decide(self, db: Any, run_id: str, decision: Decision, caller: dict[str, str]) -> Decision:
        return self._decide_inside(db, run_id, decision, caller)

    def _decide_inside(
        self, db: Any, run_id: str, decision: Decision, caller: dict[str, str]
    ) -> Decision:
        """`decide`, inside a transaction."""
        question_id = decision.question_id
        now = self._now(db)
        columns = "status, questions, no"
        status, questions, number = self._row(db, run_id, columns, self._LOCK)
        waiting: dict[str, Question] = {}
        state = f"it is {status}"
        if status in {"waiting", "running"}:
            state = ""
            waiting = _questions_by_id(questions)

        first = self._first_decision(db, run_id, question_id)
        if first is None and (status == "running" or question_id not in waiting):
            # Since the run was resumed, a grant or a policy may have decided, and a call may have
            # begun to wait for its result.
            entries, _, _ = self._written(db, run_id, number, 0)
            first = decision_in(entries, question_id)
            if status == "running":
                waiting |= results_awaited_in(entries)
        if first is not None:
            check_second(first, decision, waiting.values())
            return first

        question = named_question(
            waiting.values(), question_id, where=f"the run {run_id!r}", state=state
        )
        accepted = accept(question, decision, now=now)
        form = record_fields(accepted)
        if caller:
            form["caller"] = caller
        self._insert_decision(db, run_id, question_id, form, now)
        if status == "waiting":
            db.execute("UPDATE ferrule_runs SET asking = asking - 1 WHERE id = ?", (run_id,))
            self._call_worker(db, run_id)
        return accepted

    def deliver(self, run_id: str, key: str, value: Any, *, by: str = "") -> None:
        """See `Store`."""
        entries = map(read_entry, self.load(run_id).entries)
        for decision in deliveries(entries, run_id, key, value):
            self.decide(run_id, decision.signed(by))

    def say(
        self,
        run_id: str,
        text: str,
        *,
        when: When = "next",
        by: str = "",
        via: str = "api",
        key: str = "",
    ) -> Decision:
        """See `Store`."""
        return self._say(run_id, unsent_message(text, when=when, by=by, via=via), key)

    @_writes
    @reading("A run in the store")
    def _say(self, db: Any, run_id: str, message: Decision, key: str) -> Decision:
        status, head, said = self._row(db, run_id, "status, head, said", self._LOCK)
        if key:
            first = said_before(self._messages(db, run_id), key, message)
            if first is not None:
                return first
        takes_messages = parse_object(head, "the head of a run").get("takes_messages", False)
        refuse_message(run_id, status, takes_messages=takes_messages)
        now = self._now(db)
        sent = with_number(message, said + 1, key, at=now)
        self._send(db, run_id, sent, now)
        return sent

    def _send(self, db: Any, run_id: str, message: Decision, now: float) -> None:
        """Store a message to a run, such as words or a cancellation that no question asked for.

        The higher number `said` makes the process at work on the run read it.
        """
        db.execute(
            "UPDATE ferrule_runs SET said = said + 1, updated_at = ? WHERE id = ?", (now, run_id)
        )
        self._insert_decision(db, run_id, message.question_id, record_fields(message), now)

    def _insert_decision(
        self, db: Any, run_id: str, question_id: str, form: dict[str, Any], now: float
    ) -> None:
        db.execute(
            "INSERT INTO ferrule_decisions VALUES (?, ?, ?, ?, FALSE)",
            (run_id, question_id, json_text(form), now),
        )

    def _messages(self, db: Any, run_id: str) -> builtins.list[Decision]:
        rows = db.execute(
            "SELECT decision FROM ferrule_decisions WHERE run_id = ? AND question_id LIKE ?",
            (run_id, "say:%"),
        ).fetchall()
        return [read_decision(parse_object(text, "a decision")) for (text,) in rows]

    def _first_decision(self, db: Any, run_id: str, question_id: str) -> Decision | None:
        row = db.execute(
            "SELECT decision FROM ferrule_decisions WHERE run_id = ? AND question_id = ?",
            (run_id, question_id),
        ).fetchone()
        if row is None:
            return None
        return read_decision(parse_object(row[0], "a decision"))

    @_writes
    @reading("A run in the store")
    def cancel(self, db: Any, run_id: str) -> None:
        """See `Store`."""
        now = self._now(db)
        status, owner = self._row(db, run_id, "status, owner", self._LOCK)
        if owner is None and status in {"done", "failed"}:
            raise StoreError(f"The run {run_id!r} is {status} already.")
        is_executed = False
        if owner is not None:
            until = self._row(db, run_id, self._UNTIL)[0]
            is_executed = self._is_alive(owner, until, now) or self._settles_s() > 0
        if is_executed:
            db.execute(
                "UPDATE ferrule_runs SET cancelled = TRUE, updated_at = ? WHERE id = ?",
                (now, run_id),
            )
        else:
            cancel_at_rest(db, run_id, now)

    def cancel_call(
        self, run_id: str, call_id: str, *, result: Any = None, by: str = "", via: str = "api"
    ) -> Decision:
        """See `Store`."""
        cancellation = unsent_cancellation(result, by=by, via=via)
        return self._cancel_call(run_id, call_id, cancellation, caller_notes())

    @_writes
    @reading("A run in the store")
    def _cancel_call(
        self, db: Any, run_id: str, call_id: str, cancellation: Decision, caller: dict[str, str]
    ) -> Decision:
        columns = "status, questions, no"
        status, questions, number = self._row(db, run_id, columns, self._LOCK)
        entries, _, _ = self._written(db, run_id, number, 0)
        waiting: dict[str, Question] = {}
        if status == "waiting":
            waiting = _questions_by_id(questions)
        target = call_to_cancel(run_id, call_id, status, map(read_entry, entries), waiting)
        if not isinstance(target, CallAtWork):
            return self._decide_inside(db, run_id, on_question(target, cancellation), caller)
        now = self._now(db)
        sent = on_call(target, cancellation, at=now)
        first = self._first_decision(db, run_id, sent.question_id)
        if first is not None:
            check_second(first, sent)
            return first
        self._send(db, run_id, sent, now)
        return sent

    def look(self, leases: Sequence[Lease]) -> builtins.list[bool]:
        """See `Store`."""
        if not leases:
            return []
        marks = ", ".join("?" * len(leases))
        sql = f"SELECT id, token, cancelled, said FROM ferrule_runs WHERE id IN ({marks})"
        rows = self._read(
            lambda db: db.execute(sql, tuple([lease.run_id for lease in leases])).fetchall()
        )
        states = {(run_id, token): (cancelled, said) for run_id, token, cancelled, said in rows}
        were_cancelled: builtins.list[bool] = []
        for lease in leases:
            cancelled, said = states.get((lease.run_id, lease.token), (False, lease.said))
            lease.said = said
            were_cancelled.append(bool(cancelled))
        return were_cancelled

    # -- lists

    def list(
        self,
        *,
        limit: int | None = 100,
        before: tuple[float, str] | None = None,
        order: RunOrder = "updated",
        ascending: bool = False,
        **wanted: Unpack[RunFilter],
    ) -> list[Summary]:
        """See `Store`."""
        start = check_page(limit, before)
        check_switch(ascending, "ascending")
        column = order_column(order)
        filtered = self._filtered(wanted)

        def look(db: Any) -> builtins.list[Summary]:
            where, values = condition(db, filtered, column, start, ascending=ascending)
            return self._summaries(
                db, where, values, limit, order=order_by(column, ascending=ascending)
            )

        return self._read(look)

    def count(self, **wanted: Unpack[RunFilter]) -> dict[str, int]:
        """See `Store`."""
        filtered = self._filtered(wanted)

        def look(db: Any) -> dict[str, int]:
            where, values = condition(db, filtered)
            return counts(db, where, values)

        return self._read(look)

    def names(self, kind: NameKind) -> builtins.list[str]:
        """See `Store`."""
        check_name_kind(kind)
        return self._read(lambda db: names(db, kind))

    def count_questions(self) -> dict[str, int]:
        """See `Store`."""
        return self._read(questions_by_program)

    def evaluations(self) -> builtins.list[EvaluationFigures]:
        """See `Store`."""
        return self._read(evaluations)

    def overview(self, *, since: float, until: float) -> Overview:
        """See `Store`."""
        check_number(since, "since")
        check_number(until, "until")
        return self._read(lambda db: overview(db, since, until))

    def _filtered(self, wanted: RunFilter) -> Filtered:
        words = words_in(check_filter(wanted).get("search") or "")
        matching = None
        if words:
            matching = self._matching(words)
        labels = digests(check_metadata(wanted.get("metadata") or {}))
        assigned = wanted.get("assigned")
        if assigned is not None:
            labels.append(assignment_label(assigned))
        return Filtered(wanted, labels, matching)

    def summary(self, run_id: str) -> Summary:
        """See `Store`."""
        if not is_column_text(run_id):
            raise self._missing(run_id)
        lines = self._read(
            lambda db: self._summaries(db, "WHERE id = ?", (run_id,), 1, is_one=True)
        )
        if not lines:
            raise self._missing(run_id)
        return lines[0]

    @reading("A run in the store")
    def _summaries(
        self,
        db: Any,
        where: str,
        values: tuple[Any, ...],
        limit: int | None,
        *,
        order: str = "",
        is_one: bool = False,
    ) -> builtins.list[Summary]:
        def is_alive(owner: str, until: float | None) -> bool:
            return self._is_alive(owner, until, self._now(db))

        return summaries(
            db,
            where,
            values,
            limit=limit,
            order=order,
            until=self._UNTIL,
            is_alive=is_alive,
            is_one=is_one,
        )

    # -- what people say of runs

    def assign(self, run_id: str, person: str) -> None:
        """See `Store`."""
        self._assign(run_id, check_person(person))

    @_writes
    def _assign(self, db: Any, run_id: str, person: str) -> None:
        number, before = self._row(db, run_id, "no, assigned", self._LOCK)
        assign(db, number, assignment_label(person), assignment_label(before), person)

    def add_note(self, run_id: str, text: str, *, author: str = "") -> RunNote:
        """See `Store`."""
        return self._add_note(run_id, check_note(text), check_person(author))

    @_writes
    def _add_note(self, db: Any, run_id: str, text: str, author: str) -> RunNote:
        (number,) = self._row(db, run_id, "no")
        note = RunNote(text=text, author=author, at=self._now(db))
        db.execute(
            "INSERT INTO ferrule_notes (run, author, written_at, note) VALUES (?, ?, ?, ?)",
            (number, author, note.at, text),
        )
        return note

    def notes(self, run_id: str) -> builtins.list[RunNote]:
        """See `Store`."""
        return self._read(lambda db: notes_of(db, self._row(db, run_id, "no")[0]))

    @_writes
    def score(self, db: Any, evaluation: str, items: Mapping[str, ItemScore]) -> None:
        """See `Store`."""
        now = self._now(db)
        for run_id, item in items.items():
            keep_score(db, evaluation, run_id, item, now)

    # -- deletion

    def delete(self, run_id: str) -> None:
        """See `Store`."""
        self._delete(run_id)
        self._purge()

    @_writes
    def _delete(self, db: Any, run_id: str) -> None:
        (number,) = self._row(db, run_id, "no", self._LOCK)
        self._forget(db, run_id, number)

    def redact(self, run_id: str) -> None:
        """See `Store`."""
        self._redact(run_id)
        self._purge()

    @_writes
    def _redact(self, db: Any, run_id: str) -> None:
        columns = "status, head, program, no"
        status, head, program, number = self._row(db, run_id, columns, self._LOCK)
        if status in {"queued", "running", "waiting"}:
            raise StoreError(f"The run {run_id!r} is {status}; cancel it before you redact it.")
        redacted_head: dict[str, Any] = {
            **parse_object(head, "the head of a run"),
            "args": [],
            "inputs": {},
            "questions": [],
            "answers": [],
            "error": None,
            "notes": {},
            "redacted": True,
        }
        redacted_head.pop("metadata", None)
        redacted_head.pop("title", None)
        self._empty(db, run_id, number)
        self._index(db, number, [*words_in(run_id), *words_in(program)])
        db.execute(
            "UPDATE ferrule_runs SET head = ?, questions = '[]', error = NULL, title = '', "
            "metadata = NULL, asked = '', answered = '', assigned = '', scores = NULL "
            "WHERE id = ?",
            (json_text(redacted_head), run_id),
        )

    def prune(
        self, *, older_than_s: float, statuses: Iterable[str] = ("done", "failed", "cancelled")
    ) -> int:
        """See `Store`."""
        count = self._prune(older_than_s, check_pruning(older_than_s, statuses))
        if count:
            self._purge()
        return count

    @_writes
    def _prune(self, db: Any, older_than_s: float, statuses: set[str]) -> int:
        marks = ", ".join("?" * len(statuses)) or "NULL"
        sql = (
            "SELECT id, no FROM ferrule_runs "
            f"WHERE updated_at <= ? AND status IN ({marks}){self._LOCK}"
        )
        rows = db.execute(sql, (self._now(db) - older_than_s, *statuses)).fetchall()
        for run_id, number in rows:
            self._forget(db, run_id, number)
        return len(rows)

    def _forget(self, db: Any, run_id: str, number: int) -> None:
        self._empty(db, run_id, number)
        db.execute("DELETE FROM ferrule_used WHERE run = ?", (number,))
        db.execute("DELETE FROM ferrule_runs WHERE id = ?", (run_id,))

    @reading("A run in the store")
    def _empty(self, db: Any, run_id: str, number: int) -> None:
        """Delete all that a run has besides its row, and its words for searches."""
        db.execute(
            "DELETE FROM ferrule_entries WHERE place >= ? AND place < ?",
            (number * MOST_ENTRIES, (number + 1) * MOST_ENTRIES),
        )
        db.execute("DELETE FROM ferrule_decisions WHERE run_id = ?", (run_id,))
        db.execute("DELETE FROM ferrule_labels WHERE run = ?", (number,))
        db.execute("DELETE FROM ferrule_notes WHERE run = ?", (number,))
        db.execute("DELETE FROM ferrule_used WHERE kind = 'evaluation' AND run = ?", (number,))
        self._index(db, number, ())

    # -- one run

    def _row(self, db: Any, run_id: str, columns: str, lock: str = "") -> Any:
        """These columns of the row of a run. Raises `StoreError` if the store has no such run."""
        row = None
        if is_column_text(run_id):
            row = db.execute(
                f"SELECT {columns} FROM ferrule_runs WHERE id = ?{lock}", (run_id,)
            ).fetchone()
        if row is None:
            raise self._missing(run_id)
        return row

    def _missing(self, run_id: str) -> StoreError:
        return StoreError(f"The store {self._name!r} has no run {run_id!r}.")

    def _stored(self, db: Any, run_id: str, after: int) -> Stored:
        status, head, number = self._row(db, run_id, "status, head, no")
        entries, times, decisions = self._written(db, run_id, number, after)
        return Stored(status, head, entries, decisions, None, times)

    def _written(self, db: Any, run_id: str, number: int, after: int) -> Written:
        """Everything that the run with this number has besides its row."""
        entry_rows = db.execute(
            "SELECT entry, written_at FROM ferrule_entries "
            "WHERE place >= ? AND place < ? ORDER BY place",
            (number * MOST_ENTRIES + after, (number + 1) * MOST_ENTRIES),
        ).fetchall()
        decision_rows = db.execute(
            "SELECT decision FROM ferrule_decisions "
            "WHERE run_id = ? AND NOT taken ORDER BY decided_at",
            (run_id,),
        ).fetchall()
        entries = [entry for entry, _ in entry_rows]
        times = [written_at for _, written_at in entry_rows]
        return entries, times, [decision for (decision,) in decision_rows]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of a program share the store


def _questions_by_id(questions: str) -> dict[str, Question]:
    """The questions in the column `questions` of a run."""
    return {form["id"]: read_question(form) for form in parse_json(questions)}
