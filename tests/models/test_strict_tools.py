"""Strict function calling over real HTTP: lowered out, restored back (E15, L6)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from wire_servers import serve

from ferrule import LM, ConfigurationError, ReAct, Response, ScriptedLM, ToolCall, context, tool

GOT: list[dict[str, Any]] = []


@tool
def search(query: str, limit: int = 10, tags: list[str] | None = None) -> str:
    """Search."""
    GOT.append({"query": query, "limit": limit, "tags": tags})
    return "found"


@tool
def note(fields: dict[str, str]) -> str:
    """Keep free fields, which no strict mode takes."""
    GOT.append(fields)
    return "kept"


SCRIPT = [
    Response(
        None,
        (ToolCall(name="search", args={"query": "q", "limit": None, "tags": None}), ToolCall(name="note", args={"fields": {"a": "b"}})),
    ),
    Response(None, (ToolCall(name="finish", args={"answer": "x"}),)),
]


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize("how", ["sync", "stream", "async"])
def test_optionals_come_back_as_left_out(wire, how):
    GOT.clear()
    with serve(ScriptedLM(SCRIPT)) as served, context(lm=served.lm(wire=wire, strict_tools=True)):
        agent = ReAct("question -> answer", [search, note], native=True)
        if how == "stream":
            with agent.stream(question="q?") as events:
                list(events)
            found = events.prediction
        else:
            found = agent(question="q?") if how == "sync" else asyncio.run(agent.acall(question="q?"))
    assert found.answer == "x"
    assert {"query": "q", "limit": 10, "tags": None} in GOT
    assert {"a": "b"} in GOT
    sent = {each.get("function", each)["name"]: each.get("function", each) for each in served.requests[0]["tools"]}
    assert sent["search"]["strict"] is True
    assert sent["search"]["parameters"]["required"] == ["query", "limit", "tags"]
    assert not sent["note"].get("strict")
    assert "limit" not in search.parameters["required"]  # on a copy (E15)


def test_what_comes_back_is_checked_as_if_there_were_no_strict_mode():
    """P57: the same checks as for any model; what a decoder was told to keep to is not taken for kept."""
    GOT.clear()
    wrong = Response(None, (ToolCall(name="search", args={"query": ["q"], "limit": "many", "tags": None}),))
    said = []
    for strict in (True, False):
        with serve(ScriptedLM([wrong, SCRIPT[-1]])) as served, context(lm=served.lm(wire="openai_chat", strict_tools=strict)):
            found = ReAct("question -> answer", [search], native=True)(question="q?")
        assert found.trajectory.steps[0].results[0].is_fault
        said.append(found.trajectory["observation_0"])
    assert GOT == []
    assert said[0] == said[1]
    assert "Call to `search` was not run" in said[0]
    assert "limit" in said[0]


def test_anthropics_strict_mode_is_asked_for():
    with serve(ScriptedLM(SCRIPT)) as served, context(lm=served.lm(wire="anthropic", strict_tools=True)):
        assert ReAct("question -> answer", [search], native=True)(question="q?").answer == "x"
    assert [tool.get("strict", False) for tool in served.requests[0]["tools"]][:1] == [True]


def test_without_it_schemas_go_as_they_are():
    with serve(ScriptedLM([Response("[[ ## answer ## ]]\nx")])) as served:
        served.lm()("hi")
        with context(lm=served.lm()):
            ReAct("question -> answer", [search], native=True)
    assert "strict" not in json.dumps(served.requests)


def test_a_wire_without_a_strict_mode_says_so():
    with pytest.raises(ConfigurationError, match="gemini"):
        LM("gemini/gemini-3-flash", strict_tools=True)
