"""Awaiting for a limited time: what does not end when it is cancelled is left behind.

In: something awaitable and seconds. Out: what it returned in time, or `ToolTimeoutError`. It runs as a task of its own, as nobody can take
leave of what is awaited in one's own: a coroutine may refuse to be cancelled, or take its time over it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.concurrency.pool import TOOL_TASK
from ferrule.errors import ToolTimeoutError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Generator

R = TypeVar("R")

GRACE_S = 0.5
"""What is cancelled has so long to tidy up: an error told meanwhile would come while a well-behaved tool still works."""
STUBBORN = " It may still be running: it did not end when it was cancelled."

_left: set[asyncio.Task[Any]] = set()
"""Tasks that were left behind. A loop holds its tasks weakly: without this they might be collected in their middle."""


async def within(value: Awaitable[R], left_s: float, timeout_s: float, name: str) -> R:
    """Await for `left_s` seconds of a limit of `timeout_s`; raises `ToolTimeoutError` when they are over, whatever the tool does.

    Where the caller is cancelled, so is the tool. It is waited for, until its time is up, and what it says then does not count.
    """
    import asyncio

    ends = time.monotonic() + left_s
    work = _Work(value)
    task = asyncio.create_task(work.done(), name=f"{TOOL_TASK}{name}")  # in a copy of the context: what the tool sets there is gone with it
    try:
        await asyncio.wait((task,), timeout=max(left_s, 0))
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=GRACE_S)
    except asyncio.CancelledError:
        if not task.done():
            task.cancel()
            await _over(task, ends + GRACE_S)
        raise
    finally:
        work.leave(task)
    if not task.done() or work.ended > ends:
        raise ToolTimeoutError(name, timeout_s, because="" if task.done() else STUBBORN) from work.error
    try:
        task.result()  # raises only where the loop was ended before it began
        return work.result()
    finally:
        del work, task  # else an error holds this frame, and this frame the error


async def _over(task: asyncio.Task[Any], ends: float) -> None:
    """Wait for a task that was cancelled, however often the caller is cancelled meanwhile: it may be tidying up."""
    import asyncio

    while not task.done() and (left_s := ends - time.monotonic()) > 0:
        try:
            await asyncio.wait((task,), timeout=left_s)
        except asyncio.CancelledError:  # the first one is on its way already
            continue


class _Work:
    """The awaiting of a value, and what came of it. It raises nothing: an interrupt in a task of its own would end the loop."""

    __slots__ = ("_is_left", "_value", "ended", "error", "value")

    def __init__(self, value: Awaitable[Any]) -> None:
        self._value = value
        self._is_left = False
        self.ended = 0.0
        self.value: Any = None
        self.error: BaseException | None = None

    async def done(self) -> None:
        """Wait until it is over."""
        try:
            self.value = await self
        except BaseException as error:  # noqa: BLE001  handed to whoever waits, who raises it again
            self.error = error
        self.ended = time.monotonic()

    def result(self) -> Any:
        """What it returned; raises what it raised."""
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Nobody waits any more for a task that is not done."""
        if not task.done():
            self._is_left = True
            _left.add(task)
            task.add_done_callback(_left.discard)

    def __await__(self) -> Generator[Any, Any, Any]:
        # Passes on what the loop sends. What was left behind ends at the next cancel, also where it would refuse: else `asyncio.run`,
        # which cancels what is still there and waits for it, would never return.
        work = _plain(self._value).__await__()
        try:
            waits_for = next(work)
            while True:
                try:
                    sent: Any = yield waits_for
                except BaseException as error:  # the tool's: it is told of it
                    if self._is_left:
                        work.close()
                        raise
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
        except StopIteration as over:
            return over.value


async def _plain(value: Awaitable[R]) -> R:
    return await value
