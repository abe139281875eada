"""Tools that the model's provider searches: declared in each request, and read when they are found."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from provider_server import anthropic, message, openai, openai_message, openai_response

from ferrule import (
    LM,
    FallbackLM,
    MCPServer,
    MemoryStore,
    Policy,
    Predict,
    ProviderCall,
    ReAct,
    Run,
    Tool,
    Toolbox,
    deny,
)
from ferrule.errors import ConfigurationError, ToolDefinitionError
from ferrule.events import ProviderCallFinished, ProviderCallStarted
from ferrule.testing import ScriptedLM

MODELS = {
    "anthropic": ("anthropic/claude-opus-4-8", {}),
    "openai": ("openai/gpt-5.4", {"wire": "openai_responses"}),
}


@pytest.fixture(params=MODELS)
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


def model(provider: str, url: str) -> LM:
    name, options = MODELS[provider]
    return LM(name, base_url=url, api_key="k", max_retries=0, **options)


def about(service: str) -> Tool:
    return Tool(lambda: f"{service} is up", f"{service}.status", f"Say whether {service} is up.")


def services(count: int = 30) -> list[Tool]:
    return [about(name) for name in ("mail", "pay", *[f"worker{i}" for i in range(count)])]


def toolbox(**options: Any) -> Toolbox:
    return Toolbox(services(), search="provider", keep=["mail.*"], **options)


def found_and_called(provider: str) -> dict[str, Any]:
    """An answer that searches, finds a tool, and calls it."""
    if provider == "anthropic":
        search = {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "tool_search_tool_bm25",
            "input": {"query": "payments"},
        }
        content = {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "pay_dot_status"}],
        }
        result = {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1"}
        call = {"type": "tool_use", "id": "toolu_1", "name": "pay_dot_status", "input": {}}
        return message(search, {**result, "content": content}, call, stop="tool_use")
    search = {
        "type": "tool_search_call",
        "id": "tsc_1",
        "call_id": None,
        "execution": "server",
        "status": "completed",
        "arguments": {"query": "payments"},
    }
    tool = {
        "type": "function",
        "name": "pay_dot_status",
        "description": "Say whether pay is up.",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
        "defer_loading": True,
    }
    result = {**search, "type": "tool_search_output", "id": "tso_1", "tools": [tool]}
    del result["arguments"]
    return openai_response(search, result, function_call("pay_dot_status", "call_1"))


def function_call(name: str, call_id: str, **args: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(args),
        "status": "completed",
    }


def finished(provider: str) -> dict[str, Any]:
    if provider == "anthropic":
        call = {"type": "tool_use", "id": "toolu_2", "name": "finish", "input": {"answer": "Up."}}
        return message(call, stop="tool_use")
    return openai_response(function_call("finish", "call_2", answer="Up."))


def served(provider: str, *answers: dict[str, Any]) -> Any:
    return {"anthropic": anthropic, "openai": openai}[provider](*answers)


def found(provider: str) -> ProviderCall:
    call_id = {"anthropic": "srvtoolu_1", "openai": "tsc_1"}[provider]
    return ProviderCall("tool_search", {"query": "payments"}, "pay_dot_status", id=call_id)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_calls_a_tool_that_its_provider_found(provider, streamed):
    with served(provider, found_and_called(provider), finished(provider)) as server:
        agent = ReAct("question -> answer", toolbox(), lm=model(provider, server.url))
        if streamed:
            stream = agent.stream(question="Are the payments up?")
            events = list(stream)
            prediction = stream.prediction
            kinds = (ProviderCallStarted, ProviderCallFinished)
            calls = [event.call for event in events if isinstance(event, kinds)]
            assert [call.result for call in calls] == [None, "pay_dot_status"]
        else:
            prediction = agent(question="Are the payments up?")
    first, _ = prediction.trajectory.steps
    assert first.provider_calls == (found(provider),)
    assert [result.content for result in first.results] == ["pay is up"]
    assert prediction.answer == "Up."
    assert prediction.usage.provider_calls == {"tool_search": 1}


def test_the_deferred_tools_are_marked_and_the_kept_ones_are_not(provider):
    with served(provider, found_and_called(provider), finished(provider)) as server:
        ReAct("question -> answer", toolbox(), lm=model(provider, server.url))(question="Up?")
    search, *tools = server.bodies[0]["tools"]
    assert (
        search["type"]
        == {
            "anthropic": "tool_search_tool_bm25_20251119",
            "openai": "tool_search",
        }[provider]
    )
    deferred = {tool["name"] for tool in tools if tool.get("defer_loading")}
    assert {tool["name"] for tool in tools} - deferred == {"mail_dot_status", "finish"}
    marked = [tool["name"] for tool in tools if "cache_control" in tool]
    assert marked == {"anthropic": ["finish"], "openai": []}[provider]


def test_a_search_leaves_every_earlier_byte_as_it_was_and_goes_back_as_it_came(provider):
    first = found_and_called(provider)
    with served(provider, first, finished(provider)) as server:
        ReAct("question -> answer", toolbox(), lm=model(provider, server.url))(question="Up?")
    before, after = server.bodies
    assert before["tools"] == after["tools"]
    if provider == "anthropic":
        assert after["messages"][1] == {"role": "assistant", "content": first["content"]}
    else:
        assert after["input"][len(before["input"]) :][:3] == first["output"]


def test_a_tool_that_must_be_called_is_not_deferred(provider):
    answer = message({"type": "text", "text": "ok"})
    if provider == "openai":
        answer = openai_response(openai_message("ok"))
    with served(provider, answer) as server:
        program = Predict(
            "question -> answer",
            tools=Toolbox(services(), search="provider"),
            lm=model(provider, server.url),
            tool_choice={"type": "function", "function": {"name": "pay_dot_status"}},
        )
        program(question="Up?")
    _, *tools = server.bodies[0]["tools"]
    declared = [tool["name"] for tool in tools if "defer_loading" not in tool]
    assert declared == ["pay_dot_status"]


def test_tools_of_an_mcp_server_are_deferred_when_it_has_listed_them(provider):
    from mcp.server.mcpserver import MCPServer as Remote

    remote = Remote("billing")

    @remote.tool()
    def refund(invoice: str) -> str:
        """Refund an invoice."""
        return invoice

    with (
        closing(MCPServer.in_memory(remote, trust=True, confirm=False)) as mcp,
        served(provider, finished(provider)) as server,
    ):
        tools = Toolbox([mcp, about("mail")], search="provider", keep=["mail.*"])
        assert not tools.is_listed
        ReAct("question -> answer", tools, lm=model(provider, server.url))(question="Up?")
    deferred = [tool["name"] for tool in server.bodies[0]["tools"] if tool.get("defer_loading")]
    assert deferred == ["refund"]


def test_a_policy_that_denies_the_search_declares_all_tools(provider):
    with served(provider, finished(provider)) as server:
        agent = ReAct(
            "question -> answer",
            toolbox(),
            policy=Policy([deny("tool_search")]),
            lm=model(provider, server.url),
        )
        agent(question="Up?")
    assert "defer_loading" not in json.dumps(server.bodies)
    assert "tool_search" not in json.dumps(server.bodies)
    assert len(server.bodies[0]["tools"]) == 33


def test_a_stored_run_goes_on_elsewhere_with_the_same_tools(provider):
    store = MemoryStore()
    tools = [
        Tool(tool.func, tool.name, tool.desc, require_confirmation=tool.name == "pay.status")
        for tool in services()
    ]
    with served(provider, found_and_called(provider), finished(provider)) as server:
        agent = ReAct(
            "question -> answer",
            Toolbox(tools, search="provider"),
            lm=model(provider, server.url),
        )
        run = agent.start(question="Up?", store=store, run_id="r")
        assert run.status == "waiting"
        loaded = Run.load(store, "r", agent)
        loaded.answer(loaded.pending[0].approve())
        loaded.resume()
        assert loaded.prediction.answer == "Up."
    assert len(server.bodies) == 2
    store.close()


@pytest.mark.parametrize(
    "lm",
    [
        LM("openai/gpt-5.4", api_key="k"),
        LM("openai/gpt-5.2", wire="openai_responses", api_key="k"),
        LM("anthropic/claude-opus-4-1", api_key="k"),
        LM("gemini/gemini-3-pro", api_key="k"),
        LM("ollama/qwen3"),
        FallbackLM([LM("anthropic/claude-opus-4-8", api_key="k"), LM("ollama/qwen3")]),
    ],
    ids=lambda lm: lm.name,
)
def test_a_model_whose_provider_searches_no_tools_is_refused_before_anything_is_sent(lm):
    with pytest.raises(ConfigurationError, match="nothing was sent") as caught:
        ReAct("question -> answer", toolbox(), lm=lm)(question="Up?")
    assert 'LM("anthropic/...")' in str(caught.value)


@pytest.mark.parametrize("options", [{"native": False}, {"calls": "prompted"}])
def test_calls_in_text_are_refused_before_anything_is_sent(options):
    lm = ScriptedLM([])
    with pytest.raises(ConfigurationError, match=r'search="bm25"'):
        ReAct("question -> answer", toolbox(), lm=lm, **options)(question="Up?")
    assert lm.requests == []


def test_what_means_nothing_with_a_search_of_the_provider_is_refused():
    with pytest.raises(ToolDefinitionError, match="keep_turns"):
        toolbox(keep_turns=3)
    pytest.importorskip("pydantic_monty", reason="code mode needs it")
    with pytest.raises(ConfigurationError, match="no tools are declared"):
        ReAct("question -> answer", toolbox(), calls="code")


def test_a_shelf_and_a_copied_toolbox_are_searched_too():
    tools = Toolbox([about("mail")], shelf=[about("pay")], search="provider", keep=["mail.*"])
    for box in (tools, Toolbox(tools), Toolbox(tools, spill_over=5_000)):
        (search,) = box.provider_tools
        assert search.deferred == ("pay_dot_status",)
        assert box.names[:2] == ("mail.status", "pay.status")
        assert box.shelf is None
    (search,) = Toolbox(tools, search="provider").provider_tools
    assert search.deferred == ("mail_dot_status", "pay_dot_status")


def test_a_saved_program_is_loaded_with_its_search(tmp_path):
    agent = ReAct("question -> answer", toolbox())
    agent.save(tmp_path / "agent.json")
    again = ReAct("question -> answer", toolbox())
    again.load(tmp_path / "agent.json")
    assert again.react.toolbox.provider_tools == agent.react.toolbox.provider_tools
    plain = ReAct("question -> answer", services())
    with pytest.raises(ToolDefinitionError, match="tool_search"):
        plain.load(tmp_path / "agent.json")
