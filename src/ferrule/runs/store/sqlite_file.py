"""One SQLite file that keeps runs: its tables, its connection, its transactions.

One connection per process, guarded by a reentrant lock. Every write is one transaction, on disk when it ends
(`synchronous=FULL`, WAL). SQLite errors become `StoreError`, and then nothing was written.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
import weakref
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from ferrule.errors import StoreError
from ferrule.values.encoding.stored import reading

if TYPE_CHECKING:
    from collections.abc import Generator

SCHEMA = 1
_WAIT_MS = 10_000
_WAIT_FOR_READERS_MS = 500
_TRY_AGAIN_S = 1.0
_RECOVER = "Put a backup in its place, or save what can be read into a new file: `sqlite3 OLD .recover | sqlite3 NEW`."
_REMEDIES = {
    "SQLITE_FULL": "Free space on its disk, and resume the run.",
    "SQLITE_BUSY": "Another process is writing to it: try again, and end a process that does not finish.",
    "SQLITE_LOCKED": "Another connection is writing to it: try again.",
    "SQLITE_CANTOPEN": "Check that its folder exists and that this process may write there.",
    "SQLITE_READONLY": "Let this process write to the file and to its folder.",
    "SQLITE_PERM": "Let this process read and write the file.",
    "SQLITE_CORRUPT": f"The file is damaged. {_RECOVER}",
    "SQLITE_NOTADB": f"The file is no SQLite database, or its first bytes are damaged. {_RECOVER}",
}
_ANY_REMEDY = "If it happens again, check the file: `sqlite3 FILE 'PRAGMA integrity_check'`."
# The keys looked up at every write of an entry are integers: comparing a text key would read the rest of its row too, and a picture of
# five megabytes again for each later entry. Large columns come last in their row for the same reason.
_TABLES = """
CREATE TABLE runs (
    no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, program TEXT NOT NULL, status TEXT NOT NULL,
    created_at REAL NOT NULL, updated_at REAL NOT NULL,
    owner TEXT, until REAL NOT NULL DEFAULT 0, token INTEGER NOT NULL DEFAULT 0,
    recoveries INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
    error TEXT, questions TEXT NOT NULL, head TEXT NOT NULL
);
CREATE INDEX runs_by_change ON runs (updated_at);
CREATE TABLE entries (place INTEGER PRIMARY KEY, entry TEXT NOT NULL);
CREATE TABLE decisions (
    run_id TEXT NOT NULL, question_id TEXT NOT NULL, decision TEXT NOT NULL, decided_at REAL NOT NULL, taken INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, question_id)
) WITHOUT ROWID;
"""


class SQLiteFile:
    """The file at a path, opened or created at first use. Safe in threads, and in the child of a fork."""

    def __init__(self, path: str, *, full_sync: bool) -> None:
        self.path = path
        self._full_sync = full_sync
        self._of_a_parent: list[sqlite3.Connection] = []
        self._fresh()
        _FILES.add(self)

    def _fresh(self) -> None:
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closing: weakref.finalize[..., SQLiteFile] | None = None
        self._inside = False
        self._truncate_at: float | None = None
        """When to retry a failed `truncate`; None if none is due."""

    def after_fork(self) -> None:
        """Called in the child of a fork. The parent may have held the lock, and SQLite forbids even closing a parent's connection."""
        if self._connection is not None and self._closing is not None:
            self._closing.detach()
            self._of_a_parent.append(self._connection)
        self._fresh()

    def close(self) -> None:
        """Close the connection. The next use reopens it."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._connection = self._closing = None

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """A block whose reads all see one snapshot."""
        with self._connected() as db:
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("ROLLBACK")

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    with reading(f"The store {self.path!r}"):  # SQLite may quote the bytes of a damaged name, which are no text
                        self._connection = self._open()
                    self._closing = weakref.finalize(self, self._connection.close)
                yield self._connection
            except sqlite3.Error as error:
                name = getattr(error, "sqlite_errorname", "")
                how = next((how for start, how in _REMEDIES.items() if name.startswith(start)), _ANY_REMEDY)
                msg = f"The store {self.path!r} could not do its work: {error}. Nothing of it was written. {how}"
                raise StoreError(msg) from error

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """A new transaction, or the one this thread already has open."""
        with self._connected() as db:
            if self._inside:
                yield db
                return
            db.execute("BEGIN IMMEDIATE")
            self._inside = True
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            finally:
                self._inside = False
            if self._truncate_at is not None and monotonic() >= self._truncate_at:
                self._truncated(db, wait_ms=0)

    def truncate(self) -> None:
        """Empty the write-ahead log, which may still contain deleted data.

        This fails while another connection reads an older snapshot: then it warns, and retries after later writes and when the file is
        closed.
        """
        with self._connected() as db:
            if not self._truncated(db, wait_ms=_WAIT_FOR_READERS_MS):
                msg = (
                    f"What was deleted from the store {self.path!r} is gone from it, but stands in the bytes of {self.path + '-wal'!r} for "
                    "as long as another connection reads the state before. It goes with a later write, or when the store is closed."
                )
                warnings.warn(msg, RuntimeWarning, stacklevel=3)

    def _truncated(self, db: sqlite3.Connection, *, wait_ms: int) -> bool:
        db.execute(f"PRAGMA busy_timeout={wait_ms}")
        try:
            busy = bool(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
        except sqlite3.OperationalError:  # the write itself succeeded, so this error must not be raised
            busy = True
        finally:
            db.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
        self._truncate_at = monotonic() + _TRY_AGAIN_S if busy else None
        return not busy

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_WAIT_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if self._full_sync else 'NORMAL'}")
        db.execute("PRAGMA secure_delete=ON")  # deleted text is overwritten in the file, too
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA:
            return
        db.execute("BEGIN IMMEDIATE")
        version = db.execute("PRAGMA user_version").fetchone()[0]  # another process may have created it
        if version == 0:
            for statement in _TABLES.split(";")[:-1]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version={SCHEMA}")
        db.execute("COMMIT")
        if version > SCHEMA:
            msg = f"The store {self.path!r} has schema {version}; this ferrule knows schemas up to {SCHEMA}. Use a newer ferrule."
            raise StoreError(msg)


_FILES: weakref.WeakSet[SQLiteFile] = weakref.WeakSet()


def _after_fork() -> None:
    for file in tuple(_FILES):
        file.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
