"""Sockets of clients and servers.

`open_socket` tries IPv6 and IPv4 addresses alternately, each a moment after the one before (RFC
8305), so that a broken route over IPv6 costs a moment and not the whole time limit. asyncio's
`create_connection` can do so too, but it leaks its socket if it is cancelled
(python/cpython#128479), and uvloop's cannot. anyio's `connect_tcp`, which `httpcore2` uses, gives a
stream of anyio and not a socket, and such a stream hides what arrives unasked (`loop_connection`).
"""

from __future__ import annotations

import socket
from asyncio import FIRST_COMPLETED, get_running_loop, wait
from collections import deque
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Sequence

_HEAD_START_S = 0.25
"""How long an address is tried alone before the next one is tried too."""
_LAST_PORT = 65535


async def open_socket(host: str, port: int) -> socket.socket:
    """Open a connected socket. Raises `OSError`: the first one if all addresses fail."""
    addresses = deque(await _resolve(host, port))
    if len(addresses) == 1:
        return await _open(*addresses[0])
    loop = get_running_loop()
    tries: set[Task[socket.socket]] = set()
    opened: socket.socket | None = None
    errors: list[BaseException] = []
    try:
        while opened is None:
            if addresses:
                tries.add(loop.create_task(_open(*addresses.popleft())))
            elif not tries:
                raise errors[0]
            done, tries = await wait(
                tries, timeout=_HEAD_START_S if addresses else None, return_when=FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is not None:
                    errors.append(error)
                elif opened is None:
                    opened = task.result()
                else:
                    task.result().close()
        return opened
    finally:
        for task in tries:
            task.add_done_callback(_close_late_socket)
            task.cancel()


def listening_socket(host: str, port: int) -> socket.socket:
    """A listening socket for a server.

    Raises `ConfigurationError` if it cannot listen, where a web server would exit the process.
    """
    if not isinstance(cast("Any", host), str) or type(port) is not int:
        raise ConfigurationError(
            "A server listens on a host, which is a text, and a port, which is a whole number; "
            f"found {shown(host)} and {shown(port)}."
        )
    bare_host = host.strip("[]")
    if not 0 <= port <= _LAST_PORT:  # `create_server` would leave its socket open
        raise ConfigurationError(
            f"Cannot listen on `{host}`, port {port}: ports go from 0 to {_LAST_PORT}."
        )
    if ":" in bare_host:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    try:
        return socket.create_server((bare_host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on `{host}`, port {port}: {error.strerror or error}."
        ) from error


def url_host(host: str) -> str:
    """The host as it is written in a URL: IPv6 in brackets."""
    bare_host = host.strip("[]")
    if ":" in bare_host:
        return f"[{bare_host}]"
    return bare_host


async def _resolve(host: str, port: int) -> list[tuple[int, Any]]:
    """The families and addresses of a host, the families in turn."""
    try:
        # A host written as numbers needs no name server, and so no thread.
        entries: Sequence[Any] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except OSError:
        entries = await get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families: dict[int, list[tuple[int, Any]]] = {}
    for family, _, _, _, address in entries:
        families.setdefault(family, []).append((family, address))
    in_turn = chain.from_iterable(zip_longest(*families.values()))
    return [address for address in in_turn if address is not None]


async def _open(family: int, address: Any) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        await get_running_loop().sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


def _close_late_socket(task: Task[socket.socket]) -> None:
    """Close a socket that was opened after another one, or after the caller left."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
