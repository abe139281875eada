"""Tickets of an engine: "this run has work".

A ticket is made in the transaction that makes the work, and replaced if it is lost.

The journal is the source of truth. A ticket only calls a worker, so an extra one does no harm, and
all can be made again from the runs.
"""

from __future__ import annotations

from functools import partial
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
    """The queue that carries tickets to workers. It knows ids, not runs.

    Each method works in the transaction of a psycopg connection.
    """

    queue: str
    """The queue for runs that are submitted here."""

    def is_set_up(self, connection: Any) -> bool:
        """Whether the engine's tables exist.

        If not, no worker has started yet, and the first one makes the tickets.
        """
        ...

    def enqueue(
        self, connection: Any, ticket: str, argument: str, order: Order, queue: str
    ) -> None:
        """Enqueue a call of a worker of the queue with this argument.

        A ticket whose id was used before is ignored.
        """
        ...

    def forget(self, connection: Any, tickets: Collection[str]) -> None:
        """Remove tickets."""
        ...

    def drop_dead(self, connection: Any, live: Collection[str]) -> int:
        """Cancel the tickets held by processes that are not in `live`; returns how many."""
        ...

    def state_of(self, ticket: str) -> str:
        """SQL for the state of a ticket: `live`, `failed`, or another text or NULL.

        `ticket` is an SQL expression for its id.
        """
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
    db: Any, engine: Engine, run_id: str, order: Order, *, after_s: float | None = None
) -> None:
    """Enqueue the next segment of a run, in the transaction that gave it work.

    Delayed by `after_s`, if a question expires then.
    """
    if after_s is not None:
        db.execute(
            "UPDATE ferrule_runs SET expires_at = ? WHERE id = ?", (db.now + after_s, run_id)
        )
    if not engine.is_set_up(db.connection):
        if order.delay_s is not None:
            msg = (
                "`delay_s` needs the queue of the engine, which the first worker creates: "
                "start `ferrule worker` once before."
            )
            raise StoreError(msg)
        # The first worker makes the ticket, with this order.
        db.execute(
            "UPDATE ferrule_runs SET priority = ?, queue_key = ?, queue = coalesce(queue, ?) "
            "WHERE id = ?",
            (order.priority, order.queue_key, engine.queue, run_id),
        )
        return
    segment, priority, queue_key, queue = db.execute(
        "UPDATE ferrule_runs SET segment = segment + 1, priority = coalesce(?, priority), "
        "queue_key = coalesce(?, queue_key), queue = coalesce(queue, ?) "
        "WHERE id = ? RETURNING segment, priority, queue_key, queue",
        (order.priority, order.queue_key, engine.queue, run_id),
    ).fetchone()
    delay_s = order.delay_s if after_s is None else after_s
    whole_order = Order(priority=priority, queue_key=queue_key, delay_s=delay_s)
    engine.enqueue(db.connection, f"{run_id}:{segment}", run_id, whole_order, queue)


def forget_tickets(db: Any, engine: Engine, run_id: str) -> None:
    """Remove the tickets of a run that is being deleted."""
    row = db.execute("SELECT segment FROM ferrule_runs WHERE id = ?", (run_id,)).fetchone()
    if row is None:
        return
    (segments,) = row
    if segments and engine.is_set_up(db.connection):
        tickets = [f"{run_id}:{number}" for number in range(1, segments + 1)]
        engine.forget(db.connection, tickets)


def in_turn(store: Sweepable) -> set[str]:
    """The runs with a live ticket in a queue that has a live worker.

    They wait for their turn, or for a delay to end.
    """
    live = list(store.live_owners())
    engine: Engine = store.engine

    def work(connection: Any) -> set[str]:
        if not engine.is_set_up(connection):
            return set()
        sql = f"""
            SELECT r.id FROM "{store.schema}".runs r
            WHERE r.status IN ('queued', 'running', 'waiting')
            AND r.queue IN (SELECT queue FROM "{store.schema}".owners WHERE name = ANY(%s))
            AND ({engine.state_of("r.id || ':' || r.segment")}) = 'live'
        """
        return {row[0] for row in connection.execute(sql, (live,)).fetchall()}

    return store.transaction(work)


def sweep(store: Sweepable, *, every: bool = False) -> int:
    """Give the work of dead workers to others, and make missing tickets; returns how many it made.

    With `every`, makes a ticket for each run with work, even if it has one.
    """
    live = list(store.live_owners())
    loose_runs = store.transaction(lambda db: _loose(db, store, live, every=every))
    count = 0
    for run_id, segment, state in loose_runs:
        replace = partial(
            _replace_ticket,
            store=store,
            run_id=run_id,
            segment=segment,
            has_failed=state == "failed",
        )
        if store.transaction(replace):
            count += 1
    return count


def _loose(
    connection: Any, store: Sweepable, live: list[str], *, every: bool
) -> list[tuple[str, int, str | None]]:
    """Runs that have work and no live ticket: id, segment, and state of the last ticket.

    Empty while another process looks for them.
    """
    engine: Engine = store.engine
    engine.drop_dead(connection, live)
    # Only one process sweeps at a time; a sweep of every run waits for its turn.
    if every:
        lock = "pg_advisory_xact_lock"
    else:
        lock = "pg_try_advisory_xact_lock"
    key = lock_key(f"ferrule sweep {store.schema}")
    if connection.execute(f"SELECT {lock}(%s)", (key,)).fetchone()[0] is False:
        return []
    runs = f'"{store.schema}".runs'
    decisions = f'"{store.schema}".decisions'
    state = engine.state_of("r.id || ':' || r.segment")
    if every:
        missing = ""
    else:
        missing = f" AND ({state}) IS DISTINCT FROM 'live'"
    # A decision on a question that the run still asks: a newer version may have dropped one.
    decided = (
        "r.status = 'waiting' AND r.id IN ("
        f"SELECT d.run_id FROM {decisions} d JOIN {runs} q ON q.id = d.run_id "
        "WHERE NOT d.taken AND strpos(q.questions, d.question_id) > 0)"
    )
    expired = "r.status = 'waiting' AND r.expires_at < extract(epoch FROM clock_timestamp())"
    sql = f"""
        SELECT r.id, r.segment, ({state}) FROM {runs} r WHERE (
            (r.owner IS NULL AND (r.status = 'queued' OR ({decided}) OR ({expired}))
                AND (r.error IS NULL OR r.updated_at < extract(epoch FROM clock_timestamp()) - %s))
            OR (r.status = 'running' AND r.owner IS NOT NULL AND NOT r.owner = ANY(%s))
        ){missing} ORDER BY coalesce(r.priority, 0), r.no LIMIT {AT_ONCE}
    """
    return connection.execute(sql, (0.0 if every else _AGAIN_AFTER_S, live)).fetchall()


def _replace_ticket(
    connection: Any, *, store: Sweepable, run_id: str, segment: int, has_failed: bool
) -> bool:
    """Make the next ticket of a run, unless another process did; returns whether it made one.

    If the run's tickets failed too often, marks the run as failed instead.
    """
    engine: Engine = store.engine
    row = connection.execute(
        f'UPDATE "{store.schema}".runs '
        "SET segment = segment + 1, recoveries = recoveries + %s, queue = coalesce(queue, %s) "
        "WHERE id = %s AND segment = %s "
        "RETURNING segment, priority, queue_key, queue, recoveries, owner",
        (int(has_failed), engine.queue, run_id, segment),
    ).fetchone()
    if row is None:
        return False
    segment, priority, queue_key, queue, recoveries, owner = row
    if has_failed and recoveries > store.max_recoveries and owner is None:
        store.park(connection, run_id)
        return False
    order = Order(priority=priority, queue_key=queue_key)
    engine.enqueue(connection, f"{run_id}:{segment}", run_id, order, queue)
    return True
