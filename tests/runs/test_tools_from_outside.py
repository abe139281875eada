"""A tool with `result="outside"` runs nothing here: its calls wait until their results are
delivered.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agent_script import native_step
from pydantic import BaseModel

from ferrule import (
    Limits,
    MemoryStore,
    Policy,
    ReAct,
    Response,
    Run,
    Tool,
    ToolCall,
    acall_tool,
    ask,
    call_tool,
    context,
    deny,
    events,
    tool,
)
from ferrule.errors import DecisionError, ToolError
from ferrule.programs.module import Module
from ferrule.testing import ScriptedLM

DONE = native_step("done", "finish", {"answer": "ok"})
ASK = native_step("", "review", {"text": "Ship it?"})


class Verdict(BaseModel):
    yes: bool
    why: str = ""


@tool(result="outside", within_s=3600)
def review(text: str) -> Verdict:
    """Ask the reviewers."""


DECLARED = Tool(
    name="review",
    description="Ask the reviewers.",
    args={"text": {"type": "string"}},
    result="outside",
    within_s=3600,
    returns=Verdict,
)
BOTH = pytest.mark.parametrize("a_tool", [review, DECLARED], ids=["decorated", "declared"])


def reviewer(a_tool: Tool, *steps: Any, **options: Any) -> tuple[ReAct, ScriptedLM]:
    lm = ScriptedLM([*(steps or [ASK]), DONE])
    return ReAct("task -> answer", [a_tool], lm=lm, **options), lm


@BOTH
def test_its_call_waits_and_takes_what_is_delivered(a_tool: Tool) -> None:
    agent, lm = reviewer(a_tool)
    run = agent.start(task="x")
    [question] = run.pending
    assert (question.kind, question.call.args) == ("result", {"text": "Ship it?"})
    assert question.expires_s == 3600
    run.deliver(question.key, {"yes": True})
    assert run.resume().status == "done"
    assert json.loads(lm.requests[-1].messages[-1].text) == {"yes": True}


@BOTH
def test_a_result_of_another_type_is_refused(a_tool: Tool) -> None:
    run = reviewer(a_tool)[0].start(task="x")
    key = run.pending[0].key
    with pytest.raises(DecisionError, match=r"does not fit the declared result of `review`.*yes"):
        run.deliver(key, {"why": "no verdict"})
    run.deliver(key, {"yes": False})
    assert run.resume().status == "done"


@BOTH
def test_the_model_sees_the_arguments_that_it_declares(a_tool: Tool) -> None:
    assert a_tool.schema["properties"]["text"]["type"] == "string"
    assert a_tool.schema["required"] == ["text"]
    agent, lm = reviewer(a_tool, native_step("", "review", {"words": 5}), ASK)
    run = agent.start(task="x")
    assert run.status == "waiting"  # with the corrected call
    assert "text" in lm.requests[1].messages[-1].text


def test_several_calls_of_one_step_wait_each_for_its_own() -> None:
    calls = tuple(ToolCall(name="review", args={"text": text}) for text in "ab")
    agent, _ = reviewer(review, Response("", calls))
    run = agent.start(task="x")
    first, second = run.pending
    run.deliver(second.key, {"yes": False})
    assert run.resume().status == "waiting"
    run.deliver(first.key, {"yes": True})
    results = run.resume().trajectory.steps[0].results
    assert [json.loads(result.content)["yes"] for result in results] == [True, False]


def test_after_its_deadline_the_model_reads_that_no_result_came() -> None:
    clock_s = 1e-9
    agent, lm = reviewer(review.model_copy(update={"within_s": clock_s}))
    run = agent.start(task="x")
    run.resume()
    assert run.status == "done"
    assert "did not come within" in lm.requests[-1].messages[-1].text


def test_a_person_is_asked_first_if_the_tool_says_so() -> None:
    agent, _ = reviewer(review.model_copy(update={"require_confirmation": True}))
    run = agent.start(task="x")
    assert run.pending[0].kind == "confirm"
    run.answer(run.pending[0].approve())
    assert run.resume().pending[0].kind == "result"


def test_a_policy_holds_for_it() -> None:
    agent, lm = reviewer(review)
    with context(policy=Policy([deny("review", reason="No reviews today.")])):
        assert agent.start(task="x").status == "done"
    assert "No reviews today." in lm.requests[-1].messages[-1].text
    with context(policy=Policy([ask("review")])):
        assert reviewer(review)[0].start(task="x").pending[0].kind == "confirm"


def test_a_call_that_waits_is_not_refused_by_a_lower_limit() -> None:
    """Its result may be on its way."""
    store = MemoryStore()
    calls = tuple(ToolCall(name="review", args={"text": text}) for text in "ab")
    agent, _ = reviewer(review, Response("", calls))
    run = agent.start(task="x", store=store)
    for question in run.pending:
        store.deliver(run.id, question.key, {"yes": True})
    with context(limits=Limits(tool_calls=1)):
        resumed = Run.load(store, run.id, agent).resume()
    assert [result.is_error for result in resumed.trajectory.steps[0].results] == [False, False]


@BOTH
def test_a_result_reaches_its_call_even_if_the_tool_takes_other_arguments_now(a_tool: Tool) -> None:
    store = MemoryStore()
    run = reviewer(a_tool)[0].start(task="x", store=store)
    store.deliver(run.id, run.pending[0].key, {"yes": True})

    @tool(name="review", result="outside")
    def changed(text: str, urgent: bool) -> str:
        """Ask other reviewers."""

    agent = ReAct("task -> answer", [changed], lm=ScriptedLM([DONE]))
    assert Run.load(store, run.id, agent).resume().status == "done"


def test_observers_see_its_call_start_once_and_end_once() -> None:
    told: list[Any] = []
    agent, _ = reviewer(review)
    with context(callbacks=[told.append]):
        run = agent.start(task="x")
        run.deliver(run.pending[0].key, {"yes": True})
        run.resume()
    kinds = (events.CallStarted, events.CallFinished)
    ended = [(type(e), e.call.name) for e in told if isinstance(e, kinds)]
    expected = [(kind, "review") for kind in kinds]
    assert [pair for pair in ended if pair[1] == "review"] == expected


@pytest.mark.parametrize("is_async", [False, True])
def test_a_program_that_calls_it_waits_and_gets_the_declared_type(is_async: bool) -> None:
    class Shipping(Module):
        def forward(self, text: str) -> Any:
            return call_tool(DECLARED, text=text)

        async def aforward(self, text: str) -> Any:
            return await acall_tool(DECLARED, text=text)

    async def main() -> Run[Any]:
        run = await Shipping().astart(text="Ship?")
        run.deliver(run.pending[0].key, {"yes": True, "why": "green"})
        return await run.aresume()

    if is_async:
        done = asyncio.run(main())
    else:
        run = Shipping().start(text="Ship?")
        run.deliver(run.pending[0].key, {"yes": True, "why": "green"})
        done = run.resume()
    assert done.prediction == Verdict(yes=True, why="green")


def test_a_direct_call_says_that_only_a_run_can_wait() -> None:
    with pytest.raises(ToolError, match="only a run can wait"):
        review("Ship it?")
    with pytest.raises(ToolError, match="only a run can wait"):
        asyncio.run(DECLARED.acall(text="Ship it?"))


@pytest.mark.parametrize("count", range(8))
def test_a_crash_after_any_entry_asks_nobody_and_loses_no_result(count: int) -> None:
    """Nothing ran here, so nothing can be half done."""
    steps = [ASK, DONE]

    def next_step(request: Any) -> Response:
        return steps[sum(message.role == "assistant" for message in request.messages)]

    agent = ReAct("task -> answer", [review], lm=ScriptedLM(by=next_step))
    whole = agent.start(task="x")
    whole.deliver(whole.pending[0].key, {"yes": True})
    form = json.loads(whole.resume().to_json())
    kept = form["journal"][:count]
    answers = [entry["value"] for entry in form["journal"] if entry["kind"] == "decision"]
    is_used = any(entry["kind"] == "decision" for entry in kept)
    form |= {"status": "running", "questions": [], "journal": kept}
    form["answers"] = [] if is_used else answers
    run = Run.from_json(json.dumps(form), agent)
    run.resume()
    if run.status == "waiting":
        assert [question.kind for question in run.pending] == ["result"]
        run.deliver(run.pending[0].key, {"yes": True})
        run.resume()
    assert run.status == "done"
    assert json.loads(run.trajectory.steps[0].results[0].content) == {"yes": True}
