"""Each tool call that observers see start also ends for them, whatever ends it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ferrule import Context, MemoryStore, ReAct, Run, ToolStop, context, events, is_cancelled, tool
from ferrule.errors import RunCancelledError
from ferrule.testing import ScriptedLM

Told = list[events.Event]


class Hooks:
    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    def on_tool_start(self, call_id: str, instance: Any, inputs: Any) -> None:
        self.starts[call_id] += 1

    def on_tool_end(self, call_id: str, result: Any, error: Any) -> None:
        self.ends[call_id] += 1


def asked(*tools: Callable[..., Any]) -> tuple[ReAct, ScriptedLM]:
    calls = [{"name": function.__name__, "args": {}} for function in tools]
    lm = ScriptedLM([{"tool_calls": calls}])
    return ReAct("task -> answer", [tool(function) for function in tools], native=True), lm


def by_a_stop() -> None:
    """One tool stops the run, while another one waits."""
    begun = asyncio.Event()

    async def waits() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(3600)
        return ""

    async def stops() -> str:
        """Stop."""
        await begun.wait()
        raise ToolStop("enough")

    agent, lm = asked(waits, stops)
    with context(lm=lm):
        asyncio.run(agent.astart(task="x"))


def by_a_stop_in_threads() -> None:
    begun, is_over = threading.Event(), threading.Event()

    def waits() -> str:
        """Wait."""
        begun.set()
        is_over.wait(30)
        return ""

    def stops() -> str:
        """Stop."""
        begun.wait(30)
        is_over.set()
        raise ToolStop("enough")

    agent, lm = asked(waits, stops)
    with context(lm=lm):
        agent.start(task="x")


def by_cancelling_the_task() -> None:
    async def main() -> None:
        async def hangs() -> str:
            """Hang."""
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.sleep(3600)
            return ""

        agent, lm = asked(hangs)
        with context(lm=lm):
            task = asyncio.ensure_future(agent.acall(task="x"))
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def by_an_interrupt() -> None:
    def interrupts() -> str:
        """Ctrl-C."""
        raise KeyboardInterrupt

    agent, lm = asked(interrupts)
    with context(lm=lm), pytest.raises(KeyboardInterrupt):
        agent(task="x")


def by_an_interrupt_while_a_thread_works() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def works() -> str:
        """Work."""
        begun.set()
        may_end.wait(30)
        return ""

    @tool(concurrent=False)
    def interrupts() -> str:
        """Ctrl-C in the thread of the caller."""
        begun.wait(30)
        raise KeyboardInterrupt

    lm = ScriptedLM([{"tool_calls": [{"name": n, "args": {}} for n in ("works", "interrupts")]}])
    agent = ReAct("task -> answer", [works, interrupts], native=True)
    with context(lm=lm), pytest.raises(KeyboardInterrupt):
        agent(task="x")
    may_end.set()


def by_cancelling_the_run() -> None:
    runs: list[Run] = []

    async def cancels() -> str:
        """Cancel the run, and go on."""
        runs[0].cancel()
        assert is_cancelled()
        return ""

    agent, lm = asked(cancels)
    with context(lm=lm):
        stream = agent.stream(task="x")
        runs.append(stream.run)
        with pytest.raises(RunCancelledError):
            list(stream)


def by_an_interrupt_in_a_transaction() -> None:
    @tool(effect="transactional")
    def books(ctx: Context) -> str:
        """Book."""
        raise KeyboardInterrupt

    lm = ScriptedLM([{"name": "books", "args": {}}])
    with context(lm=lm), pytest.raises(KeyboardInterrupt):
        ReAct("task -> answer", [books], native=True).start(task="x", store=MemoryStore())


WAYS = (
    by_a_stop,
    by_a_stop_in_threads,
    by_an_interrupt,
    by_an_interrupt_in_a_transaction,
    by_an_interrupt_while_a_thread_works,
    by_cancelling_the_run,
    by_cancelling_the_task,
)


@pytest.mark.parametrize("ends", WAYS, ids=lambda way: way.__name__)
def test_each_call_that_starts_ends_once_and_before_its_run(ends: Callable[[], None]) -> None:
    told, hooks = Told(), Hooks()
    with context(callbacks=[told.append, hooks]):
        ends()
    started = [event.path for event in told if isinstance(event, events.CallStarted)]
    finished = [event.path for event in told if isinstance(event, events.CallFinished)]
    assert started
    assert sorted(started) == sorted(finished)
    assert isinstance(told[-1], events.RunFinished)
    assert hooks.starts == hooks.ends
    assert set(hooks.ends.values()) == {1}


def test_a_stored_run_that_was_cancelled_in_a_call_tells_its_end_too() -> None:
    def interrupts() -> str:
        """Ctrl-C."""
        raise KeyboardInterrupt

    agent, lm = asked(interrupts)
    store = MemoryStore()
    with context(lm=lm), pytest.raises(KeyboardInterrupt):
        agent.start(task="x", store=store, run_id="r")
    told = list(Run.load(store, "r", agent).events())
    calls = [event for event in told if isinstance(event, events.CallStarted | events.CallFinished)]
    assert [event.type for event in calls] == ["CallStarted", "CallFinished"]
