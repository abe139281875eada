"""One run with all that a run can have, as its spans in one golden file: names, kinds, parents,
links and attributes.

`FERRULE_GOLDEN=write python -m pytest tests/telemetry/otel/test_golden_tree.py` records it anew.
"""

from __future__ import annotations

import json
import os
import signal
from itertools import groupby
from pathlib import Path
from typing import Any

import forked
import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

GOLDEN = Path(__file__).parents[2] / "golden" / "trace.txt"
PROGRAM = '''
import asyncio, os, signal, sys
from mcp.server import CacheHint
from mcp.server.mcpserver import MCPServer as Server
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from ferrule import MCPServer, OTel, ReAct, Run, SQLiteStore, context, tool
from ferrule.testing import ScriptedLM

path, spans, how, driver = sys.argv[1:]
provider = TracerProvider()
out = open(spans, "a", buffering=1)
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")))
trace.set_tracer_provider(provider)

def add(a: int, b: int) -> int:
    """Add."""
    return a + b

async def slow(a: int) -> int:
    """Wait a little."""
    await asyncio.sleep(0.01)
    return a

def bad() -> str:
    """Fail."""
    raise ValueError("no")

@tool(effect="idempotent")
def crash() -> str:
    """End the process, once."""
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"

@tool(require_confirmation=True)
def pay(euros: int) -> str:
    """Pay an amount."""
    return f"paid {euros}"

server = Server("calculator", cache_hints={"tools/list": CacheHint(ttl_ms=3_600_000)})  # a slow run would list them again

@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b

def call(name, **args):
    return {"name": name, "args": args}

script = {
    "die": [[call("add", a=1, b=2), call("bad"), call("multiply", a=2, b=3), call("slow", a=1)], call("crash")],
    "wait": [call("scout", place="Rome"), call("pay", euros=3)],
    "end": [call("finish", report="sunny"), call("finish", answer="yes")],
}[how]
store = SQLiteStore(path)
with MCPServer.in_memory(server, name="calculator") as remote:
    scout = ReAct("place -> report", [pay], native=True)
    agent = ReAct("task -> answer", [add, slow, bad, crash, *remote, scout.as_tool("scout")], native=True)
    with context(callbacks=[OTel()], lm=ScriptedLM(script), allow_tool_async_sync_conversion=True):
        if how == "die" and driver == "sync":
            list(agent.stream(task="x", store=store, run_id="r"))
        elif how == "die":
            async def follow():
                async for _ in agent.astream(task="x", store=store, run_id="r"):
                    pass
            asyncio.run(follow())
        else:
            run = Run.load(store, "r", agent)
            run = run.resume() if driver == "sync" else asyncio.run(run.aresume())
            print(run.status)
'''
PERSON = """
import sys
from ferrule import SQLiteStore
store = SQLiteStore(sys.argv[1])
[line] = store.list(status="waiting")
store.decide("r", line.questions[0].approve().signed(by="ann", via="mail"))
"""
MASKED = (
    "gen_ai.agent.id",
    "gen_ai.tool.call.id",
    "ferrule.question.id",
    "ferrule.decision.waited_s",
    "mcp.protocol.version",
    "gen_ai.response.time_to_first_chunk",
)
"""Attributes whose values are of one run, or of one version of the MCP SDK."""

_AROUND_CALLS = ("MCP send", "server/", "tools/list", "initialize", "notifications/")
"""Spans of the MCP SDK that connecting and closing make."""


@pytest.mark.integration
@pytest.mark.parametrize("driver", [pytest.param("sync", marks=pytest.mark.long), "async"])
def test_the_spans_of_a_run_with_everything_are_the_golden_ones(
    driver: str,
    tmp_path: Path,
) -> None:
    """A stream, parallel tools, an MCP tool, a failure, a kill, a sub-agent that waits, a decision
    elsewhere.
    """
    segments = [process(tmp_path, how, driver) for how in ("die", "wait", "person", "end")]
    assert segments.pop(2) == []
    found = shown(segments)
    if os.environ.get("FERRULE_GOLDEN") == "write":
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")


def process(folder: Path, how: str, driver: str) -> list[dict[str, Any]]:
    """Run one process; returns the spans that it sent."""
    spans = folder / f"{how}.jsonl"
    told = (
        [PERSON, str(folder / "r.db")]
        if how == "person"
        else [PROGRAM, str(folder / "r.db"), str(spans), how, driver]
    )
    ended = forked.run("-c", *told)
    assert ended.returncode == (-signal.SIGKILL if how == "die" else 0), ended.stderr
    assert ended.stdout.strip() == {"wait": "waiting", "end": "done"}.get(how, "")
    assert "opentelemetry" not in ended.stderr
    return [json.loads(line) for line in spans.read_text().splitlines()] if spans.exists() else []


def shown(segments: list[list[dict[str, Any]]]) -> str:
    """All spans as text: a line for each, below its parent, and the names of spans that links go
    to.
    """
    named: dict[str, str] = {}
    lines: list[str] = []
    for number, spans in enumerate(segments, 1):
        known = {span["context"]["span_id"] for span in spans}
        inside: dict[str, list[dict[str, Any]]] = {}
        for span in sorted(spans, key=lambda span: span["start_time"]):
            inside.setdefault(
                span["parent_id"]
                if span["parent_id"] in known
                else f"not sent {span['parent_id']}",
                [],
            ).append(span)
            if "ferrule.run.segment" in span["attributes"]:
                named[span["context"]["span_id"]] = f"segment {number}"
        lines.append(f"process {number}")
        for parent in [each for each in inside if each.startswith("not sent")]:
            below = [span for span in inside[parent] if not span["name"].startswith(_AROUND_CALLS)]
            if below and parent != "not sent None":  # the span of the process that was killed
                named[parent.removeprefix("not sent ")] = f"segment {number}"
                lines.append("  (not sent)")
            lines += tree(below, inside, named, 2 if parent != "not sent None" else 1)
    return "\n".join(lines) + "\n"


def tree(
    spans: list[dict[str, Any]],
    inside: dict[str, list[dict[str, Any]]],
    named: dict[str, str],
    depth: int,
) -> list[str]:
    lines: list[str] = []
    for _, side_by_side in groupby(
        spans,
        key=lambda span: span["name"].partition(" ")[0],
    ):  # calls of one turn begin in any order
        for span in sorted(side_by_side, key=lambda span: span["name"]):
            status = (
                ""
                if span["status"]["status_code"] == "UNSET"
                else f" {span['status']['status_code']}"
            )
            lines.append(
                f"{'  ' * depth}{span['name']} {span['kind'].removeprefix('SpanKind.')}{status}",
            )
            if not span["name"].startswith(("MCP send", "tools/")):  # the SDK's
                lines += [f"{'  ' * depth}  | {about}" for about in details(span, named)]
            lines += tree(inside.get(span["context"]["span_id"], []), inside, named, depth + 1)
    return lines


def details(span: dict[str, Any], named: dict[str, str]) -> list[str]:
    links = [
        f"link to {named.get(link['context']['span_id'], 'nothing known')}"
        for link in span["links"]
    ]
    events = [f"event {event['name']} {attributes(event)}" for event in span["events"]]
    return [attributes(span), *links, *events]


def attributes(of: dict[str, Any]) -> str:
    return " ".join(
        f"{name}={'*' if name in MASKED else json.dumps(value)}"
        for name, value in sorted(of["attributes"].items())
    )
