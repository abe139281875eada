"""Building blocks of `offload`: jobs, their thread pool, and errands to event loops.

Threads are daemons: a tool that hangs never keeps the process from ending.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from contextvars import Context, copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ferrule.concurrency.forking import run_in_child

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future
    from queue import SimpleQueue

R = TypeVar("R")

REACTS_WITHIN_S = 0.5
"""A background loop that does not respond for this long counts as blocked.

The cause is sync code, such as `time.sleep`, in an async function.
"""

_WAITING, _RUNNING, _OVER = range(3)


class Job:
    """One piece of work and the function that receives its result."""

    __slots__ = ("context", "function", "loop_waits", "settle", "state")

    def __init__(
        self,
        function: Callable[[], Any],
        settle: Callable[[Any, BaseException | None], None],
        *,
        loop_waits: bool,
    ) -> None:
        self.function = function
        self.settle = settle
        self.context: Context = copy_context()
        self.loop_waits = loop_waits
        """Whether the background loop is blocked until this job is done."""
        self.state = _WAITING


class ThreadPool:
    """Daemon threads over one queue, started on demand."""

    def __init__(self, size: int, *, runs_tools: bool = True, name: str = "ferrule-worker") -> None:
        self._lock = threading.Lock()
        self._limit = size
        self._name = name
        self._runs_tools = runs_tools
        """False if the jobs are whole programs, which may wait for tools in another pool."""
        self._threads = 0
        self._idle = 0
        """The number of idle threads; if negative, the number of jobs without a thread."""
        self.is_forked = False
        """Whether this is the parent's pool in a forked child.

        A pool thread that forked takes no more jobs there.
        """
        self.taken = 0
        """How many jobs have begun so far.

        If the number stays the same while jobs wait, every thread is busy.
        """

    @cached_property
    def _jobs(self) -> SimpleQueue[Job]:
        from queue import SimpleQueue  # late: many programs use no threads

        return SimpleQueue()

    def put(self, job: Job) -> None:
        """Queue a job for the next free thread.

        Raises `RuntimeError` if the system cannot start a thread.
        """
        with self._lock:
            try:
                # Counted before it is queued: if Ctrl-C comes between the two, a job counted
                # without need costs one thread; a job that is not counted would wait forever.
                self._idle -= 1
                self._jobs.put(job)
                self._start()
            except BaseException:  # Ctrl-C too: the caller will not wait for the job
                job.state = _OVER
                raise

    def abandon(self, job: Job) -> bool:
        """Give up waiting for a job.

        A queued job never runs; the thread of a running job is no longer counted. Returns
        whether it was running.
        """
        with self._lock:
            was_running = job.state == _RUNNING
            job.state = _OVER
            if was_running:
                self._threads -= 1
                self._start()
            return was_running

    def widen(self, by: int) -> None:
        """Allow `by` more threads while a worker waits for other work."""
        with self._lock:
            self._limit += by
            self._start()

    def _start(self) -> None:
        while self._idle < 0 and self._threads < self._limit:
            try:
                threading.Thread(
                    target=self._work, name=f"{self._name}-{self._threads + 1}", daemon=True
                ).start()
            except RuntimeError:  # the system starts no more threads: use the existing ones
                if self._threads == 0:
                    raise
                return
            self._threads += 1
            self._idle += 1

    def _work(self) -> None:
        here.worker = self._runs_tools
        while True:
            job = self._jobs.get()
            with self._lock:
                if job.state == _OVER:  # no caller is waiting
                    self._idle += 1
                    del job  # an idle thread must not keep it alive, nor its caller's context
                    continue
                job.state = _RUNNING
                self.taken += 1
            value, error = None, None
            here.loop_waits = job.loop_waits
            try:
                value = job.context.run(job.function)
            except BaseException as raised:  # noqa: BLE001  the waiting caller raises it again
                error = raised
            # The job forked, and this is the child: the pool's locks may be held by threads that no
            # longer exist.
            if self.is_forked:
                return
            job.settle(value, error)
            with self._lock:
                if job.state == _OVER:  # abandoned, and this thread no longer counted
                    return
                job.state = _OVER
                if self._threads > self._limit:
                    self._threads -= 1
                    return
                self._idle += 1
            del job, value, error  # nor what came of the last one


class _Here(threading.local):
    worker = False  # this thread belongs to the pool
    on_loop = False  # it runs the background loop: while sync code waits here, that loop is blocked
    loop_waits = False  # the background loop is blocked until this thread is done


here = _Here()
TOOL_TASK = "ferrule tool "
"""The prefix in the names of tasks that run async tools."""


class Timed(Generic[R]):
    """Work whose time limit starts when it begins, not when it is queued."""

    __slots__ = ("_function", "_tell", "ends", "limit_s")

    def __init__(
        self, function: Callable[[], R], limit_s: float, tell: Callable[[], object]
    ) -> None:
        self._function, self._tell = function, tell
        self.limit_s, self.ends = limit_s, 0.0

    def __call__(self) -> R:
        """Start the clock and call the function."""
        self.ends = time.monotonic() + self.limit_s
        self._tell()
        return self._function()

    def left_s(self) -> float:
        """The seconds left of its time limit, once it has begun."""
        return max(self.ends - time.monotonic(), 0)


class Errand(Generic[R]):
    """An awaitable that sync code waits for.

    It runs on the background loop or, if that loop waits for this thread, on a separate loop.
    """

    __slots__ = ("_loop", "_make", "_name", "_task", "future")

    def __init__(
        self,
        make: Callable[[], Awaitable[R]],
        loop: asyncio.AbstractEventLoop | None,
        name: str = "",
    ) -> None:
        from concurrent.futures import Future

        self.future: Future[R] = Future()
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._name = None
        if name:
            self._name = f"{TOOL_TASK}{name}"
        self._loop = loop or _new_loop()
        context = copy_context()
        if loop is not None:
            loop.call_soon_threadsafe(self._begin, loop, context)
            return
        try:
            threading.Thread(
                target=context.run, args=(self._alone,), name="ferrule-loop-once", daemon=True
            ).start()
        except RuntimeError:  # the system starts no more threads
            self._loop.close()
            raise

    def _begin(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        loop.create_task(self._run(), context=context)

    async def _run(self) -> None:
        import asyncio

        self._task = task = cast("asyncio.Task[None]", asyncio.current_task())
        # Only now, in the task's first step: a task that is cancelled before it never settles the
        # future.
        if not self.future.set_running_or_notify_cancel():
            return
        if self._name is not None:
            task.set_name(self._name)
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

        here.loop_waits = True
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                # This settles the future before the runner closes: closing waits for the threads
                # that the loop started.
                runner.run(self._run())
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread
            if not self.future.done():
                self.future.set_exception(error)

    def cancel(self) -> None:
        """Cancel the work, for example after Ctrl-C. Work that has not begun never begins."""
        if self.future.cancel() or self.future.done() or self._task is None:
            return
        with suppress(RuntimeError):  # that loop has just ended
            self._loop.call_soon_threadsafe(self._task.cancel)

    def is_reacted_to(self) -> bool:
        """Whether the loop still responds."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop has just ended, and the errand with it
            return True
        return answered.wait(REACTS_WITHIN_S)

    def blocker(self) -> str:
        """The name of the async tool that blocks the loop; empty if unknown."""
        import asyncio

        task = asyncio.current_task(self._loop)
        if task is None or not task.get_name().startswith(TOOL_TASK):
            return ""
        return task.get_name().removeprefix(TOOL_TASK)


def _new_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    return asyncio.new_event_loop()


def _forget_thread() -> None:
    """The child's only thread is not a pool thread, even if it was one in the parent."""
    here.__dict__.clear()


run_in_child(_forget_thread)
