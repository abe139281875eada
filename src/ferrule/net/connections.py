"""HTTP connections to one provider.

One client of `httpx2` serves all threads of a process. Each event loop has connections of its own,
because a connection of asyncio belongs to its loop. A forked process opens new ones, because two
processes on one socket would read each other's answers.

`httpx2` is imported with the first connection.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.concurrency.forking import ForkGuard
from ferrule.errors import ConfigurationError, shown
from ferrule.net.proxies import (
    environment_proxies,
    past_proxies,
    trusted_certificates,
    with_proxies,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator

    import httpx2

    from ferrule.net.loop_connection import ClientConnection, DirectConnection

    Connection = DirectConnection | ClientConnection

_MAX_CONNECTIONS = 200
_LONGEST_IDLE_S = 60.0
"""When to close an idle connection. Servers close theirs after about this time.

A connection that the server closed still takes a file descriptor here.
"""


class Timeouts(Struct, frozen=True):
    """How long to wait, in seconds; None waits forever."""

    connect_s: float | None = 10.0
    read_s: float | None = 300.0
    """How long to wait for the next bytes: a reasoning model may send none for minutes."""
    total_s: float | None = 600.0
    """How long one attempt may take; waits between attempts do not count.

    Sync code checks it only while it waits for the answer, so connecting may add `connect_s`.
    """

    def __post_init__(self) -> None:
        for limit_s in (self.connect_s, self.read_s, self.total_s):
            if limit_s is None:
                continue
            is_number = isinstance(limit_s, (int, float)) and not isinstance(limit_s, bool)
            if not is_number or not 0 < limit_s < inf:  # also refuses NaN
                raise ConfigurationError(
                    f"A timeout is a number of seconds above 0, or None to wait forever; "
                    f"found {shown(limit_s)}."
                )

    @property
    def next_bytes_s(self) -> float | None:
        """The read timeout, which is never longer than the total."""
        limits = [limit_s for limit_s in (self.read_s, self.total_s) if limit_s is not None]
        return min(limits, default=None)

    def for_httpx(self) -> httpx2.Timeout:
        """These limits as `httpx2` takes them. It has no total."""
        import httpx2

        return httpx2.Timeout(
            connect=self.connect_s,
            read=self.next_bytes_s,
            write=self.next_bytes_s,
            pool=self.total_s,
        )


class _LoopConnections:
    """The connections of one event loop.

    Not a pool of `httpcore2`, which walks over all its connections twice for every request.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        from asyncio import Semaphore

        self._timeouts = timeouts
        self.open: set[Connection] = set()
        self._idle: deque[tuple[Connection, float]] = deque()
        """The idle connections, and since when, the last one used last.

        The last one is reused first: the server is least likely to have closed it.
        """
        self._places = Semaphore(_MAX_CONNECTIONS)

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[Connection]:
        """A block that has a connection to itself; waits while all connections are in use."""
        async with self._places:
            if self._idle:
                connection = self._idle.pop()[0]
            else:
                connection = self._connect()
            try:
                await self._close_longest_idle()
                yield connection
            finally:
                self._idle.append((connection, time.monotonic()))

    def _connect(self) -> Connection:
        """A new connection, which opens with its first request."""
        from ferrule.net.loop_connection import ClientConnection, DirectConnection

        connection: Connection
        if environment_proxies():
            connection = ClientConnection(self._proxy_client())
        else:
            connection = DirectConnection(trusted_certificates(), self._timeouts.for_httpx())
        self.open.add(connection)
        return connection

    def _proxy_client(self) -> httpx2.AsyncClient:
        from httpx2 import Limits

        limits = Limits(max_connections=1, max_keepalive_connections=1)
        return new_client(timeout=self._timeouts.for_httpx(), limits=limits)

    async def _close_longest_idle(self) -> None:
        """Close the longest idle connection, if it is idle for too long.

        Each request calls this, so the connections of a burst are closed one by one.
        """
        if self._idle and self._idle[0][1] < time.monotonic() - _LONGEST_IDLE_S:
            connection, _ = self._idle.popleft()
            self.open.discard(connection)
            await connection.aclose()

    async def closer(self) -> AsyncGenerator[None]:
        """Closes the connections when it is closed.

        `asyncio.run` closes the async generators of its loop when it ends: this is how connections
        close that no program closed.
        """
        try:
            yield
        finally:
            for connection in self.open:
                await connection.aclose()


def new_client(**options: Any) -> httpx2.AsyncClient:
    """A client of `httpx2` with the certificates and proxies of the environment.

    Read its responses with `aread_whole`, which bounds them. Raises `ConfigurationError` if the
    environment names certificates or a proxy that cannot be used.
    """
    import httpx2

    certificates = trusted_certificates()
    return with_proxies(
        lambda: httpx2.AsyncClient(verify=certificates, mounts=past_proxies(), **options)
    )


class Clients:
    """The HTTP client for threads, and the connections of each event loop, for one provider."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._fork = ForkGuard()
        self._reset()

    def _reset(self) -> None:
        self._client: httpx2.Client | None = None
        self._loops: dict[
            asyncio.AbstractEventLoop, tuple[_LoopConnections, AsyncGenerator[None]]
        ] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Clients, (self._timeouts,))

    def of_threads(self) -> httpx2.Client:
        """The client for sync code, shared by all threads."""
        with self._lock:
            if self._fork.has_forked():  # the sockets belong to the parent
                self._reset()
            if self._client is None:
                self._client = self._make_client()
                weakref.finalize(self, self._client.close)
            return self._client

    def _make_client(self) -> httpx2.Client:
        import httpx2

        certificates = trusted_certificates()
        limits = httpx2.Limits(
            max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS
        )
        return with_proxies(
            lambda: httpx2.Client(
                timeout=self._timeouts.for_httpx(),
                limits=limits,
                verify=certificates,
                mounts=past_proxies(),
            )
        )

    @asynccontextmanager
    async def of_loop(self) -> AsyncGenerator[Connection]:
        """A block that has a connection of the running loop to itself."""
        connections = await self._of_running_loop()
        async with connections.lend() as connection:
            yield connection

    async def _of_running_loop(self) -> _LoopConnections:
        from asyncio import get_running_loop

        loop = get_running_loop()
        if loop in self._loops:
            return self._loops[loop][0]
        connections = _LoopConnections(self._timeouts)
        closer = connections.closer()
        # Runs to its `yield` without waiting: no other task of this loop runs in between.
        await anext(closer)
        with self._lock:
            self._loops = {
                other: entry for other, entry in self._loops.items() if not other.is_closed()
            }
            self._loops[loop] = (connections, closer)
        return connections

    def close(self) -> None:
        """Close the connections of sync code."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        from asyncio import get_running_loop

        with self._lock:
            entry = self._loops.pop(get_running_loop(), None)
        if entry is not None:
            _, closer = entry
            await closer.aclose()
