"""A `CancelledError` out of a tool, though nobody cancelled the run, is an error of that tool.

Client libraries raise it when something that they await was cancelled (a task, a future, a scope).
The real cancellation of a run is in `test_cancelling.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agent_script import native_step

from ferrule import MemoryStore, ReAct, Run, Tool, context, events, gather
from ferrule.errors import RunCancelledError
from ferrule.testing import ScriptedLM

CALLS: list[str] = []


async def _await_a_cancelled_task() -> None:
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    waiting.cancel()
    await waiting


async def raises() -> str:
    CALLS.append("raises")
    raise asyncio.CancelledError


async def awaits() -> str:
    CALLS.append("awaits")
    await _await_a_cancelled_task()
    return "done"


async def in_a_group() -> str:
    CALLS.append("in_a_group")
    async with asyncio.TaskGroup():
        await _await_a_cancelled_task()
    return "done"


async def as_a_group() -> str:
    CALLS.append("as_a_group")
    raise BaseExceptionGroup("two", [asyncio.CancelledError(), ValueError("other")])


def sync_raises() -> str:
    CALLS.append("sync_raises")
    raise asyncio.CancelledError


def runs_a_loop() -> str:
    CALLS.append("runs_a_loop")
    asyncio.run(_await_a_cancelled_task())
    return "done"


def yields() -> Iterator[str]:
    CALLS.append("yields")
    yield "a"
    raise asyncio.CancelledError


def returns_awaitable() -> Any:
    CALLS.append("returns_awaitable")
    return _await_a_cancelled_task()


TOOLS = {
    **{
        function.__name__: (function, None)
        for function in (
            raises,
            awaits,
            in_a_group,
            as_a_group,
            sync_raises,
            runs_a_loop,
            yields,
            returns_awaitable,
        )
    },
    "timed": (awaits, 60),
    "sync_timed": (runs_a_loop, 60),
}


def add() -> str:
    return "3"


def _agent(cancelled: Tool) -> ReAct:
    other = Tool(add, "add", "Add.")
    return ReAct("question -> answer", [cancelled, other], native=True)


def _agent_around(inner: ReAct) -> ReAct:
    return ReAct("question -> answer", [inner.as_tool("cancelled")], native=True)


def _answer(request: Any) -> Any:
    """Call the tool; then answer with what it said."""
    last = request.messages[-1]
    if last.role == "tool":
        return native_step("end", "finish", {"answer": last.text})
    [call] = [tool for tool in request.tools if tool["function"]["name"] != "finish"][:1]
    name = call["function"]["name"]
    arguments: dict[str, Any] = {}
    if "question" in call["function"]["parameters"].get("properties", {}):
        arguments = {"question": "inside"}
    return native_step("call", name, arguments)


def _streamed(program: ReAct) -> Any:
    stream = program.stream(question="q")
    for _ in stream:
        pass
    return stream.prediction


async def _astreamed(program: ReAct) -> Any:
    stream = program.astream(question="q")
    async for _ in stream:
        pass
    return stream.prediction


def _batched(program: ReAct) -> Any:
    first, second = program.batch([{"question": "p"}, {"question": "q"}], return_exceptions=True)
    assert first.answer == second.answer
    return second


async def _abatched(program: ReAct) -> Any:
    inputs = [{"question": "p"}, {"question": "q"}]
    first, second = await program.abatch(inputs, return_exceptions=True)
    assert first.answer == second.answer
    return second


async def _gathered(program: ReAct) -> Any:
    first, second = await gather(program.acall(question="p"), program.acall(question="q"))
    assert first.answer == second.answer
    return second


async def _resumed(program: ReAct) -> Any:
    run = await program.astart(question="q", store=MemoryStore())
    loaded = Run.load(run.persistence.store, run.id, program)
    assert loaded.status == "done"
    return loaded.prediction


DOORS: dict[str, Callable[[ReAct], Any]] = {
    "call": lambda program: program(question="q"),
    "acall": lambda program: asyncio.run(program.acall(question="q")),
    "start": lambda program: program.start(question="q").prediction,
    "astart": lambda program: asyncio.run(program.astart(question="q")).prediction,
    "stream": _streamed,
    "astream": lambda program: asyncio.run(_astreamed(program)),
    "nested": lambda program: _agent_around(program)(question="q"),
    "anested": lambda program: asyncio.run(_agent_around(program).acall(question="q")),
    "batch": _batched,
    "abatch": lambda program: asyncio.run(_abatched(program)),
    "gather": lambda program: asyncio.run(_gathered(program)),
    "stored": lambda program: asyncio.run(_resumed(program)),
}


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("door", DOORS)
def test_it_is_a_result_that_the_model_reads(door: str, name: str) -> None:
    function, timeout_s = TOOLS[name]
    program = _agent(Tool(function, "cancelled", "Fail.", timeout_s=timeout_s))
    with context(lm=ScriptedLM(by=_answer)):
        prediction = DOORS[door](program)
    assert "Execution error in cancelled: " in prediction.answer
    assert "CancelledError" in prediction.answer


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_other_calls_of_its_step_keep_their_results(is_async: bool, name: str) -> None:
    function, timeout_s = TOOLS[name]
    program = _agent(Tool(function, "cancelled", "Fail.", timeout_s=timeout_s))
    both = {"tool_calls": [{"name": "cancelled", "args": {}}, {"name": "add", "args": {}}]}
    with context(lm=ScriptedLM([both, native_step("end", "finish", {"answer": "a"})])):
        if is_async:
            prediction = asyncio.run(program.acall(question="q"))
        else:
            prediction = program(question="q")
    first, second = prediction.trajectory.steps[0].results
    assert (first.is_error, second.content) == (True, "3")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_run_calls_such_a_tool_once(is_async: bool) -> None:
    """It was cut off before, without a result: each resume called the tool again."""
    CALLS.clear()
    program = _agent(Tool(awaits, "cancelled", "Fail.", effect="read"))
    with context(lm=ScriptedLM(by=_answer)):
        if is_async:
            run = asyncio.run(program.astart(question="q"))
        else:
            run = program.start(question="q")
    assert (run.status, CALLS) == ("done", ["awaits"])


@pytest.mark.parametrize("has_handler", [False, True])
def test_a_tool_that_cancels_the_task_of_its_run_cancels_the_run(has_handler: bool) -> None:
    """The request counts, whatever the tool makes of the error."""

    async def cancels() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if has_handler:
                raise asyncio.CancelledError from None
            raise
        return "done"

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await _agent(Tool(cancels, "cancelled", "Cancel.")).acall(question="q")

    with context(lm=ScriptedLM(by=_answer)):
        asyncio.run(main())


def test_a_time_limit_of_the_tool_itself_is_its_error() -> None:
    """`asyncio.timeout` cancels the task and takes that back."""

    async def waits() -> str:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
        return "done"

    with context(lm=ScriptedLM(by=_answer)):
        program = _agent(Tool(waits, "cancelled", "Wait."))
        prediction = asyncio.run(program.acall(question="q"))
    assert "TimeoutError" in prediction.answer


def test_a_time_limit_around_the_run_cancels_it() -> None:
    reached = asyncio.Event()

    async def waits() -> str:
        reached.set()
        await asyncio.Event().wait()
        return "done"

    async def limited() -> None:
        program = _agent(Tool(waits, "cancelled", "Wait."))
        async with asyncio.timeout(None) as limit:
            begun = asyncio.ensure_future(reached.wait())
            begun.add_done_callback(lambda _: limit.reschedule(0))
            await program.acall(question="q")

    with context(lm=ScriptedLM(by=_answer)), pytest.raises(TimeoutError):
        asyncio.run(limited())


@pytest.mark.parametrize("timeout_s", [None, 60])
def test_leaving_a_stream_cancels_the_async_tool_of_sync_code(timeout_s: float | None) -> None:
    """That is a cancellation, though the thread of the run belongs to no task."""

    async def waits() -> str:
        await asyncio.Event().wait()
        return "done"

    program = _agent(Tool(waits, "cancelled", "Wait.", timeout_s=timeout_s))
    with context(lm=ScriptedLM(by=_answer)):
        stream = program.stream(question="q")
        for event in stream:
            if isinstance(event, events.CallStarted):
                break
        stream.close()
    assert stream.run.status == "cancelled"
    assert isinstance(stream.run.error, RunCancelledError)
    assert [entry.kind for entry in stream.run.journal.entries] == ["model", "begun"]
