"""Pools of HTTP connections: one for all threads, one for each event loop, new ones after a fork.

`httpx2` is imported with the first connection.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError, shown
from ferrule.models.http.environment import certificates_told, with_proxies
from ferrule.values.record import Record

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import AsyncGenerator

    import httpx2

_CONNECTIONS = 200
_POOL = 25
"""A pool looks at all its connections for every request. Measured with 200 requests at once (2 busy cores, medians of 7 interleaved
rounds): one pool of 200 took 1.5 times the CPU of a bare client with 100 connections, pools of 25 took 0.9 times. With 20 requests at
once it made no difference."""


class Timeouts(Record):
    """How long to wait, in seconds; None waits for ever."""

    connect_s: float | None = 10.0
    read_s: float | None = 300.0
    """For the next bytes: a model that thinks sends none for minutes."""
    total_s: float | None = 600.0
    """For one attempt as a whole; the waits between attempts take nothing of it.

    Sync code looks at it while it waits for the answer, so that making the connection may add `connect_s`. An async stream that has begun
    looks at it whenever bytes come, so that it may be late by `read_s`.
    """

    def __post_init__(self) -> None:
        for limit in (self.connect_s, self.read_s, self.total_s):
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0):
                msg = f"A timeout is a number of seconds above 0, or None to wait for ever; found {shown(limit)}."
                raise ConfigurationError(msg)

    @property
    def next_bytes_s(self) -> float | None:
        """The read timeout, which is never longer than the total."""
        limits = [limit for limit in (self.read_s, self.total_s) if limit is not None]
        return min(limits, default=None)


class Pool:
    """A client of one event loop, and how many requests it carries."""

    __slots__ = ("busy", "client")

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.busy = 0


class Clients:
    """The connections to one place."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._client: httpx2.Client | None = None
        self._kept: dict[asyncio.AbstractEventLoop, tuple[list[Pool], AsyncGenerator[None]]] = {}
        self._tls: ssl.SSLContext | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (Clients, (self._timeouts,))

    def of_threads(self) -> httpx2.Client:
        """The client of sync code, whichever thread asks."""
        client = self._client
        if client is None or self._process != os.getpid():
            import httpx2

            with self._lock:
                if self._process != os.getpid():  # forked: the sockets are the parent's
                    self._forget()
                client = self._client
                if client is None:
                    limits = httpx2.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
                    verified = self._verified()
                    client = with_proxies(lambda: httpx2.Client(timeout=self._limits(), limits=limits, verify=verified))
                    self._client = client
                    weakref.finalize(self, client.close)
        return client

    @asynccontextmanager
    async def of_loop(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """A client of the running loop, for one request."""
        from asyncio import get_running_loop

        kept = self._kept.get(get_running_loop())
        pools = kept[0] if kept is not None else await self._opened()
        pool = next((pool for pool in pools if pool.busy < _POOL), None)
        if pool is None and len(pools) * _POOL < _CONNECTIONS:
            pools.append(pool := self._pool())
        elif pool is None:
            pool = min(pools, key=lambda pool: pool.busy)  # the request waits for one of its connections
        pool.busy += 1
        try:
            yield pool.client
        finally:
            pool.busy -= 1

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
            kept = self._kept.pop(get_running_loop(), None)
        if kept is not None:
            await kept[1].aclose()

    async def _opened(self) -> list[Pool]:
        from asyncio import get_running_loop

        pools = [self._pool()]
        keeper = _keeper(pools)
        await anext(keeper)  # runs to its `yield` without waiting: no other task of this loop gets in between
        with self._lock:
            self._kept = {loop: entry for loop, entry in self._kept.items() if not loop.is_closed()}
            self._kept[get_running_loop()] = (pools, keeper)
        return pools

    def _pool(self) -> Pool:
        import httpx2

        limits = httpx2.Limits(max_connections=_POOL, max_keepalive_connections=_POOL)
        verified = self._verified()
        return Pool(with_proxies(lambda: httpx2.AsyncClient(timeout=self._limits(), limits=limits, verify=verified)))

    def _limits(self) -> httpx2.Timeout:
        import httpx2

        limits = self._timeouts
        return httpx2.Timeout(connect=limits.connect_s, read=limits.next_bytes_s, write=limits.next_bytes_s, pool=limits.total_s)

    def _verified(self) -> ssl.SSLContext:
        import httpx2

        if self._tls is None:  # reading the certificates took 50 ms where it was measured
            with certificates_told():
                self._tls = httpx2.create_ssl_context()
        return self._tls


async def _keeper(pools: list[Pool]) -> AsyncGenerator[None]:
    """Closes the clients of a loop when that shuts down: `asyncio.run` closes the async generators of its loop, and this is one."""
    try:
        yield
    finally:
        for pool in pools:
            await pool.client.aclose()
