"""A program has the settings of its call, whenever its work begins."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ferrule import MemoryStore, Module, Policy, ReAct, Run, Tool, context, deny, tool
from ferrule.compat import dspy, udspy
from ferrule.programs.calling import Bound
from ferrule.testing import ScriptedLM

RULES = Policy([deny("remove")])
removed: list[str] = []


@tool
def remove(path: str) -> str:
    """Remove a file."""
    removed.append(path)
    return "removed"


@pytest.fixture(autouse=True)
def _nothing_removed():
    removed.clear()


def agent() -> ReAct:
    lm = ScriptedLM(
        [
            {"name": "remove", "args": {"path": "notes"}},
            {"name": "finish", "args": {"answer": "done"}},
        ]
    )
    return ReAct("task -> answer", [remove], lm=lm)


def read(stream: Any) -> None:
    for _ in stream:
        pass


async def aread(stream: Any) -> None:
    async for _ in stream:
        pass


async def afollow(stream: Any) -> None:
    async for _ in stream.follow():
        pass


@pytest.mark.parametrize(
    "end", [read, lambda stream: stream.prediction], ids=["iterated", "prediction"]
)
def test_a_stream_that_is_read_after_the_block_has_the_blocks_policy(
    end: Callable[[Any], object],
) -> None:
    with context(policy=RULES):
        stream = agent().stream(task="clean up")
    end(stream)
    assert removed == []


def test_a_stream_does_not_take_the_settings_of_the_code_that_reads_it() -> None:
    stream = agent().stream(task="clean up")
    with context(policy=RULES):
        read(stream)
    assert removed == ["notes"]


Begin = Callable[[], Awaitable[Any]]


def _acall() -> Awaitable[Any]:
    return agent().acall(task="clean up")


def _bound_acall() -> Awaitable[Any]:
    return agent().bind(task="clean up").acall()


def _astart() -> Awaitable[Any]:
    return agent().astart(task="clean up")


def _bound_astart() -> Awaitable[Any]:
    return agent().bind(task="clean up").astart()


def _abatch() -> Awaitable[Any]:
    return agent().abatch([{"task": "clean up"}])


def _astream() -> Awaitable[Any]:
    return aread(agent().astream(task="clean up"))


def _follow() -> Awaitable[Any]:
    return afollow(agent().stream(task="clean up"))


def _aforward() -> Awaitable[Any]:
    return agent().aforward(task="clean up")


def _agent_as_tool() -> Awaitable[Any]:
    return agent().as_tool("clean", "Cleans up.").acall(task="clean up")


def _asyncified() -> Awaitable[Any]:
    return dspy.asyncify(agent())(task="clean up")


@pytest.mark.parametrize(
    "begin",
    [
        _acall,
        _bound_acall,
        _aforward,
        _astart,
        _bound_astart,
        _abatch,
        _astream,
        _follow,
        _agent_as_tool,
        _asyncified,
    ],
)
def test_work_that_is_awaited_after_the_block_has_the_blocks_policy(begin: Begin) -> None:
    with context(policy=RULES):
        work = begin()

    async def main() -> None:
        await work

    asyncio.run(main())
    assert removed == []


def test_a_resume_that_is_awaited_after_the_block_has_the_blocks_policy() -> None:
    store = MemoryStore()
    program = agent()
    run_id = program.submit(store=store, task="clean up")
    with context(policy=RULES):
        work = Run.load(store, run_id, program).aresume()

    async def main() -> None:
        await work

    asyncio.run(main())
    assert removed == []


def test_a_chunk_of_dspys_streamify_that_is_read_after_the_block_has_the_blocks_policy() -> None:
    program = dspy.streamify(agent(), async_streaming=False)
    with context(policy=RULES):
        chunks = program(task="clean up")
    list(chunks)
    assert removed == []


PROGRAMS = (Bound, Module, ReAct, Run, Tool, dspy.Module, dspy.ReAct, udspy.Module, udspy.ReAct)
RUNS_NOTHING = {"asubmit", "asuspend"}


@pytest.mark.parametrize("kind", PROGRAMS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_no_way_to_run_a_program_begins_only_when_it_is_awaited(kind: type) -> None:
    """An `async def` takes the settings of the first `await`; see `with_settings_of_call`."""
    late = [
        name
        for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in RUNS_NOTHING
    ]
    assert late == []
