"""Closing connections at exit. Whole processes: `tests/integration/test_mcp_exits.py`."""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from typing import TYPE_CHECKING

import pytest

from ferrule.mcp_bridge.transport import open_connections

if TYPE_CHECKING:
    from collections.abc import Iterator


class Deaf:
    """A connection that does not end by being closed."""

    def __init__(self) -> None:
        self.is_closed = self.is_killed = False

    async def close(self) -> None:
        self.is_closed = True
        await asyncio.sleep(0.01)

    def kill_now(self) -> None:
        self.is_killed = True


class Interrupted(Deaf):
    """Ctrl-C comes when it is to be killed, once."""

    is_interrupted = False

    def kill_now(self) -> None:
        if not self.is_interrupted:
            self.is_interrupted = True
            interrupt()
        super().kill_now()


class Undead(Deaf):
    def kill_now(self) -> None:
        raise OSError("no such luck")


begin = asyncio.run_coroutine_threadsafe
"""The function itself: a test replaces that of the module."""


async def others_end() -> None:
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    begin(others_end(), loop).result(
        60,
    )  # an interrupted exit leaves them, and a task that is pending at the end would warn
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def register(loop: asyncio.AbstractEventLoop, opened: list[Deaf]) -> None:
    async def here() -> bool:
        return all(open_connections.register_connection(each) for each in opened)

    assert begin(here(), loop).result(10)


@pytest.fixture
def _a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's state as in a new process, whose exit is called by the test."""
    monkeypatch.setattr(open_connections, "_live", {})
    monkeypatch.setattr(open_connections, "_home", 0)
    monkeypatch.setattr(open_connections, "_is_leaving", False)
    monkeypatch.setattr(
        open_connections,
        "atexit",
        type("NoExit", (), {"register": staticmethod(id), "unregister": staticmethod(id)}),
    )


@pytest.mark.usefixtures("_a_process_of_its_own")
@pytest.mark.parametrize("moment", ["closing has begun", "waiting", "killing"])
def test_ctrl_c_at_any_moment_of_the_exit_leaves_no_child(
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """Also before the exit waits: a server that saw the end of its input then, and ignored it, was
    left.
    """
    opened = [Deaf(), Interrupted() if moment == "killing" else Deaf(), Deaf()]
    register(loop, opened)
    if moment == "closing has begun":
        monkeypatch.setattr(
            asyncio,
            "run_coroutine_threadsafe",
            lambda *given: interrupt(begin(*given)),
        )
    elif moment == "waiting":
        monkeypatch.setattr(open_connections, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_connections.close_all()
    assert [each.is_killed for each in opened] == [True] * 3


@pytest.mark.usefixtures("_a_process_of_its_own")
def test_a_connection_that_cannot_be_killed_and_a_loop_that_ends_do_not_keep_the_others_open(
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened, ending = [Undead(), Deaf()], asyncio.new_event_loop()
    open_connections.register_exit()
    open_connections._live[lost := Deaf()] = (
        ending  # closed between the look at it and the next line
    )
    ending.close()
    monkeypatch.setattr(ending, "is_running", lambda: True)
    register(loop, opened)
    open_connections.close_all()
    assert [each.is_closed for each in opened] == [True, True]
    assert (opened[1].is_killed, lost.is_killed, lost.is_closed) == (True, True, False)
    assert open_connections._live == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "lock",
    ["ferrule.settings._configuring", "ferrule.mcp_bridge.transport.open_connections._guard"],
)
def test_a_lock_that_a_thread_holds_is_free_in_the_child_of_a_fork(lock: str) -> None:
    module, name = lock.rsplit(".", 1)
    fork_lock = getattr(importlib.import_module(module), name)
    with fork_lock.lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if fork_lock.lock.acquire(timeout=10) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
