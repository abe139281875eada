"""The open connections of this process, of any transport, which are closed at its exit.

Nothing here keeps a process alive: the background loop runs in a daemon thread. At exit,
connections get a moment to close politely; then child processes are killed with their groups, and
no new ones start. If the process itself is killed, its servers see their stdin end.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ferrule.concurrency.forking import ForkLock

if TYPE_CHECKING:
    from concurrent.futures import Future

_EXIT_S = 2.0
"""How long all connections together may take to close at exit."""
_COLLECTED_WITHIN_S = 1.0
"""How long the loop may take to collect killed children."""


class LiveConnection(Protocol):
    """What this module needs of a connection."""

    async def close(self) -> None:
        """Close politely, on its loop."""
        ...

    def kill_now(self) -> None:
        """Kill at once, from any thread."""
        ...


_live: dict[LiveConnection, asyncio.AbstractEventLoop] = {}
_guard = ForkLock()
_home = 0
"""The process that owns the connections: a fork owns none."""
_is_leaving = False


def register_exit() -> None:
    """Close connections at exit.

    Called before anything connects: functions that are registered later run first, and may still
    use servers.
    """
    global _home, _is_leaving
    with _guard.lock:
        if os.getpid() != _home:
            _live.clear()
            _home, _is_leaving = os.getpid(), False
            atexit.unregister(close_all)
            atexit.register(close_all)


def register_connection(connection: LiveConnection) -> bool:
    """Close this connection at exit.

    False if the exit has begun: then it must not be opened.
    """
    register_exit()
    with _guard.lock:
        if _is_leaving:
            return False
        _live[connection] = asyncio.get_running_loop()
        return True


def is_leaving() -> bool:
    """Whether the process is ending, so that nothing may be started."""
    return _is_leaving and os.getpid() == _home


def forget_connection(connection: LiveConnection) -> None:
    """Take back `register_connection`."""
    with _guard.lock:
        _live.pop(connection, None)


def close_all() -> None:
    """Close all connections, and kill the children that do not end.

    Called at exit; nothing can be started afterwards.
    """
    closing: list[Future[None]] = []
    try:
        try:
            _close_politely(closing)
        finally:  # also after another Ctrl-C, wherever it comes
            _kill()
    finally:
        _kill()  # Ctrl-C may interrupt the first one, too
    # The loop collects the killed children: where init does not, as in many containers, they would
    # stay zombies.
    wait(closing, _COLLECTED_WITHIN_S)
    for future in closing:
        future.cancel()


def _close_politely(closing: list[Future[None]]) -> None:
    global _is_leaving
    if os.getpid() != _home:
        return
    with _guard.lock:
        _is_leaving = True
    by_loop: dict[asyncio.AbstractEventLoop, list[LiveConnection]] = {}
    for connection, loop in list(_live.items()):
        by_loop.setdefault(loop, []).append(connection)
    for loop, connections in by_loop.items():
        if not loop.is_running():
            continue
        work = _close(connections)
        try:
            closing.append(asyncio.run_coroutine_threadsafe(work, loop))
        except RuntimeError:  # the loop has ended
            work.close()
    wait(closing, _EXIT_S)


def _kill() -> None:
    """Kill what is left, and forget it. In a fork this kills nothing: see `Child.kill_now`."""
    for connection in list(_live):
        with suppress(OSError, RuntimeError):  # the others are killed in any case
            connection.kill_now()
        _live.pop(connection, None)


async def _close(connections: list[LiveConnection]) -> None:
    closings = (connection.close() for connection in connections)
    await asyncio.gather(*closings, return_exceptions=True)
