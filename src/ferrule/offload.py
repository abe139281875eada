"""Where work goes that may not run here: the bounded pool of worker threads, and the one background event loop.  (Floor 2.)

Threads are daemons: a tool that hangs never keeps the process from ending. Work always runs with the caller's context variables.
"""

from __future__ import annotations

import os
import threading
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.errors import ToolTimeoutError

if TYPE_CHECKING:  # asyncio and its kin take as long to import as pydantic: they come when there is something to do for them
    import asyncio
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future
    from queue import SimpleQueue

R = TypeVar("R")

POOL_SIZE = 32
"""At most this many tools run in threads at once, over all runs of the process."""


class _Job:
    """One piece of work and where its result goes."""

    __slots__ = ("abandoned", "context", "function", "settle")

    def __init__(self, function: Callable[[], Any], settle: Callable[[Any, BaseException | None], None]) -> None:
        self.function = function
        self.settle = settle
        self.context: Context = copy_context()
        self.abandoned = False


class _Pool:
    """Daemon threads over one queue, started as they are needed."""

    def __init__(self, size: int) -> None:
        from queue import SimpleQueue

        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._limit = size
        self._threads = 0
        self._idle = 0

    def put(self, job: _Job) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1  # reserved for this job
            elif self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._work, name=f"ferrule-worker-{self._threads}", daemon=True).start()
            else:
                self._idle -= 1  # the next worker that comes free is this job's
        self._jobs.put(job)

    def abandon(self, job: _Job) -> None:
        """Stop counting the thread that is stuck in a job: another may take its place."""
        with self._lock:
            job.abandoned = True
            self._limit += 1

    def widen(self, by: int) -> None:
        """Let `by` more threads run while a worker itself waits for one."""
        with self._lock:
            self._limit += by

    def _work(self) -> None:
        _here.worker = True
        while True:
            job = self._jobs.get()
            value, error = None, None
            try:
                value = job.context.run(job.function)
            except BaseException as raised:
                error = raised
            job.settle(value, error)
            with self._lock:
                if job.abandoned or self._threads > self._limit:
                    self._limit -= job.abandoned
                    self._threads -= 1
                    return
                self._idle += 1
            del job, value, error


class _Here(threading.local):
    worker = False


_here = _Here()
_pool = _Pool(POOL_SIZE)
_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def in_worker() -> bool:
    """Whether this thread is one of the pool's. What runs here must not wait for the pool."""
    return _here.worker


def submit(function: Callable[[], R]) -> Future[R]:
    """Run a function in the pool."""
    future, _ = _submit(function)
    return future


def _submit(function: Callable[[], R]) -> tuple[Future[R], _Job]:
    from concurrent.futures import Future

    future: Future[R] = Future()

    def settle(value: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    job = _Job(function, settle)
    _pool.put(job)
    return future, job


def run_with_timeout(function: Callable[[], R], timeout_s: float, name: str) -> R:
    """Run a function in the pool and wait at most `timeout_s` seconds; raises `ToolTimeoutError` and leaves the thread behind."""
    nested = in_worker()
    if nested:
        _pool.widen(1)
    try:
        future, job = _submit(function)
        try:
            return future.result(timeout_s)
        except TimeoutError as late:
            if future.done():  # the function itself raised a TimeoutError
                raise
            _pool.abandon(job)
            raise ToolTimeoutError(name, timeout_s, abandoned=True) from late
    finally:
        if nested:
            _pool.widen(-1)


async def in_worker_thread(function: Callable[[], R], *, timeout_s: float | None = None, name: str = "") -> R:
    """Run a function in the pool without blocking the loop. Cancelling stops the waiting, not the thread."""
    import asyncio

    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[R] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(_wake, waiter, value, error)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            return

    job = _Job(function, settle)
    _pool.put(job)
    if timeout_s is None:
        return await waiter
    done, _ = await asyncio.wait((waiter,), timeout=timeout_s)
    if done:
        return waiter.result()
    _pool.abandon(job)
    waiter.cancel()
    raise ToolTimeoutError(name, timeout_s, abandoned=True)


def _wake(waiter: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(value)
    elif isinstance(error, StopIteration):  # asyncio refuses it in a future
        waiter.set_exception(RuntimeError(f"the function raised {error!r}"))
    else:
        waiter.set_exception(error)


def run_async(awaitable: Awaitable[R]) -> R:
    """Wait, from sync code, for something async: it runs on the background loop, also where another loop runs in this thread."""
    import asyncio
    from concurrent.futures import Future

    loop = background_loop()
    if _running_here() is loop:
        # Sync code called from a coroutine of the background loop: waiting for that loop here would never end.
        return _in_fresh_loop(awaitable)
    future: Future[R] = Future()
    context = copy_context()
    task: list[asyncio.Task[None]] = []

    async def carry() -> None:
        try:
            value = await awaitable
        except BaseException as error:
            future.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            future.set_result(value)

    loop.call_soon_threadsafe(lambda: task.append(loop.create_task(carry(), context=context)))
    try:
        return future.result()
    except BaseException:
        if not future.done():  # interrupted while waiting (Ctrl-C): do not leave the coroutine running
            loop.call_soon_threadsafe(lambda: [each.cancel() for each in task])
        raise


def _running_here() -> asyncio.AbstractEventLoop | None:
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _in_fresh_loop(awaitable: Awaitable[R]) -> R:
    import asyncio
    from concurrent.futures import Future

    async def carry() -> R:
        return await awaitable

    future: Future[R] = Future()
    context = copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(asyncio.run, carry()))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="ferrule-loop-once", daemon=True).start()
    return future.result()


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's background event loop, started on first use in a daemon thread."""
    global _loop
    if _loop is None:
        with _loop_lock:
            if _loop is None:
                import asyncio

                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="ferrule-loop", daemon=True).start()
                _loop = loop
    return _loop


def _after_fork() -> None:
    # Threads do not survive a fork: the child starts its own.
    global _loop, _pool, _loop_lock
    _loop, _pool, _loop_lock = None, _Pool(POOL_SIZE), threading.Lock()
    _here.worker = False


os.register_at_fork(after_in_child=_after_fork)
