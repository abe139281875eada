"""`DBOSEngine`: DBOS carries tickets to workers. DBOS does not know what a run is.

A ticket is a DBOS workflow without steps. It holds the id of a run as JSON; DBOS decides when and
where the function `_FUNCTION` is called with it. The tables of DBOS are in the same database as the
runs, so a ticket and its run are committed together. To enqueue a ticket is one call of a function
in SQL, which needs no import of DBOS.

A worker with short segments would idle: DBOS polls at a fixed interval, even if the queue holds
more. So the polling thread gets an event that also wakes when a slot becomes free
(`_poll_when_free`), and each poll reads less (`_cache_reads`). Both replace private parts of DBOS.
If a version of DBOS no longer has such a part, nothing is replaced, and workers are only slower.
"""

from __future__ import annotations

import asyncio
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ferrule.concurrency.connection import is_usable
from ferrule.errors import ConfigurationError, checks_keywords, importing, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

_NAME = "ferrule"
"""The application's name and version in DBOS.

By default, DBOS takes a hash of the source: after an edit, old tickets would wait forever.
"""
_FUNCTION = "ferrule.advance"
"""The name of the workflow. Tickets in the database have it, so it never changes."""
_NO_KEY = "-"
"""The partition of tickets without a `queue_key`."""
_LIVE = "('ENQUEUED', 'DELAYED', 'PENDING')"
_BUSY_S = 1.0
"""A worker is busy if all its slots were taken within this time: the queue may hold more."""
_LEAST = 0.2
"""The part of the polling interval that a busy worker waits in any case.

One poll then replaces all tickets that ended meanwhile.
"""
_LIMITS_S = 1.0
"""How long the limits of the queue are cached."""
_STRAY_S = 15.0
"""A ticket that this process claimed longer ago, and does not work on, is lost.

It was lost between DBOS's claim and the call of the function.
"""
_GRACE_S = 10.0
"""How long DBOS may take, after `stop` cancelled the last tickets, to store their outcomes."""


class DBOSEngine:
    """A queue of DBOS in the database of a `PostgresStore(engine=...)`.

    Workers need `ferrule[dbos]`. They apply the limits, and keep them in the queue: those of the
    worker that started last apply to all. A process that only submits runs uses `queue` and
    `schema` only.

    Args:
        queue: The name of the queue.
        concurrency: How many segments all workers together execute at once.
        worker_concurrency: How many segments one worker executes at once.
        key_concurrency: How many segments of one `queue_key` all workers together execute at once.
        rate: `(count, seconds)`: at most so many segments begin in so many seconds, on all workers.
        poll_s: How often a worker looks for tickets.
        schema: The schema of DBOS's tables.

    """

    @checks_keywords
    def __init__(
        self,
        *,
        queue: str = "ferrule",
        concurrency: int | None = None,
        worker_concurrency: int = 4,
        key_concurrency: int | None = None,
        rate: tuple[int, float] | None = None,
        poll_s: float = 0.1,
        schema: str = "dbos",
    ) -> None:
        if not schema.isidentifier() or not schema.islower():
            msg = (
                "`schema` is a name of lowercase letters, digits and underscores; "
                f"found {shown(schema)}."
            )
            raise ConfigurationError(msg)
        self.queue = queue
        self.concurrency = concurrency
        self.worker_concurrency = worker_concurrency
        self.key_concurrency = key_concurrency
        self.rate = rate
        self.poll_s = poll_s
        self.schema = schema
        self.name: str | None = None
        """The name of this process among the workers, while it is one."""
        self._is_set_up = False
        self._tasks: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = {}
        """The tickets in work here."""
        self._full_at = -_BUSY_S
        """When all slots of this worker were last taken, by `time.monotonic`."""
        self._free = threading.Event()
        """Set when a slot of a busy worker becomes free."""

    # -- tickets: SQL in the transaction of a caller

    def is_set_up(self, connection: Any) -> bool:
        """Whether DBOS has its tables."""
        if not self._is_set_up:
            table = f"{self.schema}.workflow_input"
            row = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
            self._is_set_up = row[0] is not None
        return self._is_set_up

    def enqueue(
        self, connection: Any, ticket: str, argument: str, order: Any, queue: str | None = None
    ) -> None:
        """Have `work(argument)` called on a worker of `queue`, or of our own one.

        A ticket with a used id changes nothing.
        """
        sql = f"""
            SELECT {self.schema}.enqueue_workflow(
                workflow_name => %s, queue_name => %s,
                positional_args => ARRAY[to_json(%s::text)], workflow_id => %s, app_version => %s,
                application_name => %s, priority => %s, queue_partition_key => %s,
                delay_until_epoch_ms =>
                    ((extract(epoch FROM now()) + %s::float8) * 1000)::bigint)
        """
        values = (
            _FUNCTION,
            queue or self.queue,
            argument,
            ticket,
            _NAME,
            _NAME,
            order.priority,
            order.queue_key or _NO_KEY,
            order.delay_s,
        )
        connection.execute(sql, values)

    def forget(self, connection: Any, tickets: Collection[str]) -> None:
        """Remove tickets and what they hold."""
        for table in ("workflow_input", "workflow_status"):
            connection.execute(
                f"DELETE FROM {self.schema}.{table} WHERE workflow_uuid = ANY(%s)", (list(tickets),)
            )

    def drop_dead(self, connection: Any, live: Collection[str]) -> int:
        """Cancel the tickets of processes that are not live, and those that this process lost.

        `live` are the names of the live processes. Returns how many were cancelled.
        """
        sql = f"""
            UPDATE {self.schema}.workflow_status SET status = 'CANCELLED'
            WHERE status = 'PENDING' AND name = %s AND (
                NOT executor_id = ANY(%s)
                OR (
                    executor_id = %s AND NOT workflow_uuid = ANY(%s)
                    AND started_at_epoch_ms < (extract(epoch FROM now()) - %s) * 1000
                )
            )
        """
        values = (_FUNCTION, list(live), self.name, list(self._tasks), _STRAY_S)
        return connection.execute(sql, values).rowcount

    def state_of(self, ticket: str) -> str:
        """SQL for the state of a ticket: `live`, `failed`, or another text or NULL.

        `ticket` is an SQL expression for its id.
        """
        # The collation is that of the index of DBOS.
        return (
            f"SELECT CASE WHEN t.status IN {_LIVE} THEN 'live' "
            "WHEN t.status = 'ERROR' THEN 'failed' ELSE t.status END "
            f"FROM {self.schema}.workflow_status t "
            f'WHERE t.workflow_uuid = ({ticket}) COLLATE "default"'
        )

    # -- a worker

    def start(
        self, dsn: str, name: str, work: Callable[[str], Awaitable[Any]], *, is_direct: bool = True
    ) -> None:
        """Call `work` with the arguments of tickets, on the event loop of DBOS, from now on.

        Creates DBOS's tables if they are not there. `name` is unique among all processes, also over
        time. A process starts at most one engine. Without `is_direct`, a pooler may give each
        transaction another session, so nothing that belongs to one is used, such as prepared
        statements.
        """
        dbos = _load()
        self.name = name

        async def advance(argument: str) -> str:
            ticket: str = dbos.DBOS.workflow_id
            task = asyncio.current_task()
            assert task is not None  # noqa: S101  this is a coroutine
            self._tasks[ticket] = asyncio.get_running_loop(), task
            # Called when DBOS has stored the outcome, and counts the slot as free.
            task.add_done_callback(self._note_free_slot)
            if len(self._tasks) >= self._slots:
                self._full_at = time.monotonic()
            try:
                return str(await work(argument))
            finally:
                del self._tasks[ticket]

        dbos.DBOS(config=self._dbos_config(dbos, dsn, name, is_direct=is_direct))
        self._poll_when_free()
        # No limit of DBOS: the store counts how often a run killed its process (`max_recoveries`).
        dbos.DBOS.workflow(name=_FUNCTION, max_recovery_attempts=None)(advance)
        dbos.DBOS.listen_queues([self.queue])
        dbos.DBOS.launch()
        limiter = None
        if self.rate is not None:
            count, seconds = self.rate
            limiter = {"limit": count, "period": seconds}
        dbos.DBOS.register_queue(
            self.queue,
            global_concurrency=self.concurrency,
            worker_concurrency=self._slots,
            partition_concurrency=self.key_concurrency,
            polling_interval_sec=self.poll_s,
            on_conflict="always_update",
            limiter=limiter,
        )

    def _dbos_config(self, dbos: Any, dsn: str, name: str, *, is_direct: bool) -> dict[str, Any]:
        engine_options: dict[str, Any] = {
            "pool_pre_ping": False,
            "pool_events": [(_check_connection, "checkout")],
        }
        config: dict[str, Any] = {
            "name": _NAME,
            "system_database_url": _url(dsn),
            "dbos_system_schema": self.schema,
            "application_version": _NAME,
            "executor_id": name,
            "serializer": dbos.DBOSPortableJSONSerializer(),
            "use_listen_notify": False,  # tickets send no messages to each other
            "log_level": "WARNING",
            "sys_db_pool_size": 3,  # for polling and outcomes: runs have the store's connections
            "db_engine_kwargs": engine_options,
        }
        if not is_direct:
            engine_options["connect_args"] = {"prepare_threshold": None}
            config["sys_db_idle_transaction_timeout_sec"] = 0
        return config

    def _poll_when_free(self) -> None:
        """Have the polling thread look for tickets as soon as a slot of a busy worker is free."""
        queues: Any = import_module("dbos._queue")
        poll = getattr(queues, "queue_worker_thread", None)
        if poll is None:
            return

        def poll_when_free(stop: threading.Event, dbos: Any, queue: Any) -> None:
            if queue.name == self.queue:
                _cache_reads(getattr(dbos, "_sys_db", None), self.queue)
                stop = cast("threading.Event", _Interval(stop, self._free))
            poll(stop, dbos, queue)

        queues.queue_worker_thread = poll_when_free

    @property
    def _slots(self) -> int:
        """How many tickets this worker takes at once."""
        if self.concurrency is None:
            return self.worker_concurrency
        return min(self.worker_concurrency, self.concurrency)

    def _note_free_slot(self, _: object) -> None:
        if time.monotonic() - self._full_at < _BUSY_S:
            self._free.set()

    @property
    def working(self) -> int:
        """How many tickets are in work here."""
        return len(self._tasks)

    def stop(self, drain_s: float) -> None:
        """Take no more tickets, and wait until those in work are done.

        Cancels what is not done after `drain_s` seconds.
        """
        dbos = _load()
        drained_by = time.monotonic() + drain_s
        # In a thread, because `destroy` waits for the tickets, and they are cancelled meanwhile.
        closing = threading.Thread(
            target=dbos.DBOS.destroy,
            kwargs={"workflow_completion_timeout_sec": int(drain_s + _GRACE_S)},
            daemon=True,
        )
        closing.start()
        while self._tasks and time.monotonic() < drained_by:
            time.sleep(0.02)
        for loop, task in list(self._tasks.values()):
            loop.call_soon_threadsafe(task.cancel)
        self._free.set()  # wakes the polling thread, which then ends
        # Longer than DBOS waits, so that it closes its connections. A daemon ends with the process.
        closing.join(_GRACE_S + 5.0)


class _Interval:
    """Stands in for the event that ends the thread that polls a queue.

    The thread calls its `wait` between two polls, so that is where a free slot wakes it.
    """

    def __init__(self, stop: threading.Event, free: threading.Event) -> None:
        self.is_set = stop.is_set
        self._stop, self._free = stop, free

    def wait(self, timeout: float) -> bool:
        """Wait until polling is to end, or a slot is free, or the time is over.

        Returns whether it is to end.
        """
        if not self._stop.wait(_LEAST * timeout):
            self._free.wait((1 - _LEAST) * timeout)
            self._free.clear()
        return self._stop.is_set()


def _cache_reads(database: Any, queue: str) -> None:
    """Have DBOS read less at each poll: the limits of the queue once a second, and no version."""
    if hasattr(database, "_is_latest_version"):
        database._is_latest_version = _is_latest  # noqa: SLF001
    read = getattr(database, "get_queue", None)
    if read is None:
        return
    limits = None
    limits_expire_at = 0.0

    def get_queue(name: str, **options: Any) -> Any:
        nonlocal limits, limits_expire_at
        if name != queue or options:
            return read(name, **options)
        if limits is None or time.monotonic() >= limits_expire_at:
            limits = read(name)
            limits_expire_at = time.monotonic() + _LIMITS_S
        return limits

    database.get_queue = get_queue


def _is_latest(*_: object, **__: object) -> bool:
    return True  # all processes and tickets have the version `_NAME`


def _check_connection(connection: Any, *_: object) -> None:
    """Refuse an idle connection that was cut; SQLAlchemy then opens another.

    SQLAlchemy's own check (`pool_pre_ping`) is a round trip for each transaction.
    """
    if not is_usable(connection):
        raise import_module("sqlalchemy.exc").DisconnectionError


def _load() -> Any:
    with importing("Workers need DBOS: pip install 'ferrule[dbos]'."):
        dbos, serialization = import_module("dbos"), import_module("dbos._serialization")
    # DBOS unpickles a row that says it is pickled, even if its serializer is another one. Then
    # anyone who may write to the table could run code in a worker.
    serialization.DefaultSerializer.deserialize = _refuse_pickle
    return dbos


def _refuse_pickle(*_: Any) -> Any:
    raise ValueError("A ticket is JSON; this one is pickled, and is not read.")


def _url(dsn: str) -> str:
    """A DSN of libpq as a URL of SQLAlchemy."""
    to_parts = import_module("psycopg.conninfo").conninfo_to_dict
    create_url = import_module("sqlalchemy").URL.create
    parts = {key: str(value) for key, value in to_parts(dsn).items() if value is not None}
    user = parts.pop("user", None)
    password = parts.pop("password", None)
    database = parts.pop("dbname", None) or user
    url = create_url("postgresql+psycopg", user, password, database=database, query=parts)
    return url.render_as_string(hide_password=False)
