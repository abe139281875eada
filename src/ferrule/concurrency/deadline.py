"""Await with a time limit: a tool that ignores its cancellation is left behind.

`within` returns the awaitable's result or raises `ToolTimeoutError`. The awaitable runs in a
separate task, because a task cannot abandon a coroutine that it awaits itself: the coroutine may
refuse cancellation, or take long over it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule.concurrency.cancellation import pass_on_cancellation
from ferrule.concurrency.pool import TOOL_TASK
from ferrule.errors import ToolTimeoutError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Generator

R = TypeVar("R")

GRACE_S = 0.5
"""How long a cancelled tool may clean up before an error is raised.

A well-behaved tool needs a moment to close what it has open.
"""
NEVER = float("inf")
"""The deadline that never comes. Deadlines are times of `time.monotonic()`."""

_abandoned: set[asyncio.Task[Any]] = set()
"""Tasks that were abandoned before they ended.

An event loop holds its tasks weakly: without this reference they could be garbage-collected while
they run.
"""


def left_until(deadline: float) -> float | None:
    """The seconds until a deadline, in the form for `asyncio.timeout`: None for no limit."""
    if deadline == NEVER:
        return None
    return max(deadline - time.monotonic(), 0.0)


async def within(value: Awaitable[R], left_s: float, timeout_s: float, name: str) -> R:
    """Await for the remaining `left_s` seconds of a limit of `timeout_s`.

    After that it raises `ToolTimeoutError`, whatever the tool does.

    If the caller is cancelled, the tool is cancelled too. The caller then waits for it until the
    time is up and ignores its result.
    """
    import asyncio

    ends = time.monotonic() + left_s
    work = AwaitedWork(value)
    # The task gets a copy of the context, so context variables that the tool sets are discarded.
    task = asyncio.create_task(work.run(), name=f"{TOOL_TASK}{name}")
    try:
        await asyncio.wait((task,), timeout=max(left_s, 0))
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=GRACE_S)
    except asyncio.CancelledError:
        if not task.done():
            task.cancel()
            await wait_on(task, ends + GRACE_S)
        raise
    finally:
        work.abandon(task)
    if not task.done() or work.ended > ends:
        reason = ""
        if not task.done():
            reason = " It may still be running: it did not end when it was cancelled."
        raise ToolTimeoutError(name, timeout_s, because=reason) from work.error
    try:
        return await work.result(task)
    finally:
        del work, task  # breaks a reference cycle between an error and this frame


async def wait_on(task: asyncio.Task[Any], ends: float) -> None:
    """Wait for a cancelled task, even if the caller is cancelled again.

    The task may be cleaning up.
    """
    import asyncio

    while not task.done() and time.monotonic() < ends:
        try:
            await asyncio.wait((task,), timeout=left_until(ends))
        except asyncio.CancelledError:  # the first cancellation is already being raised
            continue


class AwaitedWork:
    """Awaits a value and keeps its result or error.

    It raises nothing itself: an interrupt that is raised in a separate task would end the loop.
    """

    __slots__ = ("_is_abandoned", "_value", "ended", "error", "value")

    def __init__(self, value: Awaitable[Any]) -> None:
        self._value = value
        self._is_abandoned = False
        self.ended = 0.0
        self.value: Any = None
        self.error: BaseException | None = None

    async def run(self) -> None:
        """Await the value and store its result or error."""
        try:
            self.value = await self
        except BaseException as error:  # noqa: BLE001  the waiting caller raises it again
            self.error = error
        self.ended = time.monotonic()

    @property
    def is_cancelled(self) -> bool:
        """Whether the value ended with its cancellation."""
        import asyncio

        if isinstance(self.error, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[Any]", self.error)
            return group.subgroup(asyncio.CancelledError) is not None
        return isinstance(self.error, asyncio.CancelledError)

    async def result(self, task: asyncio.Task[Any]) -> Any:
        """Return the value's result, or raise its error; `task` is done with the work.

        A cancellation that the value requested of its own task goes on in the current one.
        """
        task.result()  # raises only if the loop ended before the task began
        is_requested = self.is_cancelled and task.cancelling() > 0
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            if is_requested:
                await pass_on_cancellation()
            raise error
        finally:
            del error

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Stop waiting for a task that is not done; keep a reference to it until it is."""
        if not task.done():
            self._is_abandoned = True
            _abandoned.add(task)
            task.add_done_callback(_abandoned.discard)

    def __await__(self) -> Generator[Any, Any, Any]:
        # Passes on values and errors from the loop. An abandoned coroutine ends at the next cancel,
        # even if it refuses: else `asyncio.run`, which cancels all remaining tasks and waits for
        # them, would never return.
        work = _plain(self._value).__await__()
        try:
            awaited = next(work)
            while True:
                try:
                    sent: Any = yield awaited
                except BaseException as error:  # thrown into the tool, which may handle it
                    if self._is_abandoned:
                        work.close()
                        raise
                    awaited = work.throw(error)
                else:
                    awaited = work.send(sent)
        except StopIteration as over:
            return over.value


async def _plain(value: Awaitable[R]) -> R:
    return await value
