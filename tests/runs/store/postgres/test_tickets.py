"""Tickets: made with the work, replaced when they are lost.

The engine here is a table; `test_workers.py` has the real one.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import pytest
from agent_script import native_step

from ferrule import PostgresStore, ReAct, Run, advance, ask, context, tool
from ferrule.errors import StoreError
from ferrule.runs.store.postgres.tables import lock_key
from ferrule.runs.store.postgres.tickets import in_turn, sweep
from ferrule.testing import ScriptedLM

DONE = native_step("done", "finish", {"answer": "ok"})
ASKED = native_step("pay", "pay", {"euros": 3})
RAN: list[int] = []


@tool(require_confirmation=ask(expires_s=3600))
def pay(euros: int) -> str:
    """Pay."""
    RAN.append(euros)
    return "paid"


agent = ReAct("task -> answer", [pay])


class Table:
    """An engine whose tickets are rows: as long as nothing works on them, they stay as they are."""

    def __init__(self, schema: str, queue: str = "ferrule") -> None:
        self.queue = queue
        self.queues: list[str] = []
        self.table = f"{schema}_tickets"
        self.has_tables = True
        self.orders: list[tuple[str, Any]] = []

    def is_set_up(self, connection: Any) -> bool:
        if self.has_tables:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} (id text PRIMARY KEY, state text)",
            )
        return self.has_tables

    def enqueue(self, connection: Any, ticket: str, argument: str, order: Any, queue: str) -> None:
        assert ticket.startswith(f"{argument}:")
        self.orders.append((ticket, order))
        self.queues.append(queue)
        connection.execute(
            f"INSERT INTO {self.table} VALUES (%s, 'live') ON CONFLICT DO NOTHING",
            (ticket,),
        )

    def forget(self, connection: Any, tickets: Collection[str]) -> None:
        connection.execute(f"DELETE FROM {self.table} WHERE id = ANY(%s)", (list(tickets),))

    def drop_dead(self, connection: Any, live: Collection[str]) -> int:
        return 0

    def state_of(self, ticket: str) -> str:
        return f"SELECT state FROM {self.table} t WHERE t.id = {ticket}"


@pytest.fixture
def store(postgres: Any, schema: str, opened: Callable[..., PostgresStore]) -> PostgresStore:
    RAN.clear()
    made = opened(postgres.dsn, schema=schema, engine=Table(schema), max_recoveries=3)
    made.transaction(made.engine.is_set_up)
    return made


def sql(store: PostgresStore, text: str) -> Any:
    """What a statement finds, with the tables of the store by their names."""
    made = text.replace("tickets", store.engine.table).replace("runs", f"{store.schema}.runs")
    return store.transaction(
        lambda db: found.fetchall() if (found := db.execute(made)).description else None,
    )


def tickets(store: PostgresStore) -> dict[str, str]:
    return dict(sql(store, "SELECT id, state FROM tickets ORDER BY id"))


def test_a_ticket_is_made_with_the_run_and_none_for_one_that_waits(store: PostgresStore) -> None:
    """A run that waits for a person has no ticket; a decision makes the next."""

    @tool(require_confirmation=True)
    def wait() -> str:
        """Wait."""
        return "over"

    waiting = ReAct("task -> answer", [wait])
    waiting.submit(store=store, task="x", run_id="r", priority=2, queue_key="ann")
    with context(lm=ScriptedLM([native_step("wait", "wait"), DONE])):
        assert advance(store, "r", waiting) == "waiting"
        assert tickets(store) == {"r:1": "live"}
        store.decide("r", store.summary("r").questions[0].approve())
        assert tickets(store) == {"r:1": "live", "r:2": "live"}
        assert advance(store, "r", waiting) == "done"
    assert [(order.priority, order.queue_key) for _, order in store.engine.orders] == [
        (2, "ann"),
    ] * 2
    store.delete("r")
    assert tickets(store) == {}


def test_a_submission_that_fails_leaves_no_ticket(store: PostgresStore) -> None:
    """Both are one transaction."""
    agent.submit(store=store, task="x", run_id="r")
    with pytest.raises(StoreError, match="has a run 'r' already"):
        agent.submit(store=store, task="y", run_id="r")
    assert tickets(store) == {"r:1": "live"}


def test_runs_that_were_submitted_before_the_queue_was_made_get_their_tickets_by_priority(
    store: PostgresStore,
) -> None:
    """Order and key are kept with the run until then; a delay cannot be."""
    store.engine.has_tables = False
    for name, priority in (("a", 9), ("b", None), ("c", 1)):
        agent.submit(store=store, task="x", run_id=name, priority=priority, queue_key=name)
    with pytest.raises(StoreError, match="start `ferrule worker` once before"):
        agent.submit(store=store, task="x", run_id="d", delay_s=1)
    assert tickets(store) == {}
    store.engine.has_tables = True
    assert sweep(store) == 3
    assert [(ticket, order.priority, order.queue_key) for ticket, order in store.engine.orders] == [
        ("b:1", None, "b"), ("c:1", 1, "c"), ("a:1", 9, "a"),
    ]  # fmt: skip
    assert sweep(store) == 0
    assert sweep(store, every=True) == 3


def test_a_run_whose_tickets_fail_again_and_again_is_parked(store: PostgresStore) -> None:
    """Each failure counts as a recovery, and the run is then failed with the number."""
    agent.submit(store=store, task="x", run_id="r")
    agent.submit(store=store, task="x", run_id="healthy")
    made: list[int] = []
    for _ in range(6):
        sql(store, "UPDATE tickets SET state = 'failed' WHERE id LIKE 'r:%'")
        made.append(sweep(store))
    assert made == [1, 1, 1, 0, 0, 0]
    found = store.summary("r")
    assert (found.status, found.error, found.recoveries) == (
        "failed",
        "crashed 4 times, and was marked as failed",
        4,
    )
    assert store.summary("healthy").status == "queued"
    with context(lm=ScriptedLM([DONE])):
        assert advance(store, "r", agent) == "failed"


def test_a_run_that_cannot_be_read_is_parked_as_well_and_stops_no_sweep(
    store: PostgresStore,
) -> None:
    """The tickets of others are made meanwhile."""
    for name in ("a", "b"):
        agent.submit(store=store, task="x", run_id=name)
    sql(store, "UPDATE runs SET head = '{' WHERE id = 'a'")
    with pytest.raises(StoreError):
        advance(store, "a", agent)
    for _ in range(4):
        sql(store, "UPDATE tickets SET state = 'failed' WHERE id LIKE 'a:%'")
        sql(store, "DELETE FROM tickets WHERE id LIKE 'b:%'")
        sweep(store)
    assert [(each.id, each.status) for each in sorted(store.list(), key=lambda each: each.id)] == [
        ("a", "failed"),
        ("b", "queued"),
    ]
    assert tickets(store)["b:5"] == "live"


def test_a_run_that_came_to_rest_in_between_starts_over(store: PostgresStore) -> None:
    """As one that killed its processes."""
    agent.submit(store=store, task="x", run_id="r")
    for _ in range(3):
        sql(store, "UPDATE tickets SET state = 'failed'")
        sweep(store)
    assert store.summary("r").recoveries == 3
    with context(lm=ScriptedLM([ASKED])):
        assert advance(store, "r", agent) == "waiting"
    assert store.summary("r").recoveries == 0


@pytest.mark.parametrize("how", ["submitted", "started"])
def test_a_run_stays_in_its_queue_whoever_decides(
    store: PostgresStore,
    postgres: Any,
    opened: Any,
    how: str,
) -> None:
    """A command, or a sweeper of another queue, does not know it."""
    store.engine.queue = "slow"
    if how == "submitted":
        agent.submit(store=store, task="x", run_id="r")
    with context(lm=ScriptedLM([ASKED])):
        assert (
            advance(store, "r", agent)
            if how == "submitted"
            else agent.start(store=store, task="x", run_id="r")
        )
    command = opened(postgres.dsn, schema=store.schema, engine=Table(store.schema), lease_s=29.0)
    command.decide("r", command.summary("r").questions[0].approve())
    assert command.engine.queues == ["slow"]
    sql(store, "DELETE FROM tickets")
    assert sweep(command) == 1
    assert {*store.engine.queues, *command.engine.queues} == {"slow"}


@pytest.mark.parametrize(
    "lacks",
    ["", "a ticket", "a live ticket", "a worker", "a worker of its queue", "the queue"],
)
def test_a_run_waits_for_its_turn_only_if_a_worker_will_find_its_ticket(
    store: PostgresStore,
    postgres: Any,
    opened: Callable[..., PostgresStore],
    lacks: str,
) -> None:
    agent.submit(store=store, task="x", run_id="r")
    if lacks != "a worker":
        worker = opened(
            postgres.dsn,
            schema=store.schema,
            engine=Table(store.schema, "slow" if "queue" in lacks else "ferrule"),
        )
        worker.join()
    match lacks:
        case "a ticket":
            sql(store, "DELETE FROM tickets")
        case "a live ticket":
            sql(store, "UPDATE tickets SET state = 'ERROR'")
        case "the queue":
            store.engine.has_tables = False
        case _:
            pass
    assert in_turn(store) == ({"r"} if lacks == "" else set())
    store.leave()


def test_a_decision_on_a_question_that_is_not_asked_any_more_makes_no_ticket(
    store: PostgresStore,
) -> None:
    """Else a worker of another version would take the run up again and again."""
    first, second = [
        ReAct(
            "task -> answer",
            [tool(name="wait", description=text, require_confirmation=True)(lambda: "over")],
        )
        for text in ("Wait.", "Go.")
    ]
    with context(lm=ScriptedLM([native_step("wait", "wait"), DONE])):
        first.start(store=store, task="x", run_id="r")
        store.decide("r", store.summary("r").questions[0].approve())
        assert advance(store, "r", second, any_version=True) == "waiting"
        assert tickets(store) == {"r:1": "live"}
        sql(store, "DELETE FROM tickets")
        assert sweep(store) == 0
        store.decide("r", store.summary("r").questions[0].approve())
        assert tickets(store) == {"r:2": "live"}
        sql(store, "DELETE FROM tickets")
        assert sweep(store) == 1
        assert advance(store, "r", second, any_version=True) == "done"


def test_runs_that_wait_or_are_queued_leave_nothing_in_a_process(store: PostgresStore) -> None:
    """Whatever their number."""
    with context(lm=ScriptedLM([ASKED] * 20)):
        for n in range(20):
            agent.submit(store=store, task="x", run_id=f"many-{n}")
            assert advance(store, f"many-{n}", agent) == "waiting"
            agent.submit(store=store, task="x", run_id=f"many-queued-{n}")
    assert sweep(store) == 0
    store._presence.tend()
    gc.collect()
    left = [
        each for each in gc.get_objects() if isinstance(each, Run) and each.id.startswith("many-")
    ]
    assert (left, store._presence._lines, bool(store._leases)) == ([], {}, False)


def test_one_process_sweeps_at_a_time(store: PostgresStore, postgres: Any) -> None:
    """Another one leaves the work to it, and takes over when it is gone."""
    import psycopg

    agent.submit(store=store, task="x", run_id="r")
    sql(store, "DELETE FROM tickets")
    with psycopg.connect(postgres.dsn) as other:
        other.execute(
            "SELECT pg_advisory_xact_lock(%s)",
            (lock_key(f"ferrule sweep {store.schema}"),),
        )
        assert sweep(store) == 0
        waiting = threading.Thread(
            target=sweep,
            args=(store,),
            kwargs={"every": True},
        )  # what a person asked for waits for its turn
        waiting.start()
        other.rollback()
        waiting.join(60)
    assert not waiting.is_alive()
    assert tickets(store) == {"r:2": "live"}


@pytest.mark.parametrize(
    "how",
    ["the ticket was lost", "the ticket came too early", "the queue was made later"],
)
def test_a_question_that_expired_is_work_if_its_ticket_is_gone(
    store: PostgresStore,
    how: str,
) -> None:
    """Also one that a clock other than Postgres's called too early."""
    store.engine.has_tables = how != "the queue was made later"
    with context(lm=ScriptedLM([ASKED, DONE])):
        agent.start(store=store, task="x", run_id="r")
        if how == "the ticket came too early":
            assert advance(store, "r", agent) == "waiting"
            sql(store, "UPDATE tickets SET state = 'SUCCESS'")
        elif store.engine.has_tables:
            assert [
                (ticket, 3500 < order.delay_s <= 3600) for ticket, order in store.engine.orders
            ] == [("r:1", True)]
            sql(store, "DELETE FROM tickets")
        store.engine.has_tables = True
        assert sweep(store) == 0
        assert advance(store, "r", agent) == "waiting"
        an_hour_passes(store)
        assert sweep(store) == 1
        assert advance(store, "r", agent) == "done"
    assert RAN == []
    assert sweep(store) == 0


def test_a_question_without_expiry_after_one_that_expired_makes_no_tickets(
    store: PostgresStore,
) -> None:
    """The time belongs to the rest."""
    forms = [ASKED, native_step("later", "later"), DONE]

    @tool(require_confirmation=True)
    def later() -> str:
        """Do it later."""
        return "done"

    both = ReAct("task -> answer", [pay, later])
    with context(lm=ScriptedLM(forms)):
        both.start(store=store, task="x", run_id="r")
        an_hour_passes(store)
        assert advance(store, "r", both) == "waiting"
    sql(store, "DELETE FROM tickets")
    assert sweep(store) == 0


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_wrong_clock_neither_saves_nor_loses_a_question(
    store: PostgresStore,
    hours: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time begins and ends by Postgres's clock, wherever it is asked and looked at."""
    real = time.time
    for place in ("time.time", "ferrule.runs.driver.approval.time"):
        monkeypatch.setattr(place, lambda: real() + 3600 * hours)
    with context(lm=ScriptedLM([ASKED, DONE])):
        run = agent.start(store=store, task="x", run_id="r")
        ends = run.pending[0].expires_at
        assert ends is not None
        assert abs(ends - real() - 3600) < 1800
        assert advance(store, "r", agent) == "waiting"
        assert Run.load(store, "r", agent).resume().status == "waiting"
        an_hour_passes(store)
        assert advance(store, "r", agent) == "done"


def an_hour_passes(store: PostgresStore) -> None:
    """All that the store and its clock know of the run moves into the past: its question is over."""
    store.now = lambda: time.time() + 1e6  # type: ignore[method-assign]
    sql(store, "UPDATE runs SET expires_at = expires_at - 3700")
