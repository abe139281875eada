"""For tests of programs that use ferrule: models that need no provider, a real server on loopback, and a closed door to the network.

`serve(lm)` answers over HTTP with any model of ferrule (lms/serve.py), in this process or in one of its own:
`python -m ferrule.testing --port 8000 --lm offline`.  (Floor 4.)
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ferrule.lms.serve import Served, serve

if TYPE_CHECKING:
    from collections.abc import Generator

    from ferrule.lms.offline import OfflineLM
    from ferrule.lms.replay import RecordLM, ReplayLM
    from ferrule.lms.scripted import AutoLM, ScriptedLM

__all__ = ["AutoLM", "NetworkBlocked", "OfflineLM", "RecordLM", "ReplayLM", "ScriptedLM", "Served", "block_network", "serve"]

_MODELS = {
    "AutoLM": "ferrule.lms.scripted",
    "OfflineLM": "ferrule.lms.offline",
    "RecordLM": "ferrule.lms.replay",
    "ReplayLM": "ferrule.lms.replay",
    "ScriptedLM": "ferrule.lms.scripted",
}


def __getattr__(name: str) -> Any:
    if name not in _MODELS:
        msg = f"module `ferrule.testing` has no attribute `{name}`"
        raise AttributeError(msg)
    return getattr(import_module(_MODELS[name]), name)


# -- no network -------------------------------------------------------------------------------------------------


class NetworkBlocked(RuntimeError):  # noqa: N818  reads as the reason it is
    """Something tried to leave this machine inside `block_network()`."""


_guards = threading.Lock()
_blocking = 0
_real: dict[str, Any] = {}


@contextmanager
def block_network() -> Generator[None]:
    """Refuse, in the whole process, connections to anywhere but loopback and Unix sockets, for a `with` block.

    It watches Python's `socket` module: an event loop written in C (uvloop) goes past it.
    """
    global _blocking  # noqa: PLW0603  what is blocked is the process
    with _guards:
        _blocking += 1
        if _blocking == 1:
            _close_door()
    try:
        yield
    finally:
        with _guards:
            _blocking -= 1
            if _blocking == 0:
                _open_door()


def _close_door() -> None:
    _real.update({name: socket.socket.__dict__.get(name) for name in ("connect", "connect_ex", "sendto")})
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


def _open_door() -> None:
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
        msg = f"The network is blocked in this test, and something wanted to reach {name!r}. Use a model of `ferrule.testing`, or `serve`."
        raise NetworkBlocked(msg)


# -- a process of its own ---------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted; the first line written is the base URL."""
    from argparse import ArgumentParser

    parser = ArgumentParser("python -m ferrule.testing", description="An OpenAI-compatible server on 127.0.0.1 that needs no key.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--lm", choices=["offline", "auto"], default="offline")
    chosen = parser.parse_args(arguments)
    lm = __getattr__({"offline": "OfflineLM", "auto": "AutoLM"}[chosen.lm])()
    with serve(lm, port=chosen.port) as served:
        sys.stdout.write(f"{served.base_url}\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
