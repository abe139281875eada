"""Tickets of an engine: "this run has work". A ticket is made in the transaction that makes the work, and replaced if it is lost.

The journal is the source of truth. A ticket only calls a worker, so an extra one does no harm, and
all can be made again from the runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ferrule.errors import StoreError
from ferrule.runs.protocols import Order
from ferrule.runs.store.postgres.tables import lock_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


R = TypeVar("R")

AT_ONCE = 500
"""How many tickets one sweep makes, at most."""
_AGAIN_AFTER_S = 5.0
"""How long to wait before another ticket for a run that no worker could take up."""


class Engine(Protocol):
    """The queue that carries tickets to workers. Knows ids, not runs. Each method works in the transaction of a psycopg connection."""

    queue: str
    """The queue for runs that are submitted here."""

    def is_set_up(self, connection: Any) -> bool:
        """Whether the engine's tables exist. If not, no worker has started yet, and the first one makes the tickets."""
        ...

    def enqueue(
        self,
        connection: Any,
        ticket: str,
        argument: str,
        order: Order,
        queue: str,
    ) -> None:
        """Enqueue a call of a worker of the queue with this argument. A ticket whose id was used before is ignored."""
        ...

    def forget(self, connection: Any, tickets: Collection[str]) -> None:
        """Remove tickets."""
        ...

    def drop_dead(self, connection: Any, live: Collection[str]) -> int:
        """Cancel the tickets held by processes that are not in `live`; returns how many."""
        ...

    def state_of(self, ticket: str) -> str:
        """SQL for the state of a ticket: `live`, `failed`, or another text or NULL. `ticket` is an SQL expression for its id."""
        ...


class Sweepable(Protocol):
    """The attributes of a `PostgresStore` that a sweep uses."""

    schema: str
    engine: Any
    max_recoveries: int

    def live_owners(self) -> set[str]:
        """The owners that are alive."""
        ...

    def transaction(self, work: Callable[[Any], R]) -> R:
        """Call `work` with a psycopg connection in a transaction."""
        ...

    def park(self, connection: Any, run_id: str) -> None:
        """Mark a run that was recovered too often as failed."""
        ...


def call_worker(
    db: Any,
    engine: Engine,
    run_id: str,
    order: Order,
    *,
    after_s: float | None = None,
) -> None:
    """Enqueue the next segment of a run, in the transaction that gave it work; delayed by `after_s`, when a question expires."""
    if after_s is not None:
        db.execute("UPDATE runs SET expires_at = ? WHERE id = ?", (db.now + after_s, run_id))
    if not engine.is_set_up(db.connection):
        if order.delay_s is not None:
            raise StoreError(
                "`delay_s` needs the queue of the engine, which the first worker creates: start `ferrule worker` once before.",
            )
        values = order.priority, order.queue_key, engine.queue, run_id
        db.execute(
            "UPDATE runs SET priority = ?, queue_key = ?, queue = coalesce(queue, ?) WHERE id = ?",
            values,
        )
        return
    segment, priority, queue_key, queue = db.execute(
        "UPDATE runs SET segment = segment + 1, priority = coalesce(?, priority), queue_key = coalesce(?, queue_key), "
        "queue = coalesce(queue, ?) WHERE id = ? RETURNING segment, priority, queue_key, queue",
        (order.priority, order.queue_key, engine.queue, run_id),
    ).fetchone()
    kept = Order(
        priority=priority,
        queue_key=queue_key,
        delay_s=order.delay_s if after_s is None else after_s,
    )
    engine.enqueue(db.connection, f"{run_id}:{segment}", run_id, kept, queue)


def forget_tickets(db: Any, engine: Engine, run_id: str) -> None:
    """Remove the tickets of a run that is being deleted."""
    row = db.execute("SELECT segment FROM runs WHERE id = ?", (run_id,)).fetchone()
    if row is not None and row[0] and engine.is_set_up(db.connection):
        engine.forget(db.connection, [f"{run_id}:{number}" for number in range(1, row[0] + 1)])


def in_turn(store: Sweepable) -> set[str]:
    """The runs with a live ticket in a queue that has a live worker: they wait for their turn, or for a delay to end."""
    live = list(store.live_owners())
    engine: Engine = store.engine

    def work(connection: Any) -> set[str]:
        if not engine.is_set_up(connection):
            return set()
        sql = f"""
            SELECT r.id FROM "{store.schema}".runs r WHERE r.status IN ('queued', 'running', 'waiting')
            AND r.queue IN (SELECT queue FROM "{store.schema}".owners WHERE name = ANY(%s))
            AND ({engine.state_of("r.id || ':' || r.segment")}) = 'live'
        """  # noqa: RUF100, S608
        return {row[0] for row in connection.execute(sql, (live,)).fetchall()}

    return store.transaction(work)


def sweep(store: Sweepable, *, every: bool = False) -> int:
    """Give the work of dead workers to others, and make missing tickets; returns how many it made.

    With `every`, makes a ticket for each run with work, even if it has one.
    """
    live = list(store.live_owners())
    engine: Engine = store.engine
    found: list[tuple[str, int, str | None]] = store.transaction(
        lambda db: _loose(db, store, live, every=every),
    )
    made = 0
    for run_id, segment, state in found:
        made += store.transaction(
            lambda db, at=(run_id, segment), failed=state == "failed": _again(
                db,
                store,
                engine,
                at,
                failed=failed,
            ),
        )
    return made


def _loose(
    connection: Any,
    store: Sweepable,
    live: list[str],
    *,
    every: bool,
) -> list[tuple[str, int, str | None]]:
    """Runs that have work and no live ticket: id, segment, and state of the last ticket. Empty while another process looks for them."""
    engine: Engine = store.engine
    engine.drop_dead(connection, live)
    wait, key = "" if every else "try_", lock_key(f"ferrule sweep {store.schema}")
    if connection.execute(f"SELECT pg_{wait}advisory_xact_lock(%s)", (key,)).fetchone()[0] is False:
        return []
    runs, decisions = f'"{store.schema}".runs', f'"{store.schema}".decisions'
    state = engine.state_of("r.id || ':' || r.segment")
    missing = "" if every else f" AND ({state}) IS DISTINCT FROM 'live'"
    decided = (  # a question that it still asks: a newer version may have dropped one
        f"r.status = 'waiting' AND r.id IN (SELECT d.run_id FROM {decisions} d JOIN {runs} q ON q.id = d.run_id "  # noqa: RUF100, S608
        "WHERE NOT d.taken AND strpos(q.questions, d.question_id) > 0)"
    )
    expired = "r.status = 'waiting' AND r.expires_at < extract(epoch FROM clock_timestamp())"
    sql = f"""
        SELECT r.id, r.segment, ({state}) FROM {runs} r WHERE (
            (r.owner IS NULL AND (r.status = 'queued' OR ({decided}) OR ({expired}))
                AND (r.error IS NULL OR r.updated_at < extract(epoch FROM clock_timestamp()) - %s))
            OR (r.status = 'running' AND r.owner IS NOT NULL AND NOT r.owner = ANY(%s))
        ){missing} ORDER BY coalesce(r.priority, 0), r.no LIMIT {AT_ONCE}
    """  # noqa: RUF100, S608
    return connection.execute(sql, (0.0 if every else _AGAIN_AFTER_S, live)).fetchall()


def _again(
    connection: Any,
    store: Sweepable,
    engine: Engine,
    at: tuple[str, int],
    *,
    failed: bool,
) -> int:
    """Make the next ticket of a run, unless another process did. If its tickets failed too often, mark the run as failed instead."""
    row = connection.execute(
        f'UPDATE "{store.schema}".runs SET segment = segment + 1, recoveries = recoveries + %s, '  # noqa: RUF100, S608
        "queue = coalesce(queue, %s) WHERE id = %s AND segment = %s RETURNING segment, priority, queue_key, queue, recoveries, owner",
        (int(failed), engine.queue, *at),
    ).fetchone()
    if row is None:
        return 0
    segment, priority, queue_key, queue, recoveries, owner = row
    if failed and recoveries > store.max_recoveries and owner is None:
        store.park(connection, at[0])
        return 0
    engine.enqueue(
        connection,
        f"{at[0]}:{segment}",
        at[0],
        Order(priority=priority, queue_key=queue_key),
        queue,
    )
    return 1
