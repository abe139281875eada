"""A psycopg connection as `ctx.db` uses it.

With the methods of `sqlite3.Connection`, and Postgres's SQL (`%s` for a parameter).
"""

from __future__ import annotations

from typing import Any


class ToolConnection:
    """The connection of a transaction, for one call of a tool."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        """Whether the transaction is intact.

        After an error, Postgres accepts no more statements in it.
        """
        return self._connection.info.transaction_status.name == "INTRANS"

    def execute(self, sql: str, parameters: Any = ()) -> ToolCursor:
        """Run one statement."""
        # Without parameters, psycopg would run a text of several statements, which could end the
        # transaction; not if results are binary.
        several = not parameters and ";" in sql.rstrip().rstrip(";")
        return ToolCursor(self._connection.execute(sql, parameters or None, binary=several))

    def executemany(self, sql: str, parameters: Any) -> ToolCursor:
        """Run one statement for each set of parameters."""
        cursor = self._connection.cursor()
        cursor.executemany(sql, parameters)
        return ToolCursor(cursor)

    def interrupt(self) -> None:
        """Cancel the statement that runs in another thread."""
        self._connection.cancel_safe(timeout=5)


class ToolCursor:
    """The rows of a statement.

    For a statement without rows it is empty, as in `sqlite3`; psycopg would raise.
    """

    __slots__ = ("_cursor",)

    lastrowid = None
    """Postgres has none: use `INSERT ... RETURNING id`."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        """How many rows changed, or were found."""
        return self._cursor.rowcount

    @property
    def description(self) -> Any:
        """The columns; None for a statement without rows."""
        return self._cursor.description

    def fetchone(self) -> Any:
        """The next row; None if there are no more."""
        if self._cursor.description is None:
            return None
        return self._cursor.fetchone()

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next rows."""
        if self._cursor.description is None:
            return []
        return self._cursor.fetchmany(size)

    def fetchall(self) -> list[Any]:
        """All remaining rows."""
        if self._cursor.description is None:
            return []
        return self._cursor.fetchall()
