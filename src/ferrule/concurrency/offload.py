"""Run work elsewhere: in the bounded pool of worker threads, or on the one background event loop.

Threads are daemons: a tool that hangs never keeps the process from ending. Work always runs with
the caller's context variables.

Three rules prevent deadlock: a worker that waits for other work lets another thread take its place;
a thread stuck in abandoned work is not counted; and work that the background loop itself waits for
gets a separate loop.

Ctrl-C. Python raises `KeyboardInterrupt` in the main thread, between any two steps of its code.
Everything in ferrule keeps these promises:

- **In a wait** for a worker or a loop, the wait ends at once and the interrupt propagates. Work
  that has not begun never begins. A running thread cannot be stopped: it is abandoned. Async work
  is cancelled. Under `asyncio.run`, Ctrl-C cancels the main task instead; then the waits for work
  that must not be left half done (`run_or_cancel`, `to_its_end`) go on until it has ended.
- **In a tool**, or in any other code of the user, the interrupt is not an error of that code: it is
  not turned into a result for the model. It ends the run's execution as interrupted. The journal
  says that the call began but not how it ended, so `resume` treats it like a call of a process that
  died.
- **In a write to a store**, the transaction is complete or undone, never in part. Which of the two
  may be unknown here, so `resume` goes by what the store has. The lease is given back: any process
  can resume at once.

The means are always the same. A cleanup that must happen is in a `finally` or in an `__exit__`
written in C (locks, connections), where Python handles no signal; it finds out what is still held
rather than remember it. And an interrupt that async work raises on the background loop goes to the
caller that waits for that work: other work on the loop goes on.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ferrule.concurrency.forking import ForkLock, run_in_child
from ferrule.concurrency.pool import REACTS_WITHIN_S, Errand, Job, ThreadPool, Timed, here
from ferrule.errors import ToolTimeoutError

if TYPE_CHECKING:  # asyncio takes as long to import as pydantic: it is imported when first needed
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future

R = TypeVar("R")

POOL_SIZE = 32
"""The maximum number of tools that run in threads at once, over all runs of the process."""
_HELPS_AFTER_S = 0.05
"""After waiting this long for queued work, a thread does the work itself."""
STUCK_S = 300.0
"""A queued call with a time limit fails if no work began for this long.

Its own limit starts only when it begins.
"""
_TELLS_WITHIN_S = 5.0
"""A loop that does not report an exceeded time limit within this time is blocked."""
_WARNS_AFTER_S = 1.0
"""After waiting this long for async work, sync code checks whether the loop is blocked."""
_BLOCKED = (
    "blocks ferrule's event loop, as `time.sleep` does: async tools have to wait with `await`."
)


class Aside:
    """A block in which a worker only waits for other work: the pool may use another thread."""

    __slots__ = ("_pool",)

    def __enter__(self) -> None:
        # The pool of now: after a fork, the module has another one.
        self._pool = _pool if here.worker else None
        if self._pool is not None:
            self._pool.widen(1)

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.widen(-1)


_pool = ThreadPool(POOL_SIZE)
_lent_pool = ThreadPool(POOL_SIZE, runs_tools=False, name="ferrule-call")
"""Threads that work for a thread which waits for them meanwhile, one for one (`Lent`)."""
_loop: asyncio.AbstractEventLoop | None = None
_loop_starting = ForkLock()


def in_worker() -> bool:
    """Whether this thread belongs to the pool. Code running here must not wait for the pool."""
    return here.worker


def is_awaited_by_loop() -> bool:
    """Whether the background loop is blocked until this thread is done.

    Waiting for the loop here would deadlock.
    """
    return here.on_loop or here.loop_waits


def inherit_loop_wait() -> Callable[[], None]:
    """A function for a new thread to call first, if this thread will wait for that thread.

    The new thread then avoids the background loop wherever this thread does.
    """
    waits = is_awaited_by_loop()

    def begin() -> None:
        here.loop_waits = waits

    return begin


def submit(function: Callable[[], R]) -> Future[R]:
    """Run a function in the pool. If its future is cancelled before it begins, it never runs."""
    future, _ = _submit(_pool, function)
    return future


def _submit(pool: ThreadPool, function: Callable[[], R]) -> tuple[Future[R], Job]:
    from concurrent.futures import Future

    future: Future[R] = Future()

    def run() -> Any:
        if not future.set_running_or_notify_cancel():
            return None  # cancelled while it was queued
        return function()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    job = Job(run, settle, loop_waits=is_awaited_by_loop())
    pool.put(job)
    return future, job


class Lent(Generic[R]):
    """A block that waits for a function in another thread, instead of running it here.

    Then it can end without the function: one that is not done at its end is abandoned. Because
    this thread only waits, the other one is not counted among the workers, and what it calls may
    use all of them.
    """

    __slots__ = ("_job", "_pool", "_waits", "future")

    future: Future[R]
    """Gets the result of the function."""

    def __init__(self, function: Callable[[], R], tell: Callable[[], object]) -> None:
        """`tell` is called when the function has ended, in its thread."""
        self._waits = Aside()
        self._pool = _lent_pool
        self._pool.widen(1)
        try:
            self.future, self._job = _submit(self._pool, function)
        except BaseException:
            self._pool.widen(-1)
            raise
        self.future.add_done_callback(lambda _: tell())

    def __enter__(self) -> Self:
        self._waits.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._waits.__exit__()
        if not self.future.done():
            self._pool.abandon(self._job)
        self._pool.widen(-1)


def result_or_run(future: Future[R], function: Callable[[], R]) -> R:
    """The result of submitted work.

    If the work does not begin soon, it runs in this thread: all workers may be waiting for this
    thread.
    """
    from concurrent.futures import wait

    while not future.running() and not wait((future,), _HELPS_AFTER_S).done:
        if future.cancel():
            return function()
    return future.result()


def run_with_timeout(
    function: Callable[[], R], timeout_s: float, name: str, *, left_s: float | None = None
) -> R:
    """Run a function in the pool and wait at most `timeout_s` seconds from its start.

    `left_s` is what is left of that limit, if another step has used a part of it. After the limit,
    the thread is abandoned, and `ToolTimeoutError` is raised.
    """
    begun = threading.Event()
    if left_s is None:
        left_s = timeout_s
    work = Timed(function, left_s, begun.set)
    with Aside():
        future, job = _submit(_pool, work)
        try:
            taken = _pool.taken
            while not begun.wait(STUCK_S):
                if taken == _pool.taken:
                    raise _never_begun(name, timeout_s, job)
                taken = _pool.taken
            try:
                return future.result(work.left_s())
            except TimeoutError as late:
                if future.done():  # it just finished, or the function itself raised a TimeoutError
                    return future.result()
                raise ToolTimeoutError(name, timeout_s, abandoned=_pool.abandon(job)) from late
        except BaseException:
            # Ctrl-C, while waiting or while an exceeded limit is reported.
            if not future.done():
                _pool.abandon(job)
            raise


def _never_begun(name: str, timeout_s: float, job: Job) -> ToolTimeoutError:
    reason = (
        f" It did not begin: for {STUCK_S:g} s no thread for tools was free. "
        "Tools that may hang need a `timeout_s`, too."
    )
    return ToolTimeoutError(name, timeout_s, abandoned=_pool.abandon(job), because=reason)


async def in_worker_thread(
    function: Callable[[], R],
    *,
    timeout_s: float | None = None,
    name: str = "",
    left_s: float | None = None,
) -> R:
    """Run a function in the pool without blocking the loop.

    Cancelling stops the wait, not the thread; work that has not begun never runs. The
    time limit works as in `run_with_timeout`.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[R] = loop.create_future()
    begun: asyncio.Future[None] = loop.create_future()
    if left_s is None:
        left_s = timeout_s
    work = function
    if left_s is not None:
        work = Timed(function, left_s, partial(_tell, loop, begun))
    job = Job(work, partial(_tell, loop, waiter), loop_waits=here.loop_waits)
    with Aside():  # needed if a worker runs its own loop
        _pool.put(job)
        try:
            if timeout_s is None or not isinstance(work, Timed):
                return await waiter
            if not await _is_begun(begun):
                raise _never_begun(name, timeout_s, job)
            done, _ = await asyncio.wait((waiter,), timeout=work.left_s())
        except BaseException:
            if waiter.cancelled() or not waiter.done():
                _pool.abandon(job)
                waiter.cancel()
            raise
    if done:
        return waiter.result()
    waiter.cancel()
    raise ToolTimeoutError(name, timeout_s, abandoned=_pool.abandon(job))


async def _is_begun(begun: asyncio.Future[None]) -> bool:
    """Wait until the queued work begins; False if the pool is stuck."""
    import asyncio

    taken = _pool.taken
    while not (await asyncio.wait((begun,), timeout=STUCK_S))[0]:
        if taken == _pool.taken:
            return False
        taken = _pool.taken
    return True


async def run_or_cancel(function: Callable[[], R]) -> R:
    """Like `in_worker_thread`, but a cancellation waits for work that has begun."""
    from ferrule.concurrency.completion import ClaimedCompletion, completed  # needs asyncio

    claim = threading.Lock()
    ended: ClaimedCompletion[Any] = ClaimedCompletion(claim)

    def run_if_claimed() -> R | None:
        if not claim.acquire(blocking=False):
            return None  # cancelled while it was queued
        return function()

    with Aside():
        put(_pool, run_if_claimed, ended)
        return await completed(ended)


async def to_its_end(pool: ThreadPool, function: Callable[[], R]) -> R:
    """Run a function in a pool without blocking the loop.

    Queued work always runs; a cancellation is raised when it has ended.
    """
    import asyncio

    from ferrule.concurrency.completion import Completion, completed

    return await completed(put(pool, function, Completion(loop=asyncio.get_running_loop())))


def put(
    pool: ThreadPool, function: Callable[[], R], future: asyncio.Future[R]
) -> asyncio.Future[R]:
    """Run a function in a pool; the future gets its result, and is returned.

    Queued work always runs.
    """
    pool.put(Job(function, partial(_tell, future.get_loop(), future), loop_waits=here.loop_waits))
    return future


def _tell(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    value: Any = None,
    error: BaseException | None = None,
) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile: no caller is waiting
        loop.call_soon_threadsafe(_wake, future, value, error)


def _wake(waiter: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    try:
        if waiter.done():
            return
        if error is None:
            waiter.set_result(value)
        elif isinstance(error, (StopIteration, GeneratorExit)):
            # A future refuses the first; the second would close its awaiter.
            refused = RuntimeError(f"the function raised {error!r}")
            refused.__cause__ = error
            waiter.set_exception(refused)
        else:
            waiter.set_exception(error)
    finally:
        # Ctrl-C came in between. Without another try, a task could wait forever for a future that
        # refuses to be cancelled.
        if not waiter.done():
            waiter.get_loop().call_soon(_wake, waiter, value, error)


def run_async(awaitable: Awaitable[R], *, name: str = "") -> R:
    """Wait for an awaitable from sync code.

    It runs on the background loop, even if another loop runs in this thread.

    `name` is the awaited tool, if any. If a tool blocks the loop meanwhile, a `RuntimeWarning`
    names it.
    """
    with Aside():
        errand = Errand(lambda: awaitable, _loop_to_wait_for(), name)
        try:
            while True:
                try:
                    return errand.future.result(_WARNS_AFTER_S)
                except TimeoutError:
                    if errand.future.done():  # it just finished, or raised a TimeoutError itself
                        return errand.future.result()
                if not errand.is_reacted_to():
                    _warn_of_blocker(errand)
        except BaseException:
            errand.cancel()
            raise


def _loop_to_wait_for() -> asyncio.AbstractEventLoop | None:
    """The background loop; None (a separate loop) if it is blocked until this thread is done."""
    if is_awaited_by_loop():
        return None
    return background_loop()


def _warn_of_blocker(errand: Errand[Any]) -> None:
    if name := errand.blocker():
        warnings.warn(f"`{name}` {_BLOCKED}", RuntimeWarning, stacklevel=3)


def run_async_within(
    make: Callable[[], Awaitable[R]], left_s: float, timeout_s: float, name: str
) -> R:
    """`run_async` with a time limit.

    `make` is called on the loop, and its awaitable enforces the limit (`deadline.within`).

    If the loop is blocked, perhaps by this very work, a `RuntimeWarning` names the blocking tool,
    and this function raises `ToolTimeoutError`. Work that has not begun by then never runs.
    """
    from concurrent.futures import wait

    with Aside():
        errand = Errand(make, _loop_to_wait_for(), name)
        try:
            over = wait((errand.future,), max(left_s, 0)).done
            tells_until = time.monotonic() + _TELLS_WITHIN_S
            while not over and time.monotonic() < tells_until and errand.is_reacted_to():
                over = wait((errand.future,), REACTS_WITHIN_S).done
            if not over:
                _warn_of_blocker(errand)
            if errand.future.cancel():
                reason = f" It did not begin: another async tool {_BLOCKED}"
                raise ToolTimeoutError(name, timeout_s, because=reason)
            if not over:
                reason = f" It may still be running: it, or another async tool, {_BLOCKED}"
                raise ToolTimeoutError(name, timeout_s, because=reason)
            return errand.future.result()
        except BaseException:
            errand.cancel()
            raise


def run_blocking(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends, because everything in it blocks, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError(f"`{coroutine.__qualname__}` awaited something, and no event loop runs it.")


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's background event loop, started on first use in a daemon thread."""
    global _loop
    if _loop is None or _loop.is_closed():
        with _loop_starting.lock:
            if _loop is None or _loop.is_closed():
                loop = _new_background_loop()
                spinning = partial(_spin, loop)
                threading.Thread(target=spinning, name="ferrule-loop", daemon=True).start()
                _loop = loop
    return _loop


def _new_background_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    # On Windows, not the policy's loop: a program may choose one (for psycopg) that cannot start
    # processes such as MCP servers.
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop()
    return asyncio.new_event_loop()


def _spin(loop: asyncio.AbstractEventLoop) -> None:
    here.on_loop = True
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):  # raised in one task: all others continue
            continue


def _forget_threads() -> None:
    """Give the child of a fork a pool of its own, and a loop when it needs one."""
    global _lent_pool, _loop, _pool
    _pool.is_forked = _lent_pool.is_forked = True
    _loop, _pool = None, ThreadPool(POOL_SIZE)
    _lent_pool = ThreadPool(POOL_SIZE, runs_tools=False, name="ferrule-call")


run_in_child(_forget_threads)
