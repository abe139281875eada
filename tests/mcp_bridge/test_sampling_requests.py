"""A model lent to a server, within bounds (M61)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ferrule.errors import MCPToolError
from ferrule.mcp_bridge.client.mcp_server import MCPServer
from ferrule.mcp_bridge.sampling_requests import sampling
from ferrule.testing.scripted import ScriptedLM

ASKED: dict[str, Any] = {
    "systemPrompt": "Be brief.\u200b",
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "Hi"}},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
        {"role": "user", "content": {"type": "image", "data": "AA==", "mimeType": "image/png"}},
    ],
    "maxTokens": 50_000,
    "temperature": 0.5,
    "stopSequences": ["END"],
}


def answered(hook: Any, params: dict[str, Any] = ASKED) -> dict[str, Any]:
    return asyncio.run(hook(params))


def test_the_question_goes_to_the_model_and_the_answer_back() -> None:
    lm = ScriptedLM(["Hello."])
    found = answered(sampling(lm, max_tokens=200))
    assert found == {
        "role": "assistant",
        "content": {"type": "text", "text": "Hello."},
        "model": "scripted",
        "stopReason": "endTurn",
    }
    [request] = lm.requests
    assert [each.role for each in request.messages] == ["system", "user", "assistant", "user"]
    assert request.messages[0].text == "Be brief."
    assert request.settings == {
        "max_tokens": 200,
        "temperature": 0.5,
        "stop": ["END"],
    }  # never more than you said
    assert len(request.tools) == 0


def test_the_budget_ends() -> None:
    hook = sampling(ScriptedLM(["a"]), max_calls=1)
    answered(hook)
    with pytest.raises(MCPToolError, match="budget of 1"):
        answered(hook)


def test_what_nobody_approves_of_reaches_no_model() -> None:
    lm = ScriptedLM([])

    async def no(params: dict[str, Any]) -> bool:
        return "Hi" not in str(params)

    with pytest.raises(MCPToolError, match="no one approved"):
        answered(sampling(lm, approve=no))
    with pytest.raises(MCPToolError, match="no one approved"):
        answered(sampling(lm, approve=lambda _: False))
    assert lm.requests == []


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({**ASKED, "tools": [{"name": "x"}]}, "have tools"),
        ({"messages": [{"role": "user", "content": {"type": "video"}}]}, "cannot read"),
    ],
    ids=["tools", "video"],
)
def test_what_goes_beyond_talking_is_refused(params: dict[str, Any], why: str) -> None:
    with pytest.raises(MCPToolError, match=why):
        answered(sampling(ScriptedLM([]), max_calls=5), params)


def test_without_the_hook_the_capability_is_not_declared() -> None:
    """Off by default."""
    assert MCPServer.stdio("x").options.sample is None
