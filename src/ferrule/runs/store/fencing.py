"""Writes to a run under its lease. Every write is fenced: it is refused if the lease was lost."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_object
from ferrule.errors import StoreError
from ferrule.runs.store.lease import owner_name

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping

    from ferrule.runs.protocols import Lease
    from ferrule.runs.store.sqlite_file import SQLiteFile

MOST_ENTRIES = 1 << 32
"""The entries of run number `no` have the keys from `no * MOST_ENTRIES` on."""
_PLACE = (
    "coalesce("  # noqa: RUF100, S608
    f"(SELECT max(place) + 1 FROM entries WHERE place >= no * {MOST_ENTRIES} AND place < (no + 1) * {MOST_ENTRIES}), "
    f"no * {MOST_ENTRIES})"
)
APPEND_ONE = (
    "INSERT INTO entries (place, entry, written_at) "  # noqa: RUF100, S608
    f"VALUES (coalesce((SELECT {_PLACE} FROM runs WHERE id = ? AND token = ? AND owner = ? AND cancelled <= ?), 'none'), ?, ?)"
)
"""Writes an entry of a run that the owner has leased. The last parameter of the condition allows a cancelled run, too. If no run matches,
the statement fails, because a place is a number and 'none' is not."""
_MOST_ROWS = 4096
"""SQLite takes 32,766 parameters in a statement; a row has five."""
_TAKE = "UPDATE decisions SET taken = TRUE WHERE run_id = ? AND question_id = ?"


def fence(db: Any, lease: Lease, owner: str, lock: str = "") -> tuple[bool, int]:
    """Whether the run was cancelled, and the key of its first entry; raises `StoreError` if the lease was lost."""
    row = db.execute(
        f"SELECT token, owner, cancelled, no FROM runs WHERE id = ?{lock}",
        (lease.run_id,),
    ).fetchone()
    if row is None or row[0] != lease.token:
        raise _lost(lease, "was deleted" if row is None else "was taken over by another process")
    if row[1] != owner:  # after a fork both processes know the token
        raise _lost(lease, f"is leased to {row[1] or 'no process'}, not to this process")
    return bool(row[2]), row[3] * MOST_ENTRIES


def _lost(lease: Lease, why: str) -> StoreError:
    import logging  # late: few leases are lost

    logging.getLogger("ferrule.store").warning(
        "The lease of the run %s is lost",
        lease.run_id,
        extra={"run_id": lease.run_id},
    )
    return StoreError(f"The run {lease.run_id!r} {why}; nothing was written.")


class Append(NamedTuple):
    """An entry to be written; see `Store.append`."""

    lease: Lease
    entry: str
    starts: bool
    consumes: str | None
    now: float

    def __call__(self, db: sqlite3.Connection) -> bool:
        """Write the entry, in one fenced statement: without `consumes` it needs no transaction around it."""
        lease, cancelled = self.lease, False
        mine, what = (lease.run_id, lease.token, owner_name()), (self.entry, self.now)
        try:
            db.execute(APPEND_ONE, (*mine, False, *what))
        except db.IntegrityError:
            cancelled, _ = fence(db, lease, mine[2])  # raises if the lease was lost
            if cancelled and self.starts:
                return False
            db.execute(APPEND_ONE, (*mine, True, *what))
        if self.consumes is not None:
            db.execute(_TAKE, (lease.run_id, self.consumes))
        return not cancelled


@cache
def _append_sql(rows: int) -> str:
    """`APPEND_ONE` for many entries. It writes all of them, or fails and writes none; rows of NULL are skipped.

    All places are looked up before the first entry is written, so each row also says how many rows
    of its run come before it.
    """
    values = ", ".join(["(?, ?, ?, ?, ?)"] * rows)
    return (
        "INSERT INTO entries (place, entry, written_at) "  # noqa: RUF100, S608
        f"SELECT {_PLACE} + column5, iif(no IS NULL, NULL, column1), column2 "  # fails for a row without its run: an entry is NOT NULL
        f"FROM (VALUES {values}) LEFT JOIN runs ON id = column3 AND token = column4 AND owner = ? AND NOT cancelled "
        "WHERE column1 IS NOT NULL"
    )


def _append_all(db: sqlite3.Connection, appends: list[Append]) -> bool:
    """Write entries of many runs in one statement; returns whether that was possible. If not, none is written.

    In each statement SQLite releases Python's GIL, and a busy thread then keeps it for 5 ms: one by
    one, a hundred entries could take half a second. Statements are prepared once for 1, 2, 4, 8,
    ... rows, so the last rows may be empty.
    """
    rows = 1 << (len(appends) - 1).bit_length()
    if not appends or rows > _MOST_ROWS:
        return False
    given: list[Any] = []
    before = Counter[str]()
    for each in appends:
        run_id = each.lease.run_id
        given += each.entry, each.now, run_id, each.lease.token, before[run_id]
        before[run_id] += 1
    try:
        db.execute(_append_sql(rows), (*given, *[None] * 5 * (rows - len(appends)), owner_name()))
    except db.OperationalError:  # no room, or locked: each single entry would fail, too
        raise
    except Exception:  # noqa: BLE001  one of them: a cancelled run, a lost lease, an entry too large or not text
        return False
    return True


def write_all(file: SQLiteFile, works: list[Callable[[sqlite3.Connection], Any]]) -> list[Any]:
    """Do the work of many callers in one transaction; returns the result or the error of each.

    Work that is refused does not stop the rest. Work that fails after it wrote something undoes
    everything; then each is done alone. Without the file, or room on its disk, all fail.
    """
    appends = [each for each in works if isinstance(each, Append) and each.consumes is None]
    if len(appends) == len(works) and file.execute(lambda db: _append_all(db, appends)):
        return [True] * len(works)
    at_work = False

    def work(db: sqlite3.Connection) -> list[Any]:
        nonlocal at_work
        at_work = True
        written = (
            set(map(id, appends)) if len(appends) < len(works) and _append_all(db, appends) else ()
        )
        done: list[Any] = []
        for each in works:
            before = db.total_changes
            try:
                done.append(id(each) in written or each(db))
            except Exception as error:
                if isinstance(error, db.Error) or db.total_changes != before:
                    raise
                done.append(error)
        at_work = False
        return done

    try:
        return file.write(work)
    except Exception:
        if (
            not at_work or len(works) == 1
        ):  # the transaction did not begin, or could not be committed
            raise
    return [_result(file, each) for each in works]


def _result(file: SQLiteFile, work: Callable[[sqlite3.Connection], Any]) -> Any:
    try:
        return file.write(work)
    except Exception as error:  # noqa: BLE001  only the caller of this work raises it
        return error


def tend(file: SQLiteFile, held: list[tuple[str, int, float]], left: list[tuple[str, int]]) -> None:
    """Renew the leases that are `held`, and give back those that were `left`."""

    def work(db: sqlite3.Connection) -> None:
        for run_id, token, until in held:
            db.execute(
                "UPDATE runs SET until = ? WHERE id = ? AND token = ? AND owner = ?",
                (until, run_id, token, owner_name()),
            )
        for run_id, token in left:
            give_back(db, owner=owner_name(), run_id=run_id, token=token, status="running")

    file.write(work)
    for each in left:
        file.leases.forget(*each)


def insert(db: Any, store: str, lease: Lease, now: float, **columns: Any) -> None:
    """Insert a new run. Raises `StoreError` if its id exists."""
    row = {
        "id": lease.run_id,
        "token": lease.token,
        "created_at": now,
        "updated_at": now,
        "questions": "[]",
        **columns,
    }
    names, places = ", ".join(row), ", ".join("?" * len(row))
    made = db.execute(
        f"INSERT INTO runs ({names}) VALUES ({places}) ON CONFLICT (id) DO NOTHING",  # noqa: RUF100, S608
        tuple(row.values()),
    )
    if made.rowcount == 0:
        raise StoreError(
            f"The store {store!r} has a run {lease.run_id!r} already. Load it, or choose another `run_id`.",
        )


def rest(
    db: Any,
    lease: Lease,
    owner: str,
    now: float,
    *,
    status: str,
    head: str,
    form: dict[str, Any],
    also: str,
) -> bool:
    """Store the state of a run at rest and end its lease; returns whether it was cancelled. `form` is the parsed head, `also` is SQL."""
    error, usage = (
        json_text(form[name]) if form.get(name) is not None else None for name in ("error", "usage")
    )
    rows = db.execute(
        "UPDATE runs SET owner = NULL, recoveries = 0, status = ?, head = ?, questions = ?, error = ?, usage = ?, "  # noqa: RUF100, S608
        f"updated_at = ?{also} WHERE id = ? AND token = ? AND owner = ? RETURNING cancelled",
        (
            status,
            head,
            json_text(form["questions"]),
            error,
            usage,
            now,
            lease.run_id,
            lease.token,
            owner,
        ),
    ).fetchall()
    cancelled = (
        bool(rows[0][0]) if rows else fence(db, lease, owner)[0]
    )  # `fence` raises: the lease was lost
    if cancelled:
        db.execute("UPDATE runs SET cancelled = FALSE WHERE id = ?", (lease.run_id,))
    return cancelled


def is_decided(db: Any, run_id: str, questions: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of these questions of a run has a decision that the run has not used.

    Call it while the run's row is locked: it sees every decision made before, and a later one
    waits.
    """
    found = db.execute(
        "SELECT question_id FROM decisions WHERE run_id = ? AND NOT taken",
        (run_id,),
    ).fetchall()
    return not {question["id"] for question in questions}.isdisjoint(row[0] for row in found)


def give_back(db: Any, *, owner: str, run_id: str, token: int, status: str) -> None:
    """End a lease as if the run had not been taken; entries written under it stay."""
    mine = "WHERE id = ? AND token = ? AND owner = ?", (run_id, token, owner)
    row = db.execute(f"SELECT cancelled, updated_at FROM runs {mine[0]}", mine[1]).fetchone()  # noqa: RUF100, S608
    if row is None:
        return
    db.execute(f"UPDATE runs SET owner = NULL, status = ? {mine[0]}", (status, *mine[1]))  # noqa: RUF100, S608
    if row[0]:
        cancel_at_rest(db, run_id, row[1])


def park(db: Any, run_id: str, head: str, times: int) -> None:
    """Store a run that crashed its process too often as failed."""
    error = {"type": "StoreError", "text": f"crashed {times} times, and was marked as failed"}
    with suppress(StoreError):  # an unreadable head may be the reason
        head = json_text({**parse_object(head, "the head of a run"), "error": error})
    db.execute(
        "UPDATE runs SET status = 'failed', head = ?, error = ?, recoveries = ?, owner = NULL WHERE id = ?",
        (head, json_text(error), times, run_id),
    )


def cancel_at_rest(db: Any, run_id: str, now: float) -> None:
    """Cancel a run that no process executes: delete its pending questions and unused decisions."""
    db.execute(
        "UPDATE runs SET status = 'cancelled', questions = '[]', owner = NULL, token = token + 1, updated_at = ? WHERE id = ?",
        (now, run_id),
    )
    db.execute("DELETE FROM decisions WHERE run_id = ? AND NOT taken", (run_id,))
