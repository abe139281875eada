"""Liveness of lease owners.

While this process holds leases, it shows that it is alive by a session's lock and by a heartbeat.
The lock is freed as soon as Postgres sees the end of the session: at once if the process was
killed. But a session may end while its process lives on (Postgres restarted), so an owner counts as
dead only if it is silent as well. Without heartbeats for `lease_s` it is dead in any case, because
its process may be stopped. Its leases are then taken over, and its writes refused. The heartbeat
has its own thread, so a program that blocks its event loop keeps its lease.
"""

from __future__ import annotations

import os
import platform
import secrets
import threading
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary, finalize, ref

from ferrule.concurrency.forking import ForkLock, run_in_child
from ferrule.errors import StoreError
from ferrule.runs.store.lease import Leases
from ferrule.runs.store.postgres.dsn import check_dsn, load_psycopg
from ferrule.runs.store.postgres.server import Server, close_connections
from ferrule.runs.store.postgres.tables import LEASE_ENDS, NOW, SEEN, SILENT_S, dialect
from ferrule.runs.store.statements import give_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.runs.protocols import Lease
    from ferrule.runs.store.postgres.server import Transaction

R = TypeVar("R")

_EVERY_S = 2.0
_FORGET_AFTER_S = 3600.0
"""Rows of owners silent for so long after their lease are deleted.

They have no effect, but each check for live owners would read them.
"""
_FORGET = f"DELETE FROM ferrule_owners WHERE seen_at + lease_s < {NOW} - {_FORGET_AFTER_S}"
_LIVE = (
    f"SELECT owner FROM (SELECT name AS owner FROM ferrule_owners) AS known WHERE {LEASE_ENDS} > ?"
)


class Line:
    """Puts the writers of one lease in line, one after another.

    Postgres would make them wait for each other, too.
    """

    __slots__ = ("_served", "_turned", "lock", "number", "turns")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.number: int | None = None
        """The number of the next entry; None if it must be read from the run's row."""
        self.turns = count()
        """Numbers the entries that an event loop writes, in order.

        Each number must be used in `in_turn`.
        """
        self._served = 0
        self._turned = threading.Condition()

    def in_turn(self, turn: int, write: Callable[[], R]) -> R:
        """Call `write` after all earlier turns have ended."""
        with self._turned:
            self._turned.wait_for(lambda: self._served == turn)
        try:
            return write()
        finally:
            with self._turned:
                self._served += 1
                self._turned.notify_all()


class Presence:
    """Represents this process as an owner of leases.

    Shared by all stores with the same DSN and options.

    Without `is_direct` only the heartbeat counts, as behind a pooler that shares sessions.
    """

    def __init__(self, server: Server, *, lease_s: float, is_direct: bool) -> None:
        self.server = server
        self.leases = Leases()
        self._lease_s = lease_s
        self._every_s = min(_EVERY_S, lease_s / 4)
        self._is_direct = is_direct
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._name = f"{platform.node()} pid {self._pid} {secrets.token_hex(4)}"
        self._key = secrets.randbits(63)
        self._lines: dict[tuple[str, int], Line] = {}
        self._sessions: list[Any] = []
        """The session that has the lock, if there is one."""
        self._closing = finalize(self, close_connections, self._sessions)
        self._has_lock = False
        self._seen_at: float | None = None
        self._joined = 0
        self._queue: str | None = None
        """The queue that this process works on while it has joined."""
        self._forgets_at = 0.0
        self._changing = threading.Lock()
        self._beating = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The name of this process as an owner; a fork has another name."""
        if self._pid != os.getpid():
            self.after_fork()
        return self._name

    def after_fork(self) -> None:
        """Called in the child of a fork: leases, session and thread are the parent's."""
        self.leases.clear()
        self._closing.detach()
        self._of_a_parent = self._sessions
        self._fresh()

    # -- leases

    def hold(self, lease: Lease, written: int) -> None:
        """Count a lease as held; its run has `written` entries.

        Call it before the lease is committed.
        """
        self.leases.hold(lease, time.time, self._lease_s)
        line = self._lines[lease.run_id, lease.token] = Line()
        line.number = written

    def line(self, lease: Lease) -> Line:
        """The line for the writers of a lease."""
        return self._lines.get((lease.run_id, lease.token)) or Line()

    # -- the heartbeat

    def join(self, queue: str | None) -> None:
        """Count as alive until `leave`, even without leases; as a worker of `queue`, if given."""
        self._joined += 1
        self._queue = queue
        self.show()
        self.start()

    def leave(self) -> None:
        """End a `join`."""
        self._joined = max(0, self._joined - 1)
        self._wake.set()

    def show(self) -> None:
        """Make sure that other processes see this one as alive, before it leases a run."""
        with self._beating:
            is_fresh = (
                self._seen_at is not None and time.monotonic() - self._seen_at <= self._every_s
            )
            has_lock = self._has_lock or not self._is_direct
            if not is_fresh or not has_lock:
                self.server.persist(self._beat_or_drop)

    def start(self) -> None:
        """Start the heartbeat thread, which runs while there are leases."""
        with self._changing:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_keep, args=(ref(self),), name="ferrule-heartbeat", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End the session, unless leases or a `join` need it."""
        with self._beating:
            if not self.leases and not self._joined:
                self._drop()

    def settles_s(self) -> float:
        """How long this process must wait until it counts others as dead.

        After a restart of Postgres or a break, they may not be back.
        """
        return max(0.0, SILENT_S - self.server.reachable_s())

    def live(self, db: Transaction) -> set[str]:
        """The names of all owners that are alive, or may be alive."""
        now = db.now
        if self.settles_s() > 0:
            now = -1.0  # before every lease's end: all known owners
        return {name for (name,) in db.execute(_LIVE, (now,)).fetchall()}

    def tend(self) -> bool:
        """One round of the thread: send a heartbeat, and give back leases that nothing holds.

        Returns whether another round will follow.
        """
        psycopg = load_psycopg()
        try:
            with self._beating:
                if self.leases or self._joined:
                    self._beat_or_drop()
            for run_id, token in self.leases.left():
                self.server.write(
                    partial(
                        give_back, owner=self.name, run_id=run_id, token=token, status="running"
                    )
                )
                self.leases.forget(run_id, token)
            for key in [key for key in list(self._lines) if self.leases.knows(*key) is None]:
                del self._lines[key]
        except (psycopg.Error, StoreError):
            pass  # the server cannot be reached: the next round tries again
        with self._changing:
            if self.leases or self._joined:
                return True
            self._thread = None
            return False

    def wait(self) -> None:
        """Wait for the next round."""
        self._wake.wait(self._every_s)
        self._wake.clear()

    def _beat_or_drop(self) -> None:
        try:
            self._beat()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        close_connections(self._sessions)
        self._has_lock = False
        self._seen_at = None

    def _beat(self) -> None:
        """Write the heartbeat, then take the lock if this process lacks it.

        After a break, the old session may hold it for a while.
        """
        if self._is_direct:
            self._beat_in_session()
        else:
            self.server.on_connection(self._see)
        self._seen_at = time.monotonic()

    def _beat_in_session(self) -> None:
        if not self._sessions:
            self._sessions.append(self.server.connect())
        [session] = self._sessions
        self._see(session)
        if not self._has_lock:
            row = session.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone()
            self._has_lock = row[0]

    def _see(self, connection: Any) -> None:
        queue = self._queue if self._joined else None
        values = self._name, self._key if self._is_direct else None, self._lease_s, queue
        connection.execute(dialect(SEEN, self.server.schema), values)
        if self._joined and time.monotonic() > self._forgets_at and self.settles_s() == 0:
            connection.execute(dialect(_FORGET, self.server.schema))
            self._forgets_at = time.monotonic() + _FORGET_AFTER_S


def shared_presence(
    dsn: str, *, schema: str, full_sync: bool, is_direct: bool, lease_s: float
) -> Presence:
    """The presence of this process on a server.

    The same object for all callers with equal arguments.
    """
    check_dsn(dsn)
    with _sharing.lock:
        key = (dsn, schema, full_sync, is_direct, lease_s)
        presence = _SHARED.get(key)
        if presence is None:
            server = Server(
                dsn, schema=schema, full_sync=full_sync, is_direct=is_direct, patience_s=lease_s
            )
            presence = Presence(server, lease_s=lease_s, is_direct=is_direct)
            _SHARED[key] = presence
        return presence


def _keep(reference: ref[Presence]) -> None:
    # Weak between the rounds: if all stores are gone, the thread ends.
    while (presence := reference()) is not None and presence.tend():
        presence.wait()


_SHARED: WeakValueDictionary[tuple[Any, ...], Presence] = WeakValueDictionary()
_sharing = ForkLock()


def _after_fork() -> None:
    for presence in tuple(_SHARED.values()):
        presence.after_fork()


run_in_child(_after_fork)
