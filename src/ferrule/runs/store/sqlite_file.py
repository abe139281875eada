"""One SQLite file that keeps runs: its tables, its connection, its transactions.

All stores of a path share one connection per process, guarded by a reentrant lock. Every write is
one transaction, on disk when it ends (`synchronous=FULL`, WAL). SQLite errors become `StoreError`,
and then nothing was written.

Ctrl-C may arrive after any call. So cleanup that must happen is in an `__exit__` written in C, like
that of locks and connections: Python handles no signal within it. A generator or an `__exit__` in
Python could be interrupted before it does its work.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
import weakref
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.encoding.stored import reading
from ferrule.errors import StoreError
from ferrule.runs.store.lease import Leases

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

SCHEMA = 4
_WAIT_MS = 10_000
_WAIT_FOR_READERS_MS = 500
_TRY_AGAIN_S = 1.0
_SURE_S = 0.1
"""For this time, writing an entry does not check again that its file is there, which takes a tenth of a commit. The end of a run does."""
_LONGEST_WAIT_TO_FORK_S = 0.5
"""Per file. A thread that holds its file longer sleeps, or waits for the disk."""
_LONGEST_WAIT_TO_CLOSE_S = 1.0
_RECOVER = "Put a backup in its place, or save what can be read into a new file: `sqlite3 OLD .recover | sqlite3 NEW`."
_REMEDIES = {
    **dict.fromkeys(
        ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"),
        "Free space on its disk, and resume the run.",
    ),
    "SQLITE_BUSY": "Another process is writing to it: try again, and end a process that does not finish.",
    "SQLITE_LOCKED": "Another connection is writing to it: try again.",
    "SQLITE_CANTOPEN": "Check that its folder exists and that this process may write there.",
    "SQLITE_READONLY": "Let this process write to the file, to those beside it (`-wal`, `-shm`), and to its folder.",
    "SQLITE_PERM": "Let this process read and write the file.",
    "SQLITE_CORRUPT": f"The file is damaged. {_RECOVER}",
    "SQLITE_NOTADB": f"The file is not a SQLite database, or its first bytes are damaged. {_RECOVER}",
    "": "If it happens again, check the file: `sqlite3 FILE 'PRAGMA integrity_check'`.",
}
# The keys looked up at every write of an entry are integers: comparing a text key would read the
# rest of its row, too, and so an image of five megabytes again for each later entry. Large columns
# come last in their row for the same reason.
_TABLES = """
CREATE TABLE runs (
    no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, program TEXT NOT NULL, status TEXT NOT NULL,
    created_at REAL NOT NULL, updated_at REAL NOT NULL,
    owner TEXT, until REAL NOT NULL DEFAULT 0, token INTEGER NOT NULL DEFAULT 0,
    recoveries INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
    usage TEXT, error TEXT, questions TEXT NOT NULL, head TEXT NOT NULL
);
CREATE INDEX runs_by_change ON runs (updated_at);
CREATE INDEX runs_by_status ON runs (status, updated_at);
CREATE TABLE entries (place INTEGER PRIMARY KEY, written_at REAL, entry TEXT NOT NULL);
CREATE TABLE decisions (
    run_id TEXT NOT NULL, question_id TEXT NOT NULL, decision TEXT NOT NULL, decided_at REAL NOT NULL, taken INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, question_id)
) WITHOUT ROWID;
"""
_UPGRADES = {
    1: "ALTER TABLE entries ADD COLUMN written_at REAL",
    2: "ALTER TABLE runs ADD COLUMN usage TEXT",
    3: "CREATE INDEX runs_by_status ON runs (status, updated_at)",
}
"""By the schema of a file: the statement that upgrades it to the next one."""


class SQLiteFile:
    """The file at a path, opened or created at first use. Safe in threads, and in the child of a fork."""

    def __init__(self, path: str, *, full_sync: bool, read_only: bool = False) -> None:
        self.path = path
        self.leases = Leases()
        self.thread: Any = None
        """The thread that writes for event loops and renews leases; None before its first use."""
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        """The open stores that use this file."""
        self._full_sync = full_sync
        self._read_only = read_only
        self._of_a_parent: list[sqlite3.Connection] = []
        self._fresh()
        _FILES.add(self)

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closing: weakref.finalize[..., SQLiteFile] | None = None
        self._opened: tuple[int, int] | None = None
        self._inside = 0
        """The thread with an open transaction; 0 if there is none."""
        self._watching: tuple[sqlite3.Connection, weakref.finalize[..., SQLiteFile]] | None = None
        """A connection that never writes, so that its `data_version` changes with every commit; and its finalizer."""
        self._sure_until = 0.0
        """Until this time, entries are written without checking again that the path leads to this file."""
        self._truncate_at: float | None = None
        """When to retry a failed `truncate`; None if none is due."""

    def after_fork(self) -> None:
        """Called in the child of a fork. The parent may have held the lock, and SQLite forbids even closing a connection of the parent."""
        if self._connection is not None and self._closing is not None:
            self._closing.detach()
            self._of_a_parent.append(self._connection)
        if self._watching is not None:
            self._watching[1].detach()
            self._of_a_parent.append(self._watching[0])
        self.leases.clear()
        self.thread = None
        self._fresh()

    def is_current(self) -> bool:
        """Whether the path still leads to the file that is open here, or none is open: a file may be deleted and created again."""
        return self._opened is None or self._opened == _identity(self.path)

    def close(self) -> None:
        """Close the connection. The next use reopens it."""
        with self.lock:
            if self._closing is not None:
                self._closing()
            if self._watching is not None:
                self._watching[1]()
            self._connection = self._closing = self._opened = self._watching = None

    @property
    def is_busy(self) -> bool:
        """Whether a write would wait for another thread's transaction, or for writes that wait already. May change at any moment."""
        if self._inside:
            return self._inside != threading.get_ident()
        return self.thread is not None and self.thread.has_work

    def write(self, work: Callable[[sqlite3.Connection], R]) -> R:
        """Call `work` with the connection in this thread's open transaction, or a new one: committed when it returns, otherwise undone."""
        return self._transact("BEGIN IMMEDIATE", work)

    def execute(self, work: Callable[[sqlite3.Connection], R]) -> R:
        """Call `work` with the connection outside a transaction, unless this thread has one open: each of its statements is committed.

        If the path led to this file a moment ago, it is not checked again.
        """
        return self._transact(None, work)

    def read(self, work: Callable[[sqlite3.Connection], R]) -> R:
        """Call `work` with the connection; everything that it reads comes from one snapshot."""
        return self._transact("BEGIN", work)

    def changes(self) -> int:
        """A number that changes with every commit to the file, by this process or another."""
        if self._pid != os.getpid():
            self.after_fork()
        try:
            with self.lock:
                if self._connection is None:
                    self._open()
                if self.path == ":memory:":  # it has only one connection
                    return self._connection.total_changes if self._connection is not None else 0
                if self._watching is None:
                    with _connecting:
                        db = self._connect()
                    self._watching = db, weakref.finalize(self, _close, db, self.lock)
                self._check_place()
                return self._watching[0].execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _transact(self, begin: str | None, work: Callable[[sqlite3.Connection], R]) -> R:
        if self._pid != os.getpid():  # a fork made without Python
            self.after_fork()
        try:
            with self.lock:
                db = self._connection or self._open()
                if self._inside:  # in this thread, which has the lock
                    return work(db)
                if begin is not None or monotonic() >= self._sure_until:
                    self._check_place()
                db.rollback()  # a transaction still open here has no user
                try:
                    with db:  # an exception from here on, Ctrl-C too, rolls back
                        self._inside = threading.get_ident()
                        if begin is None:
                            found = work(db)
                        else:
                            db.execute(begin)
                            found = work(db)
                            db.execute("COMMIT")
                finally:
                    self._inside = 0
                if self._truncate_at is not None and monotonic() >= self._truncate_at:
                    self._truncated(db, wait_ms=0)
                return found
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _check_place(self) -> None:
        """Raise if the open file is no longer the one at the path: SQLite would go on writing to it, and the writes would be lost."""
        is_current = self.is_current()
        self._sure_until = monotonic() + _SURE_S if is_current else 0.0
        if not is_current:
            raise StoreError(
                f"The store {self.path!r} was deleted, moved or replaced after this process opened it. Nothing was read or written. "
                "Put the file back, or start this process again.",
            )

    def _failed(self, error: sqlite3.Error) -> StoreError:
        name = getattr(error, "sqlite_errorname", "")
        how = next(how for start, how in _REMEDIES.items() if name.startswith(start))
        return StoreError(f"The store {self.path!r} failed: {error}. Nothing was written. {how}")

    def truncate(self) -> None:
        """Empty the write-ahead log, which may still contain deleted data.

        This fails while another connection reads an older snapshot: then it warns, and retries
        after later writes and when the file is closed.
        """
        try:
            with self.lock:
                is_done = self._truncated(
                    self._connection or self._open(),
                    wait_ms=_WAIT_FOR_READERS_MS,
                )
        except sqlite3.Error as error:
            raise self._failed(error) from error
        if not is_done:
            msg = (
                f"Content deleted from the store {self.path!r} stays in the bytes of {self.path + '-wal'!r} while another connection reads "
                "an older state. A later write removes it, or closing the store."
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=3)

    def _truncated(self, db: sqlite3.Connection, *, wait_ms: int) -> bool:
        db.execute(f"PRAGMA busy_timeout={wait_ms}")
        try:
            busy = bool(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
        except (
            sqlite3.OperationalError
        ):  # the write itself succeeded, so this error must not be raised
            busy = True
        finally:
            db.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
        self._truncate_at = monotonic() + _TRY_AGAIN_S if busy else None
        return not busy

    def _connect(self) -> sqlite3.Connection:
        place = f"{Path(self.path).as_uri()}?mode=ro" if self._read_only else self.path
        return sqlite3.connect(
            place,
            timeout=_WAIT_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
            uri=self._read_only,
        )

    def _open(self) -> sqlite3.Connection:
        with _connecting:
            db = self._connect()
        try:
            with reading(
                f"The store {self.path!r}",
            ):  # SQLite may quote the bytes of a damaged name, which are not text
                self._prepare(db)
            self._closing = weakref.finalize(self, _close, db, self.lock)
        except BaseException:
            db.close()
            raise
        self._connection, self._opened = db, _identity(self.path)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        if self._read_only:
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found != SCHEMA:
                is_newer = (
                    "Use a newer ferrule."
                    if found > SCHEMA
                    else "Open it once for writing, which upgrades it."
                )
                raise StoreError(
                    f"The store {self.path!r} has schema {found}; this ferrule reads schema {SCHEMA}. {is_newer}",
                )
            return
        _use_wal(db)
        db.execute(f"PRAGMA synchronous={'FULL' if self._full_sync else 'NORMAL'}")
        db.execute(
            f"PRAGMA fullfsync={'ON' if self._full_sync else 'OFF'}",
        )  # macOS: else the disk may still hold a commit in its cache
        db.execute("PRAGMA secure_delete=ON")  # deleted text is overwritten in the file, too
        db.execute(
            "PRAGMA temp_store=MEMORY",
        )  # the rows of a large statement need no other folder, and leave no text there
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA:
            return
        db.execute("BEGIN IMMEDIATE")
        version = db.execute("PRAGMA user_version").fetchone()[
            0
        ]  # another process may have created it
        if version == 0:
            for statement in _TABLES.split(";")[:-1]:
                db.execute(statement)
        for before in range(version, SCHEMA) if version else ():
            db.execute(_UPGRADES[before])
        if version < SCHEMA:
            db.execute(f"PRAGMA user_version={SCHEMA}")
        db.execute("COMMIT")
        if version > SCHEMA:
            msg = f"The store {self.path!r} has schema {version}; this ferrule knows schemas up to {SCHEMA}. Use a newer ferrule."
            raise StoreError(msg)


_FILES: weakref.WeakSet[SQLiteFile] = weakref.WeakSet()


def _use_wal(db: sqlite3.Connection) -> None:
    # For this statement SQLite does not wait for other processes, which may be creating the same
    # file.
    ends = monotonic() + _WAIT_MS / 1000
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or monotonic() > ends:
                raise
            sleep(0.01)
        else:
            return


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  called for every store that is made
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _close(db: sqlite3.Connection, lock: threading.RLock) -> None:
    # At the end of the process a thread may still be inside SQLite, where a close would crash. If
    # it stays there, leave it to the system.
    if lock.acquire(timeout=_LONGEST_WAIT_TO_CLOSE_S):
        try:
            with _connecting:
                db.close()
        finally:
            lock.release()


def _before_fork() -> None:
    """Wait until no thread is inside SQLite: otherwise the child would find SQLite's own locks taken, and wait for them for ever."""
    locks = [_connecting] if _connecting.acquire(timeout=_LONGEST_WAIT_TO_FORK_S) else []
    _forking.locks = locks + [
        file.lock for file in tuple(_FILES) if file.lock.acquire(timeout=_LONGEST_WAIT_TO_FORK_S)
    ]


def _after_fork_in_parent() -> None:
    for lock in _forking.locks:
        lock.release()


def _after_fork() -> None:
    global _connecting
    _connecting = threading.RLock()
    for file in tuple(_FILES):
        file.after_fork()


_connecting = threading.RLock()
"""Held while a connection is opened, or closed by its finalizer. A fork takes it before the locks of all files."""
_forking = threading.local()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork,
    )
