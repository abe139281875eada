"""SQL statements on one run that SQLite and Postgres share.

Each function runs inside a transaction of its caller. A process writes to a run only under its
lease, and every write is *fenced*: it names the lease's token and owner, and is refused if another
process took the run over meanwhile. Without a fence, a process that was stopped for a minute would
go on writing into a run that somebody else executes.
"""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_object
from ferrule.errors import StoreError
from ferrule.forms import usage_form
from ferrule.runs.journal.encode import error_form
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.runs.about import About
    from ferrule.runs.evaluations import ItemScore
    from ferrule.runs.outline import Outline
    from ferrule.runs.protocols import Lease

MOST_ENTRIES = 1 << 32
"""Entry `k` of run number `no` has the key `no * MOST_ENTRIES + k` in the table `entries`."""


_USE = (
    "INSERT INTO ferrule_used AS used "
    "(kind, name, run, program, changed_at, calls, failed, tokens, cost, seconds) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_NOTHING_USED = Usage()
_LONGEST_FEEDBACK = 2_000
_HIGHEST_FIGURE = 10**15
"""The most that a column of tokens, calls or dollars holds.

Its 64 bits hold more, but the database also adds up the rows of many runs.
"""


def fence(db: Any, lease: Lease, owner: str, lock: str = "") -> tuple[bool, int]:
    """Check that the lease still holds. Sets `lease.said`.

    Returns:
        Whether the run was cancelled, and the key of its first entry.

    Raises:
        StoreError: The lease was lost.

    """
    row = db.execute(
        f"SELECT token, owner, cancelled, said, no FROM ferrule_runs WHERE id = ?{lock}",
        (lease.run_id,),
    ).fetchone()
    if row is None:
        raise _lost(lease, "was deleted")
    token, current_owner, cancelled, said, number = row
    if token != lease.token:
        raise _lost(lease, "was taken over by another process")
    if current_owner != owner:  # after a fork, both processes know the token
        raise _lost(lease, f"is leased to {current_owner or 'no process'}, not to this process")
    lease.said = said
    return bool(cancelled), number * MOST_ENTRIES


def _lost(lease: Lease, reason: str) -> StoreError:
    # Imported here: few leases are lost, and logging is a large module.
    import logging

    logging.getLogger("ferrule.store").warning(
        "The lease of the run %s is lost", lease.run_id, extra={"run_id": lease.run_id}
    )
    return StoreError(f"The run {lease.run_id!r} {reason}; nothing was written.")


def insert(
    db: Any, store: str, lease: Lease, now: float, about: About, outline: Outline, **columns: Any
) -> int:
    """Insert a new run; returns its number. Raises `StoreError` if its id exists."""
    metadata = None
    if about.metadata:
        metadata = json_text(about.metadata)
    row = {
        "id": lease.run_id,
        "token": lease.token,
        "created_at": now,
        "updated_at": now,
        "questions": "[]",
        "title": about.title,
        "metadata": metadata,
        "asked": outline.asked,
        "steps": outline.steps,
        **columns,
    }
    names = ", ".join(row)
    marks = ", ".join("?" * len(row))
    inserted = db.execute(
        f"INSERT INTO ferrule_runs ({names}) VALUES ({marks}) "
        "ON CONFLICT (id) DO NOTHING RETURNING no",
        tuple(row.values()),
    ).fetchone()
    if inserted is None:
        msg = (
            f"The store {store!r} has a run {lease.run_id!r} already. "
            "Load it, or choose another `run_id`."
        )
        raise StoreError(msg)
    (number,) = inserted
    for label in about.index():
        db.execute("INSERT INTO ferrule_labels (label, run) VALUES (?, ?)", (label, number))
    return number


def outline_run(db: Any, run_id: str, outline: Outline, now: float) -> int:
    """Store what happened in a run since its last outline; returns the number of the run."""
    usage = None
    if outline.usage != _NOTHING_USED:
        usage = json_text(usage_form(outline.usage))
    number, program = db.execute(
        "UPDATE ferrule_runs SET asked = ?, answered = ?, steps = ?, seconds = seconds + ?, "
        "usage = ?, tokens = ?, cost = ?, updated_at = ? WHERE id = ? RETURNING no, program",
        (
            outline.asked,
            outline.answered,
            outline.steps,
            outline.seconds,
            usage,
            _column_figure(outline.usage.total_tokens),
            _column_figure(outline.usage.cost or 0.0),
            now,
            run_id,
        ),
    ).fetchone()
    for use in outline.uses:
        db.execute(
            f"{_USE} ON CONFLICT (kind, name, run) DO UPDATE SET changed_at = excluded.changed_at, "
            "calls = excluded.calls, failed = excluded.failed, tokens = excluded.tokens, "
            "cost = excluded.cost, seconds = used.seconds + excluded.seconds",
            (
                use.kind,
                use.name,
                number,
                program,
                now,
                _column_figure(use.calls),
                use.failed,
                _column_figure(use.tokens),
                _column_figure(use.cost),
                use.seconds,
            ),
        )
    return number


def _column_figure(figure: float) -> float:
    """The figure as a column holds it: a server or a damaged entry may have said any number."""
    return max(-_HIGHEST_FIGURE, min(figure, _HIGHEST_FIGURE))


def release(
    db: Any,
    lease: Lease,
    owner: str,
    now: float,
    *,
    status: str,
    head: str,
    form: Mapping[str, Any],
    heard: int | None,
    also: str,
) -> bool | None:
    """Store the state of a run that pauses or ends, and end its lease.

    Args:
        db: The connection, in a transaction.
        lease: The lease that ends.
        owner: The name of this process.
        now: The time of the change.
        status: The new status of the run.
        head: The head as text.
        form: The same head, parsed.
        heard: How many messages the run has looked at, if it must have looked at all.
        also: SQL for further columns that the dialect sets.

    Returns:
        Whether the run was cancelled from elsewhere; None if nothing was stored, because it has
        got another message.

    """
    rows = db.execute(
        "UPDATE ferrule_runs SET owner = NULL, recoveries = 0, status = ?, head = ?, "
        f"questions = ?, error = ?, usage = ?, updated_at = ?{also} "
        "WHERE id = ? AND token = ? AND owner = ? AND said = coalesce(?, said) "
        "RETURNING cancelled",
        (
            status,
            head,
            json_text(form["questions"]),
            _optional_json(form.get("error")),
            _optional_json(form.get("usage")),
            now,
            lease.run_id,
            lease.token,
            owner,
            heard,
        ),
    ).fetchall()
    if not rows:
        fence(db, lease, owner)  # raises if the lease was lost
        return None
    [(cancelled,)] = rows
    if not cancelled:
        return False
    db.execute("UPDATE ferrule_runs SET cancelled = FALSE WHERE id = ?", (lease.run_id,))
    return True


def _optional_json(value: Any) -> str | None:
    if value is None:
        return None
    return json_text(value)


def note_questions(db: Any, run_id: str, questions: Sequence[Mapping[str, Any]]) -> bool:
    """Note how many of the questions of a run that waits have no decision.

    Returns whether one has a decision that the run has not used. Call it while the run's row is
    locked: then it sees every decision made before, and a later one waits.
    """
    rows = db.execute(
        "SELECT question_id FROM ferrule_decisions WHERE run_id = ? AND NOT taken", (run_id,)
    ).fetchall()
    decided_ids = {row[0] for row in rows}
    asking = sum(question["id"] not in decided_ids for question in questions)
    db.execute("UPDATE ferrule_runs SET asking = ? WHERE id = ?", (asking, run_id))
    return asking < len(questions)


def assign(db: Any, number: int, label: str, earlier_label: str, person: str) -> None:
    """Assign the run of this number to a person, or to none with an empty name.

    The list finds it by the person's label, which replaces that of the earlier person.
    """
    db.execute("UPDATE ferrule_runs SET assigned = ? WHERE no = ?", (person, number))
    db.execute("DELETE FROM ferrule_labels WHERE label = ? AND run = ?", (earlier_label, number))
    if person:
        db.execute(
            "INSERT INTO ferrule_labels (label, run) VALUES (?, ?) "
            "ON CONFLICT (label, run) DO NOTHING",
            (label, number),
        )


def keep_score(db: Any, evaluation: str, run_id: str, item: ItemScore, now: float) -> None:
    """Store how an evaluation scored a run; does nothing if there is no such run."""
    # JSON has no other numbers.
    scores = {name: value for name, value in item.scores.items() if isfinite(value)}
    form = {"scores": scores, "feedback": item.feedback[:_LONGEST_FEEDBACK]}
    row = db.execute(
        "UPDATE ferrule_runs SET scores = ? WHERE id = ? RETURNING no, program",
        (json_text(form), run_id),
    ).fetchone()
    if row is None:
        return
    number, program = row
    db.execute(
        f"{_USE} ON CONFLICT (kind, name, run) DO UPDATE SET changed_at = excluded.changed_at, "
        "failed = excluded.failed",
        ("evaluation", evaluation, number, program, now, 1, int(item.has_failed), 0, 0.0, 0.0),
    )


def give_back(db: Any, *, owner: str, run_id: str, token: int, status: str) -> None:
    """End a lease as if the run had not been taken. Entries written under it stay."""
    leased = "WHERE id = ? AND token = ? AND owner = ?"
    key = (run_id, token, owner)
    row = db.execute(f"SELECT cancelled, updated_at FROM ferrule_runs {leased}", key).fetchone()
    if row is None:
        return
    db.execute(f"UPDATE ferrule_runs SET owner = NULL, status = ? {leased}", (status, *key))
    cancelled, updated_at = row
    if cancelled:
        cancel_at_rest(db, run_id, updated_at)


def park(db: Any, run_id: str, head: str, times: int) -> None:
    """Mark a run as failed, because it crashed its process too often."""
    error = error_form(StoreError(f"crashed {times} times, and was marked as failed"))
    with suppress(StoreError):  # an unreadable head may be the reason for the crashes
        head = json_text({**parse_object(head, "the head of a run"), "error": error})
    db.execute(
        "UPDATE ferrule_runs SET status = 'failed', head = ?, error = ?, recoveries = ?, "
        "owner = NULL WHERE id = ?",
        (head, json_text(error), times, run_id),
    )


def cancel_at_rest(db: Any, run_id: str, now: float) -> None:
    """Cancel a run that no process executes: its pending questions and unused decisions go."""
    db.execute(
        "UPDATE ferrule_runs SET status = 'cancelled', questions = '[]', asking = 0, owner = NULL, "
        "token = token + 1, updated_at = ? WHERE id = ?",
        (now, run_id),
    )
    db.execute("DELETE FROM ferrule_decisions WHERE run_id = ? AND NOT taken", (run_id,))
