"""`SQLiteStore`: runs in one SQLite file, for the processes of one machine; and `MemoryStore`.

Every write is on disk when it returns. Writes from event loops, and from threads that find the file
busy, go through one thread, which commits all waiting writes in one transaction; the same thread
renews leases. In a process, stores with the same path share file and thread. Needs SQLite 3.35 or
newer. Not for network file systems, where SQLite's locks do not work.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

from ferrule.concurrency.forking import ForkLock
from ferrule.errors import ConfigurationError, StoreError, checks_keywords, shown
from ferrule.runs.store.lease import check_leasing, is_dead, owner_name
from ferrule.runs.store.listing import is_time
from ferrule.runs.store.outliner import begins
from ferrule.runs.store.sql_store import SQLStore
from ferrule.runs.store.sqlite.batch import Append, tend, write_all
from ferrule.runs.store.sqlite.file import SQLiteFile
from ferrule.runs.store.sqlite.writer_thread import WriterThread
from ferrule.runs.store.statements import fence

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ferrule.runs.protocols import Lease
    from ferrule.runs.store.lease import Leases

R = TypeVar("R")


class SQLiteStore(SQLStore):
    """Keeps runs in a file, which is created at first use.

    Args:
        path: The file.
        full_sync: With False, a power cut may lose a commit (the death of the process does not).
        lease_s: How long a process keeps a run without renewing the lease. A process that died on
            this machine loses its runs at once.
        max_recoveries: A run that killed its process more often is marked as failed.
        clock: Returns seconds since 1970. With any other value, a write raises `StoreError`.
        read_only: The file must exist, and every write raises `StoreError`.

    """

    _LEASED = "until", "?"
    """The end of the lease itself."""

    @checks_keywords
    def __init__(
        self,
        path: str | Path = "ferrule.db",
        *,
        full_sync: bool = True,
        lease_s: float = 30.0,
        max_recoveries: int = 5,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
    ) -> None:
        try:
            self.path = self._name = os.fsdecode(path)
        except TypeError:
            raise ConfigurationError(
                f"`SQLiteStore` takes the path of a file, found {shown(path)}."
            ) from None
        if "\0" in self.path:
            raise ConfigurationError(f"A path has no null characters, found {self.path!r}.")
        check_leasing(lease_s, max_recoveries)
        self.lease_s = lease_s
        self.max_recoveries = max_recoveries
        self._clock = _checked_clock(clock)
        # Absolute from the start: a later `chdir` must not lead the store to another file.
        self._absolute_path = self.path
        if self.path != ":memory:":
            # `Path` resolves no `..`.
            self._absolute_path = os.path.abspath(self.path)  # noqa: PTH100
        self._full_sync = full_sync
        self._read_only = read_only

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        # The process that unpickles the store opens the file itself.
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, unless a run executes or other stores of this process use it.

        The next use of the store reopens it.
        """
        file: SQLiteFile | None = vars(self).get("_file")
        if file is None or file.leases:
            return
        vars(self).pop("_file", None)  # another thread may close it, too
        file.users.discard(self)
        if not file.users:
            file.close()

    def append(
        self,
        lease: Lease,
        entry: str,
        *,
        starts: bool = False,
        consumes: str | None = None,
        heard: int | None = None,
    ) -> bool:
        """See `Store`."""
        append = Append(lease, entry, starts, consumes, self._clock(), heard)
        return self._write(append, is_statement=consumes is None)

    async def aappend(
        self,
        lease: Lease,
        entry: str,
        *,
        starts: bool = False,
        consumes: str | None = None,
        heard: int | None = None,
    ) -> bool:
        """See `Store`."""
        append = Append(lease, entry, starts, consumes, self._clock(), heard)
        return await self._thread().submit(append)

    def transact(self, lease: Lease, work: Callable[[sqlite3.Connection], R]) -> R:
        """See `Store`.

        Blocks other users of the file in this process meanwhile, so `work` must not wait for one
        of them.
        """

        def fenced(db: sqlite3.Connection) -> R:
            fence(db, lease, owner_name())
            return work(db)

        return self._file.write(fenced)

    def now(self) -> float:
        """See `Store`."""
        return self._clock()

    def changes(self) -> int:
        """See `Store`."""
        return self._file.changes()

    # -- for the rules in `sql_store.py`

    def _write(self, work: Callable[[sqlite3.Connection], R], *, is_statement: bool = False) -> R:
        # While the file is busy, the next commit takes all waiting writes. Ctrl-C reaches only the
        # main thread, and must not come between a commit and the answers to other threads: so the
        # main thread writes only for itself.
        file = self._file
        if threading.current_thread() is not threading.main_thread() and file.is_busy:
            return self._thread().wait(work)
        if is_statement:
            return file.execute(work)
        return file.write(work)

    def _read(self, work: Callable[[sqlite3.Connection], R]) -> R:
        def read_leniently(db: sqlite3.Connection) -> R:
            db.text_factory = _decode_leniently
            try:
                return work(db)
            finally:
                db.text_factory = str

        return self._file.read(read_leniently)

    def _now(self, db: sqlite3.Connection) -> float:  # noqa: ARG002
        return self._clock()

    @property
    def _owner(self) -> str:
        return owner_name()

    @property
    def _leases(self) -> Leases:
        return self._file.leases

    def _hold(self, lease: Lease, now: float, written: int) -> float:  # noqa: ARG002
        self._file.leases.hold(lease, self._clock, self.lease_s)
        return now + self.lease_s

    def _watch(self) -> None:
        self._thread().look()

    def _is_alive(self, owner: str, until: float | None, now: float) -> bool:
        return until is not None and until > now and not is_dead(owner)

    def _index(self, db: sqlite3.Connection, number: int, words: Sequence[str]) -> None:
        db.execute("DELETE FROM ferrule_search WHERE rowid = ?", (number,))
        if words:
            db.execute(
                "INSERT INTO ferrule_search (rowid, words) VALUES (?, ?)", (number, " ".join(words))
            )

    def _matching(self, words: Sequence[str]) -> tuple[str, str]:
        sql = "SELECT rowid FROM ferrule_search WHERE ferrule_search MATCH ?"
        return sql, " ".join([f'"{word}"{"*" * begins(word)}' for word in words])

    def _purge(self) -> None:
        # FTS5 only marks words as deleted. This writes the index again, without them.
        self._file.write(
            lambda db: db.execute("INSERT INTO ferrule_search (ferrule_search) VALUES ('optimize')")
        )
        self._file.truncate()

    # -- file and thread

    @cached_property
    def _file(self) -> SQLiteFile:
        """The file, from the first use until `close`."""
        file = _shared_file(
            self._absolute_path, full_sync=self._full_sync, read_only=self._read_only
        )
        file.users.add(self)
        return file

    def _thread(self) -> WriterThread:
        file = self._file
        if file.thread is None:
            file.thread = WriterThread(file, write_all, tend)
        return file.thread


class MemoryStore(SQLiteStore):
    """Keeps runs in memory while this process lives.

    For tests, and for runs that wait within one process.
    """

    @checks_keywords
    def __init__(
        self,
        *,
        lease_s: float = 30.0,
        max_recoveries: int = 5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(":memory:", lease_s=lease_s, max_recoveries=max_recoveries, clock=clock)

    def __getstate__(self) -> Never:
        msg = (
            "cannot pickle a `MemoryStore`: it belongs to its process. "
            "Use a `SQLiteStore`, which other processes can open."
        )
        raise TypeError(msg)


def _checked_clock(clock: Callable[[], float]) -> Callable[[], float]:
    """The clock of a store, which raises `StoreError` for what is not a time.

    A run with such a time would be taken for damaged when it is read, after its tools ran.
    """
    if not callable(clock):
        raise ConfigurationError(f"`clock` is a function, found {shown(clock)}.")
    if clock is time.time:
        return clock
    return partial(_read_clock, clock)


def _read_clock(clock: Callable[[], float]) -> float:
    now = clock()
    if not is_time(now):
        raise StoreError(
            f"Nothing was written: the store's `clock` returned {shown(now)}. It returns seconds "
            "since 1970, as `time.time` does."
        )
    return now


_decode_leniently = partial(str, encoding="utf-8", errors="backslashreplace")
r"""Decodes a stored text. Damaged bytes become `\xff`, which JSON rejects.

By default, SQLite would fail a whole list of runs for one damaged text."""


_shared_files: weakref.WeakValueDictionary[tuple[str, bool, bool], SQLiteFile] = (
    weakref.WeakValueDictionary()
)
_sharing = ForkLock()


def _shared_file(path: str, *, full_sync: bool, read_only: bool) -> SQLiteFile:
    """The file at an absolute path, shared by all stores of this process.

    Each store in memory has its own.
    """
    if path == ":memory:":
        return SQLiteFile(path, full_sync=full_sync)
    with _sharing.lock:
        key = (os.path.normcase(os.path.realpath(path)), full_sync, read_only)
        file = _shared_files.get(key)
        if file is None or not file.is_current():
            file = SQLiteFile(path, full_sync=full_sync, read_only=read_only)
            _shared_files[key] = file
        return file
