"""Where work goes that may not run here: the bounded pool of worker threads, and the one background event loop.  (Floor 2.)

Threads are daemons: a tool that hangs never keeps the process from ending. Work always runs with the caller's context variables.

What keeps it from waiting for itself: a worker that waits for other work steps aside, so that another thread may take its place; a thread
that is stuck in abandoned work is not counted; and work for whose end the background loop itself is waiting gets a loop of its own.
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

_WAITING, _RUNNING, _OVER = range(3)


class _Job:
    """One piece of work and where its result goes."""

    __slots__ = ("context", "function", "loop_waits", "settle", "state")

    def __init__(self, function: Callable[[], Any], settle: Callable[[Any, BaseException | None], None], *, loop_waits: bool) -> None:
        self.function = function
        self.settle = settle
        self.context: Context = copy_context()
        self.loop_waits = loop_waits
        """Whether the background loop does nothing until this is done."""
        self.state = _WAITING


class _Pool:
    """Daemon threads over one queue, started as they are needed."""

    def __init__(self, size: int) -> None:
        from queue import SimpleQueue

        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._limit = size
        self._threads = 0
        self._idle = 0
        """Threads without work; below zero, jobs without a thread."""

    def put(self, job: _Job) -> None:
        with self._lock:
            self._jobs.put(job)
            self._idle -= 1
            try:
                self._start()
            except RuntimeError:
                job.state = _OVER
                raise

    def abandon(self, job: _Job) -> bool:
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
        _here.worker = True
        while True:
            job = self._jobs.get()
            with self._lock:
                if job.state == _OVER:  # nobody waits any more
                    self._idle += 1
                    continue
                job.state = _RUNNING
            value, error = None, None
            _here.loop_waits = job.loop_waits
            try:
                value = job.context.run(job.function)
            except BaseException as raised:  # noqa: BLE001  handed to whoever waits, who raises it again
                error = raised
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


class _Aside:
    """A block in which a worker only waits for other work."""

    __slots__ = ("_pool",)

    def __enter__(self) -> None:
        self._pool = _pool if _here.worker else None
        if self._pool is not None:
            self._pool.widen(1)

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.widen(-1)


_here = _Here()
_pool = _Pool(POOL_SIZE)
_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def in_worker() -> bool:
    """Whether this thread is one of the pool's. What runs here must not wait for the pool."""
    return _here.worker


def is_awaited_by_loop() -> bool:
    """Whether the background loop stands still until this thread is done: waiting for it here would never end."""
    return _here.on_loop or _here.loop_waits


def submit(function: Callable[[], R]) -> Future[R]:
    """Run a function in the pool. A future that is cancelled in time is never run."""
    future, _ = _submit(function)
    return future


def _submit(function: Callable[[], R]) -> tuple[Future[R], _Job]:
    from concurrent.futures import Future

    future: Future[R] = Future()

    def run() -> Any:
        return function() if future.set_running_or_notify_cancel() else None

    def settle(value: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    job = _Job(run, settle, loop_waits=is_awaited_by_loop())
    _pool.put(job)
    return future, job


def run_with_timeout(function: Callable[[], R], timeout_s: float, name: str) -> R:
    """Run a function in the pool and wait at most `timeout_s` seconds; raises `ToolTimeoutError` and leaves the thread behind."""
    with _Aside():
        future, job = _submit(function)
        try:
            return future.result(timeout_s)
        except TimeoutError as late:
            if future.done():  # just now; or it was the function that raised a TimeoutError
                return future.result()
            raise ToolTimeoutError(name, timeout_s, abandoned=_pool.abandon(job)) from late
        except BaseException:
            if not future.done():  # interrupted while waiting (Ctrl-C)
                _pool.abandon(job)
            raise


async def in_worker_thread(function: Callable[[], R], *, timeout_s: float | None = None, name: str = "") -> R:
    """Run a function in the pool without blocking the loop. Cancelling stops the waiting, not the thread; what has not begun never will."""
    import asyncio

    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[R] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(_wake, waiter, value, error)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            return

    job = _Job(function, settle, loop_waits=_here.loop_waits)
    with _Aside():  # of use where a worker runs a loop of its own
        _pool.put(job)
        try:
            if timeout_s is None:
                return await waiter
            done, _ = await asyncio.wait((waiter,), timeout=timeout_s)
        except BaseException:
            if waiter.cancelled() or not waiter.done():
                _pool.abandon(job)
                waiter.cancel()
            raise
    if done:
        return waiter.result()
    waiter.cancel()
    raise ToolTimeoutError(name, timeout_s, abandoned=_pool.abandon(job))


async def done_or_never(function: Callable[[], Any]) -> None:
    """`in_worker_thread`; where this task is cancelled meanwhile, the work is over when that is raised, or it never begins."""
    import asyncio

    claim, cancelled = threading.Lock(), None
    working = asyncio.ensure_future(in_worker_thread(lambda: function() if claim.acquire(blocking=False) else None))
    while not working.done():
        try:
            await asyncio.wait((working,))
        except asyncio.CancelledError as error:
            cancelled = error
            if claim.acquire(blocking=False):
                working.cancel()
    if cancelled is not None:
        raise cancelled from (None if working.cancelled() else working.exception())
    working.result()


def _wake(waiter: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(value)
    elif isinstance(error, (StopIteration, GeneratorExit)):  # asyncio refuses the one in a future; the other would close whoever awaits it
        refused = RuntimeError(f"the function raised {error!r}")
        refused.__cause__ = error
        waiter.set_exception(refused)
    else:
        waiter.set_exception(error)


def run_async(awaitable: Awaitable[R]) -> R:
    """Wait, from sync code, for something async: it runs on the background loop, also where another loop runs in this thread."""
    from concurrent.futures import Future

    with _Aside():
        if is_awaited_by_loop():
            return _in_fresh_loop(awaitable)
        loop = background_loop()
        future: Future[R] = Future()
        context = copy_context()
        task: list[asyncio.Task[None]] = []
        loop.call_soon_threadsafe(lambda: task.append(loop.create_task(_carry(awaitable, future), context=context)))
        try:
            return future.result()
        except BaseException:
            if not future.done():  # interrupted while waiting (Ctrl-C): do not leave the coroutine running
                loop.call_soon_threadsafe(lambda: [each.cancel() for each in task])
            raise


async def _carry(awaitable: Awaitable[R], future: Future[R]) -> None:
    import asyncio

    try:
        value = await awaitable
    except BaseException as error:
        future.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            raise
    else:
        future.set_result(value)


def _in_fresh_loop(awaitable: Awaitable[R]) -> R:
    import asyncio
    from concurrent.futures import Future

    future: Future[R] = Future()
    context = copy_context()

    async def carry() -> R:
        return await awaitable

    def work() -> None:
        _here.loop_waits = True
        try:
            future.set_result(context.run(asyncio.run, carry()))
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread
            future.set_exception(error)

    threading.Thread(target=work, name="ferrule-loop-once", daemon=True).start()
    return future.result()


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's background event loop, started on first use in a daemon thread."""
    global _loop  # noqa: PLW0603  one loop for the process is the point
    if _loop is None or _loop.is_closed():
        with _loop_lock:
            if _loop is None or _loop.is_closed():
                import asyncio

                loop = asyncio.new_event_loop()
                threading.Thread(target=_spin, args=(loop,), name="ferrule-loop", daemon=True).start()
                _loop = loop
    return _loop


def _spin(loop: asyncio.AbstractEventLoop) -> None:
    _here.on_loop = True
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):  # raised in a task of somebody's: all others go on
            continue


def _after_fork() -> None:  # threads do not survive a fork: the child starts its own
    global _here, _loop, _pool, _loop_lock
    _here, _loop, _pool, _loop_lock = _Here(), None, _Pool(POOL_SIZE), threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork)
