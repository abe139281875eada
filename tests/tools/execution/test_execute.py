import asyncio
import contextvars
import functools
import threading
import warnings

import pytest

from ferrule.concurrency import deadline
from ferrule.concurrency import pool as threads
from ferrule.errors import AsyncToolError, ToolTimeoutError
from ferrule.settings import configure, context
from ferrule.tools.execution.run import arun_tool, is_coroutine_function, run_tool
from ferrule.tools.tool import Tool
from ferrule.values.calls.context import Context

here = contextvars.ContextVar("here", default="nowhere")


async def double(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


class AsyncCallable:
    async def __call__(self, n: int) -> int:
        return 2 * n


class OwnAwaitable:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return self.value


def returns_coroutine(n: int):
    return double(n)


def returns_awaitable(n: int):
    return OwnAwaitable(2 * n)


@functools.wraps(double)
def wrapped(*args, **kwargs):
    return double(*args, **kwargs)


ASYNC = [
    double,
    AsyncCallable(),
    functools.partial(double),
    returns_coroutine,
    returns_awaitable,
    wrapped,
]
IDS = ["async def", "callable", "partial", "returns a coroutine", "returns an awaitable", "wrapped"]


@pytest.mark.parametrize("function", ASYNC, ids=IDS)
class TestAsyncTools:
    def test_raise_in_a_bare_call_and_leave_no_warning(self, function):
        """D9, D10, U56, U61, api.md 6."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(AsyncToolError, match="acall"):
                Tool(function, "f")(n=1)

    def test_raise_inside_a_running_loop_too(self, function):
        async def main():
            with pytest.raises(AsyncToolError):
                Tool(function, "f")(n=1)

        asyncio.run(main())

    def test_run_with_the_opt_in(self, function):
        with context(allow_tool_async_sync_conversion=True):
            assert Tool(function, "f")(n="2") == 4

    def test_run_with_the_opt_in_inside_a_running_loop(self, function):
        """Without deadlock."""

        async def main():
            with context(allow_tool_async_sync_conversion=True):
                return Tool(function, "f")(n=2)

        assert asyncio.run(main()) == 4

    def test_are_awaited_by_acall(self, function):
        assert asyncio.run(Tool(function, "f").acall(n=2)) == 4

    def test_are_run_for_a_driver_without_the_opt_in(self, function):
        """api.md 6."""
        made = Tool(function, "f")
        assert run_tool(made, made.prepare({"n": 2})) == 4

    def test_time_out_in_every_way(self, function):
        made = Tool(function, "f", timeout_s=60)
        checked = made.prepare({"n": 2})
        assert run_tool(made, checked) == asyncio.run(arun_tool(made, checked)) == 4


def test_the_opt_in_may_be_configured():
    configure(allow_tool_async_sync_conversion=True)
    try:
        assert Tool(double)(n=1) == 2
    finally:
        configure(allow_tool_async_sync_conversion=False)


def test_a_future_nobody_awaits_is_cancelled():
    async def main():
        future = asyncio.get_running_loop().create_future()
        with pytest.raises(AsyncToolError):
            Tool(lambda: future, "f")()
        assert future.cancelled()

    asyncio.run(main())


def test_an_async_tool_is_awaited_on_the_callers_own_loop():
    loops = []

    async def where():
        loops.append(asyncio.get_running_loop())

    async def main():
        await Tool(where).acall()
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())


def forever(started: threading.Event, free: threading.Event):
    def wait() -> str:
        started.set()
        free.wait(60)
        return "late"

    return wait


def test_a_sync_tool_times_out_and_says_that_it_may_still_run():
    started, free = threading.Event(), threading.Event()
    made = Tool(forever(started, free), "slow", timeout_s=0.02)
    try:
        for call in (made, lambda: asyncio.run(made.acall())):
            with pytest.raises(ToolTimeoutError, match="may still be running"):
                call()
    finally:
        free.set()


def test_an_async_tool_times_out_and_is_cancelled():
    cancelled = []

    async def hang():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    made = Tool(hang, "slow", timeout_s=0.02)
    with pytest.raises(ToolTimeoutError):
        asyncio.run(made.acall())
    with (
        context(allow_tool_async_sync_conversion=True),
        pytest.raises(ToolTimeoutError, match=r"`slow` did not finish within 0\.02 s"),
    ):
        made()
    assert cancelled == [True, True]


async def refuses():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def catches():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "late"


def returns_refusing():
    return refuses()


@pytest.mark.parametrize("function", [refuses, returns_refusing, catches])
def test_a_limit_holds_whatever_an_async_tool_does_when_it_is_cancelled(function, monkeypatch):
    """In sync and in async code."""
    monkeypatch.setattr(deadline, "GRACE_S", 0.02)
    made = Tool(function, "slow", timeout_s=0.02)
    checked = made.prepare({})
    for call in (lambda: run_tool(made, checked), lambda: asyncio.run(arun_tool(made, checked))):
        with pytest.raises(ToolTimeoutError, match=r"`slow` did not finish within 0\.02 s"):
            call()


def test_a_limit_holds_for_an_async_tool_that_blocks_its_loop(monkeypatch):
    """In sync code another thread waits, and can say so; what it did not let begin leaves no
    warning.
    """
    monkeypatch.setattr(threads, "REACTS_WITHIN_S", 0.02)
    started, free = threading.Event(), threading.Event()

    async def blocks():
        return forever(started, free)()

    made, other = Tool(blocks, "slow", timeout_s=0.02), Tool(double, "double", timeout_s=60)
    try:
        with (
            pytest.warns(RuntimeWarning, match="^`slow` blocks"),
            pytest.raises(ToolTimeoutError, match="blocks ferrule's event loop"),
        ):
            run_tool(made, made.prepare({}))
    finally:
        free.set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_tool(other, other.prepare({"n": 2})) == 4
        with pytest.raises(ToolTimeoutError, match=r"within 0\.02 s\.$"):
            asyncio.run(arun_tool(Tool(overdue, "slow", timeout_s=0.02), made.prepare({})))


async def overdue():
    threading.Event().wait(0.06)
    return "late"


def test_an_async_tool_with_a_limit_sees_and_keeps_the_callers_context_variables():
    async def changes():
        found = here.get()
        here.set("elsewhere")
        return found

    async def main():
        here.set("caller")
        return await Tool(changes, timeout_s=60).acall(), here.get()

    assert asyncio.run(main()) == ("caller", "caller")


def test_cancelling_acall_cancels_an_async_tool_with_a_limit():
    seen = []

    async def main():
        started = asyncio.Event()

        async def hang():
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                seen.append("over")

        task = asyncio.create_task(Tool(hang, timeout_s=60).acall())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["over"]

    asyncio.run(main())


# -- what is read item by item


@pytest.mark.parametrize("timeout_s", [None, 60])
def test_a_generator_is_read_where_the_tool_runs_and_while_its_call_goes_on(timeout_s):
    """Not on the loop, and before the `Context` says that nobody waits."""
    read = []

    def count(ctx: Context):
        for n in range(3):
            read.append((threading.get_ident(), ctx.cancelled))
            yield n

    made = Tool(count, timeout_s=timeout_s)
    checked = made.prepare({})
    assert (
        run_tool(made, checked, whole=True)
        == asyncio.run(arun_tool(made, checked, whole=True))
        == [0, 1, 2]
    )
    assert not any(cancelled for _, cancelled in read)
    in_place = [thread == threading.get_ident() for thread, _ in read]
    assert in_place == [timeout_s is None] * 3 + [False] * 3


@pytest.mark.parametrize("timeout_s", [None, 60])
@pytest.mark.parametrize(
    "make",
    [iter, lambda items: map(int, items), lambda items: (each for each in items)],
    ids=["iter", "map", "generator"],
)
def test_other_iterators_are_read_there_too_also_of_async_functions(make, timeout_s):
    """They were read when the result was shown."""
    threads_seen = []

    def seen(n):
        threads_seen.append(threading.get_ident())
        return n

    def sync():
        return map(seen, make([1, 2]))

    async def is_async():
        return sync()

    def returns_awaitable():
        return is_async()

    for function in (sync, is_async, returns_awaitable):
        made = Tool(function, "f", timeout_s=timeout_s)
        checked = made.prepare({})
        assert run_tool(made, checked, whole=True) == [1, 2]
        threads_seen.clear()
        assert asyncio.run(arun_tool(made, checked, whole=True)) == [1, 2]
        assert threading.get_ident() not in threads_seen


def test_a_direct_call_returns_the_generator_itself():
    """Whoever calls a tool by hand reads it as that of its function."""

    def lines():
        yield 1

    for timeout_s in (None, 60):
        made = Tool(lines, timeout_s=timeout_s)
        assert [next(made()), next(asyncio.run(made.acall()))] == [1, 1]
        assert made.call_result().value == asyncio.run(made.acall_result()).value == [1]


@pytest.mark.parametrize("how", ["sync", "async", "cancelled"])
def test_a_generator_without_end_is_given_up_and_ends_at_its_next_item(how):
    """Its thread is free again."""
    began, closed = threading.Event(), threading.Event()

    def endless():
        try:
            while True:
                began.set()
                yield threading.Event().wait(0.001)
        finally:
            closed.set()

    made = Tool(endless, "endless", timeout_s=60 if how == "cancelled" else 0.05)
    checked = made.prepare({})

    async def cancelled():
        task = asyncio.create_task(arun_tool(made, checked, whole=True))
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        await task

    if how == "cancelled":
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())
    else:
        with pytest.raises(ToolTimeoutError):
            run_tool(made, checked, whole=True) if how == "sync" else asyncio.run(
                arun_tool(made, checked, whole=True),
            )
    assert not began.is_set() or closed.wait(60)


def test_a_timeout_error_of_the_function_stays_its_own():
    def sync():
        raise TimeoutError("mine")

    async def is_async():
        raise TimeoutError("mine")

    for function in (sync, is_async):
        with pytest.raises(TimeoutError, match="mine") as caught:
            asyncio.run(Tool(function, timeout_s=60).acall())
        assert not isinstance(caught.value, ToolTimeoutError)


def test_an_async_tool_with_a_timeout_still_raises_in_a_bare_call():
    for function in (double, returns_coroutine):
        with pytest.raises(AsyncToolError):
            Tool(function, timeout_s=60)(n=1)


def test_cancelling_acall_cancels_an_async_tool():
    seen = []

    async def hang():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main():
        task = asyncio.create_task(Tool(hang).acall())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_cancelling_acall_of_a_sync_tool_stops_the_waiting_only():
    """The documented truth."""
    started, free, done = threading.Event(), threading.Event(), threading.Event()

    def wait():
        started.set()
        free.wait(60)
        done.set()

    async def main():
        task = asyncio.create_task(Tool(wait).acall())
        while not started.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not done.is_set()
    free.set()
    assert done.wait(60)


@pytest.mark.parametrize("timeout_s", [None, 60])
def test_context_variables_are_the_callers(timeout_s):
    def sync():
        return here.get()

    async def is_async():
        return here.get()

    async def main():
        here.set("caller")
        return [await Tool(each, timeout_s=timeout_s).acall() for each in (sync, is_async)]

    assert asyncio.run(main()) == ["caller", "caller"]
    token = here.set("sync caller")
    try:
        assert Tool(sync, timeout_s=timeout_s)() == "sync caller"
        with context(allow_tool_async_sync_conversion=True):
            assert Tool(is_async, timeout_s=timeout_s)() == "sync caller"
    finally:
        here.reset(token)


def test_a_sync_tool_runs_in_the_callers_own_thread():
    """U55, architecture: the sync driver runs a single sync tool in place."""
    assert Tool(threading.get_ident, schema={})() == threading.get_ident()


def test_tools_may_call_tools():
    """ours: no lock and no pool waits for itself."""
    inner = Tool(returns_coroutine, "inner")
    with context(allow_tool_async_sync_conversion=True):
        outer = Tool(lambda: inner(n=2), "outer")
        assert outer() == 4
        assert asyncio.run(outer.acall()) == 4

        async def middle():
            return outer()

        assert Tool(middle)() == 4


def test_coroutine_functions_are_known_where_that_is_sure():
    assert [is_coroutine_function(each) for each in ASYNC] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert not is_coroutine_function(len)
    assert not is_coroutine_function(3)
