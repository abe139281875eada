"""Stopping a run: it can go on later, nothing happens twice, and nothing goes on behind its back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from agent_script import native_step

from ferrule import (
    MemoryStore,
    Module,
    Predict,
    ReAct,
    Response,
    Run,
    Tool,
    ToolCall,
    context,
    is_cancelled,
    tool,
)  # fmt: skip
from ferrule.acts import CallTools
from ferrule.errors import RunCancelledError, ToolStop
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.life import Execution
from ferrule.testing import ScriptedLM
from ferrule.values.calls.call import CheckedCall
from ferrule.values.outcome import Prediction


def _is_inner(request: Any) -> bool:
    """Whether the agent inside asks: the outer one has it as a tool."""
    names = {tool["function"]["name"] for tool in request.tools}
    return not names & {"sub", "work", "worker"}


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def carry(run: Run, driver: str) -> Run:
    if driver == "async":
        asyncio.run(aexecute(run))
    else:
        execute(run)
    return run


class Batch:
    """A program that runs calls at once and returns what came of them."""

    is_flow = True
    is_async = False
    is_only_async = False
    name = "batch"

    def __init__(self, *tools: Tool) -> None:
        self.tools = tools

    def flow(self, *args: Any, **inputs: Any) -> Generator[Any, Any, Any]:
        del args, inputs
        calls = (
            CheckedCall(ToolCall(name=each.name, args={}, id=each.name), each, each.prepare({}))
            for each in self.tools
        )
        results = yield CallTools(tuple(calls))
        return Prediction(found=[result.content for result in results])

    def forward(self, *args: Any, **inputs: Any) -> Any:
        raise AssertionError

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        raise AssertionError


def named(name: str, function: Callable[[], Any], **keywords: Any) -> Tool:
    return Tool(function, name, "Does something.", effect="read", **keywords)


def test_cancelling_between_calls_of_a_turn_begins_no_further_one(driver: str) -> None:
    """And the others run when the run goes on."""
    ran: list[str] = []

    def first() -> str:
        ran.append("first")
        run.cancel()
        return "1"

    def second() -> str:
        ran.append("second")
        return "2"

    run = Run(
        Batch(named("first", first, concurrent=False), named("second", second, concurrent=False)),
        (),
        {},
    )
    carry(run, driver)
    assert (run.status, ran) == ("cancelled", ["first"])
    assert [(entry.slot, entry.kind) for entry in run.journal.entries] == [
        ("0.0", "begun"),
        ("0.0", "result"),
    ]
    assert carry(run, driver).prediction.found == ["1", "2"]
    assert ran == ["first", "second"]


def test_a_tool_without_a_context_sees_that_its_run_was_cancelled(driver: str) -> None:
    seen: list[bool] = []

    def work() -> str:
        seen.append(is_cancelled())
        run.cancel()
        seen.append(is_cancelled())
        return "done"

    run = Run(Batch(named("work", work)), (), {})
    carry(run, driver)
    assert seen == [False, True]
    assert not is_cancelled()


def test_a_run_that_waits_can_be_cancelled_and_asks_again_when_it_goes_on(driver: str) -> None:
    """A cancelled run waits for nobody."""
    done: list[str] = []

    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        done.append("pay")
        return "paid"

    with (
        ScriptedLM([native_step("p", "pay"), native_step("e", "finish", {"answer": "a"})]) as lm,
        context(lm=lm),
    ):
        run = carry(
            Run(ReAct("question -> answer", [pay], native=True), (), {"question": "q"}),
            driver,
        )
        asked = run.pending[0]
        run.cancel()
        assert (run.status, run.pending) == ("cancelled", ())
        with pytest.raises(RunCancelledError):
            _ = run.prediction
        carry(run, driver)
        assert [question.id for question in run.pending] == [asked.id]
        run.answer(run.pending[0].approve())
        assert carry(run, driver).prediction.answer == "a"
    assert done == ["pay"]


def test_cancelling_inside_a_nested_program_cancels_the_whole_run(driver: str) -> None:
    """It is no observation of the outer agent; and all goes on where it was."""
    ran: list[str] = []

    def look() -> str:
        ran.append("look")
        run.cancel()
        return "seen"

    def answer(request: Any) -> Any:
        last, inner = request.messages[-1], _is_inner(request)
        ran.append("inner" if inner else "outer")
        if last.role == "tool":
            return native_step("e", "finish", {"outcome" if inner else "answer": last.text})
        return native_step("l", "look") if inner else native_step("w", "worker", {"job": "j"})

    worker = ReAct("job -> outcome", [named("look", look)], native=True).as_tool("worker")
    with context(lm=ScriptedLM(by=answer)):
        run = Run(ReAct("question -> answer", [worker], native=True), (), {"question": "q"})
        carry(run, driver)
        assert (run.status, ran) == ("cancelled", ["outer", "inner", "look"])
        assert carry(run, driver).prediction.answer == "seen"
    assert ran == ["outer", "inner", "look", "inner", "outer"]


def test_cancelling_the_task_reaches_the_tools_of_nested_programs() -> None:
    """And leaves a run that can go on."""
    seen: list[str] = []
    stuck = [True]

    async def wait() -> str:
        try:
            if stuck[0]:
                reached.set()
                await asyncio.Event().wait()
        finally:
            seen.append("left")
        return "waited"

    def answer(request: Any) -> Any:
        last, inner = request.messages[-1], _is_inner(request)
        if last.role == "tool":
            return native_step("e", "finish", {"outcome" if inner else "answer": last.text})
        return native_step("w", "wait") if inner else native_step("w", "worker", {"job": "j"})

    worker = ReAct("job -> outcome", [named("wait", wait)], native=True).as_tool("worker")
    reached = asyncio.Event()

    async def main() -> None:
        task = asyncio.create_task(aexecute(run))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (run.status, seen) == ("cancelled", ["left"])
        stuck[0] = False
        await aexecute(run)

    with context(lm=ScriptedLM(by=answer)):
        run = Run(ReAct("question -> answer", [worker], native=True), (), {"question": "q"})
        asyncio.run(main())
    assert (run.prediction.answer, seen) == ("waited", ["left", "left"])


def test_an_interrupt_in_one_call_of_a_turn_is_no_observation_and_waits_for_no_other(
    driver: str,
) -> None:
    """What still runs in a thread is abandoned, and what comes of it later is not taken for a
    result.
    """
    reached, release, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> str:
        reached.set()
        release.wait(60)
        ended.set()
        return "late"

    def stop() -> str:
        assert reached.wait(60)
        raise KeyboardInterrupt

    run = Run(Batch(named("slow", slow), named("stop", stop, concurrent=False)), (), {})
    with pytest.raises(KeyboardInterrupt):
        carry(run, driver)
    assert run.status == "cancelled"
    written = list(run.journal.entries)
    assert "result" not in {entry.kind for entry in written}
    release.set()
    assert ended.wait(60)
    assert run.journal.entries == written


def test_a_tool_stop_keeps_the_results_of_the_others() -> None:
    """Threads cannot be stopped, so what they do is waited for and kept."""
    reached, release = threading.Event(), threading.Event()

    def slow() -> str:
        reached.set()
        release.wait(60)
        return "kept"

    def stop() -> str:
        assert reached.wait(60)
        release.set()
        raise ToolStop("enough")

    run = carry(
        Run(Batch(named("slow", slow), named("stop", stop, concurrent=False)), (), {}),
        "sync",
    )
    assert (run.status, type(run.error)) == ("failed", ToolStop)
    assert [entry.value.content for entry in run.journal.entries if entry.kind == "result"] == [
        "kept",
    ]


def test_an_answer_that_comes_after_the_run_ended_is_not_taken(driver: str) -> None:
    """A branch that nobody waits for ends at its next act, also when the run goes on meanwhile."""
    reached, release, left = threading.Event(), threading.Event(), threading.Event()
    asked: list[str] = []

    def answer(request: Any) -> Any:
        del request
        asked.append("model")
        if len(asked) == 1:
            reached.set()
            release.wait(60)
        return Response("[[ ## b ## ]]\nB\n\n[[ ## completed ## ]]")

    from ferrule import Module, Predict

    class Leaves(Module):
        def __init__(self) -> None:
            self.predict = Predict("a -> b")

        def forward(self) -> Prediction:
            from contextvars import copy_context

            def branch() -> None:
                try:
                    self.predict(a="x")
                except RunCancelledError:
                    left.set()

            if not asked:
                threading.Thread(target=copy_context().run, args=(branch,), daemon=True).start()
                assert reached.wait(60)
                raise RuntimeError("gone")
            return Prediction(b=self.predict(a="y").b)

    with context(lm=ScriptedLM(by=answer)):
        run = carry(Run(Leaves(), (), {}), driver)
        assert run.status == "failed"
        assert carry(run, driver).prediction.b == "B"
        written = len(run.journal.entries)
        release.set()
        assert left.wait(60)
    assert len(run.journal.entries) == written == 1


def test_cancelling_stops_a_program_that_a_tools_function_calls_at_its_next_call(
    driver: str,
) -> None:
    """It went on to its end, with all its calls, and its result was recorded.

    When the run goes on, the call runs again.
    """
    ran: list[str] = []
    cancels = [True]

    def look() -> str:
        ran.append("look")
        if cancels:
            cancels.clear()
            run.cancel()
        return "seen"

    def work() -> str:
        ran.append("work")
        return worker(job="j").outcome

    def answer(request: Any) -> Any:
        last, inner = request.messages[-1], _is_inner(request)
        ran.append("inner" if inner else "outer")
        if last.role == "tool":
            return native_step("e", "finish", {"outcome" if inner else "answer": last.text})
        return native_step("l", "look") if inner else native_step("w", "work")

    worker = ReAct("job -> outcome", [named("look", look)], native=True)
    with context(lm=ScriptedLM(by=answer)):
        run = Run(
            ReAct("question -> answer", [named("work", work)], native=True),
            (),
            {"question": "q"},
        )
        carry(run, driver)
        assert (run.status, ran) == ("cancelled", ["outer", "work", "inner", "look"])
        assert carry(run, driver).prediction.answer == "seen"
    assert ran == ["outer", "work", "inner", "look", "work", "inner", "look", "inner", "outer"]


class Catching(Module):
    """A program that goes on whatever its predictor raises."""

    def __init__(self) -> None:
        self.ask = Predict("question -> answer")

    def forward(self, question: str) -> Prediction:
        try:
            return self.ask(question=question)
        except Exception as error:
            return Prediction(answer=type(error).__name__)


class CatchingAsync(Catching):
    async def aforward(self, question: str) -> Prediction:
        try:
            return await self.ask.acall(question=question)
        except Exception as error:
            return Prediction(answer=type(error).__name__)


def test_a_program_that_catches_its_cancellation_is_cancelled_all_the_same(driver: str) -> None:
    """It was done, with another result than a replay of it had."""
    store, program = MemoryStore(), Catching() if driver == "sync" else CatchingAsync()

    def cancelling(_: Any) -> str:
        store.cancel("r")
        return "[[ ## answer ## ]]\n42"

    with context(lm=ScriptedLM(by=cancelling)):
        run = (
            program.start(question="x", store=store, run_id="r")
            if driver == "sync"
            else asyncio.run(program.astart(question="x", store=store, run_id="r"))
        )
        assert (run.status, store.summary("r").status, type(run.error)) == (
            "cancelled",
            "cancelled",
            RunCancelledError,
        )
        again = carry(
            Run.load(store, "r", program),
            driver,
        )  # the answer is recorded: no model is asked
        assert (again.status, again.prediction.answer) == ("done", "42")


@pytest.mark.parametrize("grace_s", [..., 1.0])
def test_a_run_whose_execution_ends_just_now_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, grace_s: Any
) -> None:
    """The thread that executes it may end it between any two lines of the one that cancels it."""
    run = Run(ReAct("question -> answer", []), (), {"question": "q"})
    execution = Execution(None, grace_s=1.0)
    read = iter([execution])
    monkeypatch.setattr(Run, "executing", property(lambda _: next(read, None)), raising=False)
    run.cancel(grace_s=grace_s)
    assert execution.halt.is_set
