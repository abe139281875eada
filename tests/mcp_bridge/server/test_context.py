"""What a tool tells reaches the client."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from agent_script import fields, native_step
from mcp_talk import ERAS, call, client, talk, text

import ferrule
from ferrule import ReAct, events
from ferrule.mcp_bridge import MCPApp
from ferrule.mcp_bridge.server.context import LEVELS, EventSender
from ferrule.testing import ScriptedLM

types = pytest.importorskip("mcp_types", reason="needs the extra: pip install 'ferrule[mcp]'")


def heard(
    app: MCPApp,
    era: str,
    name: str,
    arguments: dict | None = None,
    *,
    level: str = "debug",
) -> tuple[list, list, str]:
    """Progress, log messages and the result of one call."""
    progress, messages = [], []

    async def told(done, total, message) -> None:
        progress.append((done, total, message))

    async def logged(params) -> None:
        messages.append((params.level, params.logger, params.data))

    from mcp.shared.exceptions import MCPDeprecationWarning

    async def run():
        async with client(app, era, logging_callback=logged, log_level=level) as connected:
            if era == ERAS[0] and level != "debug":
                with pytest.warns(MCPDeprecationWarning):  # the SDK's word on the whole of logging
                    await connected.set_logging_level(level)
            result = await connected.call_tool(name, arguments or {}, progress_callback=told)
            return text(result)

    found = asyncio.run(run())
    return progress, messages, found


def sync_tool() -> str:
    ferrule.progress("one", done=1, total=2)
    ferrule.emit_event("warning", {"careful": 1})
    ferrule.progress("two", done=2, total=2)
    ferrule.emit_event("found", 3)
    return "done"


async def async_tool() -> str:
    return sync_tool()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", [sync_tool, async_tool], ids=["sync", "async"])
def test_progress_and_events_reach_the_client_before_the_result(era: str, tool) -> None:
    progress, messages, found = heard(MCPApp([tool]), era, tool.__name__)
    assert progress == [(1, 2, "one"), (2, 2, "two")]
    assert messages == [("warning", None, {"careful": 1}), ("info", "found", 3)]
    assert found == "done"


@pytest.mark.parametrize("era", ERAS)
def test_without_being_asked_nothing_is_told(era: str) -> None:
    """No-op without token."""
    assert text(call(MCPApp([sync_tool]), era, "sync_tool")) == "done"


def test_progress_without_numbers_counts() -> None:
    """Each notification is higher than the one before, as the specification wants it."""

    def counts() -> str:
        ferrule.progress("a")
        ferrule.progress("b", done=5)
        ferrule.progress("lower", done=4)
        ferrule.progress("c")
        return ""

    progress, _, _ = heard(MCPApp([counts]), ERAS[1], "counts")
    assert progress == [(1, None, "a"), (5, None, "b"), (6, None, "c")]


@pytest.mark.parametrize("era", ERAS)
def test_messages_below_the_level_that_the_client_wants_are_not_sent(era: str) -> None:
    """M70, logging-set-level; 2026-07-28 says it with each request."""

    def says() -> str:
        for level in LEVELS:
            ferrule.emit_event(level, level)
        return ""

    _, messages, _ = heard(MCPApp([says]), era, "says", level="error")
    assert [level for level, _, _ in messages] == ["error", "critical", "alert", "emergency"]


def test_a_served_program_tells_its_steps() -> None:
    """Progress, here and from the tools inside."""

    def look(where: str) -> str:
        ferrule.progress("looking", done=70, total=100)
        return f"nothing in {where}"

    lm = ScriptedLM(
        [
            native_step("I look.", "look", {"where": "a"}),
            native_step("Done.", "finish", {"answer": "no"}),
        ],
    )
    with ferrule.context(lm=lm):
        app = MCPApp({"agent": ReAct("question -> answer", [look])})
    progress, _, found = heard(app, ERAS[1], "agent", {"question": "where?"})
    assert progress == [
        (1, None, "looking"),
        (2, None, "step 1: look"),
        (3, None, "step 2: finish"),
    ]
    assert found == '{"answer":"no"}'


def test_a_served_program_gives_its_outputs_as_an_object() -> None:
    with ferrule.context(lm=ScriptedLM([fields(answer="4")])):
        app = MCPApp({"sums": ferrule.Predict("question -> answer: int")})
    result = call(app, ERAS[0], "sums", {"question": "2 + 2"})
    assert result.structured_content == {"answer": 4}


@pytest.mark.parametrize("era", ERAS)
def test_cancelling_ends_a_served_program(era: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Waits(ferrule.Module):
        async def aforward(self) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async def act(connected):
        calling = asyncio.create_task(connected.call_tool("waits", {}))
        await begun.wait()
        calling.cancel()
        await ended.wait()
        return True

    assert talk(MCPApp([Waits()]), era, act)


@pytest.mark.parametrize("how", ["finish", "drop"])
def test_what_is_told_after_the_end_leaves_nothing_behind(how: str) -> None:
    """A thread that goes on telling makes no task that nobody ends."""

    async def sent(*told: object) -> None:
        raise AssertionError

    async def run() -> set:
        tell = EventSender(SimpleNamespace(session=SimpleNamespace(report_progress=sent)))
        before = asyncio.all_tasks()
        if how == "finish":
            await tell.finish()
        else:
            tell.drop()
        tell(events.CallProgress("1", "late", 1, 2))
        await asyncio.sleep(0)
        return asyncio.all_tasks() - before

    assert asyncio.run(run()) == set()


def odd() -> str:
    ferrule.progress("a\ud800b", done=float("nan"), total=float("inf"))
    ferrule.progress("next")
    ferrule.emit_event("x\ud800", {"\udc00": ["\ud83d\ude00"]})
    return "done"


@pytest.mark.parametrize("era", ERAS)
def test_what_json_cannot_hold_is_told_all_the_same(era: str) -> None:
    """Halves of characters, and numbers that are none."""
    progress, messages, found = heard(MCPApp([odd]), era, "odd")
    assert progress == [(1, None, "a\ufffdb"), (2, None, "next")]
    assert messages == [("info", "x\ufffd", {"\ufffd": ["\N{GRINNING FACE}"]})]
    assert found == "done"
