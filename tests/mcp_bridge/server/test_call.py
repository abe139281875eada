"""One call, from its arguments to its result."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time

import pytest
from mcp_talk import ERAS, call, client, refusal, talk, text

import ferrule
from ferrule import Context, Tool, is_cancelled
from ferrule.errors import ToolArgumentsError, ToolRetry, ToolStop
from ferrule.mcp_bridge import MCPApp, current_mcp_call

types = pytest.importorskip("mcp_types", reason="needs the extra: pip install 'ferrule[mcp]'")


def add(a: int, b: int = 2) -> int:
    return a + b


def slow(seen: list[str] | None = None) -> str:
    while not is_cancelled():
        time.sleep(0.005)
    return "stopped"


@pytest.mark.parametrize("era", ERAS)
def test_arguments_are_coerced_before_the_function_runs(era: str) -> None:
    assert text(call(MCPApp([add]), era, "add", {"a": "1", "b": 2.0})) == "3"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="missing"),
        pytest.param({"a": "x"}, id="wrong type"),
        pytest.param({"a": 1, "c": 2}, id="unknown"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(era: str, arguments: dict) -> None:
    """An error result, in the words of our own loop."""
    result = call(MCPApp([add]), era, "add", arguments)
    with pytest.raises(ToolArgumentsError) as raised:
        Tool(add).prepare(arguments)
    assert (result.is_error, text(result)) == (True, str(raised.value))


def boom() -> None:
    msg = "no such row"
    raise LookupError(msg)


@pytest.mark.parametrize("era", ERAS)
def test_what_a_tool_raises_is_told_without_a_traceback(era: str, caplog) -> None:
    """Neither a traceback nor a place in a file; those go to the log."""
    with caplog.at_level(logging.WARNING, "ferrule.mcp"):
        result = call(MCPApp([boom]), era, "boom")
    assert (result.is_error, text(result)) == (
        True,
        "Execution error in boom: LookupError: no such row",
    )
    assert "test_call.py" in caplog.text


def test_errors_can_be_masked() -> None:
    """What was written for the model is told all the same."""

    def again() -> None:
        msg = "Give a date."
        raise ToolRetry(msg)

    app = MCPApp([boom, again, add], mask_errors=True)
    assert text(call(app, ERAS[1], "boom")) == "Execution error in boom."
    assert text(call(app, ERAS[1], "again")) == "Give a date."
    assert "expected an integer" in text(call(app, ERAS[1], "add", {"a": "x"}))


def test_a_tool_that_stops_the_run_gives_an_error() -> None:
    """There is no run to stop."""

    def enough() -> None:
        msg = "enough"
        raise ToolStop(msg)

    result = call(MCPApp([enough]), ERAS[1], "enough")
    assert result.is_error
    assert "enough" in text(result)


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_may_answer_with_an_error_of_the_protocol(era: str) -> None:
    from mcp.shared.exceptions import MCPError

    def gone() -> None:
        raise MCPError(-32602, "gone", {"uri": "x"})

    error = refusal(MCPApp([gone]), era, "gone")
    assert (error.code, error.message, error.data) == (-32602, "gone", {"uri": "x"})


def test_sync_tools_run_in_threads_and_async_ones_on_the_loop() -> None:
    def here() -> int:
        return threading.get_ident()

    async def there() -> int:
        return threading.get_ident()

    app = MCPApp([here, there])

    async def act(connected):
        sync, on_loop = [
            int(text(await connected.call_tool(name, {}))) for name in ("here", "there")
        ]
        return sync != threading.get_ident(), on_loop == threading.get_ident()

    assert talk(app, ERAS[1], act) == (True, True)


def test_context_variables_and_settings_reach_the_tool() -> None:
    """Those in force where it is served, and of settings those where the application was made."""
    who = contextvars.ContextVar("who", default="nobody")

    def whose() -> str:
        return f"{who.get()} {ferrule.settings.max_workers}"

    with ferrule.context(max_workers=3):
        app = MCPApp([whose])
    who.set("me")
    assert text(call(app, ERAS[1], "whose")) == "me 3"


@pytest.mark.parametrize("era", ERAS)
def test_cancelling_ends_an_async_tool_and_tells_a_sync_one(era: str) -> None:
    begun, ended, stopped = threading.Event(), threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def looks() -> None:
        begun.set()
        while not is_cancelled():
            time.sleep(0.002)
        stopped.set()

    app = MCPApp([waits, looks])

    async def act(connected):
        for name, over in (("waits", ended), ("looks", stopped)):
            begun.clear()
            calling = asyncio.create_task(connected.call_tool(name, {}))
            await asyncio.to_thread(begun.wait)
            calling.cancel()
            assert await asyncio.to_thread(over.wait, 10)
        return True

    assert talk(app, era, act)


@pytest.mark.parametrize("own", [True, False], ids=["of the tool", "of the server"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_call_that_takes_too_long_is_an_error(own: bool, sync: bool) -> None:
    over = threading.Event()

    async def asleep() -> None:
        await asyncio.Event().wait()

    def looks() -> None:
        while not is_cancelled():
            time.sleep(0.002)
        over.set()

    tool = Tool(looks if sync else asleep, "tool", timeout_s=0.05 if own else None)
    result = call(MCPApp([tool], timeout_s=60 if own else 0.05), ERAS[1], "tool")
    assert result.is_error
    assert "`tool` did not finish within 0.05 s" in text(result)
    if sync:
        assert over.wait(60)


def test_a_tool_of_its_own_time_is_not_cut_short_by_the_server() -> None:
    """Per-tool timeout."""

    async def short() -> str:
        await asyncio.sleep(0.05)
        return "done"

    assert (
        text(call(MCPApp([Tool(short, timeout_s=30)], timeout_s=0.001), ERAS[1], "short")) == "done"
    )


@pytest.mark.parametrize(
    ("limit", "concurrent", "most"),
    [(2, True, 2), (None, False, 1)],
    ids=["a limit for all", "a tool that runs alone"],
)
def test_no_more_calls_run_at_once_than_are_allowed(
    limit: int | None,
    concurrent: bool,
    most: int,
) -> None:
    running, highest = 0, 0

    async def work() -> None:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    app = MCPApp([Tool(work, concurrent=concurrent)], max_concurrency=limit)

    async def act(connected):
        await asyncio.gather(*[connected.call_tool("work", {}) for _ in range(6)])

    talk(app, ERAS[1], act)
    assert highest == most


def test_a_tool_sees_the_call_of_the_client() -> None:
    """What only the SDK can do is done with what it gave us."""

    def who() -> str:
        place = current_mcp_call()
        return f"{place.request.session.client_params.client_info.name} {place.params.name}"

    assert current_mcp_call() is None
    assert (
        text(
            call(
                MCPApp([who]),
                ERAS[0],
                "who",
                client_info=types.Implementation(name="me", version="1"),
            ),
        )
        == "me who"
    )


def test_outside_a_call_nothing_is_cancelled() -> None:
    assert not is_cancelled()


def test_after_a_call_was_cancelled_others_go_on() -> None:
    """The connection stays usable."""
    begun = threading.Event()

    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    app = MCPApp([waits, add])

    async def act():
        async with client(app, ERAS[1]) as connected:
            calling = asyncio.create_task(connected.call_tool("waits", {}))
            await asyncio.to_thread(begun.wait)
            calling.cancel()
            return text(await connected.call_tool("add", {"a": 1}))

    assert asyncio.run(act()) == "3"


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_that_takes_a_context_gets_one_of_this_call(era: str) -> None:
    """Issue 4's `Context`: progress and cancellation go the client's way."""
    keys = []

    def work(ctx: Context, n: int) -> str:
        keys.append(ctx.key)
        ctx.progress("half", done=1, total=2)
        return f"{n} {ctx.cancelled}"

    told = []

    async def heard(done, total, message) -> None:
        told.append((done, total, message))

    app = MCPApp([work])

    async def act(connected):
        return [
            text(await connected.call_tool("work", {"n": 1}, progress_callback=heard))
            for _ in range(2)
        ]

    assert talk(app, era, act) == ["1 False", "1 False"]
    assert told == [(1, 2, "half")] * 2
    assert len(set(keys)) == 2


@pytest.mark.parametrize("era", ERAS)
def test_tools_of_another_server_can_be_served_again(era: str) -> None:
    """Blocks, structured values and errors pass whole."""

    def mixed() -> list:
        return ["a", ferrule.Image(data="AAAA")]

    def known() -> dict:
        return {"a": 1}

    inner = MCPApp([Tool(each, effect="read") for each in (mixed, known, boom)])
    with ferrule.MCPServer.in_memory(inner.server, trust=True) as tools:
        outer = MCPApp(list(tools))
        for name in ("mixed", "known", "boom"):
            there, here = call(inner, era, name), call(outer, era, name)
            assert (there.content, there.structured_content, there.is_error) == (
                here.content,
                here.structured_content,
                here.is_error,
            )


def test_what_cannot_be_sent_does_not_lose_the_result() -> None:
    """Progress is a courtesy."""

    def tells() -> str:
        ferrule.progress("x")
        return "done"

    app = MCPApp([tells])

    async def act(connected):
        from mcp.server.session import ServerSession

        async def broken(self, *args) -> None:
            msg = "broken"
            raise LookupError(msg)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServerSession, "report_progress", broken)
            return text(await connected.call_tool("tells", {}))

    assert talk(app, ERAS[1], act) == "done"


def test_nothing_is_left_of_a_call_that_ended_in_an_error_of_the_protocol() -> None:
    """No task of ours outlives its call."""
    from mcp.shared.exceptions import MCPError

    def gone() -> None:
        ferrule.progress("x")
        raise MCPError(-32602, "gone")

    app = MCPApp([gone])

    async def act(connected):
        with pytest.raises(MCPError, match="gone"):
            await connected.call_tool("gone", {}, progress_callback=_ignored)
        await asyncio.sleep(0)
        return [task for task in asyncio.all_tasks() if "_send_all" in repr(task)]

    assert talk(app, ERAS[1], act) == []


async def _ignored(*_: object) -> None: ...


class Mine(BaseException):
    pass


async def of_a_cancelled_task() -> None:
    waiting = asyncio.ensure_future(asyncio.sleep(60))
    waiting.cancel()
    await waiting


ENDS = {
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
    "cancelled": asyncio.CancelledError(),
    "of_ones_own": Mine(),
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("end", ENDS)
def test_what_would_end_a_process_ends_the_call_only(end: str, is_async: bool) -> None:
    """A server outlives its tools."""

    def ends() -> None:
        raise ENDS[end]

    async def aends() -> None:
        raise ENDS[end]

    app = MCPApp({"ends": aends if is_async else ends, "add": add})

    async def act(connected):
        return await connected.call_tool("ends", {}), await connected.call_tool("add", {"a": 1})

    ended, next_one = talk(app, ERAS[0], act)
    assert ended.is_error
    assert type(ENDS[end]).__name__ in text(ended)
    assert text(next_one) == "3"


def test_a_tool_that_awaits_what_was_cancelled_fails(caplog) -> None:
    """Its own call was not cancelled."""
    with caplog.at_level(logging.WARNING, "ferrule.mcp"):
        result = call(MCPApp([of_a_cancelled_task]), ERAS[1], "of_a_cancelled_task")
    assert (result.is_error, text(result)) == (
        True,
        "Execution error in of_a_cancelled_task: CancelledError",
    )
    assert caplog.records


def test_a_check_of_arguments_that_would_end_the_process_ends_the_call_only() -> None:
    """What comes with a tool is code of somebody's, too."""

    def needs(args: dict) -> bool:
        raise SystemExit

    app = MCPApp([Tool(add, require_confirmation=needs)], mask_errors=True)
    result = call(app, ERAS[1], "add", {"a": 1})
    assert (result.is_error, text(result)) == (
        True,
        "The call to `add` was not run: whether it needs consent could not be decided.",
    )
