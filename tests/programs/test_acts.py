"""Acts answered by hand: what a built-in program asks of its driver, and when."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from agent_script import native_step
from mcp.server.mcpserver import MCPServer as Remote

from ferrule import MCPServer, Policy, ReAct, Response, ToolCall, ToolResult, deny
from ferrule.acts import CallModel, CallTools, Conditions, Once, RuleCalls, Tell, Within
from ferrule.testing import ScriptedLM
from ferrule.tools.execution.run import run_call


def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def pays(*amounts: int) -> Response:
    return Response("", tuple(ToolCall(name="pay", args={"euros": each}) for each in amounts))


DONE = native_step("", "finish", {"answer": "ok"})


def drive_by_hand(flow: Any, **answers: Any) -> tuple[Any, list[Any]]:
    """Run a flow to its end.

    Model and tools answer for themselves, other acts as `answers` says by their names, else with
    None.
    """
    acts: list[Any] = []
    answer: Any = None
    while True:
        try:
            acts.append(act := flow.send(answer))
        except StopIteration as end:
            return end.value, acts
        match act:
            case CallModel():
                answer = act.lm.complete(act.request)
            case CallTools():
                answer = [run_call(each) for each in act.calls]
            case _:
                found = answers.get(type(act).__name__)
                answer = found(act) if callable(found) else found


def names(acts: list[Any]) -> list[str]:
    return [type(each).__name__ for each in acts if not isinstance(each, Tell)]


@pytest.mark.parametrize("calls", [pays(1), pays(1, 2)])
def test_conditions_are_read_once_and_no_ruling_is_asked_for_without_a_policy(
    calls: Response,
) -> None:
    flow = ReAct("q -> answer", [pay], native=True).flow(q="?", lm=ScriptedLM([calls, DONE]))
    prediction, acts = drive_by_hand(flow)
    assert prediction.answer == "ok"
    assert names(acts) == ["Within", "CallModel", "CallTools", "CallModel"]


def test_the_model_and_the_policy_come_from_the_conditions() -> None:
    policy = Policy([deny("pay", reason="broke")])
    conditions = Conditions(ScriptedLM([pays(1), DONE]), policy=policy)
    agent = ReAct("q -> answer", [pay], native=True)
    prediction, acts = drive_by_hand(
        agent.flow(q="?"),
        Within=conditions,
        RuleCalls=lambda act: [act.policies[0].rule_for(each.tool.name, {}) for each in act.calls],
    )
    assert names(acts) == ["Within", "CallModel", "RuleCalls", "CallModel"]
    assert (
        prediction.trajectory["observation_0"]
        == "A policy forbids this call; it was not run. Reason: broke"
    )


def test_a_resumed_run_asks_for_the_rulings_that_it_may_have_recorded() -> None:
    flow = ReAct("q -> answer", [pay], native=True).flow(q="?", lm=ScriptedLM([pays(1), DONE]))
    prediction, acts = drive_by_hand(
        flow,
        Within=Conditions(is_resumed=True),
        RuleCalls=[None],
    )
    assert names(acts) == [
        "Within",
        "CallModel",
        "RecallCalls",
        "RuleCalls",
        "CallTools",
        "CallModel",
    ]
    assert prediction.trajectory["observation_0"] == "paid 1"


def test_only_where_a_run_is_only_read_the_results_of_a_turn_are_asked_for_at_once() -> None:
    flow = ReAct("q -> answer", [pay], native=True).flow(q="?", lm=ScriptedLM([pays(1), DONE]))
    prediction, acts = drive_by_hand(
        flow,
        Within=Conditions(is_resumed=True, is_only_read=True),
        RecallResults=lambda act: [ToolResult("pay", "paid before", act.calls[0].id)],
    )
    assert names(acts) == ["Within", "CallModel", "RecallResults", "CallModel"]
    assert prediction.trajectory["observation_0"] == "paid before"


@pytest.mark.parametrize("is_resumed", [True, False])
def test_whether_servers_changed_is_asked_only_where_it_may_be_so(is_resumed: bool) -> None:
    remote = Remote("sums")
    remote.add_tool(pay)
    with contextlib.closing(MCPServer.in_memory(remote, trust=True, confirm=False)) as server:
        flow = ReAct("q -> answer", [server], native=True).flow(
            q="?",
            lm=ScriptedLM([pays(1), DONE]),
        )
        prediction, acts = drive_by_hand(
            flow,
            Within=Conditions(is_resumed=is_resumed),
            RuleCalls=[None],
        )
    assert prediction.answer == "ok"
    asked = [each.name for each in acts if isinstance(each, Once)]
    assert asked == (["servers away", "tools of servers"] if is_resumed else [])
    assert isinstance(acts[0], Within)
    assert sum(isinstance(each, RuleCalls) for each in acts) == is_resumed
