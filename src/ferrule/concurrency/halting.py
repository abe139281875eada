"""End a wait at once, whatever it waits for: a tool that hangs must not hold its run.

**The rule.** Every wait for code that may hang is also a wait for a *halt*: that of the call, of
its run, and of all that is around them. When one is set,

- what is awaited is cancelled, and other code can see that its result is no longer needed;
- it has `grace_s` to end. If it ends by itself, its result counts;
- then it is left behind. Its thread goes on, because a thread cannot be stopped from outside, and a
  task that ignores its cancellation does, too. What comes of it later is dropped.

So a wait ends at most `grace_s` after its halt is set, and raises `HaltedError` in place of a
result. What that means for a call or a run, the caller decides.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.concurrency.cancellation import STOPPED
from ferrule.concurrency.deadline import NEVER, AwaitedWork, wait_on
from ferrule.concurrency.offload import Lent
from ferrule.concurrency.pool import TOOL_TASK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

R = TypeVar("R")

DEFAULT_GRACE_S = 1.0
"""The default of the setting `grace_s`."""
_LOOKS_EVERY_S = 1.0
"""How often a waiting thread wakes up. On Windows, Ctrl-C reaches it only then."""

_SETTLES_S = 0.05
"""How long a task has to end that was cancelled only when the grace was over."""


class HaltedError(BaseException):
    """A halt ended the wait, and what was waited for was left behind, or cancelled."""


class Halt:
    """Tells all that waits inside of a call, or of a run, to end. Any thread may set it."""

    __slots__ = ("_listeners", "_lock", "ends_at")

    def __init__(self) -> None:
        self.ends_at = NEVER
        """The time of `time.monotonic()` at which the grace is over. `NEVER` if it is not set."""
        self._listeners: dict[int, Callable[[], None]] = {}
        self._lock = threading.Lock()

    @property
    def is_set(self) -> bool:
        """Whether what waits inside must end."""
        return self.ends_at != NEVER

    def set(self, grace_s: float) -> None:
        """End all waits inside, at most `grace_s` from now. Another time can only be earlier."""
        with self._lock:
            self.ends_at = min(self.ends_at, time.monotonic() + grace_s)
            listeners = list(self._listeners.values())
        for wake in listeners:
            wake()

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when this is set, from the thread that sets it; at once if it is set."""
        with self._lock:
            self._listeners[id(wake)] = wake
        if self.is_set:
            wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        with self._lock:
            self._listeners.pop(id(wake), None)


@contextmanager
def listening(halts: Sequence[Halt], wake: Callable[[], None]) -> Generator[None]:
    """Call `wake` when one of these is set, during a block."""
    try:
        for halt in halts:
            halt.listen(wake)
        yield
    finally:
        for halt in halts:
            halt.forget(wake)


def is_halted(halts: Sequence[Halt]) -> bool:
    """Whether one of these is set."""
    return any(halt.is_set for halt in halts)


def _left_s(halts: Sequence[Halt]) -> float:
    """The seconds of grace that are left; infinite if none of these is set."""
    return min(halt.ends_at for halt in halts) - time.monotonic()


def run_until_halted(function: Callable[[], R], halts: Sequence[Halt]) -> R:
    """Run a function in another thread, until it returns or a halt ends the wait for it.

    The first halt is its own: an interrupt of the wait sets it.

    Raises `HaltedError` if the function was left behind, or has not begun.
    """
    if is_halted(halts):
        raise HaltedError
    news = threading.Event()
    with Lent(function, news.set) as lent, listening(halts, news.set):
        try:
            # A halt may be set again, with a shorter grace: each one is news.
            while not lent.future.done():
                left_s = _left_s(halts)
                if left_s <= 0:
                    raise HaltedError
                news.wait(min(left_s, _LOOKS_EVERY_S))
                news.clear()
        except HaltedError:
            raise
        except BaseException:  # Ctrl-C ends it, too: what the function awaits is cancelled
            halts[0].set(0)
            raise
        try:
            return lent.future.result()
        except BaseException as error:
            if STOPPED in error.args and is_halted(halts):  # what it awaited was cancelled
                raise HaltedError from None
            raise


async def await_until_halted(
    value: Awaitable[R], halts: Sequence[Halt], *, grace_s: float, name: str
) -> R:
    """Await a value until it is there, or a halt ends the wait for it.

    What the value awaits must listen to the halts itself (`cancelled_by`): a thread that it waits
    for has until the end of the grace. If the caller is cancelled, the value is cancelled too, and
    has `grace_s` to end.

    Raises `HaltedError` if the value was cancelled or left behind.
    """
    import asyncio

    if is_halted(halts):
        _drop(value)
        raise HaltedError
    loop = asyncio.get_running_loop()
    work = AwaitedWork(value)
    # A task of its own, because a task cannot leave behind what it awaits itself.
    task = asyncio.create_task(work.run(), name=f"{TOOL_TASK}{name}")
    news = asyncio.Event()
    task.add_done_callback(lambda _: news.set())

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(news.set)

    try:
        with listening(halts, wake):
            while not task.done():
                left_s = _left_s(halts)
                if left_s <= 0:
                    break
                await _next(news, left_s)
        if not task.done():
            task.cancel()  # one that only waits for a thread ends now
            await asyncio.wait((task,), timeout=_SETTLES_S)
    except asyncio.CancelledError:
        if not task.done():
            task.cancel()
            await wait_on(task, time.monotonic() + grace_s)
        raise
    finally:
        work.abandon(task)
    if not task.done() or (is_halted(halts) and work.is_cancelled):
        raise HaltedError
    try:
        return await work.result(task)
    finally:
        del work, task  # breaks a reference cycle between an error and this frame


async def _next(news: Any, left_s: float) -> None:
    """Wait for news, or until no grace is left."""
    import asyncio

    if left_s == NEVER:
        await news.wait()
    else:
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), left_s)
    news.clear()


def _drop(value: Any) -> None:
    close = getattr(value, "close", None)
    if close is not None:
        close()


async def cancelled_when_halted(value: Awaitable[R], halts: Sequence[Halt]) -> R:
    """Await a value in this task, which a halt cancels at once.

    Raises `HaltedError` then. What refuses its cancellation is waited for.
    """
    import asyncio

    if is_halted(halts):
        _drop(value)
        raise HaltedError
    cancelling = _CancelHere(asyncio.current_task(), asyncio.get_running_loop())
    try:
        with listening(halts, cancelling.from_any_thread):
            return await value
    except asyncio.CancelledError:
        if cancelling.take_back():
            raise HaltedError from None
        raise
    finally:
        cancelling.is_over = True


class _CancelHere:
    """Cancels a task during one of its waits, and not later."""

    __slots__ = ("_has_cancelled", "_loop", "_task", "is_over")

    def __init__(self, task: Any, loop: Any) -> None:
        self._task, self._loop = task, loop
        self._has_cancelled = False
        self.is_over = False
        """Whether the wait has ended: what comes from another thread now comes too late."""

    def from_any_thread(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the task with it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self.is_over and not self._has_cancelled:
            self._has_cancelled = True
            self._task.cancel()

    def take_back(self) -> bool:
        """Whether the task was cancelled from here alone: then it goes on."""
        return self._has_cancelled and self._task.uncancel() == 0


@contextmanager
def cancelled_by(halts: Sequence[Halt]) -> Generator[None]:
    """Cancel the current task when one of these is set, during a block."""
    import asyncio

    task: Any = asyncio.current_task()
    with listening(halts, partial(_cancel, task, asyncio.get_running_loop())):
        yield


def _cancel(task: Any, loop: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed, and the task with it
        loop.call_soon_threadsafe(cancel_once, task)


def cancel_once(task: Any) -> None:
    """Cancel a task, unless it was cancelled already: a second time would cut off its cleanup."""
    if not task.cancelling():
        task.cancel()
