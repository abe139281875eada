"""A blocked network, for tests."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

from ferrule.concurrency.forking import ForkLock

if TYPE_CHECKING:
    from collections.abc import Generator


class NetworkBlockedError(RuntimeError):
    """A connection to another machine was attempted inside `block_network()`."""


_METHODS = ("connect", "connect_ex", "sendto")
"""The methods of a socket that reach another machine."""
_guards = ForkLock()
_blocking = 0
"""How many `with` blocks are open, in all threads. The first one patches, the last one restores."""
_real: dict[str, Any] = {}
"""What was replaced, by its name."""


@contextmanager
def block_network() -> Generator[None]:
    """For a `with` block, refuse the process's connections, except to loopback and Unix sockets.

    It patches Python's `socket` module. An event loop written in C (uvloop) bypasses it, and so
    does that of Windows for a numeric address.
    """
    global _blocking
    with _guards.lock:
        _blocking += 1
        if _blocking == 1:
            _patch_sockets()
    try:
        yield
    finally:
        with _guards.lock:
            _blocking -= 1
            if _blocking == 0:
                _restore_sockets()


def _patch_sockets() -> None:
    # None for a method that the class inherits, which `_restore_sockets` then removes again.
    _real.update({name: vars(socket.socket).get(name) for name in _METHODS})
    _real["getaddrinfo"] = socket.getaddrinfo

    def guarded(name: str) -> Any:
        real = getattr(socket.socket, name)

        def connect(self: socket.socket, *args: Any) -> Any:
            address: Any = None
            if args:
                address = args[-1]  # `sendto` takes the data, and perhaps flags, before it
            if self.family != getattr(socket, "AF_UNIX", None) and isinstance(address, tuple):
                _check(cast("tuple[Any, ...]", address)[0])
            return real(self, *args)

        return connect

    for name in _METHODS:
        setattr(socket.socket, name, guarded(name))
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        _check(host)
        return look_up(host, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo


def _restore_sockets() -> None:
    socket.getaddrinfo = _real.pop("getaddrinfo")
    for name in _METHODS:
        method = _real.pop(name)
        if method is None:
            delattr(socket.socket, name)
        else:
            setattr(socket.socket, name, method)


def _check(host: Any) -> None:
    """Raise for a host that may be another machine. A name other than `localhost` may be one."""
    name = host
    if isinstance(host, bytes):
        name = host.decode("ascii", "replace")
    if name is None or name in {"", "localhost"} or str(name).endswith(".localhost"):
        return
    try:
        address = ip_address(str(name).partition("%")[0])
    except ValueError:
        address = None
    if address is None or not (address.is_loopback or address.is_unspecified):
        raise NetworkBlockedError(
            f"The network is blocked in this test, and it tried to reach {name!r}. "
            "Use a model of `ferrule.testing`, or `serve`."
        )
