"""`PostgresStore`: runs in a schema of a Postgres database, for the processes of many machines.

Every write is durable when it returns. All times come from Postgres, so the clocks of machines do
not matter. Needs Postgres 13 or newer.
"""

from __future__ import annotations

from functools import cached_property, partial
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from ferrule.concurrency.offload import to_its_end
from ferrule.encoding.encode import is_column_text
from ferrule.errors import ConfigurationError, checks_keywords, shown
from ferrule.runs.protocols import Order, Stored, UnheardError
from ferrule.runs.store.lease import check_leasing
from ferrule.runs.store.outliner import begins
from ferrule.runs.store.postgres import server
from ferrule.runs.store.postgres.liveness import shared_presence
from ferrule.runs.store.postgres.tables import (
    APPEND,
    APPEND_AND_TAKE,
    LEASE_ENDS,
    NOW,
    STORED,
    WRITTEN,
    check_schema_name,
    dialect,
)
from ferrule.runs.store.postgres.tickets import call_worker, forget_tickets
from ferrule.runs.store.sql_store import SQLStore
from ferrule.runs.store.statements import fence, park

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ferrule.runs.protocols import Lease
    from ferrule.runs.store.lease import Leases
    from ferrule.runs.store.postgres.liveness import Line
    from ferrule.runs.store.postgres.server import Transaction
    from ferrule.runs.store.sql_store import Written

R = TypeVar("R")


class PostgresStore(SQLStore):
    """Keeps runs in the tables of `schema`, which are created at first use.

    Args:
        dsn: libpq's: `postgresql://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full`.
        schema: The schema of the tables.
        lease_s: How long a process that is stopped or disconnected keeps its runs. Those of a dead
            process are free after five seconds.
        max_recoveries: A run that killed its process more often is marked as failed.
        liveness: `"heartbeat"` keeps no session open, for a pooler that shares sessions
            (PgBouncer's transaction mode): then a dead process, too, keeps its runs for `lease_s`.
        full_sync: With False, the server may have `synchronous_commit` off.
        engine: Queues the work of runs for workers.

    Raises:
        ConfigurationError: The DSN is malformed. One that may send runs unencrypted only warns.

    """

    _LOCK = " FOR UPDATE"
    _ALSO_AT_REST = ", expires_at = NULL"
    _UNTIL = LEASE_ENDS
    # Keeps the run's queue: a process that decides, such as a command, may name another.
    _LEASED = ("queue", "coalesce(queue, ?)")

    @checks_keywords
    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "ferrule",
        lease_s: float = 30.0,
        max_recoveries: int = 5,
        liveness: Literal["session", "heartbeat"] = "session",
        full_sync: bool = True,
        engine: Any = None,
    ) -> None:
        if liveness not in {"session", "heartbeat"}:
            raise ConfigurationError(
                f"`liveness` is 'session' or 'heartbeat'; found {shown(liveness)}."
            )
        check_schema_name(schema)
        check_leasing(lease_s, max_recoveries)
        self.schema = schema
        self.lease_s = lease_s
        self.max_recoveries = max_recoveries
        self.engine = engine
        self._presence = shared_presence(
            dsn,
            schema=schema,
            full_sync=full_sync,
            is_direct=liveness == "session",
            lease_s=lease_s,
        )
        self._server = self._presence.server
        self._name = self._server.name

    def __repr__(self) -> str:
        return f"PostgresStore({self._name!r}, schema={self.schema!r})"

    @property
    def owner(self) -> str:
        """The unique name of this process as an owner of leases; a fork has another name."""
        return self._presence.name

    def setup(self) -> None:
        """Create the tables if they do not exist, as the first use does.

        For a role that may create them, before workers whose role may not.
        """
        self._server.read(lambda _: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless a run executes. The next use opens new ones."""
        self._presence.close()
        if not self._leases:
            self._server.close()

    def join(self) -> None:
        """Count as alive until `leave`, even while no run executes.

        For a worker that waits for work.
        """
        self._presence.join(self.engine.queue if self.engine is not None else None)

    def leave(self) -> None:
        """End a `join`."""
        self._presence.leave()

    def live_owners(self) -> set[str]:
        """The owners that are alive.

        For five seconds after Postgres started or a connection broke: all known owners.
        """
        return self._server.read(self._presence.live)

    def transaction(self, work: Callable[[Any], R]) -> R:
        """Call `work` with a psycopg connection in a transaction, committed when it returns.

        `work` is called again if the connection breaks before.
        """
        return self._server.write(lambda db: work(db.connection))

    def park(self, connection: Any, run_id: str) -> None:
        """Mark a run as failed that was recovered too often, in this connection's transaction."""
        db = _Qualified(connection, self.schema)
        head, recoveries = self._row(db, run_id, "head, recoveries")
        park(db, run_id, head, recoveries)

    # -- entries

    def append(
        self,
        lease: Lease,
        entry: str,
        *,
        starts: bool = False,
        consumes: str | None = None,
        heard: int | None = None,
    ) -> bool:
        """See `Store`.

        One statement. If its answer is lost, a retry with the same number finds the entry or writes
        it.
        """
        line = self._presence.line(lease)
        line.lock.acquire()
        inside = self._server.current
        try:
            if inside is not None:
                inside.on_end.append(line.lock.release)
                return self._append(
                    inside.connection,
                    lease,
                    line,
                    entry,
                    starts=starts,
                    consumes=consumes,
                    heard=heard,
                )
            write = partial(
                self._append,
                lease=lease,
                line=line,
                entry=entry,
                starts=starts,
                consumes=consumes,
                heard=heard,
            )
            return self._server.persist(partial(self._server.on_connection, write))
        except BaseException:
            line.number = None  # unknown: the entry may have been written
            raise
        finally:
            if inside is None:
                line.lock.release()

    def _append(
        self,
        db: Any,
        lease: Lease,
        line: Line,
        entry: str,
        *,
        starts: bool,
        consumes: str | None,
        heard: int | None,
    ) -> bool:
        sql = APPEND
        consumed: tuple[str, ...] = ()
        if consumes is not None:
            sql = APPEND_AND_TAKE
            consumed = (lease.run_id, consumes)
        while True:
            if line.number is None:
                line.number, _, _ = self._position(db, lease)
            fenced = (lease.run_id, lease.token, self.owner, line.number, starts, heard)
            row = db.execute(dialect(sql, self.schema), (*fenced, *consumed, entry)).fetchone()
            if row is not None:
                line.number += 1
                cancelled, lease.said = row
                return not cancelled
            # Raises if the lease is lost.
            written, cancelled, last = self._position(db, lease, line.number)
            # An attempt whose answer was lost wrote it: nothing else writes this number.
            if last == entry:
                line.number += 1
                return not cancelled
            if cancelled and starts:
                return False
            if heard is not None and lease.said > heard:
                raise UnheardError
            line.number = written

    def _position(self, db: Any, lease: Lease, number: int = 0) -> tuple[int, bool, str | None]:
        """How many entries the run has, whether it was cancelled, and its entry at `number`.

        Raises `StoreError` if the lease was lost.
        """
        cancelled, first = fence(_Qualified(db, self.schema), lease, self.owner)
        sql = (
            "SELECT written, (SELECT entry FROM ferrule_entries WHERE place = ?) "
            "FROM ferrule_runs WHERE id = ?"
        )
        written, last = db.execute(
            dialect(sql, self.schema), (first + number, lease.run_id)
        ).fetchone()
        return written, cancelled, last

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
        line = self._presence.line(lease)
        write = partial(
            line.in_turn,
            next(line.turns),
            partial(self.append, lease, entry, starts=starts, consumes=consumes, heard=heard),
        )
        # To its end: every turn must be used, or later ones would wait for ever.
        return await to_its_end(server.writers, write)

    def transact(self, lease: Lease, work: Callable[[Any], R]) -> R:
        """See `Store`.

        The row of the run is not locked during `work`; the lease is checked again at the end.
        """
        from ferrule.runs.store.postgres.tool_connection import ToolConnection

        def fenced(db: Transaction) -> R:
            fence(db, lease, self.owner)
            result = work(ToolConnection(db.connection))
            fence(db, lease, self.owner, self._LOCK)
            return result

        return self._server.once(fenced)

    def now(self) -> float:
        """See `Store`."""
        return self._read(self._now)

    def changes(self) -> int:
        """See `Store`.

        Writes to other databases of the server change it, too, and so do heartbeats.
        """
        text = self._server.persist(
            partial(self._server.on_connection, lambda db: db.execute(_SNAPSHOT).fetchone()[0])
        )
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())

    # -- for the rules in `sql_store.py`

    def _write(self, work: Callable[[Transaction], R]) -> R:
        return self._server.write(work)

    def _read(self, work: Callable[[Any], R]) -> R:
        if self._server.current is not None:
            return work(self._server.current)
        return self._server.persist(
            partial(self._server.on_connection, lambda db: work(_Qualified(db, self.schema)))
        )

    def _stored(self, db: Any, run_id: str, after: int) -> Stored:
        rows: list[Any] = []
        if is_column_text(run_id):
            rows = db.execute(STORED, (run_id, run_id, after, run_id, run_id)).fetchall()
        heads = [row for row in rows if row[0] < 0]
        if not heads:
            raise self._missing(run_id)
        [(_, _, _, head, status)] = heads
        entries, times, decisions = _sorted_out(rows)
        return Stored(status, head, entries, decisions, None, times)

    def _written(self, db: Any, run_id: str, number: int, after: int) -> Written:  # noqa: ARG002
        return _sorted_out(db.execute(WRITTEN, (run_id, after, run_id, run_id)).fetchall())

    def _now(self, db: Any) -> float:
        return db.now

    @property
    def _owner(self) -> str:
        return self._presence.name

    @property
    def _leases(self) -> Leases:
        return self._presence.leases

    def _insert_entries(self, db: Any, number: int, entries: Sequence[str], now: float) -> None:
        super()._insert_entries(db, number, entries, now)
        db.execute("UPDATE ferrule_runs SET written = ? WHERE no = ?", (len(entries), number))

    def _hold(self, lease: Lease, now: float, written: int) -> str | None:  # noqa: ARG002
        self._presence.show()
        self._presence.hold(lease, written)
        if self.engine is not None:
            return self.engine.queue
        return None

    def _watch(self) -> None:
        self._presence.start()

    def _is_alive(self, owner: str, until: float | None, now: float) -> bool:  # noqa: ARG002
        return until is not None and until > now

    def _index(self, db: Any, number: int, words: Sequence[str]) -> None:
        # The words themselves: a parser of Postgres would split them in its own way.
        if words:
            db.execute(
                "INSERT INTO ferrule_search (run, words) VALUES (?, array_to_tsvector(?::text[])) "
                "ON CONFLICT (run) DO UPDATE SET words = excluded.words",
                (number, list(words)),
            )
        else:
            db.execute("DELETE FROM ferrule_search WHERE run = ?", (number,))

    def _matching(self, words: Sequence[str]) -> tuple[str, str]:
        sql = "SELECT run FROM ferrule_search WHERE words @@ ?::tsquery"
        return sql, " & ".join([f"'{word}'{':*' * begins(word)}" for word in words])

    def _call_worker(
        self,
        db: Any,
        run_id: str,
        order: Order = Order(),  # noqa: B008  frozen
        *,
        after_s: float | None = None,
    ) -> None:
        if self.engine is not None:
            call_worker(db, self.engine, run_id, order, after_s=after_s)

    def _forget(self, db: Any, run_id: str, number: int) -> None:
        if self.engine is not None:
            forget_tickets(db, self.engine, run_id)
        super()._forget(db, run_id, number)

    def _settles_s(self) -> float:
        return self._presence.settles_s()


class _Qualified:
    """A connection in autocommit, for the shared statements: it adds the schema to them."""

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    @cached_property
    def now(self) -> float:
        return self.execute(f"SELECT {NOW}").fetchone()[0]

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        return self._connection.execute(dialect(sql, self._schema), parameters)


def _sorted_out(rows: Iterable[Any]) -> Written:
    """Entries, their times, and decisions, from the rows of `WRITTEN`."""
    rows = sorted(rows, key=itemgetter(0, 1, 2))
    entries = [row for row in rows if row[0] == 0]
    return (
        [row[3] for row in entries],
        [row[2] for row in entries],
        [row[3] for row in rows if row[0] == 1],
    )


_SNAPSHOT = "SELECT pg_current_snapshot()::text"
"""The snapshot of the server's transactions, as text: it differs after each commit."""
