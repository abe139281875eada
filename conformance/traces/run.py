"""What Arize's converter of GenAI spans makes of a run that went over OTLP: `scripts/traces.sh`.

`@arizeai/openinference-genai` is installed from npm, in a pinned version, into a cache folder
(`FERRULE_TRACES`, else in the user's cache). Exit code 0: the run, its model calls and its tool
calls are AGENT, LLM and TOOL spans, with their names, messages and counts of tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otel_collector import Collector

from ferrule import OTel, ReAct, Response, ToolCall, Usage, context
from ferrule.testing import ScriptedLM

HERE = Path(__file__).resolve().parent
PACKAGE = "@arizeai/openinference-genai@0.3.10"
KINDS = {"invoke_agent": "AGENT", "chat": "LLM", "execute_tool": "TOOL"}


def main() -> int:
    """Send a run, convert its spans, print what became of each, and return the exit code."""
    spans = sent()
    command = ["node", str(HERE / "convert.mjs"), str(installed())]
    told = json.dumps([about for _, about in spans])
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=True)
    failures = 0
    for (name, _), found in zip(spans, json.loads(done.stdout), strict=True):
        wrong = [
            f"{key}: {found.get(key)!r}"
            for key, value in expected(name).items()
            if found.get(key) != value
        ]
        failures += bool(wrong)
        sys.stdout.write(
            f"{'WRONG' if wrong else 'ok':6}{name}: {', '.join(wrong) or found['openinference.span.kind']}\n",
        )
    return 1 if failures or len(spans) != 4 else 0


def expected(name: str) -> dict[str, Any]:
    """What a span must be converted to, by its name."""
    kind = KINDS[name.partition(" ")[0]]
    if kind == "LLM":
        return {
            "openinference.span.kind": kind,
            "llm.model_name": "m-1",
            "llm.token_count.prompt": 10,
            "llm.token_count.completion": 5,
        }
    return {"openinference.span.kind": kind, **({"tool.name": "add"} if kind == "TOOL" else {})}


def sent() -> list[tuple[str, dict[str, Any]]]:
    """The names and attributes of the spans of a run, as a collector read them."""

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    collector, provider = Collector(), TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces")),
    )
    calls = [
        ToolCall(name="add", args={"a": 1, "b": 2}, id="c1"),
        ToolCall(name="finish", args={"answer": "3"}, id="c2"),
    ]
    script = [
        Response("", (call,), usage=Usage(10, 5), model="m-1", finish_reason="tool_calls")
        for call in calls
    ]
    with context(callbacks=[OTel(tracer_provider=provider, content=True)], lm=ScriptedLM(script)):
        ReAct("task -> answer", [add], native=True)(task="add")
    provider.shutdown()
    spans = [
        span
        for each in collector.received
        for on in each.resource_spans
        for scope in on.scope_spans
        for span in scope.spans
    ]
    return [
        (span.name, {each.key: plain(each.value) for each in span.attributes}) for span in spans
    ]


def plain(value: Any) -> Any:
    """A value of OTLP as JSON data."""
    kind = value.WhichOneof("value")
    return (
        [plain(each) for each in value.array_value.values]
        if kind == "array_value"
        else getattr(value, kind)
    )


def installed() -> Path:
    """The folder with the converter."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("FERRULE_TRACES") or cache / "ferrule-traces")
    stamp = folder / "installed"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != PACKAGE:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}", encoding="utf-8")
        subprocess.run(
            [
                "npm",
                "install",
                "--prefix",
                str(folder),
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
                PACKAGE,
            ],
            check=True,
        )
        stamp.write_text(PACKAGE, encoding="utf-8")
    return folder


if __name__ == "__main__":
    sys.exit(main())
