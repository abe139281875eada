"""Calls of one turn that run one at a time: `ReAct(parallel=False)` and
`Toolbox(concurrent=False)`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from ferrule import (
    MemoryStore,
    Predict,
    ReAct,
    Response,
    Run,
    Tool,
    Toolbox,
    ToolCall,
    ToolCalls,
    context,
    module_callback,
)
from ferrule.testing import ScriptedLM

DONE = Response(None, (ToolCall(name="finish", args={"answer": "x"}),))


class Desk:
    """Tools that share state: it notes what happens, and how many calls run at once."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.running = self.most = 0
        self.lock = threading.Lock()

    def _begin(self, name: str) -> None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.notes.append(f"{name} begins")

    def _end(self, name: str) -> str:
        with self.lock:
            self.running -= 1
            self.notes.append(f"{name} ends")
        return name

    def put(self, name: str) -> str:
        """Put something on the desk."""
        self._begin(name)
        time.sleep(0.02)
        return self._end(name)

    async def send(self, name: str) -> str:
        """Send something from the desk."""
        self._begin(name)
        await asyncio.sleep(0.02)
        return self._end(name)

    def sign(self, name: str) -> str:
        """Sign something, with a person's consent."""
        return self.put(name)

    def tools(self) -> list[Tool]:
        return [Tool(self.put), Tool(self.send), Tool(self.sign, require_confirmation=True)]


def turn(*calls: str) -> Response:
    """`put:a` calls `put` with `a`."""
    made = [
        ToolCall(name=each.partition(":")[0], args={"name": each.partition(":")[2]}, id=f"c{k}")
        for k, each in enumerate(calls)
    ]
    return Response(None, tuple(made))


def in_order(*names: str) -> list[str]:
    return [f"{name} {what}" for name in names for what in ("begins", "ends")]


def agents(desk: Desk) -> dict[str, Any]:
    return {
        "ReAct": ReAct("question -> answer", desk.tools(), native=True, parallel=False),
        "Toolbox": ReAct(
            "question -> answer",
            Toolbox(desk.tools(), concurrent=False),
            native=True,
        ),
        "Toolbox of Toolbox": ReAct(
            "question -> answer",
            Toolbox(Toolbox(desk.tools(), concurrent=False)),
            native=True,
        ),
        "Predict": Predict(
            "question -> answer",
            tools=Toolbox(desk.tools(), concurrent=False),
            native=True,
        ),
    }


CALLS = ("put:a", "send:b", "put:c", "send:d")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("which", ["ReAct", "Toolbox", "Toolbox of Toolbox", "Predict"])
def test_each_call_waits_for_the_one_before_it(which: str, is_async: bool) -> None:
    desk = Desk()
    answer = DONE if which != "Predict" else Response("[[ ## answer ## ]]\nx")
    with context(lm=ScriptedLM([turn(*CALLS), answer])):
        agent = agents(desk)[which]
        prediction = asyncio.run(agent.acall(question="q")) if is_async else agent(question="q")
    assert (desk.notes, desk.most) == (in_order("a", "b", "c", "d"), 1)
    assert [result.content for result in prediction.trajectory.steps[0].results] == [
        "a",
        "b",
        "c",
        "d",
    ]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_without_the_switch_they_run_side_by_side(is_async: bool) -> None:
    both = threading.Barrier(2)

    def meet(name: str) -> str:
        """Wait for the other one."""
        both.wait(60)
        return name

    agent = ReAct("question -> answer", [meet], native=True)
    with context(lm=ScriptedLM([turn("meet:a", "meet:b"), DONE])):
        prediction = asyncio.run(agent.acall(question="q")) if is_async else agent(question="q")
    assert [result.content for result in prediction.trajectory.steps[0].results] == ["a", "b"]


@pytest.mark.parametrize("which", ["ReAct", "Toolbox", "Predict"])
def test_a_call_after_one_that_a_person_must_decide_on_waits_too(which: str) -> None:
    desk, store = Desk(), MemoryStore()
    answer = DONE if which != "Predict" else Response("[[ ## answer ## ]]\nx")
    with context(lm=ScriptedLM([turn("put:a", "sign:b", "put:c", "sign:d"), answer])):
        waiting = agents(desk)[which].start(question="q", store=store)
        assert desk.notes == in_order("a")
        assert [question.call.args["name"] for question in waiting.pending] == ["b"]
        run = Run.load(store, waiting.id, agents(desk)[which])
        run.answer(run.pending[0].approve())
        run.resume()
        assert desk.notes == in_order("a", "b", "c")
        run.answer(run.pending[0].deny("no"))
        run.resume()
    assert (run.status, desk.notes, desk.most) == ("done", in_order("a", "b", "c"), 1)
    assert [result.is_error for result in run.trajectory.steps[0].results] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("before", [False, True], ids=["one at a time", "side by side"])
def test_a_turn_that_waits_goes_on_as_it_began_if_the_switch_changes(before: bool) -> None:
    desk, store = Desk(), MemoryStore()

    def agent(*, parallel: bool) -> ReAct[Any, Any, Any]:
        return ReAct("question -> answer", desk.tools(), native=True, parallel=parallel)

    with context(lm=ScriptedLM([turn("sign:a", "put:b"), turn("sign:c", "put:d"), DONE])):
        waiting = agent(parallel=before).start(question="q", store=store)
        assert desk.notes == (in_order("b") if before else [])
        run = Run.load(store, waiting.id, agent(parallel=not before))
        run.answer(run.pending[0].approve())
        run.resume()
        first = in_order("b", "a") if before else in_order("a", "b")
        assert desk.notes == [*first, *(in_order("d") if not before else [])]
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.status == "done"
    assert desk.notes == [*first, *(in_order("d", "c") if not before else in_order("c", "d"))]


def test_tools_that_are_loaded_during_the_run_keep_the_switch() -> None:
    desk = Desk()

    def open_drawer() -> Any:
        """Load more tools."""

        @module_callback
        def add(given: Any) -> str:
            given.module.init_module([desk.put])
            return "opened"

        return add

    agent = ReAct("question -> answer", Toolbox([open_drawer], concurrent=False), native=True)
    opening = Response(None, (ToolCall(name="open_drawer", args={}, id="o"),))
    agent(question="q", lm=ScriptedLM([opening, turn("put:a", "put:b", "put:c"), DONE]))
    assert (desk.notes, desk.most) == (in_order("a", "b", "c"), 1)


def test_a_saved_program_keeps_the_switch_of_its_toolbox() -> None:
    desk = Desk()
    agent = agents(desk)["Toolbox"]
    agent.load_state(agent.dump_state())
    agent(question="q", lm=ScriptedLM([turn(*CALLS), DONE]))
    assert desk.notes == in_order("a", "b", "c", "d")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_execute_all_reads_the_switch_of_a_toolbox(is_async: bool) -> None:
    desk = Desk()
    names = CALLS if is_async else ("put:a", "put:b", "put:c")
    calls = ToolCalls(tool_calls=list(turn(*names).tool_calls))
    box = Toolbox(desk.tools(), concurrent=False)
    results = asyncio.run(calls.aexecute_all(box)) if is_async else calls.execute_all(box)
    said = [each.partition(":")[2] for each in names]
    assert (desk.notes, desk.most) == (in_order(*said), 1)
    assert [result.content for result in results] == said


def test_toolboxes_with_and_without_the_switch_differ() -> None:
    tools = Desk().tools()
    assert Toolbox(tools) == Toolbox(tools)
    assert Toolbox(tools) != Toolbox(tools, concurrent=False)
