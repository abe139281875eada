"""How long requests wait while a server asks (M59), and the progress of calls."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from ferrule import MCPServer
from ferrule.errors import MCPError
from ferrule.mcp_bridge.connection.session import Clocks


def ends(clocks: Clocks) -> list[float | None]:
    """When each request under way is given up, from now."""
    now = asyncio.get_running_loop().time()
    return [
        None if (when := each.when()) is None else round(when - now) for each in clocks._running
    ]


class Person:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self.gone: list[str] = []

    async def ask(self, params: dict) -> dict:
        self.waiting[params["message"]] = asyncio.get_running_loop().create_future()
        try:
            await self.waiting[params["message"]]
        except asyncio.CancelledError:
            self.gone.append(params["message"])
            raise
        return {"action": "accept"}

    async def answer(self, message: str, asked: asyncio.Task) -> None:
        self.waiting[message].set_result(None)
        assert await asked == {"action": "accept"}


async def begun(hook, message: str) -> asyncio.Task:
    task = asyncio.ensure_future(hook({"message": message}))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_clocks_stand_until_the_last_question_is_answered() -> None:
    """All of them, as the server does not say which call asks; a limit for the whole call holds all
    the same.
    """

    async def main() -> None:
        clocks, person = Clocks(), Person()
        hook, now = clocks.stopped_by(person.ask), asyncio.get_running_loop().time()
        async with (
            clocks.request(100, None, is_call=True) as first,
            clocks.request(100, now + 500, is_call=True) as second,
        ):
            assert ends(clocks) == [100, 100]
            one, two = await begun(hook, "one"), await begun(hook, "two")
            assert ends(clocks) == [None, 500]
            first()
            second()  # progress meanwhile starts nothing
            assert ends(clocks) == [None, 500]
            await person.answer("two", two)
            assert ends(clocks) == [None, 500]
            async with clocks.request(30, None, is_call=False):
                assert ends(clocks) == [None, 500, 30]
            await person.answer("one", one)
            assert ends(clocks) == [100, 100]

    asyncio.run(main())


def test_progress_prolongs_up_to_the_end_and_where_there_is_none_not_at_all() -> None:
    async def main() -> None:
        clocks, now = Clocks(), asyncio.get_running_loop().time()
        async with (
            clocks.request(100, now + 50, is_call=True) as first,
            clocks.request(100, None, is_call=True) as second,
        ):
            first()
            second()
            assert ends(clocks) == [50, 100]
        first()  # late: it is over

    asyncio.run(main())


@pytest.mark.parametrize("given_up", [{"action": "cancel"}, None], ids=["an_answer", "an_error"])
def test_a_hook_ends_with_the_last_call_that_may_have_asked(given_up: dict | None) -> None:
    async def main() -> None:
        clocks, person = Clocks(), Person()
        hook = clocks.stopped_by(person.ask, given_up)
        async with clocks.request(100, None, is_call=True):
            async with clocks.request(100, None, is_call=True):
                task = await begun(hook, "one")
            async with clocks.request(100, None, is_call=False):
                pass
            assert not task.done()
        if given_up is None:
            with pytest.raises(MCPError, match="abandoned"):
                await task
        else:
            assert await task == given_up
        assert person.gone == ["one"]

    asyncio.run(main())


def test_a_question_outside_any_call_is_not_ended_by_one_and_ends_when_it_is_taken_back() -> None:
    async def main() -> None:
        clocks, person = Clocks(), Person()
        hook = clocks.stopped_by(person.ask)
        task = await begun(hook, "one")
        async with clocks.request(100, None, is_call=True):
            pass
        await begun(hook, "two")
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert person.gone == ["one"]
        assert clocks._open_questions == 1

    asyncio.run(main())


REPORTING = """
import json, sys
REPORTS = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    params = message.get("params") or {}
    answers = []
    match message["method"]:
        case "initialize":
            server = {"name": "reporting", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            result["serverInfo"] = server
        case "tools/list":
            result = {"tools": [{"name": "dig", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            token = params["_meta"]["progressToken"]
            for report in REPORTS:
                if report and report.get("progressToken") == "TOKEN":
                    report = {**report, "progressToken": token}
                if report and report.get("progressToken") == "TOKEN AS TEXT":
                    report = {**report, "progressToken": str(token)}
                answer = {"jsonrpc": "2.0", "method": "notifications/progress"}
                if report is not None:
                    answer["params"] = report
                answers.append(answer)
            result = {"content": [{"type": "text", "text": "dug"}]}
        case _:
            result = {}
    answers.append({"jsonrpc": "2.0", "id": message["id"], "result": result})
    sys.stdout.write("".join(json.dumps(answer) + "\\n" for answer in answers))
    sys.stdout.flush()
"""
JUNK = [
    None,
    {},
    {"progress": 1},
    {"progressToken": "TOKEN"},
    {"progressToken": ["TOKEN"], "progress": 1},
    {"progressToken": {}, "progress": 1},
    {"progressToken": True, "progress": 1},
    {"progressToken": 999, "progress": 1},
    {"progressToken": "9" * 5000, "progress": 1},
    {"progressToken": "TOKEN", "progress": "1"},
    {"progressToken": "TOKEN", "progress": True},
    {"progressToken": "TOKEN", "progress": 10**400},
]


def reporting(reports: list, **options: Any) -> MCPServer:
    arguments = ["-c", REPORTING, json.dumps(reports)]
    return MCPServer.stdio(sys.executable, arguments, name="pit", mode="2025-11-25", **options)


def test_all_progress_is_reported_in_order_before_the_result_and_starts_no_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

    dispatched: list[str] = []
    dispatch = JSONRPCDispatcher._dispatch_notification
    monkeypatch.setattr(
        JSONRPCDispatcher,
        "_dispatch_notification",
        lambda self, message, *rest: (
            dispatched.append(message.method) or dispatch(self, message, *rest)
        ),
    )
    reports = [
        {"progressToken": "TOKEN", "progress": i, "total": 300, "message": f"{i} m"}
        for i in range(300)
    ]
    told: list[tuple] = []
    server = reporting(reports, on_progress=lambda *report: told.append(report))
    with server:
        server.call("dig")
        assert told == [("dig", i, 300, f"{i} m") for i in range(300)]
    assert dispatched == []


def test_reports_that_make_no_sense_are_left_out() -> None:
    good = [
        {"progressToken": "TOKEN AS TEXT", "progress": 1.5},
        {"progressToken": "TOKEN", "progress": 2, "total": "3", "message": ["x"]},
    ]
    told: list[tuple] = []
    with reporting([*JUNK, *good], on_progress=lambda *report: told.append(report)) as tools:
        assert tools["dig"]() == "dug"
    assert told == [("dig", 1.5, None, None), ("dig", 2, None, None)]


def test_a_hook_that_raises_or_never_ends_delays_no_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[float] = []

    def raising(*_: object) -> None:
        raise ValueError("a broken hook")

    async def raising_later(*_: object) -> None:
        await asyncio.sleep(0)
        raise ValueError("a broken async hook")

    async def endless(_: str, done: float, *__: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(done)

    def junk(*_: object) -> int:
        return 5

    reports = [{"progressToken": "TOKEN", "progress": i} for i in range(3)]
    for hook in (raising, raising_later, endless, junk):
        with reporting(reports, on_progress=hook) as tools:
            assert tools["dig"]() == "dug"
    assert sorted(ended) == [0, 1, 2]
    assert "a broken hook" in caplog.text
    assert "a broken async hook" in caplog.text
