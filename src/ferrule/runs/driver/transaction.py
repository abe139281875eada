"""`ctx.db`: a transaction of the run's store, open to one call while that call runs.

In: the connection of a transaction that the run commits together with the call's result, or rolls
back. Invariant: the call's writes and its result are kept together or not at all. So no statement
runs outside the transaction: neither from a thread abandoned after a timeout, nor after a statement
that rolled the transaction back (`INSERT OR ROLLBACK`).
"""

from __future__ import annotations

import logging
import re
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ferrule.errors import ConfigurationError, ToolError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.state import RunState
    from ferrule.values.calls.call import ToolSpec

R = TypeVar("R")

_log = logging.getLogger("ferrule.tools")
_AT_ONCE = 1000
"""The number of rows of `executemany` that go to the connection at once."""
_A_MOMENT_S = 0.05


class Transactions(Protocol):
    """The `sink` of a journal whose store lets tools write through its own connection."""

    def __call__(self, entry: Entry) -> None:
        """Store one entry; if this thread has a transaction open, as a part of it."""
        ...

    def transact(self, work: Callable[[Any], R]) -> R:
        """Call `work` with a connection: committed when it returns, rolled back when it raises.

        Raises `StoreError` if the commit fails.
        """
        ...


def transactions(run: RunState, tool: ToolSpec) -> Transactions:
    """The run's sink, for a transactional tool.

    Raises `ConfigurationError` for a run without a store.
    """
    sink: Any = run.journal.sink
    if not hasattr(sink, "transact"):
        raise ConfigurationError(
            f"`{tool.name}` is transactional: it needs a run with a store, "
            "program.start(store=SQLiteStore(...), ...)."
        )
    return sink


class Database:
    """The connection as the tool sees it.

    Created inside the transaction; `end` is called before the commit or rollback.
    """

    __slots__ = ("_connection", "_is_over", "_using", "is_used", "undone")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_over = False
        self._using = threading.RLock()
        """Held while the connection is in use.

        Reentrant, because a parameter's adapter may use it, too."""
        self.is_used = False
        """Whether the tool ran a statement."""
        self.undone = False
        """Whether a statement rolled the transaction back.

        Earlier writes are lost, and later writes are refused."""

    def execute(self, sql: str, parameters: Any = ()) -> Rows:
        """Run one statement; returns its rows.

        Raises `ToolError` for a statement that would end the transaction.
        """
        return Rows(self, self.do(self._connection.execute, _allowed(sql), parameters))

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Rows:
        """Run one statement for each set of parameters; returns the row count, but no rows.

        The parameters may come from a generator.
        """
        count, remaining = 0, self._while_open(parameters)
        while True:
            # Outside the lock: a generator is the tool's code and may be slow.
            chunk = list(islice(remaining, _AT_ONCE))
            cursor = self.do(self._connection.executemany, _allowed(sql), chunk)
            count += max(cursor.rowcount, 0)
            if len(chunk) < _AT_ONCE:
                return Rows(self, cursor, count)

    def _while_open(self, parameters: Iterable[Any]) -> Generator[Any]:
        for row in parameters:
            self._refuse_late()
            yield row

    def do(self, work: Callable[..., R], *args: Any) -> R:
        """Use the connection for one operation.

        Raises `ToolError` if the call is over or the transaction was rolled back.
        """
        with self._using:
            self._refuse_late()
            self.is_used = True
            try:
                return work(*args)
            finally:
                self.undone = not self._connection.in_transaction

    def _refuse_late(self) -> None:
        if self._is_over:
            raise ToolError(
                "The call has ended, and `ctx.db` with it: a write now would belong to no result."
            )
        if self.undone:
            raise ToolError(UNDONE)

    def end(self) -> None:
        """End the call's access: later statements are refused.

        Interrupts a statement that still runs in an abandoned thread, and waits for it.
        """
        self._is_over = True
        while not self._using.acquire(timeout=_A_MOMENT_S):
            self._connection.interrupt()
        self._using.release()


def warn_unused(tool: str, run_id: str) -> None:
    """Log that a transactional call did not use its database.

    Its effects are outside the transaction, and are repeated after a crash.
    """
    _log.warning(
        "%s has effect='transactional' and did not use ctx.db. After a crash it runs again, and "
        "repeats what it did elsewhere, as in a file or over HTTP. If it does anything there, "
        "leave effect= out: ferrule then asks a person.",
        tool,
        extra={"run_id": run_id, "tool": tool},
    )


class Rows:
    """The rows of a statement, readable while the call runs.

    A cursor without access to the connection.
    """

    __slots__ = ("_cursor", "_database", "rowcount")

    def __init__(self, database: Database, cursor: Any, rowcount: int | None = None) -> None:
        self._database = database
        self._cursor = cursor
        self.rowcount: int = cursor.rowcount if rowcount is None else rowcount
        """How many rows changed; -1 for a statement that changes none."""

    @property
    def lastrowid(self) -> int | None:
        """The id of the last inserted row."""
        return self._cursor.lastrowid

    @property
    def description(self) -> Any:
        """The column names, each the first item of a 7-tuple; None for a statement without rows."""
        return self._cursor.description

    def fetchone(self) -> Any:
        """The next row; None if there are no more."""
        return self._database.do(self._cursor.fetchone)

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next `size` rows, or fewer at the end."""
        return self._database.do(self._cursor.fetchmany, size)

    def fetchall(self) -> list[Any]:
        """All remaining rows."""
        return self._database.do(self._cursor.fetchall)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchone, None)


UNDONE = (
    "A statement of the call has rolled back its transaction (as `OR ROLLBACK` does): the call's "
    "writes are lost, and it cannot write again."
)


def _allowed(sql: str) -> str:
    if _ENDS.match(sql):
        raise ToolError(
            "`ctx.db` is in a transaction that the run commits or rolls back: a tool must not "
            f"execute {shown(sql)}."
        )
    if _OURS.search(sql):
        raise ToolError(
            "In the run's database, names that begin with `ferrule_` are ferrule's: a tool must "
            f"not execute {shown(sql)}. Pass values as parameters."
        )
    return sql


# They hold the journals and the decisions of all runs. A tool may pass on what a model wrote.
_OURS = re.compile(r"(?i)\bferrule_")
# SQLite skips a byte order mark, too.
_ENDS = re.compile(
    r"(?is)(?:\s|\ufeff|--[^\n]*(?:\n|$)|/\*.*?\*/|;)*"
    r"(?:begin|commit|end|rollback|savepoint|release|attach|detach|pragma|vacuum)\b"
)
