"""Closing connections at exit. Whole processes: `tests/integration/test_mcp_exits.py`."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ferrule.bridges.mcp.transport import open_connections

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

MOST_LINES = 300


class Deaf:
    """A connection that does not end by being closed."""

    def __init__(self) -> None:
        self.is_killed = False

    async def close(self) -> None:
        await asyncio.sleep(0.01)

    def kill_now(self) -> None:
        self.is_killed = True


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def leave(loop: asyncio.AbstractEventLoop, interrupted_at: int) -> tuple[list[Deaf], int]:
    """Open three connections and leave; Ctrl-C comes before that line, counted from the exit's first call. Returns the last line, too."""
    opened = [Deaf(), Deaf(), Deaf()]

    async def register() -> bool:
        return all(open_connections.register_connection(each) for each in opened)

    assert asyncio.run_coroutine_threadsafe(register(), loop).result(10)
    lines = -1

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != open_connections.__file__:
            return None
        if lines >= 0 or frame.f_code is not open_connections.close_all.__code__:  # nothing is begun before
            lines += event == "line"
        if event == "line" and lines == interrupted_at:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        open_connections.close_all()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return opened, lines


@pytest.fixture
def _a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's state as in a new process, whose exit is called by the test."""
    monkeypatch.setattr(open_connections, "_live", {})
    monkeypatch.setattr(open_connections, "_home", 0)
    monkeypatch.setattr(open_connections, "atexit", type("NoExit", (), {"register": staticmethod(id), "unregister": staticmethod(id)}))


@pytest.mark.usefixtures("_a_process_of_its_own")
def test_ctrl_c_at_any_line_of_the_exit_leaves_no_child(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between starting to close and waiting, too: a server that saw the end of its input there, and ignored it, was left."""
    for at in range(MOST_LINES):
        monkeypatch.setattr(open_connections, "_is_leaving", False)
        monkeypatch.setattr(open_connections, "_lock", threading.Lock())  # an interrupted `with` may have kept it
        opened, lines = leave(loop, at)
        assert all(each.is_killed for each in opened), f"left by Ctrl-C before line {at} of the exit"
        if lines < at:
            return  # the exit had fewer lines: it was not interrupted
    pytest.fail("the exit has no end")
