"""The connections of this process to one Postgres store.

Transactions, and retries after a broken connection.

A thread that needs a connection uses an idle one, or opens another. So there are as many as threads
write at once; a few are kept. (A pool with its own threads reports an unreachable server as a
timeout, without the reason.) After a break, Postgres says whether the transaction was committed; if
not, it is repeated, for as long as a lease lasts.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.concurrency.connection import is_usable
from ferrule.concurrency.forking import run_in_child
from ferrule.concurrency.pool import ThreadPool
from ferrule.errors import StoreError
from ferrule.runs.store.postgres.dsn import address_of, dsn_parts, load_psycopg
from ferrule.runs.store.postgres.tables import NOW, dialect, set_up

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

_UPTIME = "SELECT EXTRACT(EPOCH FROM clock_timestamp() - pg_postmaster_start_time())::float8"
_MOST_IDLE = 8
_WAIT_FOR_LOCK = "10s"
_PAUSES_S = (0.01, 0.05, 0.2, 0.5)
_BEGIN = (
    f"BEGIN; SET LOCAL lock_timeout = '{_WAIT_FOR_LOCK}'; "
    f"SELECT pg_current_xact_id()::text, {NOW}"  # one round trip
)
_BEGIN_READING = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT NULL, {NOW}"
_BROKEN = {"57P01", "57P02", "57P03", "57P05", "25P03", "53300"}
"""Postgres shuts down, crashed, starts, ended an idle session, or has no free connection."""
_AGAIN = {"40001", "40P01"}
"""The transaction was undone because of concurrent ones: a retry succeeds."""
KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "connect_timeout": 10,
    "application_name": "ferrule",
}


class Transaction:
    """An open transaction, as the rules in `sql_store.py` use it."""

    __slots__ = ("_schema", "connection", "now", "on_end")

    def __init__(self, connection: Any, now: float, schema: str) -> None:
        self.connection = connection
        self.now = now
        """The time when the transaction began, by Postgres's clock."""
        self.on_end: list[Callable[[], None]] = []
        self._schema = schema

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run a statement of the shared rules."""
        return self.connection.execute(dialect(sql, self._schema), parameters)


class Server:
    """One schema of one Postgres server. Safe in threads, and in the child of a fork."""

    def __init__(
        self, dsn: str, *, schema: str, full_sync: bool, is_direct: bool, patience_s: float
    ) -> None:
        self.name = address_of(dsn)
        """The address, without user and password."""
        self.schema = schema
        self._dsn = dsn
        self._full_sync = full_sync
        self._is_direct = is_direct
        self._patience_s = patience_s
        self._fresh()
        _SERVERS.add(self)

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._idle: list[Any] = []
        self._local = threading.local()
        self._starting = threading.Lock()
        self._is_set_up = False
        self._since: float | None = None
        """The time (monotonic) from which other processes could reach the server.

        As far as this process knows.
        """
        self._broke = False
        self._closing = weakref.finalize(self, close_connections, self._idle)

    def after_fork(self) -> None:
        """Called in the child of a fork.

        The connections belong to the parent, and psycopg does not close them here.
        """
        self._closing.detach()
        self._of_a_parent = self._idle
        self._fresh()

    @property
    def current(self) -> Transaction | None:
        """The open transaction of this thread, or None."""
        return getattr(self._local, "transaction", None)

    def reachable_s(self) -> float:
        """For how long other processes could reach the server.

        Since it started, or since this process reconnected after a break.
        """
        if self._since is None:
            return 0.0
        return time.monotonic() - self._since

    def close(self) -> None:
        """Close the idle connections. The next use opens others."""
        close_connections(self._idle)

    # -- connections

    def connect(self) -> Any:
        """A new connection in autocommit.

        Raises psycopg's errors; `StoreError` if Postgres would confirm writes that it may lose.
        """
        psycopg = load_psycopg()
        options: Any = {**KEEPALIVE, **dsn_parts(self._dsn), "client_encoding": "utf8"}
        connection = psycopg.connect(
            autocommit=True, prepare_threshold=5 if self._is_direct else None, **options
        )
        try:
            self._prepare(connection)
            if self._since is None:
                uptime_s = 0.0
                if not self._broke:
                    uptime_s = connection.execute(_UPTIME).fetchone()[0]
                self._since = time.monotonic() - uptime_s
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Any) -> None:
        encoding = connection.info.parameter_status("server_encoding") or "UTF8"
        if encoding != "UTF8":
            msg = (
                f"The database of {self.name!r} is encoded in {encoding}, but runs hold any text. "
                "Create one with ENCODING 'UTF8'."
            )
            raise StoreError(msg)
        if self._full_sync and connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            msg = (
                f"The store {self.name!r} has `synchronous_commit = off`: a crash of Postgres "
                "could lose what it confirmed. Turn it on, or open the store with "
                "`full_sync=False`."
            )
            raise StoreError(msg)
        if not self._is_set_up:
            with self._starting:
                set_up(connection, self.schema, self.name)
                self._is_set_up = True

    def _lend(self) -> Any:
        if self._pid != os.getpid():  # a fork made without Python
            self.after_fork()
        while self._idle:
            with suppress(IndexError):  # another thread took the last one
                connection = self._idle.pop()
                if is_usable(connection):
                    return connection
                self._drop(connection, broke=True)
        return self.connect()

    def _return(self, connection: Any) -> None:
        if connection.closed or len(self._idle) >= _MOST_IDLE or self._pid != os.getpid():
            connection.close()
        else:
            self._idle.append(connection)

    def _drop(self, connection: Any, *, broke: bool) -> None:
        # Connections of other processes may have broken, too, and their locks with them.
        if broke:
            self._since = None
            self._broke = True
        connection.close()

    # -- work

    def write(self, work: Callable[[Transaction], R]) -> R:
        """Call `work` in this thread's open transaction, or in a new one.

        `work` is called again if the connection broke before the commit.
        """
        if self.current is not None:
            return work(self.current)
        return self.persist(partial(self._transact, _BEGIN, work))

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Call `work`; everything that it reads comes from one snapshot."""
        if self.current is not None:
            return work(self.current)
        return self.persist(partial(self._transact, _BEGIN_READING, work))

    def once(self, work: Callable[[Transaction], R]) -> R:
        """`write`, but never repeated.

        If the connection breaks before the commit, raises `StoreError`, and nothing is written.
        """
        if self.current is not None:
            return work(self.current)
        has_begun = False

        def first(db: Transaction) -> R:
            nonlocal has_begun
            if has_begun:
                raise StoreError(
                    f"The connection to the store {self.name!r} broke. Nothing was written."
                )
            has_begun = True
            return work(db)

        return self.persist(partial(self._transact, _BEGIN, first))

    def on_connection(self, work: Callable[[Any], R]) -> R:
        """Call `work` once, with a connection in autocommit. Raises psycopg's errors."""
        connection = self._lend()
        try:
            result = work(connection)
        except BaseException:
            self._drop(connection, broke=connection.closed)
            raise
        self._return(connection)
        return result

    def persist(self, attempt: Callable[[], R]) -> R:
        """Repeat `attempt` after a break or a conflict, for as long as a lease lasts.

        Not if no connection ever worked. Other errors of Postgres become `StoreError`.
        """
        psycopg = load_psycopg()
        ends_at = time.monotonic() + self._patience_s
        pauses = iter(_PAUSES_S)
        while True:
            try:
                return attempt()
            except psycopg.Error as error:
                may_succeed = _is_broken(error) or error.sqlstate in _AGAIN
                if not may_succeed or not self._is_set_up or time.monotonic() > ends_at:
                    raise StoreError(
                        f"The store {self.name!r} failed: {_text_of(error)}. Nothing was written."
                    ) from error
            time.sleep(next(pauses, _PAUSES_S[-1]))

    def _transact(self, begin: str, work: Callable[[Transaction], R]) -> R:
        connection = self._lend()
        try:
            result = self._transact_on(connection, begin, work)
        except BaseException as error:
            is_interrupt = not isinstance(error, Exception)
            if not is_interrupt and not connection.closed:
                with suppress(load_psycopg().Error):
                    connection.execute("ROLLBACK")
            # After an interrupt, the connection may be in the middle of an answer.
            if is_interrupt or connection.closed:
                self._drop(connection, broke=connection.closed)
            else:
                self._return(connection)
            raise
        self._return(connection)
        return result

    def _transact_on(self, connection: Any, begin: str, work: Callable[[Transaction], R]) -> R:
        psycopg = load_psycopg()
        xid, now = _last_row(connection.execute(begin))
        transaction = Transaction(connection, now, self.schema)
        self._local.transaction = transaction
        try:
            result = work(transaction)
            try:
                connection.execute("COMMIT")
            except psycopg.OperationalError:
                if xid is None or not self._was_committed(xid):
                    raise
        finally:
            self._local.transaction = None
            for end in transaction.on_end:
                end()
        return result

    def _was_committed(self, xid: str) -> bool:
        """Whether a transaction was committed whose `COMMIT` got no answer."""
        ask = partial(
            self.on_connection,
            lambda db: db.execute("SELECT pg_xact_status(%s::xid8)", (xid,)).fetchone()[0],
        )
        try:
            status = self.persist(ask)
            while status == "in progress":  # its session has not noticed the break yet
                time.sleep(_PAUSES_S[0])
                status = self.persist(ask)
        except StoreError as error:
            msg = (
                f"The connection to the store {self.name!r} broke in a commit. "
                "It is not known whether the commit was made."
            )
            raise StoreError(msg) from error
        return status == "committed"


def _is_broken(error: Any) -> bool:
    psycopg = load_psycopg()

    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state.startswith("08") or state in _BROKEN


def _text_of(error: Any) -> str:
    return " ".join(str(error).split()).rstrip(".?") or type(error).__name__


def _last_row(cursor: Any) -> Any:
    while cursor.nextset():
        pass
    return cursor.fetchone()


def close_connections(connections: list[Any]) -> None:
    """Close all connections of the list, and empty it."""
    while connections:
        connections.pop().close()


_SERVERS: weakref.WeakSet[Server] = weakref.WeakSet()
_MOST_AT_ONCE = 8
writers = ThreadPool(_MOST_AT_ONCE)
"""Threads that write entries for event loops."""


def _after_fork() -> None:
    global writers
    writers.is_forked = True
    writers = ThreadPool(_MOST_AT_ONCE)
    for server in tuple(_SERVERS):
        server.after_fork()


run_in_child(_after_fork)
