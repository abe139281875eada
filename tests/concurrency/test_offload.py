"""The pool and the background loop: bounded, never waiting for themselves, and never keeping the
process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from concurrent.futures import CancelledError
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferrule.concurrency import offload
from ferrule.concurrency import pool as threads
from ferrule.errors import ToolTimeoutError

SRC = Path(__file__).parents[2] / "src"
LONG = 60  # seconds nobody waits for, unless something is broken
place: ContextVar[str] = ContextVar("place", default="nowhere")


@pytest.fixture(autouse=True)
def pool(monkeypatch):
    """A small pool of its own for each test."""
    small = offload.ThreadPool(2)
    monkeypatch.setattr(offload, "_pool", small)
    yield small
    assert small._limit == 2, "somebody stepped aside and did not come back"


class Gate:
    """Work that is stuck until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self) -> str:
        self.entered.release()
        assert self.open.wait(LONG)
        return "through"

    def wait_until_entered(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.entered.acquire(timeout=LONG)


def late(work: Any, timeout_s: float = 0.01) -> ToolTimeoutError:
    """Work that began and was then too late: on a busy machine the first try may be late before it
    began.
    """
    while True:
        with pytest.raises(ToolTimeoutError) as caught:
            offload.run_with_timeout(work, timeout_s, "slow")
        if "still be running" in str(caught.value):
            return caught.value


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open.set()


def boom() -> None:
    raise ZeroDivisionError("by zero")


# -- from sync code


def test_work_runs_in_another_thread_with_the_callers_context():
    """Architecture: always with the caller's context variables."""
    place.set("here")
    assert offload.submit(
        lambda: (place.get(), offload.in_worker(), threading.current_thread().daemon),
    ).result() == ("here", True, True)
    assert not offload.in_worker()


def test_what_work_sets_is_gone_after_it():
    """Architecture: one `copy_context()` a call; the next call in the same thread does not see it."""
    place.set("here")
    for _ in range(5):
        assert offload.submit(lambda: (place.get(), place.set("elsewhere"))[0]).result() == "here"
    assert place.get() == "here"


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError(),
        StopIteration(3),
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        TimeoutError("mine"),
    ],
    ids=repr,
)
def test_whatever_work_raises_is_raised_where_it_is_waited_for(error):
    """And the worker lives on."""

    def fail() -> None:
        raise error

    for wait in (
        lambda: offload.submit(fail).result(),
        lambda: offload.run_with_timeout(fail, LONG, "t"),
    ):
        with pytest.raises(type(error)) as caught:
            wait()
        assert caught.value is error
    assert offload.submit(lambda: 5).result() == 5


def test_at_most_so_many_run_at_once_and_all_are_run(pool):
    """Architecture: a bounded pool; ours: 1,000 jobs."""
    lock = threading.Lock()
    running, most, threads = 0, 0, set()

    def count(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            threads.add(threading.get_ident())
        with lock:
            running -= 1
        return number

    futures = [offload.submit(lambda number=number: count(number)) for number in range(1000)]
    assert [future.result(LONG) for future in futures] == list(range(1000))
    assert most <= 2
    assert len(threads) <= 2
    assert pool._threads <= 2


def test_threads_are_started_as_they_are_needed_and_used_again(pool):
    for _ in range(50):
        assert offload.submit(lambda: 1).result() == 1
        idle(pool)
    assert pool._threads == 1


def idle(pool: Any, threads: int = 0) -> None:
    """Wait until the pool has nothing to do: a result is known before its worker says that it is
    free.
    """
    for _ in range(100_000):
        with pool._lock:
            if pool._idle == pool._threads and (not threads or pool._threads == threads):
                return
        threading.Event().wait(0.0001)
    raise AssertionError(f"{pool._threads} threads, {pool._idle} idle")


def test_work_that_was_cancelled_in_time_is_never_run(gate):
    ran = []
    blocking = [offload.submit(gate) for _ in range(2)]
    gate.wait_until_entered(2)
    waiting = offload.submit(lambda: ran.append(1))
    assert waiting.cancel()
    assert not blocking[0].cancel()
    gate.open.set()
    assert [each.result(LONG) for each in blocking] == ["through", "through"]
    assert offload.submit(lambda: 5).result(LONG) == 5
    with pytest.raises(CancelledError):
        waiting.result()
    assert ran == []


def test_results_are_not_kept_by_the_worker_that_made_them(pool):
    """A big result must not live until the thread has something else to do."""

    class Big:
        pass

    def make() -> Big:
        return Big()

    kept = weakref.ref(offload.submit(make).result())
    idle(pool)
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("end", ["returned", "abandoned in the queue"])
def test_an_idle_worker_keeps_nothing_of_its_last_work(pool, gate, end):
    """Work holds its caller's context, and so perhaps a whole run. The collector is not needed."""

    class Work:
        def __call__(self) -> None:
            pass

    def give_work() -> weakref.ref[Work]:
        work = Work()
        if end == "returned":
            offload.submit(work).result(LONG)
            return weakref.ref(work)
        blocking = [offload.submit(gate) for _ in range(2)]
        gate.wait_until_entered(2)
        _, job = offload._submit(pool, work)
        pool.abandon(job)
        gate.open.set()
        assert [each.result(LONG) for each in blocking] == ["through", "through"]
        return weakref.ref(work)

    gc.disable()
    try:
        kept = give_work()
        ends = time.monotonic() + LONG
        while kept() is not None and time.monotonic() < ends:
            time.sleep(0.001)
        assert kept() is None
    finally:
        gc.enable()


# -- timeouts


def test_what_is_done_in_time_is_returned():
    """Per-tool timeouts. the value."""
    assert offload.run_with_timeout(lambda: 5, LONG, "t") == 5


def test_what_is_late_is_told_and_left_behind(pool, gate):
    """A thread cannot be stopped; it is not counted any more, and another may take its place."""
    for _ in range(5):  # more than the pool has threads
        error = late(gate)
        assert (
            str(error)
            == "`slow` did not finish within 0.01 s. It may still be running: a thread cannot be stopped from outside."
        )
        assert (error.tool, error.timeout_s) == ("slow", 0.01)
        gate.wait_until_entered()
    assert offload.run_with_timeout(lambda: 5, LONG, "t") == 5
    gate.open.set()
    idle(pool, 1)


def test_what_waits_too_long_for_a_thread_never_begins(gate, monkeypatch):
    """The model was told that the tool did not finish; it must not run afterwards, and the text
    does not say that it might.
    """
    ran = []
    blocking = [offload.submit(gate) for _ in range(2)]
    gate.wait_until_entered(2)
    monkeypatch.setattr(offload, "STUCK_S", 0.01)

    async def on_a_loop() -> None:
        await offload.in_worker_thread(lambda: ran.append(1), timeout_s=0.01, name="t")

    for wait in (
        lambda: offload.run_with_timeout(lambda: ran.append(1), 0.01, "t"),
        lambda: asyncio.run(on_a_loop()),
    ):
        with pytest.raises(ToolTimeoutError) as caught:
            wait()
        assert str(caught.value) == (
            "`t` did not finish within 0.01 s. It did not begin: for 0.01 s no thread for tools was free. "
            "Tools that may hang need a `timeout_s`, too."
        )
    gate.open.set()
    assert [each.result(LONG) for each in blocking] == ["through", "through"]
    assert offload.submit(lambda: list(ran)).result(LONG) == []


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_the_time_in_the_queue_does_not_count(on_a_loop):
    """The limit is of the tool, which does nothing while it waits for a thread."""
    first, second = Gate(), Gate()
    blocking = [offload.submit(first), offload.submit(second)]
    for each in (first, second):
        each.wait_until_entered()
    asking = threading.Event()

    def work() -> str:
        return "in time"

    def ask() -> str:
        asking.set()
        if on_a_loop:
            return asyncio.run(offload.in_worker_thread(work, timeout_s=1, name="t"))
        return offload.run_with_timeout(work, 1, "t")

    found: list[Any] = []
    caller = threading.Thread(target=lambda: found.append(ask()))
    caller.start()
    assert asking.wait(LONG)
    caller.join(1.2)  # longer than the limit
    assert found == []
    first.open.set()
    caller.join(LONG)
    second.open.set()
    assert found == ["in time"]
    assert [each.result(LONG) for each in blocking] == ["through", "through"]


def test_work_that_waits_behind_stuck_work_runs_when_that_is_given_up(gate):
    """The threads of abandoned work are replaced at once, not when somebody happens to ask next."""

    callers = [threading.Thread(target=late, args=(gate, 0.2)) for _ in range(2)]
    for caller in callers:
        caller.start()
    gate.wait_until_entered(2)
    behind = [offload.submit(lambda: 5) for _ in range(3)]
    for caller in callers:
        caller.join(LONG)
    assert [each.result(LONG) for each in behind] == [5, 5, 5]


def test_a_timeout_of_the_work_itself_is_no_lateness():
    """`TimeoutError` is what sockets raise."""

    def fail() -> None:
        raise TimeoutError("the socket's")

    with pytest.raises(TimeoutError, match="the socket's") as caught:
        offload.run_with_timeout(fail, LONG, "t")
    assert not isinstance(caught.value, ToolTimeoutError)

    async def main() -> None:
        with pytest.raises(TimeoutError, match="the socket's"):
            await offload.in_worker_thread(fail, timeout_s=LONG, name="t")

    asyncio.run(main())


def test_what_is_done_at_the_last_moment_is_returned_or_late_but_never_lost(pool):
    """The race between a result and its deadline."""
    for _ in range(200):
        with contextlib.suppress(ToolTimeoutError):
            assert offload.run_with_timeout(lambda: 5, 0.0001, "t") == 5
    assert offload.run_with_timeout(lambda: 6, LONG, "t") == 6
    idle(pool)
    assert 1 <= pool._threads <= 2


# -- from a loop


def test_a_loop_goes_on_while_a_worker_works(gate):
    """A sync callable does not block the event loop."""

    async def main() -> str:
        place.set("there")
        waiting = asyncio.ensure_future(offload.in_worker_thread(gate))
        await asyncio.to_thread(gate.wait_until_entered)
        gate.open.set()
        assert await offload.in_worker_thread(place.get) == "there"
        assert await offload.in_worker_thread(place.get, timeout_s=LONG) == "there"
        return await waiting

    assert asyncio.run(main()) == "through"


@pytest.mark.parametrize("timeout_s", [None, LONG])
@pytest.mark.parametrize("error", [StopIteration(3), GeneratorExit()], ids=repr)
def test_whatever_work_raises_is_raised_on_the_loop(timeout_s, error):
    """Also `StopIteration`, which no asyncio future can hold, and `GeneratorExit`, which would
    close the coroutine that waits.
    """

    def stop() -> None:
        raise error

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await offload.in_worker_thread(boom, timeout_s=timeout_s)
        with pytest.raises(RuntimeError) as caught:
            await offload.in_worker_thread(stop, timeout_s=timeout_s)
        assert caught.value.__cause__ is error
        assert repr(error) in str(caught.value)

    asyncio.run(main())


@pytest.mark.parametrize("timeout_s", [None, LONG])
def test_cancelling_stops_the_waiting_at_once(pool, gate, timeout_s):
    """And the stuck threads are replaced, so that cancelled work never starves the pool."""

    async def main() -> None:
        for _ in range(3):
            task = asyncio.ensure_future(offload.in_worker_thread(gate, timeout_s=timeout_s))
            await asyncio.to_thread(gate.wait_until_entered)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await offload.in_worker_thread(lambda: 5) == 5

    asyncio.run(main())
    gate.open.set()
    idle(pool, 1)


@pytest.mark.parametrize("timeout_s", [None, LONG])
def test_cancelled_work_that_did_not_begin_never_begins(gate, timeout_s):
    ran = []

    async def main() -> None:
        blocking = [asyncio.ensure_future(offload.in_worker_thread(gate)) for _ in range(2)]
        await asyncio.to_thread(gate.wait_until_entered, 2)
        task = asyncio.ensure_future(
            offload.in_worker_thread(lambda: ran.append(1), timeout_s=timeout_s),
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        assert await asyncio.gather(*blocking) == ["through", "through"]
        assert await offload.in_worker_thread(lambda: list(ran)) == []

    asyncio.run(main())


def test_late_errors_of_cancelled_work_are_nobodys(gate):
    """No `Future exception was never retrieved` on somebody's screen."""
    complaints = []

    def fail_late() -> None:
        gate()
        raise ZeroDivisionError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context),
        )
        tasks = [
            asyncio.ensure_future(offload.in_worker_thread(fail_late, timeout_s=timeout_s))
            for timeout_s in (None, LONG, 0.01)
        ]
        await asyncio.to_thread(gate.wait_until_entered, 2)
        for task in tasks[:2]:
            task.cancel()
        for task, expected in zip(
            tasks,
            (asyncio.CancelledError, asyncio.CancelledError, ToolTimeoutError),
            strict=True,
        ):
            with pytest.raises(expected):
                await task
        gate.open.set()
        assert await offload.in_worker_thread(lambda: 5) == 5
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert complaints == []


def test_what_is_late_on_a_loop_is_told(gate):
    """A timeout is an error that names the tool; it says what may still be running."""

    async def main() -> str:
        while True:
            with pytest.raises(ToolTimeoutError) as caught:
                await offload.in_worker_thread(gate, timeout_s=0.01, name="slow")
            if "still be running" in str(caught.value):
                return str(caught.value)

    for _ in range(3):
        assert (
            asyncio.run(main())
            == "`slow` did not finish within 0.01 s. It may still be running: a thread cannot be stopped from outside."
        )


def test_a_loop_that_was_closed_meanwhile_does_not_hurt_the_worker(pool, gate):
    """The program ended, the tool did not."""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        task = asyncio.ensure_future(offload.in_worker_thread(gate))
        await asyncio.to_thread(gate.wait_until_entered)
        task.cancel()

    loop.run_until_complete(main())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gate.open.set()
    assert offload.submit(lambda: 5).result(LONG) == 5
    idle(pool)


def test_a_thousand_jobs_from_a_loop():
    async def main() -> list[int]:
        return await asyncio.gather(
            *(offload.in_worker_thread(lambda number=number: number * 2) for number in range(1000)),
        )

    assert asyncio.run(main()) == list(range(0, 2000, 2))


# -- the background loop


async def where() -> tuple[str, str]:
    await asyncio.sleep(0)
    return threading.current_thread().name, place.get()


def test_something_async_is_waited_for_from_sync_code():
    """The bridge runs also where another loop runs in this thread (a notebook)."""
    place.set("here")
    assert offload.run_async(where()) == ("ferrule-loop", "here")

    async def notebook() -> tuple[str, str]:
        return offload.run_async(where())

    assert asyncio.run(notebook()) == ("ferrule-loop", "here")


def test_anything_awaitable_will_do():
    class Later:
        def __await__(self):
            return (yield from asyncio.sleep(0, "value").__await__())

    assert offload.run_async(Later()) == "value"
    with pytest.raises(TypeError):
        offload.run_async(5)


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError(),
        KeyboardInterrupt(),
        SystemExit(3),
        asyncio.CancelledError(),
        TimeoutError("mine"),
    ],
    ids=repr,
)
def test_whatever_a_coroutine_raises_is_raised_and_the_loop_lives_on(error):
    async def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        offload.run_async(fail())
    assert offload.run_async(where())[0] == "ferrule-loop"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_task_that_would_end_the_loop_does_not(error):
    """Asyncio lets these out of `run_forever`; all other runs of the process would wait for ever."""

    async def stray() -> None:
        raise error

    async def start() -> asyncio.Task[None]:
        return asyncio.ensure_future(stray())

    task = offload.run_async(start())
    assert offload.run_async(where())[0] == "ferrule-loop"
    assert offload.run_async(_done(task)) is True
    assert isinstance(task.exception(), error)


async def _done(task: asyncio.Task[Any]) -> bool:
    await asyncio.wait([task])
    return task.done()


def test_a_loop_that_somebody_stops_goes_on_and_one_that_was_closed_is_replaced():
    loop = offload.background_loop()
    loop.call_soon_threadsafe(loop.stop)
    assert offload.run_async(where())[0] == "ferrule-loop"
    assert offload.background_loop() is loop

    closed = asyncio.new_event_loop()
    closed.close()
    kept, offload._loop = offload._loop, closed
    try:
        assert offload.run_async(where())[0] == "ferrule-loop"
        assert offload.background_loop() is not closed
    finally:
        replaced, offload._loop = offload._loop, kept
        replaced.call_soon_threadsafe(replaced.stop)


def test_on_windows_the_background_loop_starts_processes_whatever_the_policy_says(monkeypatch):
    """Programs choose the selector loop there, for psycopg; it starts none, so no MCP server."""
    made = asyncio.new_event_loop()
    monkeypatch.setattr(offload, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(asyncio, "ProactorEventLoop", lambda: made, raising=False)
    monkeypatch.setattr(offload, "_loop", None)
    assert offload.background_loop() is made


def test_there_is_one_background_loop_however_many_ask_at_once(monkeypatch):
    monkeypatch.setattr(offload, "_loop", None)
    meet = threading.Barrier(8)
    found = []

    def ask() -> None:
        meet.wait(LONG)
        found.append(offload.background_loop())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.fixture
def impatient(monkeypatch):
    """A loop is taken for blocked at once; all that is asked of one here really is."""
    monkeypatch.setattr(threads, "REACTS_WITHIN_S", 0.01)


def test_a_warning_names_the_tool_that_blocks_the_loop_and_a_limit_holds(gate, impatient):
    """`async def tool(): time.sleep(...)`, asked for from sync code."""

    async def blocks() -> str:
        return gate()

    with (
        pytest.warns(RuntimeWarning, match="^`t` blocks ferrule's event loop"),
        pytest.raises(
            ToolTimeoutError,
            match=r"^`t` did not finish within 0\.01 s\. It may still be running: it, or another async tool",
        ),
    ):
        offload.run_async_within(blocks, 0.01, 0.01, "t")
    gate.open.set()
    assert offload.run_async(where())[0] == "ferrule-loop"
    assert offload.run_async_within(where, LONG, LONG, "t")[0] == "ferrule-loop"


def test_who_waits_for_a_blocked_loop_without_a_limit_is_warned(gate, impatient, monkeypatch):
    """The other tool waits until the loop is free."""
    monkeypatch.setattr(offload, "_WARNS_AFTER_S", 0.01)

    async def blocks() -> str:
        return gate()

    blocking = threading.Thread(
        target=lambda: offload.run_async(blocks(), name="slow"),
        daemon=True,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        blocking.start()
        gate.wait_until_entered()
        waiting = threading.Timer(0.1, gate.open.set)
        waiting.start()
        assert offload.run_async(where(), name="other")[0] == "ferrule-loop"
        blocking.join(LONG)
    assert {str(each.message).partition(" ")[0] for each in caught} == {"`slow`"}


def test_what_a_blocked_loop_did_not_begin_in_time_never_begins(gate, impatient):
    """The model was told that it did not."""
    made = []

    async def work() -> None:
        made.append("ran")

    offload.background_loop().call_soon_threadsafe(gate)
    gate.wait_until_entered()
    with pytest.raises(
        ToolTimeoutError,
        match="It did not begin: another async tool blocks ferrule's event loop",
    ):
        offload.run_async_within(lambda: made.append("made") or work(), 0.01, 0.01, "t")
    gate.open.set()
    assert offload.run_async(where())[0] == "ferrule-loop"
    assert made == []


def test_an_errand_that_is_cancelled_before_a_blocked_loop_begins_it_is_over_and_never_begins(gate):
    """A worker that stops waits for it: its future was never settled."""
    made = []

    async def work() -> None:
        made.append("ran")

    loop = offload.background_loop()
    loop.call_soon_threadsafe(gate)
    gate.wait_until_entered()
    errand = threads.Errand(work, loop)
    errand.cancel()
    gate.open.set()
    with pytest.raises(CancelledError):
        errand.future.result(LONG)
    assert offload.run_async(where())[0] == "ferrule-loop"
    assert made == []


def test_a_loop_of_its_own_that_is_blocked_keeps_nobody_either(gate, impatient):
    """An async tool that calls a sync program with an async tool that blocks."""

    async def blocks() -> str:
        return gate()

    async def outer() -> None:
        offload.run_async_within(blocks, 0.01, 0.01, "t")

    with (
        pytest.warns(RuntimeWarning, match="^`t` blocks"),
        pytest.raises(ToolTimeoutError, match="ferrule's event loop"),
    ):
        offload.run_async(outer())
    assert offload.run_async_within(where, LONG, LONG, "t")[0] == "ferrule-loop"


@pytest.mark.parametrize("on_own_loop", [False, True])
def test_with_a_limit_what_comes_of_it_comes_as_without(on_own_loop):
    """Values, errors, the caller's context variables."""
    place.set("here")

    async def fails() -> None:
        boom()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    def ask() -> str:
        for make, error in ((fails, ZeroDivisionError), (cancelled, asyncio.CancelledError)):
            with pytest.raises(error):
                offload.run_async_within(make, LONG, LONG, "t")
        return offload.run_async_within(where, LONG, LONG, "t")[1]

    async def outer() -> str:
        return ask()

    assert (offload.run_async(outer()) if on_own_loop else ask()) == "here"


# -- waiting inside waiting


def test_workers_that_wait_for_work_with_a_timeout_do_not_starve_it(pool):
    """Architecture: the pool cannot wait for itself; ours: deeper than it has threads."""

    def nested(depth: int) -> int:
        return (
            1 + offload.run_with_timeout(lambda: nested(depth - 1), LONG, "nested") if depth else 0
        )

    futures = [offload.submit(lambda: nested(6)) for _ in range(4)]
    assert [future.result(LONG) for future in futures] == [6] * 4
    assert pool._limit == 2


def test_workers_that_wait_for_coroutines_that_wait_for_workers_do_not_starve_them(pool):
    """Sync tools that call async agents that call sync tools, more of them than the pool has
    threads.
    """

    async def agent(depth: int) -> int:
        return await offload.in_worker_thread(lambda: tool(depth))

    def tool(depth: int) -> int:
        return 1 + offload.run_async(agent(depth - 1)) if depth else 0

    futures = [offload.submit(lambda: tool(3)) for _ in range(6)]
    assert [future.result(LONG) for future in futures] == [3] * 6
    assert pool._limit == 2


def test_workers_with_loops_of_their_own_do_not_starve_them():
    """`asyncio.run(agent.acall())` in a sync tool."""

    def tool(depth: int) -> int:
        return (
            1 + asyncio.run(offload.in_worker_thread(lambda: tool(depth - 1), timeout_s=LONG))
            if depth
            else 0
        )

    futures = [offload.submit(lambda: tool(3)) for _ in range(4)]
    assert [future.result(LONG) for future in futures] == [3] * 4


def test_sync_code_on_the_background_loop_waits_on_a_loop_of_its_own():
    """An async tool that calls a sync program; waiting for the very loop it stands on would never
    end.
    """

    async def outer() -> tuple[str, str]:
        return offload.run_async(where())

    place.set("here")
    assert offload.run_async(outer()) == ("ferrule-loop-once", "here")

    async def raising() -> None:
        boom()

    async def outer_raising() -> None:
        offload.run_async(raising())

    with pytest.raises(ZeroDivisionError):
        offload.run_async(outer_raising())


def test_work_that_the_background_loop_waits_for_does_not_wait_for_the_loop():
    """An async tool calls a sync program, whose tools run in the pool, and one of them is async."""

    async def async_tool() -> str:
        return (await where())[0]

    async def deeper() -> str:
        return await offload.in_worker_thread(lambda: offload.run_async(async_tool()))

    def sync_program() -> list[str]:
        return [
            offload.submit(lambda: offload.run_async(async_tool())).result(LONG),
            offload.run_with_timeout(lambda: offload.run_async(async_tool()), LONG, "t"),
            offload.submit(
                lambda: offload.submit(lambda: offload.run_async(async_tool())).result(LONG),
            ).result(LONG),
            offload.run_async(deeper()),
        ]

    async def outer() -> list[str]:
        return sync_program()

    assert offload.run_async(outer()) == ["ferrule-loop-once"] * 4
    assert offload.submit(lambda: offload.run_async(async_tool())).result(LONG) == "ferrule-loop"


def test_a_system_without_threads_is_told_and_nothing_is_run_later(pool, monkeypatch):
    """The queue must not keep work whose caller got an error."""
    ran = []

    def refuse(self) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            offload.submit(lambda: ran.append(1))
    assert offload.submit(lambda: 5).result(LONG) == 5
    idle(pool)
    assert ran == []


def test_a_system_with_too_few_threads_makes_do(pool, gate, monkeypatch):
    blocking = offload.submit(gate)
    gate.wait_until_entered()

    def refuse(self) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        waiting = offload.submit(lambda: 5)
        gate.open.set()
        assert waiting.result(LONG) == 5
    assert blocking.result(LONG) == "through"


# -- processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_a_pool_and_a_loop_of_its_own(gate):
    """Threads do not survive a fork; a child that waits for its parent's would wait for ever."""
    blocking = [offload.submit(gate) for _ in range(2)]
    gate.wait_until_entered(2)
    assert offload.run_async(where())[0] == "ferrule-loop"

    def in_child() -> bool:
        found = [
            offload.submit(lambda: 5).result(LONG),
            offload.run_async(where())[0],
            offload.in_worker(),
        ]
        nested = offload.submit(lambda: offload.run_with_timeout(lambda: 6, LONG, "t")).result(LONG)
        return [*found, nested] == [5, "ferrule-loop", False, 6]

    def fork() -> int:
        child = os.fork()
        if child == 0:
            signal.alarm(LONG)
            os._exit(0 if in_child() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert fork() == 0
    gate.open.set()
    assert [each.result(LONG) for each in blocking] == ["through", "through"]
    assert offload.submit(fork).result(LONG) == 0  # from inside a worker
    assert offload.submit(lambda: 5).result(LONG) == 5


def python(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)]
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
    )


def test_a_process_ends_although_tools_hang():
    """Architecture: threads are daemons."""
    done = python("""
        import threading
        from ferrule.concurrency import offload
        from ferrule.errors import ToolTimeoutError
        stuck = threading.Event()
        async def hang():
            import asyncio
            await asyncio.Event().wait()
        try:
            offload.run_with_timeout(stuck.wait, 0.01, "stuck")
        except ToolTimeoutError:
            offload.submit(stuck.wait)
            threading.Thread(target=lambda: offload.run_async(hang()), daemon=True).start()
            print("bye")
    """)
    assert (done.returncode, done.stdout) == (0, "bye\n"), done.stderr


def test_ctrl_c_while_waiting_cancels_the_coroutine_and_frees_the_thread():
    """The main thread is interrupted, what it waited for is let go."""
    done = python("""
        import asyncio, os, signal, threading
        from ferrule.concurrency import offload
        cancelled, stuck, raised = threading.Event(), threading.Event(), threading.Event()
        def once(*_):
            if not raised.is_set():
                raised.set()
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, once)
        def keep_on():
            raised.clear()
            while not raised.wait(0.01):  # one that comes just before the main thread waits would not wake it
                os.kill(os.getpid(), signal.SIGINT)
        def interrupt():
            threading.Thread(target=keep_on, daemon=True).start()
        async def hang():
            try:
                asyncio.get_running_loop().call_soon(interrupt)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        try:
            offload.run_async(hang())
        except KeyboardInterrupt:
            assert cancelled.wait(60)
            print("coroutine")
        def work():
            interrupt()
            stuck.wait(60)
        try:
            offload.run_with_timeout(work, 60, "t")
        except KeyboardInterrupt:
            print("worker", offload._pool._threads)
        stuck.set()
        print(offload.run_async(asyncio.sleep(0, "alive")), offload.submit(lambda: "alive").result())
    """)
    assert (done.returncode, done.stdout) == (0, "coroutine\nworker 0\nalive alive\n"), done.stderr


def test_importing_it_does_not_import_asyncio():
    """Asyncio comes when there is something to do for it."""
    done = python(
        "import sys; from ferrule.concurrency import offload; assert 'asyncio' not in sys.modules, 'asyncio'",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("begun", [True, False])
def test_what_must_not_be_left_half_done_is_over_or_never_begins_when_its_task_is_cancelled(
    pool,
    begun,
):
    """However often it is cancelled."""
    started, going_on, did = threading.Event(), threading.Event(), []

    def work():
        started.set()
        going_on.wait(LONG)
        did.append("all of it")

    async def go():
        gates = (
            []
            if begun
            else [asyncio.ensure_future(offload.in_worker_thread(going_on.wait)) for _ in range(2)]
        )
        await asyncio.sleep(0)
        task = asyncio.ensure_future(offload.run_or_cancel(work))
        await asyncio.sleep(0)
        if begun:
            await asyncio.to_thread(started.wait, LONG)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        if begun:
            assert not task.done()
        going_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.gather(*gates)
        assert await offload.run_or_cancel(lambda: None) is None

    asyncio.run(go())
    assert did == (["all of it"] if begun else [])
