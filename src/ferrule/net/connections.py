"""HTTP connections to one provider: one client for all threads, separate connections for each event loop, new ones after a fork.

`httpx2` is imported with the first connection. It reads proxies and certificates from the
environment, but its errors do not name the variable. The errors raised here do.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.concurrency.deadline import left_until
from ferrule.errors import ConfigurationError, shown
from ferrule.net.loopback import HOSTS
from ferrule.record import Record

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import AsyncGenerator, Callable, Generator

    import httpx2

    from ferrule.net.loop_connection import ClientConnection, DirectConnection

T = TypeVar("T")

_MAX_CONNECTIONS = 200
_LONGEST_IDLE_S = 60.0
"""Servers close connections after about this time, and a connection that the server closed still takes a file descriptor here."""


class Timeouts(Record):
    """How long to wait, in seconds; None waits forever."""

    connect_s: float | None = 10.0
    read_s: float | None = 300.0
    """How long to wait for the next bytes: a reasoning model may send none for minutes."""
    total_s: float | None = 600.0
    """How long one attempt may take; waits between attempts do not count.

    Sync code checks it only while it waits for the answer, so connecting may add `connect_s`. An
    async stream through a proxy checks it when bytes arrive, so it may be late by `read_s`.
    """

    def __post_init__(self) -> None:
        for limit in (self.connect_s, self.read_s, self.total_s):
            if limit is not None and (
                isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0
            ):
                raise ConfigurationError(
                    f"A timeout is a number of seconds above 0, or None to wait forever; found {shown(limit)}.",
                )

    @property
    def next_bytes_s(self) -> float | None:
        """The read timeout, which is never longer than the total."""
        limits = [limit for limit in (self.read_s, self.total_s) if limit is not None]
        return min(limits, default=None)


class _LoopConnections:
    """The connections of one event loop. Not a pool: a pool examines all its connections, twice for every request."""

    __slots__ = ("all", "free", "places")

    def __init__(self) -> None:
        from asyncio import Semaphore

        self.all: set[DirectConnection | ClientConnection] = set()
        self.free: deque[tuple[DirectConnection | ClientConnection, float]] = deque()
        """The idle connections, and since when. The last one used is reused first: the server is least likely to have closed it."""
        self.places = Semaphore(_MAX_CONNECTIONS)

    async def close_idle(self) -> None:
        """Close the longest idle connection, if idle for too long. Each request calls this, so the extra ones of a burst go one by one."""
        if self.free and self.free[0][1] < time.monotonic() - _LONGEST_IDLE_S:
            connection, _ = self.free.popleft()
            self.all.discard(connection)
            await connection.aclose()


class Lent:
    """An async context manager that lends a connection for one request."""

    __slots__ = ("_clients", "_connection", "_deadline", "_mine")

    def __init__(self, clients: Clients, deadline: float) -> None:
        self._clients = clients
        self._deadline = deadline
        self._connection: DirectConnection | ClientConnection | None = None

    async def __aenter__(self) -> DirectConnection | ClientConnection:
        self._mine = mine = await self._clients.connections()
        if mine.places.locked():
            from asyncio import timeout

            async with timeout(left_until(self._deadline)):
                await mine.places.acquire()
        else:
            await mine.places.acquire()  # does not wait
        try:
            self._connection = connection = (
                mine.free.pop()[0] if mine.free else self._clients.connect(mine)
            )
            await mine.close_idle()
        except BaseException:
            await self.__aexit__()
            raise
        return connection

    async def __aexit__(self, *_: object) -> None:
        self._mine.places.release()
        if self._connection is not None:
            self._mine.free.append((self._connection, time.monotonic()))


class Clients:
    """The HTTP client for threads, and the connections of each event loop, for one provider."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._client: httpx2.Client | None = None
        self._of_loops: dict[
            asyncio.AbstractEventLoop,
            tuple[_LoopConnections, AsyncGenerator[None]],
        ] = {}
        self._tls: ssl.SSLContext | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (Clients, (self._timeouts,))

    def of_threads(self) -> httpx2.Client:
        """The client for sync code, shared by all threads."""
        client = self._client
        if client is None or self._process != os.getpid():
            import httpx2

            with self._lock:
                if self._process != os.getpid():  # after a fork: the sockets belong to the parent
                    self._reset()
                client = self._client
                if client is None:
                    limits = httpx2.Limits(
                        max_connections=_MAX_CONNECTIONS,
                        max_keepalive_connections=_MAX_CONNECTIONS,
                    )
                    context = self._certificates()
                    client = _with_proxies(
                        lambda: httpx2.Client(
                            timeout=self._limits(),
                            limits=limits,
                            verify=context,
                            mounts=past_proxies(),
                        ),
                    )
                    self._client = client
                    weakref.finalize(self, client.close)
        return client

    def of_loop(self, deadline: float) -> Lent:
        """Lend a connection of the running loop for one request; entering raises `TimeoutError` if all are in use until `deadline`."""
        return Lent(self, deadline)

    async def connections(self) -> _LoopConnections:
        """The connections of the running loop."""
        from asyncio import get_running_loop

        found = self._of_loops.get(get_running_loop())
        return found[0] if found is not None else await self._open_loop()

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
            found = self._of_loops.pop(get_running_loop(), None)
        if found is not None:
            await found[1].aclose()

    async def _open_loop(self) -> _LoopConnections:
        from asyncio import get_running_loop

        connections = _LoopConnections()
        closer = _closer(connections)
        await anext(
            closer,
        )  # runs to its `yield` without waiting: no other task of this loop runs in between
        with self._lock:
            self._of_loops = {
                loop: entry for loop, entry in self._of_loops.items() if not loop.is_closed()
            }
            self._of_loops[get_running_loop()] = (connections, closer)
        return connections

    def connect(self, connections: _LoopConnections) -> DirectConnection | ClientConnection:
        """Add a connection to a loop; it opens with its first request."""
        import httpx2

        from ferrule.net.loop_connection import ClientConnection, DirectConnection

        context, timeout = self._certificates(), self._limits()
        if _proxies():
            limits = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
            made: Any = partial(
                httpx2.AsyncClient,
                timeout=timeout,
                limits=limits,
                verify=context,
                mounts=past_proxies(),
            )
            connection = ClientConnection(_with_proxies(made))
        else:
            connection = DirectConnection(context, timeout)
        connections.all.add(connection)
        return connection

    def _limits(self) -> httpx2.Timeout:
        import httpx2

        limits = self._timeouts
        return httpx2.Timeout(
            connect=limits.connect_s,
            read=limits.next_bytes_s,
            write=limits.next_bytes_s,
            pool=limits.total_s,
        )

    def _certificates(self) -> ssl.SSLContext:
        if self._tls is None:
            with _naming_certificates():
                self._tls = _read_certificates(
                    os.environ.get("SSL_CERT_FILE"),
                    os.environ.get("SSL_CERT_DIR"),
                )
        return self._tls


async def _closer(connections: _LoopConnections) -> AsyncGenerator[None]:
    """Close the connections when their loop shuts down: `asyncio.run` closes the async generators of its loop, and so this one."""
    try:
        yield
    finally:
        for each in connections.all:
            await each.aclose()


# -- proxies and certificates
# ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _read_certificates(file: str | None, folder: str | None) -> ssl.SSLContext:
    """The trusted certificates, from the variables that `httpx2` reads. All models share them: reading took 50 ms when measured."""
    import httpx2

    del file, folder
    return httpx2.create_ssl_context()


def _with_proxies(make: Callable[[], T]) -> T:
    """Make a client; raises `ConfigurationError` that names the variable of a proxy that `httpx2` cannot use."""
    import httpx2

    try:
        return make()
    except (ImportError, ValueError, httpx2.InvalidURL):
        error = _proxy_error()
        if error is None:
            raise
    raise error  # outside `except`: errors of `httpx2` show parts of the address, which may hold a password


@contextmanager
def _naming_certificates() -> Generator[None]:
    """A block that reads certificates: raises `ConfigurationError` that names the variable if its file cannot be read."""
    try:
        yield
    except OSError as error:  # `ssl.SSLError` is one
        path = os.environ.get("SSL_CERT_FILE")
        if not path:
            raise
        msg = (
            f"The certificates that `SSL_CERT_FILE` names cannot be read: {shown(path)}: {error.strerror or error}. "
            f"Name a file of certificates in PEM form, or remove `SSL_CERT_FILE` from the environment."
        )
        raise ConfigurationError(msg) from error


def _proxies() -> dict[str, str]:
    """The environment's proxies by kind, as `httpx2` reads them; on macOS and Windows, also those in the system settings."""
    from urllib.request import getproxies

    found = getproxies()
    return {kind: found[kind] for kind in ("http", "https", "all") if found.get(kind)}


def past_proxies() -> dict[str, Any]:
    """The `mounts` for a client of `httpx2`: servers on this machine are reached directly, past a proxy in the system settings.

    Python does not read the exceptions in these settings, and other programs reach this machine
    directly. For proxies in environment variables there is `NO_PROXY`.
    """
    return (
        {} if any(map(_proxy_variable, _proxies())) else {f"all://{host}": None for host in HOSTS}
    )


def _proxy_error() -> ConfigurationError | None:
    import httpx2

    for kind, value in _proxies().items():
        variable = _proxy_variable(kind)
        source = f"`{variable}`" if variable else "the network settings of this system"
        remedy = f"remove `{variable}` from the environment" if variable else "change them"
        try:
            httpx2.HTTPTransport(
                proxy=value if "://" in value else f"http://{value}",
                verify=False,
            ).close()
        except ImportError:
            return ConfigurationError(
                f"The proxy that {source} names speaks SOCKS, which needs another package: {_public_proxy(value)}. "
                f"Install it with pip install 'httpx2[socks]', or {remedy}.",
            )
        except (ValueError, httpx2.InvalidURL):
            return ConfigurationError(
                f"The proxy that {source} names has an invalid address: {_public_proxy(value)}. "
                f"Write it as `http://host:port`, `https://host:port` or `socks5://host:port`, or {remedy}.",
            )
    return None


def _proxy_variable(kind: str) -> str | None:
    """The variable that holds a proxy: `urllib` accepts any case, and prefers lower case."""
    names = [name for name in os.environ if name.lower() == f"{kind}_proxy" and os.environ[name]]
    return min(names, key=lambda name: not name.islower(), default=None)


def _public_proxy(value: str) -> str:
    """A proxy's address without user, password and query, even if it is malformed."""
    scheme = value.partition("://")[0]
    place = value.rpartition("@")[2].rpartition("://")[2].partition("?")[0]
    return shown(f"{scheme}://{place}" if "://" in value and scheme.isalnum() else place)
