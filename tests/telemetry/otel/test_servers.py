"""MCP servers in traces: the trace goes to a server with a call, and what a server of ours does is
below the client's span.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared import _otel as sdk
from mcp_servers import free_port, listening
from mcp_talk import ERAS, talk
from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from otel_spans import Sent, tree

import ferrule
from ferrule import Predict, ReAct, configure, context, settings
from ferrule.mcp_bridge import MCPApp
from ferrule.testing import ScriptedLM

DONE = {"name": "finish", "args": {"answer": "yes"}}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The MCP SDK takes the global provider, which a process can set once only: here its tracer is
    put in place for one test.
    """
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
    """The SDK's client span is below `execute_tool`, and the server's below that; baggage only
    where it is wanted.
    """
    seen: list[Any] = []
    observer = ferrule.OTel(
        tracer_provider=sent.provider,
        meter_provider=sent.meters,
        baggage=sends_baggage,
    )
    token = otel_context.attach(baggage.set_baggage("user", "ann"))
    try:
        with (
            ferrule.MCPServer.in_memory(server(seen), name="calculator") as tools,
            context(
                callbacks=[observer],
                lm=ScriptedLM([{"name": "add", "args": {"a": 1, "b": 2}}, DONE]),
            ),
        ):
            agent = ReAct("task -> answer", [*tools], native=True)
            sent.exporter.clear()
            asyncio.run(agent.acall(task="x")) if driver == "async" else agent(task="x")
    finally:
        otel_context.detach(token)
    whole = [each for each in sent.tree() if each[0] == "invoke_agent ReAct"]
    assert whole == [
        [
            "invoke_agent ReAct",
            "chat scripted",
            ["execute_tool add", ["MCP send tools/call add", "tools/call add"]],
            "chat scripted",
        ],
    ]
    about = sent.one("execute_tool add").attributes
    found = [
        about[name] for name in ("gen_ai.tool.type", "mcp.method.name", "mcp.protocol.version")
    ]
    assert found == ["extension", "tools/call", ERAS[-1]]
    client = sent.one("MCP send tools/call add")
    assert seen[0]["traceparent"].split("-")[1:3] == [
        format(client.context.trace_id, "032x"),
        format(client.context.span_id, "016x"),
    ]
    assert ("baggage" in seen[0]) is sends_baggage


@pytest.mark.parametrize("is_inside", [False, True], ids=["run", "agent inside"])
def test_a_run_that_is_not_sampled_sends_no_baggage_either(sent: Sent, is_inside: bool) -> None:
    """No span is made of its calls, and their context is another all the same."""
    seen: list[Any] = []
    outer = [{"name": "scout", "args": {"task": "x"}}] if is_inside else []
    observer = ferrule.OTel(
        tracer_provider=Sent(sampler=ALWAYS_OFF).provider,
        meter_provider=NoOpMeterProvider(),
    )
    token = otel_context.attach(baggage.set_baggage("user", "ann"))
    try:
        with (
            ferrule.MCPServer.in_memory(server(seen), name="calculator") as tools,
            context(
                callbacks=[observer],
                lm=ScriptedLM([*outer, {"name": "add", "args": {"a": 1, "b": 2}}, *[DONE] * 2]),
            ),
        ):
            agent = ReAct("task -> answer", [*tools], native=True)
            if is_inside:
                agent = ReAct("task -> answer", [agent.as_tool(name="scout")], native=True)
            assert agent(task="x").answer == "yes"
            assert baggage.get_baggage("user") == "ann"
    finally:
        otel_context.detach(token)
    assert "baggage" not in seen[0]


SERVER = '''
import json, os, sys
from typing import Any
from mcp.server.mcpserver import Context, MCPServer

made = MCPServer("calculator")

@made.tool()
async def add(a: int, b: int, ctx: Context[Any, Any]) -> int:
    """Add."""
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps(dict(ctx.request_context.meta or {})) + "\\n")
    if a == 0:
        os._exit(1)
    return a + b

made.run(*(["streamable-http"] if sys.argv[2:] else []), **({"port": int(sys.argv[2])} if sys.argv[2:] else {}))
'''


def parents(log: Path) -> list[str]:
    """The spans that calls came from, as their server was told."""
    return [json.loads(line)["traceparent"].split("-")[2] for line in log.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.integration
def test_the_trace_reaches_a_server_in_another_process(sent: Sent, tmp_path: Path) -> None:
    """Over stdio, also after the server was started again."""
    program, log = tmp_path / "server.py", tmp_path / "seen.jsonl"
    program.write_text(SERVER)
    script = [{"name": "add", "args": {"a": a, "b": 2}} for a in (1, 0, 3)]
    with (
        ferrule.MCPServer.stdio(
            sys.executable,
            [str(program), str(log)],
            name="calculator",
        ) as tools,
        context(callbacks=[sent.observer], lm=ScriptedLM([*script, DONE])),
    ):
        agent = ReAct("task -> answer", [*tools], native=True)
        sent.exporter.clear()
        agent(task="x")
    assert len(parents(log)) >= 3
    assert set(parents(log)) <= {
        format(span.context.span_id, "016x")
        for span in sent.spans
        if span.name == "MCP send tools/call add"
    }
    calls = [span.attributes for span in sent.spans if span.name == "execute_tool add"]
    assert [(each.get("error.type") is None, each["mcp.protocol.version"]) for each in calls] == [
        (ok, ERAS[-1]) for ok in (True, False, True)
    ]
    assert not any("mcp.session.id" in each for each in calls)


@pytest.mark.integration
@pytest.mark.parametrize("era", ERAS)
def test_the_trace_reaches_a_server_over_http(sent: Sent, era: Any, tmp_path: Path) -> None:
    """And the spans name the session and the version, those of the new session after a reconnect."""
    program, log, port = tmp_path / "server.py", tmp_path / "seen.jsonl", free_port()
    program.write_text(SERVER)
    command = [sys.executable, str(program), str(log), str(port)]
    server = ferrule.MCPServer.http(f"http://127.0.0.1:{port}/mcp", name="calculator", mode=era)
    assert (server.protocol_version, server.session_id) == (None, None)
    with contextlib.ExitStack() as first, context(callbacks=[sent.observer]):
        first.enter_context(listening(command, {}, port))
        with server as tools:
            assert tools["add"](a=1, b=2) == "3"
            first.close()
            with listening(command, {}, port):
                assert [tools["add"](a=a, b=2) for a in (2, 3)] == ["4", "5"]
                version, last = server.protocol_version, server.session_id
    clients = {
        format(span.context.span_id, "016x"): span
        for span in sent.spans
        if span.name == "MCP send tools/call add"
    }
    calls = [span for span in sent.spans if span.name == "execute_tool add"]
    # Each call arrived once, below its own span. One of an old session is refused first, and sent
    # again.
    assert [clients[each].parent.span_id for each in parents(log)] == [
        span.context.span_id for span in calls
    ]
    assert {span.attributes["mcp.protocol.version"] for span in calls} == {era} == {version}
    sessions = [span.attributes.get("mcp.session.id") for span in calls]
    if era == ERAS[-1]:  # it has no sessions
        assert sessions == [None, None, None]
    else:
        assert None not in sessions
        assert sessions[0] != sessions[1] == sessions[2] == last


def test_what_our_server_does_is_below_the_span_of_its_client(sent: Sent) -> None:
    """A function, and a program with its model call."""

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
    configure(
        callbacks=[sent.observer],
        lm=ScriptedLM(["[[ ## meaning ## ]]\nm"]),
    )  # for the process: a server's calls are of no block
    try:
        talk(app, ERAS[-1], act)
    finally:
        configure(callbacks=before.callbacks, lm=before.lm)
    [whole] = [each for each in tree(sent.spans) if each[0] == "client"]
    explain = ["tools/call explain", ["invoke_agent Predict", "chat scripted"]]
    assert [each for each in whole if each != "tools/list"] == [
        "client",
        ["tools/call double", "query"],
        explain,
    ]
