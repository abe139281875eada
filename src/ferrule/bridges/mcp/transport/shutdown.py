"""Closing live connections at the end of the process, so that no child process is left behind.

The background loop runs in a daemon thread, so nothing here keeps a process alive. At exit, connections get a moment to close politely;
then child processes are killed with their groups, and no new ones start. If the process itself is killed, its servers see their stdin end.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from typing import Protocol

_EXIT_S = 2.0
"""How long all connections together may take to close at exit."""


class LiveConnection(Protocol):
    """What this module needs of a connection."""

    async def close(self) -> None:
        """Close politely, on its loop."""
        ...

    def kill_now(self) -> None:
        """Kill at once, from any thread."""
        ...


_live: dict[LiveConnection, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()
_home = 0
"""The process that owns the connections: a fork owns none."""
_is_leaving = False


def register_exit() -> None:
    """Close connections at exit. Called before anything connects: functions registered later run first."""
    global _home, _is_leaving
    with _lock:
        if os.getpid() != _home:
            _live.clear()
            _home, _is_leaving = os.getpid(), False
            atexit.unregister(_leave)
            atexit.register(_leave)


def register_connection(connection: LiveConnection) -> bool:
    """Close this connection at exit. False if the exit has begun: then it must not be opened."""
    register_exit()
    with _lock:
        if _is_leaving:
            return False
        _live[connection] = asyncio.get_running_loop()
        return True


def is_leaving() -> bool:
    """Whether the process is ending, so that nothing may be started."""
    return _is_leaving and os.getpid() == _home


def forget_connection(connection: LiveConnection) -> None:
    """Take back `register_connection`."""
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
    by_loop: dict[asyncio.AbstractEventLoop, list[LiveConnection]] = {}
    for connection, loop in live.items():
        by_loop.setdefault(loop, []).append(connection)
    done = [asyncio.run_coroutine_threadsafe(_close(each), loop) for loop, each in by_loop.items() if loop.is_running()]
    for each in done:
        try:
            each.result(_EXIT_S)
        except TimeoutError:
            each.cancel()
    for connection in live:
        connection.kill_now()


async def _close(connections: list[LiveConnection]) -> None:
    await asyncio.gather(*(each.close() for each in connections), return_exceptions=True)
