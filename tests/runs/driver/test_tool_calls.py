"""What a tool learns of the call it is in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_script import native_step

from ferrule import events, settings
from ferrule.errors import RunCancelledError
from ferrule.programs.react import ReAct
from ferrule.runs.run import Run
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.calls.context import Context


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def agent(*tools: Any, steps: list[Any]) -> ReAct:
    made = ReAct("question -> answer", tools=list(tools), native=True)
    made.set_lm(ScriptedLM([*steps, native_step("done", "finish", {"answer": "ok"})]))
    return made


def carried(program: ReAct, driver: str, **keywords: Any) -> Run:
    if driver == "sync":
        return program.start(question="q", **keywords)
    return asyncio.run(program.astart(question="q", **keywords))


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_tool_is_given_the_call_it_is_in(driver: str, is_async: bool) -> None:
    """Sync and async tools, in both drivers."""
    seen: list[Context[dict[str, str]]] = []

    def plain(city: str, ctx: Context[dict[str, str]]) -> str:
        seen.append(ctx)
        return f"{city} for {ctx.deps['user']}"

    async def later(city: str, ctx: Context[dict[str, str]]) -> str:
        return plain(city, ctx)

    program = agent(
        Tool(later if is_async else plain, "look"),
        steps=[native_step("t", "look", {"city": "Ulm"})],
    )
    run = carried(program, driver, run_id="r1", deps={"user": "ann"})
    assert run.prediction.trajectory.steps[0].results[0].content == "Ulm for ann"
    (context,) = seen
    assert (context.run_id, len(context.key)) == ("r1", 64)
    assert context.call_id
    assert context.cancelled  # the call is over by now
    assert "ann" not in str(run.journal.entries[:2])


def test_a_key_tells_two_equal_calls_apart(driver: str) -> None:
    """It differs when the call index differs."""
    keys: list[str] = []

    def buy(n: int, ctx: Context) -> str:
        keys.append(ctx.key)
        return "bought"

    program = agent(
        Tool(buy, effect="idempotent"),
        steps=[native_step("t", "buy", {"n": 1}), native_step("t", "buy", {"n": 1})],
    )
    run = carried(program, driver)
    assert len(set(keys)) == 2
    begun = [entry.value for entry in run.journal.entries if entry.kind == "begun"]
    assert begun == [
        {"key": key, "effect": "idempotent", "id": f"call_{n}"} for n, key in enumerate(keys)
    ]


def test_tools_called_by_hand_inside_a_tool_have_keys_of_their_own(driver: str) -> None:
    contexts: list[Context] = []

    def inner(n: int, ctx: Context) -> str:
        contexts.append(ctx)
        return "inner"

    charge = Tool(inner)

    def outer(ctx: Context) -> str:
        contexts.append(ctx)
        return charge(n=1) + charge(n=1)

    carried(agent(Tool(outer), steps=[native_step("t", "outer", {})]), driver)
    assert len({context.key for context in contexts}) == 3
    assert len({(context.run_id, context.call_id) for context in contexts}) == 1


def test_progress_is_told_to_the_observers_of_the_run(driver: str) -> None:
    """A14's neighbour: `ctx.progress` is `ferrule.progress` for one call."""

    def work(ctx: Context) -> str:
        ctx.progress("half", done=1, total=2)
        return "worked"

    told: list[Any] = []
    program = agent(Tool(work), steps=[native_step("t", "work", {})])
    with settings.context(callbacks=[told.append]):
        carried(program, driver)
    (progress,) = [event for event in told if isinstance(event, events.CallProgress)]
    (started,) = [event for event in told if isinstance(event, events.CallStarted)]
    assert (progress.message, progress.done, progress.total) == ("half", 1, 2)
    assert progress.call_id in {started.call.id, "1.0"}


def test_a_sync_tool_sees_that_its_run_was_cancelled(driver: str) -> None:
    seen: list[bool] = []
    runs: list[Run] = []

    def work(ctx: Context) -> str:
        seen.append(ctx.cancelled)
        runs[0].cancel()
        seen.append(ctx.cancelled)
        return "stopped early"

    program = agent(Tool(work), steps=[native_step("t", "work", {})])
    run = Run(program, (), {"question": "q"})
    runs.append(run)
    if driver == "sync":
        run.resume()
    else:
        asyncio.run(run.aresume())
    assert seen == [False, True]
    assert run.status == "cancelled"
    assert isinstance(run.error, RunCancelledError)


def test_the_agent_is_the_caller_in_the_form_of_seed_004(driver: str) -> None:
    """Seed 004, line 53; P14."""
    callers: list[Any] = []

    def act(caller: Any, n: int) -> str:
        callers.append(caller)
        return "acted"

    program = agent(Tool("act", "Act.", act), steps=[native_step("t", "act", {"n": 1})])
    carried(program, driver)
    assert callers == [program]


def test_a_model_that_fills_the_context_is_told_that_there_is_no_such_argument(driver: str) -> None:
    """api.md, 4."""
    seen: list[Any] = []

    def look(city: str, ctx: Context) -> str:
        seen.append(ctx)
        return city

    steps = [native_step("t", "look", {"city": "Ulm", "ctx": {"deps": "evil"}})]
    run = carried(agent(Tool(look), steps=steps), driver)
    result = run.prediction.trajectory.steps[0].results[0]
    assert result.is_fault
    assert seen == []
