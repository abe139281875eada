"""The end of the process: live connections are closed, and no child is left behind.

The background loop runs in a daemon thread, so that nothing here keeps a process from ending. At exit connections get a moment to leave
politely; children that do not are killed with their groups, and no new ones are started. A process that is killed cannot do that: its
servers see their stdin end.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from typing import Protocol

EXIT_S = 2.0
"""How long all connections together may take to leave when the process ends."""


class Connection(Protocol):
    """What is to be ended, as far as the end needs it."""

    async def close(self) -> None:
        """Politely, on its loop."""
        ...

    def kill_now(self) -> None:
        """At once, from any thread."""
        ...


_live: dict[Connection, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()
_home = 0
"""The process that the connections belong to: a fork has none of them."""
_is_leaving = False


def prepare() -> None:
    """Be there at the end of the process. Done before anything is connected: what is registered later to run at exit runs first."""
    global _home, _is_leaving
    with _lock:
        if os.getpid() != _home:
            _live.clear()
            _home, _is_leaving = os.getpid(), False
            atexit.unregister(_leave)
            atexit.register(_leave)


def keep(connection: Connection) -> bool:
    """Remember a connection until it is forgotten or the process ends. False where that has begun: it must not be opened then."""
    prepare()
    with _lock:
        if _is_leaving:
            return False
        _live[connection] = asyncio.get_running_loop()
        return True


def is_leaving() -> bool:
    """Whether the process is ending: nothing may be started any more."""
    return _is_leaving and os.getpid() == _home


def forget(connection: Connection) -> None:
    """It is closed, or never came to life."""
    with _lock:
        _live.pop(connection, None)


def _leave() -> None:
    global _is_leaving  # noqa: PLW0603  the process ends once
    if os.getpid() != _home:
        return
    with _lock:
        _is_leaving = True
        live = dict(_live)
        _live.clear()
    by_loop: dict[asyncio.AbstractEventLoop, list[Connection]] = {}
    for connection, loop in live.items():
        by_loop.setdefault(loop, []).append(connection)
    done = [asyncio.run_coroutine_threadsafe(_close(each), loop) for loop, each in by_loop.items() if loop.is_running()]
    for each in done:
        try:
            each.result(EXIT_S)
        except TimeoutError:
            each.cancel()
    for connection in live:
        connection.kill_now()


async def _close(connections: list[Connection]) -> None:
    await asyncio.gather(*(each.close() for each in connections), return_exceptions=True)
