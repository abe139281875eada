"""A `CancelledError` out of any code that a run calls, though nobody cancelled, is its failure.

That of a tool is a result for the model (`test_cancelled_in_tools.py`); that of all other code ends
the run as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from agent_script import native_step

from ferrule import (
    MemoryStore,
    Module,
    Policy,
    Predict,
    ReAct,
    Request,
    Response,
    Run,
    Tool,
    aonce,
    ask,
    context,
    once,
    review,
)
from ferrule.errors import ConfigurationError, RunError
from ferrule.models.model import BaseLM
from ferrule.testing import ScriptedLM
from ferrule.values.tracebacks import with_causes

# -- code that raises a `CancelledError`


async def _await_a_cancelled_task(*_: Any, **__: Any) -> Any:
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    waiting.cancel()
    await waiting


async def _in_a_group(*_: Any, **__: Any) -> Any:
    async with asyncio.TaskGroup():
        await _await_a_cancelled_task()


def _run_a_loop(*_: Any, **__: Any) -> Any:
    asyncio.run(_await_a_cancelled_task())


def _raise(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


FAILING: dict[str, Callable[..., Any]] = {
    "raises": _raise,
    "runs_a_loop": _run_a_loop,
    "awaits": _await_a_cancelled_task,
    "in_a_group": _in_a_group,
}
ASYNC = ("awaits", "in_a_group")


class _Model(BaseLM):
    def __init__(self, fails: Callable[..., Any]) -> None:
        self.fails = fails

    def complete(self, request: Request) -> Response:
        if asyncio.iscoroutinefunction(self.fails):
            return asyncio.run(self.fails())
        return self.fails()

    async def acomplete(self, request: Request) -> Response:
        result = self.fails()
        if asyncio.iscoroutine(result):
            return await result
        return result


class _Forward(Module):
    def __init__(self, fails: Callable[..., Any]) -> None:
        self.fails = fails

    def forward(self, question: str) -> Any:
        return self.fails()


class _Aforward(Module):
    def __init__(self, fails: Callable[..., Any]) -> None:
        self.fails = fails

    async def aforward(self, question: str) -> Any:
        return await self.fails()


class _Once(Module):
    def __init__(self, fails: Callable[..., Any]) -> None:
        self.fails = fails

    def forward(self, question: str) -> Any:
        return once(self.fails)


class _Aonce(Module):
    def __init__(self, fails: Callable[..., Any]) -> None:
        self.fails = fails

    async def aforward(self, question: str) -> Any:
        return await aonce(self.fails)


def pay(euros: int) -> str:
    return f"paid {euros}"


def _pay_once(request: Request) -> Any:
    if request.messages[-1].role == "tool":
        return native_step("end", "finish", {"answer": "ok"})
    return native_step("pay", "pay", {"euros": 3})


def _agent(**options: Any) -> ReAct:
    lm = ScriptedLM(by=_pay_once)
    return ReAct("question -> answer", [pay], native=True, lm=lm, **options)


def _validated(fails: Callable[..., Any]) -> ReAct:
    agent = _agent()
    agent.output_validator(fails)
    return agent


def _ruled(**options: Any) -> ReAct:
    return _agent(policy=Policy([ask("pay", **options)]))


def _of_context(fails: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the parameter that rules and choices of a run ask for."""
    if asyncio.iscoroutinefunction(fails):

        async def function(ctx: Any) -> Any:
            return await fails()

    else:

        def function(ctx: Any) -> Any:
            return fails()

    return function


def _written(sync: Any, is_async: Any) -> Callable[[Callable[..., Any]], Any]:
    def make(fails: Callable[..., Any]) -> Any:
        if asyncio.iscoroutinefunction(fails):
            return is_async(fails)
        return sync(fails)

    return make


PROGRAMS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "model": lambda fails: Predict("question -> answer", lm=_Model(fails)),
    "model of an agent": lambda fails: ReAct("question -> answer", [pay], lm=_Model(fails)),
    "output validator": _validated,
    "condition on an argument": lambda fails: _ruled(euros=fails),
    "when": lambda fails: _ruled(when=_of_context(fails)),
    "instructions": lambda fails: _agent(instructions=_of_context(fails)),
    "tools_for": lambda fails: _agent(tools_for=_of_context(fails)),
    "forward": _written(_Forward, _Aforward),
    "once": _written(_Once, _Aonce),
}
ONLY_SYNC = ("condition on an argument",)


# -- code that calls a program, and catches what it raises


class _Catching(Module):
    def __init__(self, program: Any) -> None:
        self.program = program

    def forward(self) -> Any:
        try:
            return self.program(question="q")
        except Exception as error:
            return error


class _Acatching(Module):
    def __init__(self, program: Any) -> None:
        self.program = program

    async def aforward(self) -> Any:
        try:
            return await self.program.acall(question="q")
        except Exception as error:
            return error


def _streamed(program: Any) -> Any:
    stream = program.stream(question="q")
    for _ in stream:
        pass
    return stream.prediction


async def _astreamed(program: Any) -> Any:
    stream = program.astream(question="q")
    async for _ in stream:
        pass
    return stream.prediction


async def _in_task_group(program: Any) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(program.acall(question="q"))
    except ExceptionGroup as several:
        [error] = several.exceptions
        raise error from None


def _started(run: Run) -> Any:
    assert run.status == "failed"
    return run.prediction


async def _astarted(program: Any) -> Any:
    return _started(await program.astart(question="q", store=MemoryStore()))


def _second(results: Any) -> Any:
    return results[1]


BATCH = [{"question": "p"}, {"question": "q"}]
CALLERS: dict[str, Callable[[Any], Any]] = {
    "call": lambda program: program(question="q"),
    "acall": lambda program: asyncio.run(program.acall(question="q")),
    "start": lambda program: _started(program.start(question="q", store=MemoryStore())),
    "astart": lambda program: asyncio.run(_astarted(program)),
    "stream": _streamed,
    "astream": lambda program: asyncio.run(_astreamed(program)),
    "forward": lambda program: _Catching(program)(),
    "aforward": lambda program: asyncio.run(_Acatching(program).acall()),
    "task group": lambda program: asyncio.run(_in_task_group(program)),
    "batch": lambda program: _second(program.batch(BATCH, return_exceptions=True)),
    "abatch": lambda program: _second(asyncio.run(program.abatch(BATCH, return_exceptions=True))),
}
ASYNC_CALLERS = [caller for caller in CALLERS if caller.startswith("a") or caller == "task group"]


def _is_possible(caller: str, kind: str, failing: str) -> bool:
    if failing == "runs_a_loop":  # not in a thread that runs one
        return caller not in ASYNC_CALLERS
    return kind not in ONLY_SYNC or failing not in ASYNC


def _variants() -> list[Any]:
    """Each program with each caller, and one way to fail; with the others they are long tests."""
    variants: list[Any] = []
    for number, (caller, kind) in enumerate(product(CALLERS, PROGRAMS)):
        possible = [failing for failing in FAILING if _is_possible(caller, kind, failing)]
        for turn, failing in enumerate(possible):
            marks = [] if turn == number % len(possible) else [pytest.mark.long]
            variants.append(pytest.param(caller, kind, failing, marks=marks))
    return variants


@pytest.mark.parametrize(("caller", "kind", "failing"), _variants())
def test_it_is_a_failure_that_except_exception_catches(
    caller: str, kind: str, failing: str
) -> None:
    program = PROGRAMS[kind](FAILING[failing])
    try:
        error = CALLERS[caller](program)
    except Exception as raised:
        error = raised
    assert isinstance(error, RunError | ConfigurationError)
    assert any("nobody cancelled the run" in str(cause) for cause in with_causes(error))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_that_of_an_observer_is_a_warning(is_async: bool) -> None:
    caller = CALLERS["acall" if is_async else "call"]
    with context(callbacks=[_raise]), pytest.warns(RuntimeWarning, match="an observer failed"):
        prediction = caller(_agent())
    assert prediction.answer == "ok"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_after_that_of_a_reviewer_a_person_decides(is_async: bool) -> None:
    agent = _agent(policy=Policy([review("pay", by=_of_context(_await_a_cancelled_task))]))
    if is_async:
        run = asyncio.run(agent.astart(question="q"))
    else:
        run = agent.start(question="q")
    [question] = run.pending
    assert "the reviewer failed" in question.text


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_one_of_several_tools_that_cancels_the_task_of_its_run_cancels_the_run(
    is_concurrent: bool,
) -> None:
    async def cancels() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "done"

    calls = [{"name": "cancels", "args": {}}, {"name": "pay", "args": {"euros": 3}}]
    tools = [Tool(cancels, "cancels", "Cancel.", concurrent=is_concurrent), pay]
    program = ReAct("question -> answer", tools, native=True)

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await program.acall(question="q")

    with context(lm=ScriptedLM([{"tool_calls": calls}])):
        asyncio.run(main())
