"""A blocked network, for tests."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from ferrule.concurrency.forking import ForkLock

if TYPE_CHECKING:
    from collections.abc import Generator


class NetworkBlockedError(RuntimeError):
    """A connection to another machine was attempted inside `block_network()`."""


_guards = ForkLock()
_blocking = 0
_real: dict[str, Any] = {}


@contextmanager
def block_network() -> Generator[None]:
    """For a `with` block, refuse all connections of the process except to loopback and Unix sockets.

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
    _real.update(
        {name: socket.socket.__dict__.get(name) for name in ("connect", "connect_ex", "sendto")},
    )
    _real["getaddrinfo"] = socket.getaddrinfo

    def guarded(name: str) -> Any:
        real = getattr(socket.socket, name)

        def connect(self: socket.socket, *args: Any) -> Any:
            address = args[-1] if args else None
            if self.family != getattr(socket, "AF_UNIX", None) and isinstance(address, tuple):
                _check(cast("tuple[Any, ...]", address)[0])
            return real(self, *args)

        return connect

    for name in ("connect", "connect_ex", "sendto"):
        setattr(socket.socket, name, guarded(name))
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        _check(host)
        return look_up(host, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo


def _restore_sockets() -> None:
    socket.getaddrinfo = _real.pop("getaddrinfo")
    for name in ("connect", "connect_ex", "sendto"):
        own = _real.pop(name)
        if own is None:
            delattr(socket.socket, name)  # it was inherited
        else:
            setattr(socket.socket, name, own)


def _check(host: Any) -> None:
    from ipaddress import ip_address

    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if name is None or name in {"", "localhost"} or str(name).endswith(".localhost"):
        return
    try:
        address = ip_address(str(name).partition("%")[0])
    except ValueError:
        address = None
    if address is None or not (address.is_loopback or address.is_unspecified):
        msg = f"The network is blocked in this test, and it tried to reach {name!r}. Use a model of `ferrule.testing`, or `serve`."
        raise NetworkBlockedError(msg)


NetworkBlocked = NetworkBlockedError  # the name in 0.1.0, kept for one version
