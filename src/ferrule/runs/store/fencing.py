"""What is written under a lease. Every write is fenced: it is refused if the lease was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import StoreError
from ferrule.runs.journal.encode import parse_object
from ferrule.runs.store.lease import owner_name
from ferrule.values.encoding.encode import json_text

if TYPE_CHECKING:
    import sqlite3

    from ferrule.runs.protocols import Lease
    from ferrule.runs.store.sqlite_file import SQLiteFile

MOST_ENTRIES = 1 << 32
"""The entries of run number `no` have the keys from `no * MOST_ENTRIES` on."""
INSERT = (
    "INSERT INTO entries (place, entry, written_at) "
    "VALUES ((SELECT coalesce(max(place) + 1, ?) FROM entries WHERE place >= ? AND place < ?), ?, ?)"
)


def fence(db: sqlite3.Connection, lease: Lease) -> tuple[bool, int]:
    """Whether the run was cancelled, and the key of its first entry; raises `StoreError` if the lease was lost."""
    row = db.execute("SELECT token, owner, cancelled, no FROM runs WHERE id = ?", (lease.run_id,)).fetchone()
    if row is None or row[0] != lease.token:
        raise _lost(lease, "was deleted" if row is None else "was taken over by another process")
    if row[1] != owner_name():  # after a fork both processes know the token
        raise _lost(lease, f"is leased to {row[1] or 'no process'}, not to this process")
    return bool(row[2]), row[3] * MOST_ENTRIES


def _lost(lease: Lease, why: str) -> StoreError:
    import logging  # late: few leases are lost

    logging.getLogger("ferrule.store").warning("The lease of the run %s is lost", lease.run_id, extra={"run_id": lease.run_id})
    return StoreError(f"The run {lease.run_id!r} {why}; nothing was written.")


def append(db: sqlite3.Connection, lease: Lease, entry: str, *, starts: bool, consumes: str | None, now: float) -> bool:
    """Write one entry; see `Store.append`."""
    cancelled, first = fence(db, lease)
    if cancelled and starts:
        return False
    db.execute(INSERT, (first, first, first + MOST_ENTRIES, entry, now))
    if consumes is not None:
        db.execute("UPDATE decisions SET taken = 1 WHERE run_id = ? AND question_id = ?", (lease.run_id, consumes))
    return not cancelled


def append_all(file: SQLiteFile, items: list[Any]) -> list[bool | StoreError]:
    """Write all waiting entries in one transaction; a lost lease does not stop the others."""

    def work(db: sqlite3.Connection) -> list[bool | StoreError]:
        done: list[bool | StoreError] = []
        for lease, entry, starts, consumes, now in items:
            try:
                done.append(append(db, lease, entry, starts=starts, consumes=consumes, now=now))
            except StoreError as error:  # the lease was lost: none of it was written, so there is nothing to roll back
                done.append(error)
        return done

    return file.write(work)


def tend(file: SQLiteFile, held: list[tuple[str, int, float]], left: list[tuple[str, int]]) -> None:
    """Renew leases that are held, and give back those that are not."""

    def work(db: sqlite3.Connection) -> None:
        for run_id, token, until in held:
            db.execute("UPDATE runs SET until = ? WHERE id = ? AND token = ? AND owner = ?", (until, run_id, token, owner_name()))
        for run_id, token in left:
            give_back(db, run_id=run_id, token=token, status="running")

    file.write(work)
    for each in left:
        file.leases.forget(*each)


def give_back(db: sqlite3.Connection, *, run_id: str, token: int, status: str) -> None:
    """End a lease as if the run had not been taken; what was written under it stays."""
    mine = "WHERE id = ? AND token = ? AND owner = ?", (run_id, token, owner_name())
    row = db.execute(f"SELECT cancelled, updated_at FROM runs {mine[0]}", mine[1]).fetchone()  # noqa: S608  constant
    if row is None:
        return
    db.execute(f"UPDATE runs SET owner = NULL, until = 0, status = ? {mine[0]}", (status, *mine[1]))  # noqa: S608  constant
    if row[0]:
        cancel_at_rest(db, run_id, row[1])


def park(db: sqlite3.Connection, run_id: str, head: str, times: int) -> None:
    """Store a run that crashed its process too often as failed."""
    error = {"type": "StoreError", "text": f"crashed {times} times, and was parked"}
    head = json_text({**parse_object(head, "the head of a run"), "error": error})
    db.execute(
        "UPDATE runs SET status = 'failed', head = ?, error = ?, recoveries = ?, owner = NULL, until = 0 WHERE id = ?",
        (head, json_text(error), times, run_id),
    )


def cancel_at_rest(db: sqlite3.Connection, run_id: str, now: float) -> None:
    """Cancel a run at rest: delete its pending questions and unused decisions."""
    db.execute(
        "UPDATE runs SET status = 'cancelled', questions = '[]', owner = NULL, until = 0, token = token + 1, updated_at = ? WHERE id = ?",
        (now, run_id),
    )
    db.execute("DELETE FROM decisions WHERE run_id = ? AND NOT taken", (run_id,))
