"""What `ctx.db` is: a transaction of the run's store, open to one call for as long as that call goes on.

In: the connection of a transaction that the run commits together with the call's result, or undoes. Invariant: nothing that the call
writes is kept without its result, nor its result without what it wrote. So no statement runs in part beside the transaction: not one of a
thread that was given up after a timeout, and not one behind a statement that has undone the transaction (`INSERT OR ROLLBACK`).
"""

from __future__ import annotations

import re
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ferrule.errors import ConfigurationError, ToolError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from contextlib import AbstractContextManager

    from ferrule.runs.journal.journal import Entry
    from ferrule.runs.state import RunState
    from ferrule.values.calls.call import ToolSpec

R = TypeVar("R")

_AT_ONCE = 1000
"""How many rows of `executemany` go to the connection in one piece."""
_A_MOMENT_S = 0.05


class Transactions(Protocol):
    """The `sink` of a journal whose store lets tools write through its own connection."""

    def __call__(self, entry: Entry) -> None:
        """Keep one entry; inside a transaction of this thread, as a part of it."""
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """The connection, for a block: committed when it ends, undone when it raises. `StoreError` where it cannot be committed."""
        ...


def transactions(run: RunState, tool: ToolSpec) -> Transactions:
    """Where a transactional tool writes; raises `ConfigurationError` for a run that is kept nowhere."""
    sink: Any = run.journal.sink
    if not hasattr(sink, "transaction"):
        msg = f"`{tool.name}` is transactional: it needs a run with a store, program.start(store=SQLiteStore(...), ...)."
        raise ConfigurationError(msg)
    return sink


class Database:
    """The connection as a tool has it. Made inside of the transaction, and ended (`end`) before that is committed or undone."""

    __slots__ = ("_connection", "_is_over", "_using", "undone")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_over = False
        self._using = threading.RLock()  # held by whoever is at work on the connection; again, where a parameter's adapter is itself a user
        self.undone = False
        """Whether a statement has undone the transaction: what was written before it is gone, and nothing is written after it."""

    def execute(self, sql: str, parameters: Any = ()) -> Rows:
        """Run one statement; returns its rows. Raises `ToolError` for one that would end the transaction."""
        return Rows(self, self.do(self._connection.execute, _allowed(sql), parameters))

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Rows:
        """Run one statement for each of many sets of parameters, which may come from a generator; returns no rows, but their count."""
        count, given = 0, self._given(parameters)
        while True:
            some = list(islice(given, _AT_ONCE))  # a generator is the tool's own code, and may take its time: nobody waits for it
            cursor = self.do(self._connection.executemany, _allowed(sql), some)
            count += max(cursor.rowcount, 0)
            if len(some) < _AT_ONCE:
                return Rows(self, cursor, count)

    def _given(self, parameters: Iterable[Any]) -> Generator[Any]:
        for each in parameters:
            self._refuse_late()
            yield each

    def do(self, work: Callable[..., R], *given: Any) -> R:
        """Do one thing with the connection, unless the call is over. Raises `ToolError` then, and where the transaction was undone."""
        with self._using:
            self._refuse_late()
            try:
                return work(*given)
            finally:
                self.undone = not self._connection.in_transaction

    def _refuse_late(self) -> None:
        if self._is_over:
            raise ToolError("The call that this connection belonged to is over; what it would write now would belong to no result.")
        if self.undone:
            raise ToolError(UNDONE)

    def end(self) -> None:
        """The call is over. A statement that still runs, in a thread that was given up, is stopped and waited for; none comes after it."""
        self._is_over = True
        while not self._using.acquire(timeout=_A_MOMENT_S):
            self._connection.interrupt()
        self._using.release()


class Rows:
    """What a statement found, read while the call goes on: a cursor without a way to the connection."""

    __slots__ = ("_cursor", "_database", "rowcount")

    def __init__(self, database: Database, cursor: Any, rowcount: int | None = None) -> None:
        self._database = database
        self._cursor = cursor
        self.rowcount: int = cursor.rowcount if rowcount is None else rowcount
        """How many rows were changed; -1 for a statement that changes none."""

    @property
    def lastrowid(self) -> int | None:
        """The id of the row that was inserted last."""
        return self._cursor.lastrowid

    @property
    def description(self) -> Any:
        """The names of the columns, each as the first of seven; None for a statement without rows."""
        return self._cursor.description

    def fetchone(self) -> Any:
        """The next row; None where there are no more."""
        return self._database.do(self._cursor.fetchone)

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next `size` rows, or as many as there are."""
        return self._database.do(self._cursor.fetchmany, size)

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        return self._database.do(self._cursor.fetchall)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchone, None)


UNDONE = (
    "One of the call's statements has undone its transaction (as `OR ROLLBACK` does): nothing that the call wrote is there, "
    "and it cannot write any more."
)


def _allowed(sql: str) -> str:
    if _ENDS.match(sql):
        msg = f"`ctx.db` is in a transaction that the run commits with the result, or undoes: {shown(sql)} is not for the tool to say."
        raise ToolError(msg)
    return sql


# SQLite passes over a byte order mark, too.
_ENDS = re.compile(
    r"(?is)(?:\s|\ufeff|--[^\n]*(?:\n|$)|/\*.*?\*/|;)*"
    r"(?:begin|commit|end|rollback|savepoint|release|attach|detach|pragma|vacuum)\b"
)
