"""What `offload` is made of: jobs and the pool of threads that do them, errands to event loops, what a thread knows of itself.

Threads are daemons: a tool that hangs never keeps the process from ending.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future
    from queue import SimpleQueue

R = TypeVar("R")

REACTS_WITHIN_S = 0.5
"""A background loop that does nothing for so long although it is asked to is blocked, by sync code in something async."""

_WAITING, _RUNNING, _OVER = range(3)


class Job:
    """One piece of work and where its result goes."""

    __slots__ = ("context", "function", "loop_waits", "settle", "state")

    def __init__(self, function: Callable[[], Any], settle: Callable[[Any, BaseException | None], None], *, loop_waits: bool) -> None:
        self.function = function
        self.settle = settle
        self.context: Context = copy_context()
        self.loop_waits = loop_waits
        """Whether the background loop does nothing until this is done."""
        self.state = _WAITING


class ThreadPool:
    """Daemon threads over one queue, started as they are needed."""

    def __init__(self, size: int) -> None:
        from queue import SimpleQueue

        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._limit = size
        self._threads = 0
        self._idle = 0
        """Threads without work; below zero, jobs without a thread."""
        self.is_forked = False
        """Whether this is the parent's pool, seen from a forked child: a thread of it that forked has nothing more to do."""
        self.taken = 0
        """How many jobs began so far: where that stands still and jobs wait, every thread is busy."""

    def put(self, job: Job) -> None:
        """Have a job done as soon as a thread is free; raises `RuntimeError` where the system has no thread for it."""
        with self._lock:
            self._jobs.put(job)
            self._idle -= 1
            try:
                self._start()
            except RuntimeError:
                job.state = _OVER
                raise

    def abandon(self, job: Job) -> bool:
        """Give up waiting for a job: one that waits itself is never run, and the thread of one that runs is not counted any more.

        Returns whether it was running.
        """
        with self._lock:
            was, job.state = job.state, _OVER
            if was == _RUNNING:
                self._threads -= 1
                self._start()
            return was == _RUNNING

    def widen(self, by: int) -> None:
        """Let `by` more threads run while a worker itself waits for one."""
        with self._lock:
            self._limit += by
            self._start()

    def _start(self) -> None:
        while self._idle < 0 and self._threads < self._limit:
            try:
                threading.Thread(target=self._work, name=f"ferrule-worker-{self._threads + 1}", daemon=True).start()
            except RuntimeError:  # the system gives no more threads: those there are will have to do
                if self._threads == 0:
                    raise
                return
            self._threads += 1
            self._idle += 1

    def _work(self) -> None:
        here.worker = True
        while True:
            job = self._jobs.get()
            with self._lock:
                if job.state == _OVER:  # nobody waits any more
                    self._idle += 1
                    continue
                job.state = _RUNNING
                self.taken += 1
            value, error = None, None
            here.loop_waits = job.loop_waits
            try:
                value = job.context.run(job.function)
            except BaseException as raised:  # noqa: BLE001  handed to whoever waits, who raises it again
                error = raised
            if self.is_forked:  # its locks may be held by threads that are no more
                return
            job.settle(value, error)
            with self._lock:
                if job.state == _OVER:
                    return
                job.state = _OVER
                if self._threads > self._limit:
                    self._threads -= 1
                    return
                self._idle += 1
            del job, value, error


class _Here(threading.local):
    worker = False  # this thread is one of the pool's
    on_loop = False  # it is the background loop's: while sync code waits here, that loop stands still
    loop_waits = False  # the background loop stands still until this thread is done


here = _Here()
TOOL_TASK = "ferrule tool "
"""The name of a task that runs an async tool begins with this."""


class Timed(Generic[R]):
    """Work whose limit runs from its begin, not from when it was put in the queue."""

    __slots__ = ("_function", "_tell", "ends", "limit_s")

    def __init__(self, function: Callable[[], R], limit_s: float, tell: Callable[[], object]) -> None:
        self._function, self._tell = function, tell
        self.limit_s, self.ends = limit_s, 0.0

    def __call__(self) -> R:
        """Begin."""
        self.ends = time.monotonic() + self.limit_s
        self._tell()
        return self._function()

    def left_s(self) -> float:
        """Seconds until its time is up, once it began."""
        return max(self.ends - time.monotonic(), 0)


class Errand(Generic[R]):
    """Something async that sync code waits for: on the background loop or, where that cannot come to it, alone on a loop of its own."""

    __slots__ = ("_loop", "_make", "_name", "_task", "future")

    def __init__(self, make: Callable[[], Awaitable[R]], loop: asyncio.AbstractEventLoop | None, name: str = "") -> None:
        from concurrent.futures import Future

        self.future: Future[R] = Future()
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._name = f"{TOOL_TASK}{name}" if name else None
        self._loop = loop or _new_loop()
        context = copy_context()
        if loop is not None:
            loop.call_soon_threadsafe(self._begin, loop, context)
            return
        try:
            threading.Thread(target=context.run, args=(self._alone,), name="ferrule-loop-once", daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            self._loop.close()
            raise

    def _begin(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        if self.future.set_running_or_notify_cancel():
            self._task = loop.create_task(self._carry(), context=context, name=self._name)

    async def _carry(self) -> None:
        import asyncio

        try:
            value = await self._make()
        except BaseException as error:
            self.future.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            self.future.set_result(value)

    def _alone(self) -> None:
        import asyncio

        async def made() -> R:
            self._task = asyncio.current_task()
            if self._task is not None and self._name is not None:
                self._task.set_name(self._name)
            return await self._make()

        here.loop_waits = True
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                if not self.future.set_running_or_notify_cancel():
                    runner.get_loop()  # made here, so that it is closed here
                    return
                self._end(runner, made())  # before the runner is closed, which waits for threads that the loop has started
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread
            if not self.future.done():
                self.future.set_exception(error)

    def _end(self, runner: asyncio.Runner, work: Coroutine[Any, Any, R]) -> None:
        try:
            self.future.set_result(runner.run(work))
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread
            self.future.set_exception(error)

    def cancel(self) -> None:
        """Interrupted while waiting (Ctrl-C): do not leave the coroutine running."""
        if not self.future.done():
            with suppress(RuntimeError):  # that loop has just ended
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def is_reacted_to(self) -> bool:
        """Whether the loop still does what it is asked."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # it has just ended, and this with it
            return True
        return answered.wait(REACTS_WITHIN_S)

    def blocker(self) -> str:
        """The name of the async tool that keeps the loop from reacting; empty if it is not known."""
        import asyncio

        task = asyncio.current_task(self._loop)
        name = task.get_name() if task is not None else ""
        return name.removeprefix(TOOL_TASK) if name.startswith(TOOL_TASK) else ""


def _new_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    return asyncio.new_event_loop()


def _after_fork() -> None:  # the child's one thread is none of ours, whatever it was in its parent
    here.__dict__.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork)
