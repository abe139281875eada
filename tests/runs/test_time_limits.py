"""`timeout_s` and `tool_s` in a run: the limit holds whatever the tool does, and runs from the
call's begin.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from agent_script import native_step

from ferrule import Context, ReAct, Response, Tool, ToolCall, context
from ferrule.concurrency import deadline, offload
from ferrule.events import CallStarted
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

LONG = 60


@pytest.fixture(autouse=True)
def grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "GRACE_S", 0.02)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    small = offload.ThreadPool(2)
    monkeypatch.setattr(offload, "_pool", small)
    yield small
    assert small._limit == 2


def answered(tool: Tool, *, sync: bool, calls: int = 1) -> list[str]:
    """What an agent is shown that calls the tool so many times at once."""
    asked = Response("", [ToolCall(name=tool.name, args={}, id=f"c{n}") for n in range(calls)])
    agent = ReAct("question -> answer", [tool], native=True)
    with context(lm=ScriptedLM([asked, native_step("e", "finish", {"answer": "x"})])):
        prediction = agent(question="q") if sync else asyncio.run(agent.acall(question="q"))
    return [str(each.content) for each in prediction.trajectory.steps[0].results]


async def refuses() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_tool_that_refuses_to_be_cancelled_does_not_hang_the_run(sync: bool, calls: int) -> None:
    for said in answered(Tool(refuses, timeout_s=0.02), sync=sync, calls=calls):
        assert (
            "`refuses` did not finish within 0.02 s. It may still be running: it did not end when it was cancelled."
            in said
        )


def test_leaving_a_stream_does_not_wait_longer_than_the_limit_for_a_tool_that_refuses() -> None:
    agent = ReAct("question -> answer", [Tool(refuses, timeout_s=0.1)], native=True)
    with (
        context(lm=ScriptedLM([native_step("r", "refuses")])),
        agent.stream(question="q") as stream,
    ):
        for event in stream:
            if isinstance(event, CallStarted):
                break
    for _ in range(10_000):  # its thread has to come to it
        if stream.run.status == "cancelled":
            return
        threading.Event().wait(0.005)
    raise AssertionError(stream.run.status)


@pytest.mark.parametrize("sync", [True, False])
def test_more_calls_than_threads_are_all_done_in_time(sync: bool, pool: Any) -> None:
    """Together they take longer than the limit; each of them does not."""
    del pool
    ran = []

    def rest() -> str:
        threading.Event().wait(0.6)
        ran.append("rested")
        return "rested"

    assert answered(Tool(rest, timeout_s=2), sync=sync, calls=8) == ["rested"] * 8
    assert len(ran) == 8


@pytest.mark.parametrize("timeout_s", [None, LONG])
def test_a_generator_is_read_before_its_call_ends_and_without_blocking_the_loop(
    timeout_s: float | None,
) -> None:
    """It was read on the loop, when its `Context` said already that nobody waits."""
    loop_went_on = threading.Event()

    def count(ctx: Context) -> Generator[str]:
        loop.call_soon_threadsafe(loop_went_on.set)
        yield f"the loop goes on: {loop_went_on.wait(LONG)}"
        yield f"over: {ctx.cancelled}"

    async def main() -> Any:
        nonlocal loop
        loop = asyncio.get_running_loop()
        return await agent.acall(question="q")

    loop: Any = None
    agent = ReAct("question -> answer", [Tool(count, timeout_s=timeout_s)], native=True)
    with context(
        lm=ScriptedLM([native_step("c", "count"), native_step("e", "finish", {"answer": "x"})]),
    ):
        prediction = asyncio.run(main())
    assert prediction.trajectory["observation_0"] == '["the loop goes on: True","over: False"]'
