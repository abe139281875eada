"""What is sent against the GenAI conventions: names, types, requirement levels, and what a sampler
must see at the creation of a span.

The tables are facts read from `model/gen-ai/spans.yaml`, `model/gen-ai/metrics.yaml`,
`model/mcp/common.yaml` and the registry of open-telemetry/semantic-conventions-genai at commit
002c8a6ea1c8a42b14a4527db83b3cabcded610a (content: 2b902ce14e7fa9d3d97cac49de02bae6917c02ae). Names
of content and of metrics are judged where content and metrics are tested.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar

import pytest
from otel_spans import Sent

from ferrule import ReAct, Response, ToolCall, Usage, context
from ferrule.telemetry.otel import names
from ferrule.testing import ScriptedLM

ALWAYS, WHERE_KNOWN, OFTEN = "required", "conditionally required", "recommended"
STRING, INT, DOUBLE, STRINGS, BOOLEAN = str, int, float, tuple, bool
REQUEST: dict[str, tuple[type, str]] = {
    "gen_ai.request.choice.count": (INT, WHERE_KNOWN), "gen_ai.request.seed": (INT, WHERE_KNOWN), "gen_ai.output.type": (STRING, WHERE_KNOWN),
    "gen_ai.request.max_tokens": (INT, OFTEN), "gen_ai.request.temperature": (DOUBLE, OFTEN), "gen_ai.request.top_p": (DOUBLE, OFTEN),
    "gen_ai.request.stop_sequences": (STRINGS, OFTEN), "gen_ai.request.frequency_penalty": (DOUBLE, OFTEN),
    "gen_ai.request.presence_penalty": (DOUBLE, OFTEN),
}  # fmt: skip
MODEL: dict[str, tuple[type, str]] = {
    "gen_ai.operation.name": (STRING, ALWAYS), "gen_ai.provider.name": (STRING, ALWAYS), "gen_ai.request.model": (STRING, WHERE_KNOWN),
    "gen_ai.conversation.id": (STRING, WHERE_KNOWN), "error.type": (STRING, WHERE_KNOWN),
    "gen_ai.usage.input_tokens": (INT, OFTEN), "gen_ai.usage.output_tokens": (INT, OFTEN),
    "gen_ai.usage.cache_read.input_tokens": (INT, OFTEN), "gen_ai.usage.cache_creation.input_tokens": (INT, OFTEN),
    "gen_ai.response.finish_reasons": (STRINGS, OFTEN),
}  # fmt: skip
TABLE: dict[str, dict[str, tuple[type, str]]] = {
    "chat": {
        **REQUEST, **MODEL, "gen_ai.request.top_k": (DOUBLE, WHERE_KNOWN), "gen_ai.request.stream": (BOOLEAN, WHERE_KNOWN),
        "server.address": (STRING, OFTEN), "server.port": (INT, WHERE_KNOWN), "gen_ai.response.id": (STRING, OFTEN),
        "gen_ai.response.model": (STRING, OFTEN), "gen_ai.response.time_to_first_chunk": (DOUBLE, OFTEN),
        "gen_ai.usage.reasoning.output_tokens": (INT, OFTEN),
    },
    "invoke_agent": {
        **REQUEST, **MODEL, "gen_ai.agent.id": (STRING, WHERE_KNOWN), "gen_ai.agent.name": (STRING, WHERE_KNOWN),
        "gen_ai.agent.version": (STRING, WHERE_KNOWN), "gen_ai.agent.description": (STRING, WHERE_KNOWN),
    },
    "execute_tool": {
        "gen_ai.operation.name": (STRING, ALWAYS), "gen_ai.tool.name": (STRING, ALWAYS), "gen_ai.tool.type": (STRING, OFTEN),
        "gen_ai.tool.call.id": (STRING, OFTEN), "gen_ai.tool.description": (STRING, OFTEN), "error.type": (STRING, WHERE_KNOWN),
        "mcp.method.name": (STRING, ALWAYS), "mcp.protocol.version": (STRING, OFTEN), "mcp.session.id": (STRING, OFTEN),
    },
}  # fmt: skip
SEEN_BY_SAMPLERS = {
    "chat": {
        "gen_ai.provider.name",
        "gen_ai.operation.name",
        "server.address",
        "server.port",
        "gen_ai.request.model",
    },
    "invoke_agent": {
        "gen_ai.provider.name",
        "gen_ai.operation.name",
        "gen_ai.request.model",
        "gen_ai.agent.name",
    },
    "execute_tool": {"gen_ai.operation.name"},
}
LEFT_OUT = {
    # Of one request, and a program makes several, with settings of their own.
    ("invoke_agent", name) for name in (*REQUEST, "gen_ai.response.finish_reasons", "gen_ai.usage.cache_creation.input_tokens")
} | {("invoke_agent", "gen_ai.agent.description")}  # fmt: skip
"""What the tables have and no span does.

The description of a program is its instructions, which are content.
"""
OF_FAILURES_AND_SERVERS = {
    "error.type",
    "mcp.method.name",
    "mcp.protocol.version",
    "mcp.session.id",
}
"""What only failed calls and calls of MCP servers have: `test_spans.py` and `test_servers.py` show
it.
"""


class Says(ScriptedLM):
    """A model of a provider that says all there is to say."""

    name = "mistral/mistral-large"
    url = "https://api.mistral.ai/v1/chat/completions"
    settings: ClassVar[Any] = {
        "temperature": 1, "top_p": 1, "top_k": 5, "frequency_penalty": 0, "presence_penalty": 0, "n": 2, "stop": ["x"], "seed": 1,
        "max_tokens": 100,
    }  # fmt: skip


class Agent(ReAct):
    """A program with a version."""

    version = "2"


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.fixture(scope="module")
def sent() -> Sent:
    """What a streamed run sent, with the attributes that each span was created with."""
    made = Sent()
    made.provider.add_span_processor(Notes())
    usage = Usage(10, 5, 4, 1, 2, 3)
    about: dict[str, Any] = {"usage": usage, "model": "m-1", "finish_reason": "tool_calls"}
    answers = [
        Response(
            "",
            (ToolCall(name="add", args={"a": 1, "b": 2}, id="c1"),),
            body={"id": "r1"},
            **about,
        ),
        Response(
            "",
            (ToolCall(name="finish", args={"answer": "x"}, id="c2"),),
            body={"id": "r2"},
            **about,
        ),
    ]
    with context(callbacks=[made.observer], lm=Says(answers), extra={"conversation_id": 7}):
        list(Agent("task -> answer", [add], native=True).stream(task="x"))
    return made


class Notes:
    """Keeps the attributes that spans are created with."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        CREATED[span.context.span_id] = set(span.attributes)

    def on_end(self, span: Any) -> None: ...
    def _on_ending(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


CREATED: dict[int, set[str]] = {}


@pytest.mark.parametrize("kind", TABLE)
def test_attributes_are_those_of_the_convention_and_complete(sent: Sent, kind: str) -> None:
    """Names, types, and everything that is required or recommended, but for what is left out with a
    reason.
    """
    spans = [span for span in sent.spans if span.name.startswith(kind)]
    wanted = {
        name for name in TABLE[kind] if (kind, name) not in LEFT_OUT
    } - OF_FAILURES_AND_SERVERS
    if kind == "chat":
        wanted.discard("gen_ai.output.type")  # of requests with a form of the answer
    for span in spans:
        own = {
            name: value
            for name, value in span.attributes.items()
            if not name.startswith(("ferrule.", "operation.cost"))
        }
        assert set(own) == wanted
        assert {name: type(value) for name, value in own.items()} == {
            name: TABLE[kind][name][0] for name in own
        }
        assert CREATED[span.context.span_id] >= SEEN_BY_SAMPLERS[kind]
    assert spans


def test_every_name_that_can_be_sent_is_in_the_tables_and_in_the_package_of_the_conventions() -> (
    None
):
    """The package is of the last version that has them; later names say so in the source."""
    known: set[str] = set()
    for home in ("_incubating.attributes", "attributes", "_incubating.metrics"):
        package = import_module(f"opentelemetry.semconv.{home}")
        for each in iter_modules(package.__path__):
            values = vars(import_module(f"{package.__name__}.{each.name}")).values()
            known |= {value for value in values if isinstance(value, str)}
    source = Path(names.__file__).read_text(encoding="utf-8")
    ours = set(re.findall(r'"((?:gen_ai|mcp|server|error)\.[a-z_.]+)"', source))
    assert ours - known == {
        "gen_ai.client.inference.operation.details", "gen_ai.client.inference.usage", "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration", "gen_ai.token.modality",
    }  # fmt: skip
    of_spans = {name for table in TABLE.values() for name in table}
    content = {
        name
        for name in ours
        if name.endswith(("messages", "instructions", "definitions", "arguments", "result"))
    }
    metrics = {
        name for name in ours if "client" in name or name.endswith("duration") or ".token." in name
    }
    assert ours - of_spans - content - metrics == set()
