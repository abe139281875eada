"""One program over every protocol: a real server on loopback answers each in its own words from one
script.

Issue 3: equal predictions and trajectories (E13, E66), and requests that begin with what was sent
before (L7).
"""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from typing import Any

import pytest
from agent_script import native_step, text_step
from wire_servers import serve

from ferrule import (
    InputField,
    OutputField,
    Predict,
    ReAct,
    Response,
    Signature,
    ToolCall,
    ToolCalls,
    context,
    tool,
)
from ferrule.models.wires.wire import WIRES
from ferrule.testing import ScriptedLM
from ferrule.values.content.parts import Image

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
wires = pytest.mark.parametrize("wire", WIRES)


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
def look(at: str) -> list[Any]:
    """Look at something."""
    return [f"this is {at}", Image(data=PIXEL)]


@tool
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


SCRIPT = [
    Response(
        "Both at once.",
        (ToolCall(name="add", args={"a": 1, "b": 2}), ToolCall(name="add", args={"a": 3, "b": 4})),
    ),
    Response(
        "Now look: ü 漢 🙂",
        (ToolCall(name="look", args={"at": 'a "tree"\n'}),),
        reasoning="I should look.",
    ),
    Response(None, (ToolCall(name="fail", args={"why": "broken"}),)),
    Response("Unknown.", (ToolCall(name="nobody", args={}), ToolCall(name="add", args={"a": "x"}))),
    Response("Done.", (ToolCall(name="finish", args={"answer": 10, "tags": ["a", "ü"]}),)),
]


def agent() -> ReAct:
    return ReAct("question -> answer: int, tags: list[str]", [add, look, fail], native=True)


def seen(run: Any) -> dict[str, Any]:
    """What must be equal whatever the protocol: ids of calls are the providers' own."""
    found = run.prediction
    steps = [
        (
            step.thought,
            [(call.name, call.args) for call in step.calls],
            [(result.content, result.is_error) for result in step.results],
        )
        for step in found.trajectory.steps
    ]
    return {"outputs": dict(found), "steps": steps, "reason": found.reason}


def carried(wire: str | None, how: str) -> dict[str, Any]:
    if wire is None:
        with context(lm=ScriptedLM(SCRIPT)):
            return seen(agent().start(question="q?"))
    with serve(ScriptedLM(SCRIPT)) as served, context(lm=served.lm(wire=wire)):
        if how == "sync":
            return seen(agent().start(question="q?"))
        if how == "async":
            return seen(asyncio.run(agent().astart(question="q?")))
        if how == "stream":
            with agent().stream(question="q?") as events:
                list(events)
            return seen(events.run)

        async def streamed() -> Any:
            async with agent().astream(question="q?") as events:
                async for _ in events:
                    pass
            return events.run

        return seen(asyncio.run(streamed()))


@wires
@pytest.mark.parametrize("how", ["sync", "async", "stream", "astream"])
def test_one_agent_gives_equal_predictions_and_trajectories_over_every_wire(wire, how):
    """The wire is nobody's business but the wire's."""
    assert carried(wire, how) == carried(None, "sync")


@wires
@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
def test_thirty_steps_send_requests_that_begin_with_the_one_before(wire, native):
    """Tools and messages of each request are the beginning of the next one's, in both modes."""
    step = native_step if native else text_step
    script = [step(f"step {i}", "add", {"a": i, "b": 1}) for i in range(30)] + [
        step("end", "finish", {"answer": 1} if native else None),
    ]
    script += (
        []
        if native
        else ["[[ ## reasoning ## ]]\nr\n\n[[ ## answer ## ]]\n1\n\n[[ ## completed ## ]]"]
    )
    with serve(ScriptedLM(script)) as served, context(lm=served.lm(wire=wire)):
        assert (
            ReAct("question -> answer: int", [add], max_iters=40, native=native)(
                question="q?",
            ).answer
            == 1
        )
        bodies = served.bodies[:31]
    assert len(bodies[30]) > 30 * 50
    for before, after in pairwise(map(stable, bodies)):
        assert after.startswith(before), (
            f"{before[-300:]!r} is not the beginning of {after[len(before) - 300 : len(before) + 100]!r}"
        )


def stable(body: bytes) -> bytes:
    """A body up to the end of its conversation, which comes last; without cache markers, and else
    byte for byte.
    """
    assert list(json.loads(body))[-1] in {"messages", "input", "contents"}
    kept = re.sub(rb',"cache_control":\{[^{}]*\}', b"", body)
    assert kept.endswith(b"]}")
    return kept[:-2]


class Ask(Signature):
    """Answer, or say what you need to know first."""

    question: str = InputField()
    calls: ToolCalls = OutputField()
    answer: str | None = OutputField()


@wires
def test_what_a_model_says_beside_a_call_is_kept(wire):
    """Over every wire both come, and both go back in the next request's messages."""
    script = [Response("Let me see.", (ToolCall(name="add", args={"a": 1, "b": 2}),))]
    with serve(ScriptedLM(script)) as served, context(lm=served.lm(wire=wire)):
        found = Predict(Ask, tools=[add], native=True)(question="q?")
    assert [(call.name, call.args) for call in found.calls.tool_calls] == [
        ("add", {"a": 1, "b": 2}),
    ]
    assert all(call.id for call in found.calls.tool_calls)
    assert found.answer == "Let me see."
    said = found.messages[-1]
    assert (said.text, said.tool_calls) == ("Let me see.", tuple(found.calls.tool_calls))


@wires
def test_no_wire_changes_the_tools_it_is_given(wire):
    before = json.dumps(add.declaration)
    with serve(ScriptedLM(SCRIPT)) as served, context(lm=served.lm(wire=wire)):
        agent()(question="q?")
    assert json.dumps(add.declaration) == before
