"""Where foreign texts and schemas enter ferrule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from ferrule import (
    ChatAdapter,
    History,
    InputField,
    JSONAdapter,
    Message,
    Messages,
    OutputField,
    Predict,
    Request,
    Response,
    Run,
    Signature,
    Tool,
    ToolCall,
    ToolCalls,
    XMLAdapter,
)
from ferrule.encoding.repair import objects_in, read_json
from ferrule.mcp_bridge import fence_untrusted
from ferrule.mcp_bridge.redact import redact
from ferrule.mcp_bridge.transport.messages import read_message
from ferrule.models.wires.wire import WIRES, wire
from ferrule.net.sse import Events
from ferrule.schema.lowering.rules import Target
from ferrule.schemas import LoweredSchema, lower_schema
from ferrule.tools.mcp.result import read_result
from ferrule.values.conversation.thoughts import ThoughtSplitter

if TYPE_CHECKING:
    from collections.abc import Callable


def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def search(
    query: str,
    filters: dict[str, list[int]] | None = None,
    words: list[str] | None = None,
) -> str:
    """Search."""
    return f"{query} {filters} {words}"


TOOLS = [Tool(add), Tool(search)]
FIELDS = Signature(
    {
        "question": InputField(),
        "found": (dict[str, list[int]], OutputField()),
        "answer": (int, OutputField()),
    },
)
CALLS = Signature(
    {
        "question": InputField(),
        "calls": (ToolCalls, OutputField()),
        "answer": (str | None, OutputField()),
    },
)
ADAPTERS = (ChatAdapter(), JSONAdapter(), XMLAdapter())
REQUEST = Request(Messages([Message("user", "x")]))
PIECE = 7
"""How many characters or bytes come at once where something is streamed."""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _stream(reader: Any, text: Any) -> None:
    for at in range(0, len(text), PIECE):
        list(reader.feed(text[at : at + PIECE]))
    list(reader.end() if hasattr(reader, "end") else reader.finish())


def _described(text: str) -> None:
    def act(a: int) -> int:
        return a

    act.__doc__ = text
    _ = Tool(act).declaration


TEXTS: dict[str, Callable[[str], Any]] = {
    "from_text": lambda text: ToolCalls.from_text(text, TOOLS),
    "read_json": read_json,
    "objects_in": objects_in,
    "a call's arguments": lambda text: ToolCall.read({"name": "add", "arguments": text}),
    "arguments in text": lambda text: TOOLS[1].prepare(
        {"query": text, "filters": text, "words": text},
    ),
    **{
        f"{type(each).__name__}.parse": (lambda text, each=each: each.parse(FIELDS, text))
        for each in ADAPTERS
    },
    **{
        f"{type(each).__name__}.read": (
            lambda text, each=each: each.read(CALLS, Response(text), lenient=True, tools=TOOLS)
        )
        for each in ADAPTERS
    },
    **{
        f"{type(each).__name__}.reader": (
            lambda text, each=each: _stream(each.reader(FIELDS), text)
        )
        for each in ADAPTERS
    },
    **{
        f"{type(each).__name__}.opening": (
            lambda text, each=each: each.opening(FIELDS, {"question": text})
        )
        for each in ADAPTERS
    },
    "thoughts": lambda text: _stream(ThoughtSplitter(REQUEST), text),
    "server-sent events": lambda text: _stream(Events(), _bytes(text)),
    **{
        f"{name}.read": (lambda text, name=name: wire(name).read(text.encode("utf-8", "replace")))
        for name in WIRES
    },
    "an MCP message": lambda text: read_message(_bytes(text)),
    "an MCP result": lambda text: (
        read_result({"content": [{"type": "text", "text": text}]}).content
    ),
    "an MCP entry": lambda text: (
        Tool.from_mcp_tool(
            {"name": "t", "description": text, "inputSchema": {"type": "object"}},
            "server",
        ).declaration
    ),
    "fence_untrusted": lambda text: fence_untrusted(text, "server"),
    "redact": redact,
    "a docstring": _described,
    "a history": History.model_validate_json,
    "a run": lambda text: Run.from_json(text, Predict("a -> b")),
    "a signature": Signature,
}


def _by_hand(schema: Any, value: Any) -> None:
    def act(**given: Any) -> str:
        return str(given)

    tool = Tool(act, name="act", description="Act.", schema=schema)
    _ = tool.declaration
    tool.prepare(value)


def _of_server(schema: Any, value: Any) -> None:
    tool = Tool.from_mcp_tool(
        {"name": "t", "description": "Act.", "inputSchema": schema, "outputSchema": schema},
        "server",
    )
    _ = tool.declaration
    tool.prepare(value)


def _lowered(schema: Any, value: Any, target: Target) -> None:
    found: LoweredSchema = lower_schema(schema if isinstance(schema, dict) else {}, target)
    found.restored(value)


SCHEMAS: dict[str, Callable[[Any, Any], Any]] = {
    "a tool by hand": _by_hand,
    "an MCP tool": _of_server,
    **{
        f"lowered for {name}": (lambda schema, value, name=name: _lowered(schema, value, name))
        for name in get_args(Target)
    },
}
