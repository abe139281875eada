"""The declarations of providers' tools on every wire, and what wires read of their calls."""

from __future__ import annotations

import asyncio
import json

import pytest
from provider_server import (
    anthropic_events,
    check_anthropic,
    check_openai,
    message,
    openai_message,
    openai_response,
    provider,
)

from ferrule import (
    LM,
    Capabilities,
    Citation,
    CodeExecution,
    FallbackLM,
    FileSearch,
    Location,
    Message,
    Messages,
    Prices,
    ProviderCall,
    RemoteMCP,
    Request,
    Response,
    Usage,
    WebFetch,
    WebSearch,
)
from ferrule.errors import ConfigurationError, ToolDefinitionError
from ferrule.models.providers import PROVIDERS, capabilities_of
from ferrule.models.wires import anthropic, gemini, openai_responses
from ferrule.values.provider_tools import PROVIDER_TOOLS

QUESTION = Messages([Message("user", "What?")])
MCP = RemoteMCP(label="docs", url="https://mcp.example/mcp", token="t", allowed_tools=["read"])
PARIS = Location(city="Paris", country="FR")
ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}


def body(wire, *tools, model="m", functions=()):
    request = Request(QUESTION, functions, provider_tools=tools)
    return json.loads(wire.render(request, model=model, settings={}))


def test_every_tool_and_option_of_anthropic_has_the_form_of_its_sdk():
    sent = body(
        anthropic,
        WebSearch(max_uses=2, blocked_domains=["a.org"], location=PARIS),
        WebFetch(allowed_domains=["b.org"], max_content_tokens=500, citations=True),
        CodeExecution(),
        MCP,
        functions=[ADD],
    )
    check_anthropic(sent)
    names = [tool.get("name") or tool["mcp_server_name"] for tool in sent["tools"]]
    assert names == ["web_search", "web_fetch", "code_execution", "docs", "add"]
    assert sent["mcp_servers"] == [
        {
            "type": "url",
            "name": "docs",
            "url": "https://mcp.example/mcp",
            "authorization_token": "t",
        }
    ]


def through_lm(url: str, request: Request) -> None:
    LM("anthropic/claude-opus-4-8", base_url=url, api_key="k").complete(request)


def through_client(url: str, request: Request) -> None:
    import anthropic as sdk

    sync = sdk.Anthropic(base_url=url.removesuffix("/v1"), api_key="k")
    LM.from_client(sync, "claude-opus-4-8").complete(request)


def through_stream_of_client(url: str, request: Request) -> None:
    import anthropic as sdk

    sync = sdk.Anthropic(base_url=url.removesuffix("/v1"), api_key="k")
    list(LM.from_client(sync, "claude-opus-4-8").stream(request))


def through_async_client(url: str, request: Request) -> None:
    import anthropic as sdk

    async def ask() -> None:
        async with sdk.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="k") as client:
            await LM.from_client(client, "claude-opus-4-8").acomplete(request)

    asyncio.run(ask())


DOORS = (through_lm, through_client, through_stream_of_client, through_async_client)


@pytest.mark.parametrize("ask", DOORS)
@pytest.mark.parametrize("has_addition", [False, True])
def test_what_a_request_needs_in_headers_goes_with_it_through_every_door(ask, has_addition):
    request = Request(QUESTION, provider_tools=(MCP,))
    needed = ["mcp-client-2025-11-20"]
    if has_addition:
        late = {"type": "function", "function": {"name": "late", "parameters": {}}}
        question = Messages([*QUESTION, Message("assistant", "Hm."), Message("user", "Go on.")])
        request = Request(question, [ADD], provider_tools=(MCP,))
        request = Request(question, [ADD, late], provider_tools=(MCP,)).continuing(request)
        needed.append("inline-tools-2026-09-15")
    answer = message({"type": "text", "text": "ok"})
    with provider([answer], check_anthropic, anthropic_events) as side:
        ask(side.url, request)
    assert side.headers[0]["anthropic-beta"].split(",") == needed


def test_betas_of_the_users_client_stay():
    import anthropic as sdk

    client = {"default_headers": {"Anthropic-Beta": "mine-2026, mcp-client-2025-11-20"}}
    answer = message({"type": "text", "text": "ok"})
    with provider([answer], check_anthropic, anthropic_events) as side:
        sync = sdk.Anthropic(base_url=side.url.removesuffix("/v1"), api_key="k", **client)
        lm = LM.from_client(sync, "claude-opus-4-8")
        lm.complete(Request(QUESTION, provider_tools=(MCP,)))
    assert side.headers[0]["anthropic-beta"] == "mcp-client-2025-11-20,mine-2026"


def test_every_tool_and_option_of_openai_has_the_form_of_its_sdk():
    sent = body(
        openai_responses,
        WebSearch(allowed_domains=["a.org"], location=PARIS, context_size="high"),
        CodeExecution(files=["file-1"]),
        FileSearch(
            stores=["vs_1"],
            max_results=3,
            filter={"type": "eq", "key": "year", "value": 2026},
        ),
        RemoteMCP(label="docs", url="https://mcp.example/mcp", headers={"x": "y"}),
        model="gpt-5",
    )
    check_openai(sent)
    assert sent["tools"][-1]["require_approval"] == "never"
    assert sent["include"] == [
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "code_interpreter_call.outputs",
        "file_search_call.results",
    ]


def test_gemini_takes_its_own_tools_alone_or_since_version_3_with_functions():
    tools = (WebSearch(), WebFetch(), CodeExecution(), FileSearch(stores=["s"], max_results=2))
    alone = body(gemini, *tools, model="gemini-2.5-flash")
    assert alone["tools"] == [
        {"googleSearch": {}},
        {"urlContext": {}},
        {"codeExecution": {}},
        {"fileSearch": {"fileSearchStoreNames": ["s"], "topK": 2}},
    ]
    assert "toolConfig" not in alone
    both = body(gemini, WebSearch(), model="gemini-3-flash", functions=[ADD])
    assert both["tools"][0] == {"googleSearch": {}}
    assert "functionDeclarations" in both["tools"][1]
    assert both["toolConfig"] == {"includeServerSideToolInvocations": True}
    with pytest.raises(ConfigurationError, match="Gemini 3"):
        body(gemini, WebSearch(), model="gemini-2.5-flash", functions=[ADD])


def test_tools_in_extra_come_after_those_of_the_program():
    request = Request(QUESTION, provider_tools=(WebSearch(),))
    settings = {"extra": {"tools": [{"type": "x_search"}]}}
    sent = json.loads(openai_responses.render(request, model="grok-4", settings=settings))
    assert [tool["type"] for tool in sent["tools"]] == ["web_search", "x_search"]


def test_a_digest_covers_the_declarations_and_no_secret():
    plain = Request(QUESTION)
    searching = Request(QUESTION, provider_tools=(WebSearch(),))
    limited = Request(QUESTION, provider_tools=(WebSearch(max_uses=1),))
    assert len({plain.digest, searching.digest, limited.digest}) == 3
    other = RemoteMCP(label="docs", url=MCP.url, token="other", allowed_tools=["read"])
    digests = {Request(QUESTION, provider_tools=(tool,)).digest for tool in (MCP, other)}
    assert len(digests) == 1
    assert "token" not in repr(MCP)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (WebSearch, {"max_uses": "3"}),
        (WebSearch, {"allowed_domains": "python.org"}),
        (WebSearch, {"allowed_domains": ["https://python.org"]}),
        (WebSearch, {"allowed_domains": ["a.org"], "blocked_domains": ["b.org"]}),
        (FileSearch, {"stores": []}),
        (RemoteMCP, {"label": "", "url": "https://a.org"}),
        (RemoteMCP, {"label": "a", "url": "a.org"}),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(kind, options):
    with pytest.raises(ToolDefinitionError):
        kind(**options)


def test_a_secret_of_another_type_is_not_in_the_error():
    with pytest.raises(ToolDefinitionError) as caught:
        RemoteMCP(label="a", url="https://a.org", token=b"secret")
    assert "secret" not in str(caught.value)


# -- what models can do


def test_a_model_can_what_its_provider_offers_on_its_wire():
    assert LM("anthropic/claude-sonnet-4-5").can(WebFetch)
    assert not LM("anthropic/claude-3-haiku-20240307").can(WebSearch)
    assert not LM("openai/gpt-5").can(WebSearch)
    assert LM("xai/grok-4", wire="openai_responses").can(FileSearch(stores=["c"]))
    assert LM("http://localhost:1/v1", model="m", wire="anthropic").can("web_search")
    assert LM("openai/gpt-5", wire="openai_responses", capabilities=Capabilities()).can(WebSearch)
    none = Capabilities(provider_tools=())
    assert not LM("openai/gpt-5", wire="openai_responses", capabilities=none).can(WebSearch)
    with pytest.raises(ConfigurationError, match="web_search"):
        LM("openai/gpt-5").can("web_serch")


def test_models_in_turn_can_what_all_of_them_can():
    claude = LM("anthropic/claude-sonnet-4-5")
    lm = FallbackLM([claude, LM("openai/gpt-5", wire="openai_responses")])
    assert lm.can(WebSearch)
    assert not lm.can(WebFetch)


def test_every_provider_says_which_of_its_tools_it_has():
    for known in PROVIDERS.values():
        assert set(capabilities_of(known, "m").provider_tools or ()) <= PROVIDER_TOOLS.keys()


# -- what came of them


def test_code_that_anthropic_ran_is_read_with_its_output():
    call = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "bash_code_execution",
        "input": {"command": "python -c 'print(6*7)'"},
    }
    result = {
        "type": "bash_code_execution_result",
        "stdout": "42\n",
        "stderr": "",
        "return_code": 0,
        "content": [],
    }
    block = {
        "type": "bash_code_execution_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": result,
    }
    response = anthropic.read(message(call, block, {"type": "text", "text": "It is 42."}))
    assert response.provider_calls == (
        ProviderCall("code_execution", call["input"], "42\n", id="srvtoolu_1"),
    )
    assert response.usage.provider_calls == {"code_execution": 1}


def test_a_search_that_failed_is_an_error_and_is_not_charged():
    call = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    content = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    block = {"type": "web_search_tool_result", "tool_use_id": "s", "content": content}
    response = anthropic.read(message(call, block, {"type": "text", "text": "Sorry."}))
    (found,) = response.provider_calls
    assert (found.result, found.is_error) == ("error: max_uses_exceeded", True)
    assert response.usage.provider_calls == {}


def test_a_call_of_a_remote_server_names_the_tool_and_the_server():
    call = {
        "type": "mcp_tool_use",
        "id": "mcptoolu_1",
        "name": "read",
        "server_name": "docs",
        "input": {"page": 1},
    }
    result = {
        "type": "mcp_tool_result",
        "tool_use_id": "mcptoolu_1",
        "is_error": False,
        "content": [{"type": "text", "text": "Page one."}],
    }
    ours = anthropic.read(message(call, result, {"type": "text", "text": "Read."}))
    item = {
        "type": "mcp_call",
        "id": "mcptoolu_1",
        "name": "read",
        "server_label": "docs",
        "arguments": '{"page": 1}',
        "output": "Page one.",
        "status": "completed",
    }
    theirs = openai_responses.read(openai_response(item, openai_message("Read.")))
    expected = ProviderCall("read", {"page": 1}, "Page one.", id="mcptoolu_1", server="docs")
    assert ours.provider_calls == theirs.provider_calls == (expected,)
    assert ours.usage.provider_calls == theirs.usage.provider_calls == {"remote_mcp": 1}


def test_code_and_files_of_openai_are_read_with_what_was_found():
    code = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": "cntr_1",
        "code": "print(6*7)",
        "outputs": [{"type": "logs", "logs": "42\n"}],
        "status": "completed",
    }
    files = {
        "type": "file_search_call",
        "id": "fs_1",
        "queries": ["terms"],
        "results": [{"file_id": "file-1", "filename": "a.txt", "score": 0.9, "text": "30 days"}],
        "status": "completed",
    }
    citation = {"type": "file_citation", "file_id": "file-1", "filename": "a.txt", "index": 7}
    answer = openai_message("30 days", citation)
    response = openai_responses.read(openai_response(code, files, answer))
    assert response.provider_calls == (
        ProviderCall("code_execution", {"code": "print(6*7)"}, "42\n", id="ci_1"),
        ProviderCall("file_search", {"queries": ["terms"]}, "a.txt: 30 days", id="fs_1"),
    )
    assert response.citations == (Citation(title="a.txt", file="file-1"),)


GROUNDING = {
    "webSearchQueries": ["newest python", "python 3.15"],
    "groundingChunks": [{"web": {"uri": "https://python.org", "title": "python.org"}}],
    "groundingSupports": [
        {
            "segment": {"startIndex": 7, "endIndex": 18, "text": "Python 3.15"},
            "groundingChunkIndices": [0],
        }
    ],
}


def answer_of_gemini(*parts, model="gemini-3-flash", **metadata):
    content = {"role": "model", "parts": list(parts)}
    candidate = {"content": content, "finishReason": "STOP", **metadata}
    return {"candidates": [candidate], "modelVersion": model}


@pytest.mark.parametrize(("model", "charged"), [("gemini-3-flash", 2), ("gemini-2.5-flash", 1)])
def test_searches_of_gemini_are_in_its_metadata(model, charged):
    payload = answer_of_gemini(
        {"text": "Żółw: Python 3.15"}, model=model, groundingMetadata=GROUNDING
    )
    response = gemini.read(payload)
    assert [call.args["query"] for call in response.provider_calls] == GROUNDING["webSearchQueries"]
    assert response.provider_calls[0].result == "python.org: https://python.org"
    assert response.citations == (Citation("https://python.org", "python.org", start=6, end=17),)
    assert response.usage.provider_calls == {"web_search": charged}


def test_code_of_gemini_is_a_part_of_its_turn_and_goes_back_with_it():
    parts = [
        {"text": "I compute."},
        {"executableCode": {"language": "PYTHON", "code": "print(6*7)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42\n"}},
        {"text": "It is 42."},
    ]
    response = gemini.read(answer_of_gemini(*parts))
    assert response.text == "It is 42."
    (call,) = response.provider_calls
    assert (call.name, call.args, call.result) == (
        "code_execution",
        {"code": "print(6*7)"},
        "42\n",
    )
    request = Request(QUESTION.then(response.message()))
    sent = json.loads(gemini.render(request, model="gemini-3-flash", settings={}))
    assert sent["contents"][1]["parts"] == parts


def test_a_streamed_answer_of_gemini_tells_of_code_while_it_runs():
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "print(6*7)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}},
        {"text": "It failed."},
    ]
    assembly = gemini.Assembly()
    deltas = []
    for part in parts:
        payload = answer_of_gemini(part)
        if part is not parts[-1]:
            del payload["candidates"][0]["finishReason"]
        deltas += assembly.feed(b"data: %b\n\n" % json.dumps(payload).encode())
    deltas += assembly.end()
    told = [
        (delta.provider_call.result, delta.is_running) for delta in deltas if delta.provider_call
    ]
    assert told == [(None, True), ("no", False)]
    (call,) = assembly.response().provider_calls
    assert call.is_error


# -- prices


def test_a_search_has_its_price():
    pytest.importorskip("genai_prices", reason="needs the extra: pip install 'ferrule[prices]'")
    prices = Prices()

    def cost(**counts):
        usage = Usage(1000, 100, calls=1, provider_calls=counts)
        return prices.cost_of(Response("x", usage=usage), "anthropic/claude-sonnet-4-5")

    assert cost(web_search=10) == pytest.approx(cost() + 0.1)
    assert cost(web_fetch=10) == cost()
