"""MCP servers in traces: the trace goes to a server with a call, and what a server of ours does is below the client's span."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared import _otel as sdk
from mcp_talk import ERAS, talk
from opentelemetry import baggage
from opentelemetry import context as otel_context
from otel_spans import Sent, tree

import ferrule
from ferrule import MCPApp, Predict, ReAct, ScriptedLM, configure, context, settings

DONE = {"name": "finish", "args": {"answer": "yes"}}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The MCP SDK takes the global provider, which a process can set once only: here its tracer is put in place for one test."""
    made = Sent()
    monkeypatch.setattr(sdk, "_tracer", made.provider.get_tracer("mcp-python-sdk"))
    return made


def server(seen: list[Any]) -> MCPServer[Any]:
    made = MCPServer("calculator")

    @made.tool()
    async def add(a: int, b: int, ctx: Context[Any, Any]) -> int:
        """Add."""
        seen.append(dict(ctx.request_context.meta or {}))
        return a + b

    return made


@pytest.mark.parametrize("driver", ["sync", "async"])
@pytest.mark.parametrize("sends_baggage", [False, True])
def test_a_call_of_a_server_carries_the_trace(sent: Sent, driver: str, sends_baggage: bool) -> None:
    """O9, O11: the SDK's client span is below `execute_tool`, and the server's below that; baggage only where it is wanted."""
    seen: list[Any] = []
    observer = ferrule.OTel(tracer_provider=sent.provider, meter_provider=sent.meters, baggage=sends_baggage)
    token = otel_context.attach(baggage.set_baggage("user", "ann"))
    try:
        with (
            ferrule.MCPServer.in_memory(server(seen), name="calculator") as tools,
            context(callbacks=[observer], lm=ScriptedLM([{"name": "add", "args": {"a": 1, "b": 2}}, DONE])),
        ):
            agent = ReAct("task -> answer", [*tools], native=True)
            sent.exporter.clear()
            asyncio.run(agent.acall(task="x")) if driver == "async" else agent(task="x")
    finally:
        otel_context.detach(token)
    whole = [each for each in sent.tree() if each[0] == "invoke_agent ReAct"]
    assert whole == [
        ["invoke_agent ReAct", "chat scripted", ["execute_tool add", ["MCP send tools/call add", "tools/call add"]], "chat scripted"]
    ]
    span = sent.one("execute_tool add")
    assert (span.attributes["gen_ai.tool.type"], span.attributes["mcp.method.name"]) == ("extension", "tools/call")
    client = sent.one("MCP send tools/call add")
    assert seen[0]["traceparent"].split("-")[1:3] == [format(client.context.trace_id, "032x"), format(client.context.span_id, "016x")]
    assert ("baggage" in seen[0]) is sends_baggage


def test_a_server_of_strangers_is_sent_no_trace(sent: Sent) -> None:
    """O11: with `trace=False`; the spans here are as before."""
    seen: list[Any] = []
    token = otel_context.attach(baggage.set_baggage("user", "ann"))
    observer = ferrule.OTel(tracer_provider=sent.provider, baggage=True)
    try:
        with (
            ferrule.MCPServer.in_memory(server(seen), name="calculator", trace=False) as tools,
            context(callbacks=[observer], lm=ScriptedLM([{"name": "add", "args": {"a": 1, "b": 2}}, DONE])),
        ):
            assert ReAct("task -> answer", [*tools], native=True)(task="x").answer == "yes"
    finally:
        otel_context.detach(token)
    assert {"traceparent", "tracestate", "baggage"} & seen[0].keys() == set()
    assert "execute_tool add" in sent.names


@pytest.mark.integration
def test_the_trace_reaches_a_server_in_another_process(sent: Sent, tmp_path: Path) -> None:
    """O9: over stdio, also after the server was started again."""
    log = tmp_path / "seen.jsonl"
    program = tmp_path / "server.py"
    program.write_text(f'''
import json, os
from typing import Any
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared import _otel as sdk

made = MCPServer("calculator")

@made.tool()
async def add(a: int, b: int, ctx: Context[Any, Any]) -> int:
    """Add."""
    with open({str(log)!r}, "a") as file:
        file.write(json.dumps(dict(ctx.request_context.meta or {{}})) + "\\n")
    if a == 0:
        os._exit(1)
    return a + b

made.run()
''')
    script = [{"name": "add", "args": {"a": a, "b": 2}} for a in (1, 0, 3)]
    with (
        ferrule.MCPServer.stdio(sys.executable, [str(program)], name="calculator") as tools,
        context(callbacks=[sent.observer], lm=ScriptedLM([*script, DONE])),
    ):
        agent = ReAct("task -> answer", [*tools], native=True)
        sent.exporter.clear()
        agent(task="x")
    clients = {format(span.context.span_id, "016x") for span in sent.spans if span.name == "MCP send tools/call add"}
    parents = [json.loads(line)["traceparent"].split("-")[2] for line in log.read_text().splitlines()]
    assert len(parents) >= 3
    assert set(parents) <= clients
    ends = [span.attributes.get("error.type") for span in sent.spans if span.name == "execute_tool add"]
    assert (ends[0], ends[2]) == (None, None)
    assert ends[1] is not None


def test_what_our_server_does_is_below_the_span_of_its_client(sent: Sent) -> None:
    """O10: a function, and a program with its model call."""

    def double(number: int) -> int:
        """Double."""
        with sent.provider.get_tracer("mine").start_as_current_span("query"):
            return 2 * number

    app = MCPApp([double, Predict("word -> meaning").as_tool("explain", "Explain a word.")])

    async def act(connected: Any) -> None:
        sent.exporter.clear()
        with sent.provider.get_tracer("mine").start_as_current_span("client"):
            for name, arguments in (("double", {"number": 2}), ("explain", {"word": "w"})):
                result = await connected.call_tool(name, arguments)
                assert not result.is_error, result

    before = settings.current()
    configure(callbacks=[sent.observer], lm=ScriptedLM(["[[ ## meaning ## ]]\nm"]))  # for the process: a server's calls are of no block
    try:
        talk(app, ERAS[-1], act)
    finally:
        configure(callbacks=before.callbacks, lm=before.lm)
    [whole] = [each for each in tree(sent.spans) if each[0] == "client"]
    explain = ["tools/call explain", ["invoke_agent Predict", "chat scripted"]]
    assert [each for each in whole if each != "tools/list"] == ["client", ["tools/call double", "query"], explain]
