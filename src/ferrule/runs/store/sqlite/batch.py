"""Writes of many runs in one SQLite transaction: one commit, one flush to disk, for all of them.

A service executes hundreds of runs, and each writes an entry for each act. One commit an entry
would make the disk the limit, so the store's thread collects what waits and writes it here. Work
that is refused (a lost lease, a cancelled run) must not stop the work of other runs.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.runs.protocols import UnheardError
from ferrule.runs.store.lease import owner_name
from ferrule.runs.store.sqlite.file import SQLITE_ERRORS
from ferrule.runs.store.statements import MOST_ENTRIES, fence, give_back

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from ferrule.runs.protocols import Lease
    from ferrule.runs.store.sqlite.file import SQLiteFile

_NEXT_PLACE = (
    "coalesce((SELECT max(place) + 1 FROM ferrule_entries "
    f"WHERE place >= no * {MOST_ENTRIES} AND place < (no + 1) * {MOST_ENTRIES}), "
    f"no * {MOST_ENTRIES})"
)
"""The key of the next entry of a run, given its row of `runs`."""

# Fence and entry in one statement. If no run matches, the statement fails: a place is a number, and
# 'none' is not. The last parameters of the condition allow a cancelled run, too, and one that has
# got a message since the last write.
APPEND_ONE = (
    "INSERT INTO ferrule_entries (place, entry, written_at) VALUES (coalesce("
    f"(SELECT {_NEXT_PLACE} FROM ferrule_runs "
    "WHERE id = ? AND token = ? AND owner = ? AND cancelled <= ? AND said <= ?), 'none'), ?, ?)"
)
"""Writes an entry of a run that the owner has leased; fails if the lease was lost."""

_TAKE_DECISION = "UPDATE ferrule_decisions SET taken = TRUE WHERE run_id = ? AND question_id = ?"
_MOST_ROWS = 4096
"""SQLite takes 32,766 parameters in a statement, and a row has six."""


class Append(NamedTuple):
    """An entry to be written; see `Store.append`."""

    lease: Lease
    entry: str
    starts: bool
    consumes: str | None
    now: float
    heard: int | None = None

    @property
    def most_said(self) -> int:
        """With how many messages and cancellations of its run it is written without a look."""
        if self.heard is None:
            return self.lease.said
        return min(self.lease.said, self.heard)

    def __call__(self, db: sqlite3.Connection) -> bool:
        """Write the entry, in one fenced statement.

        Without `consumes` it needs no transaction around it.
        """
        lease = self.lease
        leased = (lease.run_id, lease.token, owner_name())
        cancelled = False
        while True:
            known = (cancelled, self.most_said)
            try:
                db.execute(APPEND_ONE, (*leased, *known, self.entry, self.now))
                break
            except db.IntegrityError:
                cancelled, _ = fence(db, lease, owner_name())  # raises if the lease was lost
                if cancelled and self.starts:
                    return False
                if self.heard is not None and lease.said > self.heard:
                    raise UnheardError from None
                # More may have come between the two statements: then this looks once more.
                if known == (cancelled, self.most_said):
                    raise
        if self.consumes is not None:
            db.execute(_TAKE_DECISION, (self.lease.run_id, self.consumes))
        return not cancelled


def write_all(file: SQLiteFile, works: list[Callable[[sqlite3.Connection], Any]]) -> list[Any]:
    """Do the work of many callers in one transaction; returns the result or the error of each.

    Work that is refused does not stop the rest. Work that fails after it wrote something undoes
    everything; then each is done alone. Without the file, or room on its disk, all fail.
    """
    appends = [work for work in works if isinstance(work, Append) and work.consumes is None]
    only_appends = len(appends) == len(works)
    if only_appends and file.execute(lambda db: _append_all(db, appends)):
        return [True] * len(works)

    is_working = False
    """Whether an error came from the work itself, not from the begin or the commit."""

    def write(db: sqlite3.Connection) -> list[Any]:
        nonlocal is_working
        is_working = True
        written_ids: set[int] = set()
        if not only_appends and _append_all(db, appends):
            written_ids = set(map(id, appends))
        results = [True if id(work) in written_ids else _attempt(db, work) for work in works]
        is_working = False
        return results

    try:
        return file.write(write)
    except Exception:
        if not is_working or len(works) == 1:
            raise
    return [_alone(file, work) for work in works]


def tend(file: SQLiteFile, held: list[tuple[str, int, float]], left: list[tuple[str, int]]) -> None:
    """Renew the leases that are `held`, and give back those that were `left`."""

    def work(db: sqlite3.Connection) -> None:
        for run_id, token, until in held:
            db.execute(
                "UPDATE ferrule_runs SET until = ? WHERE id = ? AND token = ? AND owner = ?",
                (until, run_id, token, owner_name()),
            )
        for run_id, token in left:
            give_back(db, owner=owner_name(), run_id=run_id, token=token, status="running")

    file.write(work)
    for run_id, token in left:
        file.leases.forget(run_id, token)


def _attempt(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], Any]) -> Any:
    """The result of the work, or its error if it wrote nothing; otherwise raises the error."""
    changes_before = db.total_changes
    try:
        return work(db)
    except Exception as error:
        if isinstance(error, SQLITE_ERRORS) or db.total_changes != changes_before:
            raise
        return error


def _alone(file: SQLiteFile, work: Callable[[sqlite3.Connection], Any]) -> Any:
    """The result of the work in a transaction of its own, or its error."""
    try:
        return file.write(work)
    except Exception as error:  # noqa: BLE001  only the caller of this work raises it
        return error


def _append_all(db: sqlite3.Connection, appends: list[Append]) -> bool:
    """Write entries of many runs in one statement; returns False if none was written.

    SQLite releases Python's GIL in each statement, and a busy thread then keeps it for 5 ms: one by
    one, a hundred entries could take half a second.
    """
    # SQLite prepares one statement for each number of rows. So there are only statements of 1, 2,
    # 4, 8, ... rows, and the last rows may be empty.
    row_count = 1 << (len(appends) - 1).bit_length()
    if not appends or row_count > _MOST_ROWS:
        return False
    parameters: list[Any] = []
    earlier_entries = Counter[str]()
    for append in appends:
        lease = append.lease
        parameters += append.entry, append.now, lease.run_id, lease.token, append.most_said
        parameters.append(earlier_entries[lease.run_id])
        earlier_entries[lease.run_id] += 1
    parameters += [None] * 6 * (row_count - len(appends))
    try:
        db.execute(_append_sql(row_count), (*parameters, owner_name()))
    except db.OperationalError:  # no room, or locked: each single entry would fail, too
        raise
    except Exception:  # noqa: BLE001
        # One of them: a cancelled run, one with a new message, a lost lease, an entry that is too
        # large or not text.
        return False
    return True


@cache
def _append_sql(row_count: int) -> str:
    """`APPEND_ONE` for many entries. It writes all of them, or fails and writes none.

    All places are looked up before the first entry is written, so each row also says how many rows
    of its run come before it. Rows of NULL are skipped. A row without its run fails, because an
    entry is NOT NULL.
    """
    values = ", ".join(["(?, ?, ?, ?, ?, ?)"] * row_count)
    return (
        "INSERT INTO ferrule_entries (place, entry, written_at) "
        f"SELECT {_NEXT_PLACE} + column6, iif(no IS NULL, NULL, column1), column2 "
        f"FROM (VALUES {values}) LEFT JOIN ferrule_runs "
        "ON id = column3 AND token = column4 AND owner = ? AND NOT cancelled AND said <= column5 "
        "WHERE column1 IS NOT NULL"
    )
