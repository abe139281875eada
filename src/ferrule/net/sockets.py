"""Sockets of clients and servers.

`open_socket` tries IPv6 and IPv4 addresses alternately, each a moment after the one before (RFC
8305). `create_connection` of asyncio can do so too, but leaks its socket if it is cancelled
(python/cpython#128479); uvloop's cannot.
"""

from __future__ import annotations

import socket
from asyncio import FIRST_COMPLETED, get_running_loop, wait
from collections import deque
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Sequence

_HEAD_START_S = 0.25
"""How long an address is tried alone before the next one is tried too."""
_LAST_PORT = 65535


async def open_socket(host: str, port: int) -> socket.socket:
    """Open a connected socket. Raises `OSError`: the first one if all addresses fail."""
    loop = get_running_loop()
    found = _numeric(host, port) or await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = deque(
        each for pair in zip_longest(*_by_family(found)) for each in pair if each is not None
    )
    if len(addresses) == 1:
        return await _open(*addresses[0])
    tries: set[Task[socket.socket]] = set()
    opened: socket.socket | None = None
    failed: list[BaseException] = []
    try:
        while opened is None:
            if addresses:
                tries.add(loop.create_task(_open(*addresses.popleft())))
            elif not tries:
                raise failed[0]
            done, tries = await wait(
                tries,
                timeout=_HEAD_START_S if addresses else None,
                return_when=FIRST_COMPLETED,
            )
            for each in done:
                error = each.exception()
                if error is not None:
                    failed.append(error)
                elif opened is None:
                    opened = each.result()
                else:
                    each.result().close()
        return opened
    finally:
        for each in tries:
            each.add_done_callback(_drop)
            each.cancel()


def listening_socket(host: str, port: int) -> socket.socket:
    """A listening socket for a server. Raises `ConfigurationError` if it cannot listen, where a web server would exit the process."""
    bare = host.strip("[]")
    if not 0 <= port <= _LAST_PORT:  # `create_server` would leave its socket open
        raise ConfigurationError(
            f"Cannot listen on `{host}`, port {port}: ports go from 0 to {_LAST_PORT}.",
        )
    try:
        return socket.create_server(
            (bare, port),
            family=socket.AF_INET6 if ":" in bare else socket.AF_INET,
        )
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on `{host}`, port {port}: {error.strerror or error}.",
        ) from error


def url_host(host: str) -> str:
    """The host as an address has it: IPv6 in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]" if ":" in bare else bare


def _numeric(host: str, port: int) -> list[Any]:
    """The address of a host written as numbers, which needs no name server and so no thread."""
    with suppress(OSError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return []


def _by_family(found: Sequence[Any]) -> list[list[tuple[int, Any]]]:
    """The addresses grouped by family, in the order in which the families first appear."""
    families: dict[int, list[tuple[int, Any]]] = {}
    for family, _, _, _, address in found:
        families.setdefault(family, []).append((family, address))
    return list(families.values())


async def _open(family: int, address: Any) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        await get_running_loop().sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


def _drop(late: Task[socket.socket]) -> None:
    """Close a socket that was opened too late."""
    if not late.cancelled() and late.exception() is None:
        late.result().close()
