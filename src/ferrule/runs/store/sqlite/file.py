"""One SQLite file that keeps runs: its tables, its connection, its transactions.

All stores of a path share one connection per process, guarded by a reentrant lock. Every write is
one transaction, on disk when it ends (`synchronous=FULL`, WAL). SQLite errors become `StoreError`,
and then nothing was written.

Ctrl-C may arrive after any call. So cleanup that must happen is in an `__exit__` written in C, like
that of locks and connections: Python handles no signal within it. A generator or an `__exit__` in
Python could be interrupted before it does its work.

A fork copies the connection, and SQLite forbids to use or even to close it in the child. So the
child keeps a reference to it, and opens its own.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import threading
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.errors import StoreError
from ferrule.runs.store.lease import Leases

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a failed statement raises.

The message of SQLite's error may quote bytes of a damaged file. If they are not text, Python raises
a `UnicodeDecodeError` in place of the error.
"""
SCHEMA = 2
"""The version of the tables, in `PRAGMA user_version`."""
_WAIT_MS = 10_000
"""How long a statement waits for the locks of other processes."""
_WAIT_FOR_READERS_MS = 500
"""How long `truncate` waits for them. It is not urgent, and retried later."""
_TRY_AGAIN_S = 1.0
"""When it is retried."""
_TRUST_PATH_S = 0.1
"""For this time, an entry is written without checking again that the path leads to the open file.

The check takes a tenth of a commit. The end of a run always checks.
"""
_LONGEST_WAIT_TO_FORK_S = 0.5
"""Per file. A thread that holds its file longer sleeps, or waits for the disk."""
_LONGEST_WAIT_TO_CLOSE_S = 1.0
_PRIVATE = 0o600
"""The mode of a file that only its owner reads and writes."""

_RECOVER = (
    "Put a backup in its place, or save what can be read into a new file: "
    "`sqlite3 OLD .recover | sqlite3 NEW`."
)
_FULL = "Free space on its disk, and resume the run."
_REMEDIES = {
    "SQLITE_FULL": _FULL,
    "SQLITE_IOERR_SHMSIZE": _FULL,
    "SQLITE_IOERR_WRITE": "Check its disk, and that this process may write files of this size, and "
    "resume the run.",
    "SQLITE_BUSY": "Another process is writing to it: try again, and end a process that does not "
    "finish.",
    "SQLITE_LOCKED": "Another connection is writing to it: try again.",
    "SQLITE_CANTOPEN": "Check that its folder exists and that this process may write there. With "
    "`read_only=True`, the file must exist, too.",
    "SQLITE_READONLY": "Let this process write to the file, to those beside it (`-wal`, `-shm`), "
    "and to its folder.",
    "SQLITE_PERM": "Let this process read and write the file.",
    "SQLITE_CORRUPT": f"The file is damaged. {_RECOVER}",
    "SQLITE_NOTADB": "The file is not a SQLite database, or its first bytes are damaged. "
    + _RECOVER,
}
"""What to do, by the beginning of the name of SQLite's error."""
_OTHER_REMEDY = "If it happens again, check the file: `sqlite3 FILE 'PRAGMA integrity_check'`."

# Each name begins with `ferrule_`: tools have their own tables in this file (`ctx.db`).
#
# The keys looked up at every write of an entry are integers: comparing a text key would read the
# rest of its row, too, and so an image of five megabytes again for each later entry. Large columns
# come last in their row for the same reason. `ferrule_runs_by_change` has what lists are filtered
# and sorted by, so that a hundred thousand runs are looked through without reading their rows. The
# words of `ferrule_search` come from `words_in`, separated by blanks: `ascii` takes them as they
# are.
_TABLES = """
CREATE TABLE ferrule_runs (
    no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, program TEXT NOT NULL, status TEXT NOT NULL,
    created_at REAL NOT NULL, updated_at REAL NOT NULL,
    owner TEXT, until REAL NOT NULL DEFAULT 0, token INTEGER NOT NULL DEFAULT 0,
    recoveries INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
    said INTEGER NOT NULL DEFAULT 0, asking INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0, cost REAL NOT NULL DEFAULT 0,
    title TEXT NOT NULL DEFAULT '', metadata TEXT,
    asked TEXT NOT NULL DEFAULT '', answered TEXT NOT NULL DEFAULT '',
    assigned TEXT NOT NULL DEFAULT '', scores TEXT,
    usage TEXT, error TEXT, questions TEXT NOT NULL, head TEXT NOT NULL
);
CREATE INDEX ferrule_runs_by_change ON ferrule_runs (
    updated_at, id, status, program, created_at, steps, seconds, tokens, cost
);
CREATE INDEX ferrule_runs_by_status ON ferrule_runs (status, updated_at);
CREATE INDEX ferrule_runs_by_program ON ferrule_runs (program);
CREATE TABLE ferrule_labels (
    label TEXT NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (label, run)
) WITHOUT ROWID;
CREATE INDEX ferrule_labels_by_run ON ferrule_labels (run);
CREATE TABLE ferrule_used (
    kind TEXT NOT NULL, name TEXT NOT NULL, run INTEGER NOT NULL,
    program TEXT NOT NULL, changed_at REAL NOT NULL,
    calls INTEGER NOT NULL, failed INTEGER NOT NULL,
    tokens INTEGER NOT NULL, cost REAL NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (kind, name, run)
) WITHOUT ROWID;
CREATE INDEX ferrule_used_by_run ON ferrule_used (run);
CREATE VIRTUAL TABLE ferrule_search USING fts5 (
    words, detail = none, columnsize = 0, tokenize = 'ascii'
);
CREATE TABLE ferrule_notes (
    no INTEGER PRIMARY KEY, run INTEGER NOT NULL, author TEXT NOT NULL, written_at REAL NOT NULL,
    note TEXT NOT NULL
);
CREATE INDEX ferrule_notes_by_run ON ferrule_notes (run);
CREATE TABLE ferrule_entries (place INTEGER PRIMARY KEY, written_at REAL, entry TEXT NOT NULL);
CREATE TABLE ferrule_decisions (
    run_id TEXT NOT NULL, question_id TEXT NOT NULL, decision TEXT NOT NULL,
    decided_at REAL NOT NULL, taken INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, question_id)
) WITHOUT ROWID;
"""


class _Connection(sqlite3.Connection):
    """A connection that closes itself when its last reference goes.

    `SQLiteFile` closes its connections. But Ctrl-C may come after SQLite has opened one and before
    `SQLiteFile` has noted it, and Python 3.13 warns of a connection that was not closed, wherever
    the garbage collector happens to run.
    """

    _NotOpened = sqlite3.ProgrammingError  # when Python ends, the names of modules are gone

    def __del__(self) -> None:
        try:  # noqa: SIM105  the name `suppress` is gone as well
            self.close()
        except self._NotOpened:
            pass


class SQLiteFile:
    """The file at a path, opened or created at first use.

    Threads may share it, and it may be used in the child of a fork.
    """

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
        """Connections of the process that forked this one: kept, so that they are not closed."""
        self._reset()
        _files.add(self)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closing: weakref.finalize[..., SQLiteFile] | None = None
        self._identity: tuple[int, int] | None = None
        """Device and inode of the open file."""
        self._transaction_thread = 0
        """The thread with an open transaction; 0 if there is none."""
        self._watching: tuple[sqlite3.Connection, weakref.finalize[..., SQLiteFile]] | None = None
        """A connection that never writes, and its finalizer.

        Its `data_version` changes with every commit of another connection.
        """
        self._path_trusted_until = 0.0
        self._truncate_at: float | None = None
        """When to retry a failed `truncate`; None if none is due."""

    def after_fork(self) -> None:
        """Start afresh in the child of a fork, where the parent may have held the lock."""
        if self._connection is not None and self._closing is not None:
            self._closing.detach()
            self._of_a_parent.append(self._connection)
        if self._watching is not None:
            connection, closing = self._watching
            closing.detach()
            self._of_a_parent.append(connection)
        self.leases.clear()
        self.thread = None
        self._reset()

    def is_current(self) -> bool:
        """Whether the path still leads to the open file, or none is open.

        A file may be deleted and created again.
        """
        return self._identity is None or self._identity == _identity_of(self.path)

    @property
    def is_busy(self) -> bool:
        """Whether a write would wait for other threads. May change at any moment."""
        if self._transaction_thread:
            return self._transaction_thread != threading.get_ident()
        return self.thread is not None and self.thread.has_work

    def close(self) -> None:
        """Close the connection. The next use reopens it."""
        with self.lock:
            if self._closing is not None:
                self._closing()
            if self._watching is not None:
                _, closing = self._watching
                closing()
            self._connection = self._closing = self._identity = self._watching = None

    # -- transactions

    def write(self, work: Callable[[sqlite3.Connection], R]) -> R:
        """Call `work` in this thread's open transaction, or in a new one.

        A new one is committed when `work` returns, and undone when it raises.
        """
        return self._transact("BEGIN IMMEDIATE", work)

    def execute(self, work: Callable[[sqlite3.Connection], R]) -> R:
        """Call `work` outside a transaction, unless this thread has one open.

        Each of its statements is a transaction of its own, so the one statement that writes an
        entry needs no BEGIN and no COMMIT. Whether the path still leads to this file is not checked
        each time (`_TRUST_PATH_S`).
        """
        return self._transact(None, work)

    def read(self, work: Callable[[sqlite3.Connection], R]) -> R:
        """Call `work` with the connection; everything that it reads comes from one snapshot."""
        return self._transact("BEGIN", work)

    def _transact(self, begin: str | None, work: Callable[[sqlite3.Connection], R]) -> R:
        self._check_process()
        try:
            with self.lock:
                db = self._connection or self._open()
                if self._transaction_thread:  # this thread, because it has the lock
                    return work(db)
                if begin is not None or monotonic() >= self._path_trusted_until:
                    self._check_path()
                result = self._call_in_transaction(db, begin, work)
                if self._truncate_at is not None and monotonic() >= self._truncate_at:
                    self._checkpoint(db, wait_ms=0)
                return result
        except SQLITE_ERRORS as error:
            raise self._store_error(error) from error

    def _call_in_transaction(
        self, db: sqlite3.Connection, begin: str | None, work: Callable[[sqlite3.Connection], R]
    ) -> R:
        # Ctrl-C may have come between the begin and the end of an earlier one.
        db.rollback()
        try:
            with db:  # an exception from here on rolls back, also Ctrl-C
                self._transaction_thread = threading.get_ident()
                if begin is None:
                    return work(db)
                db.execute(begin)
                result = work(db)
                db.execute("COMMIT")
                return result
        finally:
            self._transaction_thread = 0

    def _check_process(self) -> None:
        # C code may fork without Python's hooks.
        if self._pid != os.getpid():
            self.after_fork()

    def _check_path(self) -> None:
        """Raise if the open file is no longer the one at the path.

        SQLite would go on writing to the deleted file, and the writes would be lost.
        """
        if self.is_current():
            self._path_trusted_until = monotonic() + _TRUST_PATH_S
            return
        self._path_trusted_until = 0.0
        msg = (
            f"The store {self.path!r} was deleted, moved or replaced after this process opened it. "
            "Nothing was read or written. Put the file back, or start this process again."
        )
        raise StoreError(msg)

    def _store_error(self, error: sqlite3.Error | UnicodeDecodeError) -> StoreError:
        if isinstance(error, UnicodeDecodeError):
            name = "SQLITE_CORRUPT"
        else:
            name = getattr(error, "sqlite_errorname", "")
        remedy = _OTHER_REMEDY
        for prefix, prefix_remedy in _REMEDIES.items():
            if name.startswith(prefix):
                remedy = prefix_remedy
                break
        return StoreError(f"The store {self.path!r} failed: {error}. Nothing was written. {remedy}")

    # -- what changes, and what is deleted

    def changes(self) -> int:
        """A number that changes with every commit to the file, by this process or another."""
        self._check_process()
        try:
            with self.lock:
                db = self._connection or self._open()
                if self.path == ":memory:":  # it has only one connection
                    return db.total_changes
                if self._watching is None:
                    with _connecting:
                        watcher = self._connect()
                    self._watching = watcher, weakref.finalize(self, _close, watcher, self.lock)
                self._check_path()
                return self._watching[0].execute("PRAGMA data_version").fetchone()[0]
        except SQLITE_ERRORS as error:
            raise self._store_error(error) from error

    def truncate(self) -> None:
        """Empty the write-ahead log, which may still contain deleted data.

        This fails while another connection reads an older snapshot: then it warns, and retries
        after later writes and when the file is closed.
        """
        try:
            with self.lock:
                db = self._connection or self._open()
                is_done = self._checkpoint(db, wait_ms=_WAIT_FOR_READERS_MS)
        except SQLITE_ERRORS as error:
            raise self._store_error(error) from error
        if not is_done:
            msg = (
                f"Content deleted from the store {self.path!r} stays in the bytes of "
                f"{self.path + '-wal'!r} while another connection reads an older state. "
                "A later write removes it, or closing the store."
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=3)

    def _checkpoint(self, db: sqlite3.Connection, *, wait_ms: int) -> bool:
        """Move the write-ahead log into the file and empty it; returns whether that succeeded."""
        db.execute(f"PRAGMA busy_timeout={wait_ms}")
        try:
            is_busy = bool(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
        except sqlite3.OperationalError:
            is_busy = True  # not raised: the write before has succeeded
        finally:
            db.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
        self._truncate_at = None
        if is_busy:
            self._truncate_at = monotonic() + _TRY_AGAIN_S
        return not is_busy

    # -- opening

    def _connect(self) -> sqlite3.Connection:
        target = self.path
        if self._read_only:
            target = f"{Path(self.path).as_uri()}?mode=ro"
        elif target != ":memory:":
            _make_private(target)
        return sqlite3.connect(
            target,
            timeout=_WAIT_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
            uri=self._read_only,
            factory=_Connection,
        )

    def _open(self) -> sqlite3.Connection:
        with _connecting:
            db = self._connect()
        try:
            self._prepare(db)
            self._closing = weakref.finalize(self, _close, db, self.lock)
        except BaseException:
            db.close()
            raise
        self._connection = db
        self._identity = _identity_of(self.path)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        if self._read_only:
            self._check_schema(_schema_of(db))
            return
        _use_wal(db)
        synchronous = "FULL" if self._full_sync else "NORMAL"
        db.execute(f"PRAGMA synchronous={synchronous}")
        # macOS: without it, the disk may still hold a commit in its cache.
        fullfsync = "ON" if self._full_sync else "OFF"
        db.execute(f"PRAGMA fullfsync={fullfsync}")
        # Deleted text is overwritten in the file, too.
        db.execute("PRAGMA secure_delete=ON")
        # The rows of a large statement need no other folder, and leave no text there.
        db.execute("PRAGMA temp_store=MEMORY")
        if _schema_of(db) == SCHEMA:
            return
        db.execute("BEGIN IMMEDIATE")
        schema = _schema_of(db)  # again: another process may have created the tables meanwhile
        if schema == 0:
            for statement in _TABLES.split(";")[:-1]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version={SCHEMA}")
            schema = SCHEMA
        db.execute("COMMIT")
        self._check_schema(schema)

    def _check_schema(self, schema: int) -> None:
        if schema == SCHEMA:
            return
        if schema == 0:
            raise StoreError(f"The file {self.path!r} holds no runs yet, and it is read only.")
        msg = (
            f"The store {self.path!r} has schema {schema}; this ferrule reads schema {SCHEMA}. "
            "Use the version of ferrule that wrote it."
        )
        raise StoreError(msg)


def _schema_of(db: sqlite3.Connection) -> int:
    """The schema of the file's tables; 0 for a new file."""
    return db.execute("PRAGMA user_version").fetchone()[0]


def _use_wal(db: sqlite3.Connection) -> None:
    # For this statement SQLite does not wait for other processes, which may be creating the same
    # file.
    ends_at = monotonic() + _WAIT_MS / 1000
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or monotonic() > ends_at:
                raise
            sleep(0.01)
        else:
            return


def _identity_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  called for every store that is made
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _make_private(path: str) -> None:
    """Create the file if there is none, and let only this user read it and the files with it.

    It holds conversations and arguments. SQLite gives a new `-wal` and `-shm` the mode of the file.
    Windows has no such modes: there, the rights of the folder hold.
    """
    # Only if it is new: closing a descriptor of an open database would drop SQLite's locks on it.
    with suppress(OSError):  # it exists, or SQLite says why it cannot be opened
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _PRIVATE))
    if sys.platform == "win32":
        return
    for name in (path, f"{path}-wal", f"{path}-shm"):
        # There is no such file, or another user owns it.
        with suppress(OSError):
            mode = os.stat(name).st_mode  # noqa: PTH116  as above
            # A folder, passed by mistake, keeps its mode: SQLite refuses it.
            if stat.S_ISREG(mode) and mode & 0o077:
                os.chmod(name, mode & 0o700)  # noqa: PTH101


def _close(db: sqlite3.Connection, lock: threading.RLock) -> None:
    # At the end of the process a thread may still be inside SQLite, where a close would crash. If
    # it stays there, leave it to the system.
    if lock.acquire(timeout=_LONGEST_WAIT_TO_CLOSE_S):
        try:
            with _connecting:
                db.close()
        finally:
            lock.release()


# -- forks

_files: weakref.WeakSet[SQLiteFile] = weakref.WeakSet()
_connecting = threading.RLock()
"""Held while a connection is opened, or closed by its finalizer.

A fork takes it before the locks of all files.
"""
_forking = threading.local()


def _before_fork() -> None:
    """Wait until no thread is inside SQLite.

    Otherwise the child would find SQLite's own locks taken, and wait for them for ever.
    """
    locks: list[threading.RLock] = []
    if _connecting.acquire(timeout=_LONGEST_WAIT_TO_FORK_S):
        locks.append(_connecting)
    for file in tuple(_files):
        if file.lock.acquire(timeout=_LONGEST_WAIT_TO_FORK_S):
            locks.append(file.lock)
    _forking.locks = locks


def _after_fork_in_parent() -> None:
    for lock in _forking.locks:
        lock.release()


def _after_fork_in_child() -> None:
    global _connecting
    _connecting = threading.RLock()
    for file in tuple(_files):
        file.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
