"""What type checkers say of events, lowered schemas and MCP calls.

Checked by mypy; nothing here is executed.
"""

from __future__ import annotations

from typing import Any, assert_type

from ferrule import Event, EventStream, ToolCall, ToolResult, is_cancelled
from ferrule.events import CallFinished, CallRefused, CallStarted, RunFinished, TextDelta
from ferrule.mcp_bridge import MCPCall, current_mcp_call
from ferrule.schemas import LoweredSchema, SchemaLoss, lower_schema, lower_tools


def what_must_check(event: Event) -> str:
    lowered = lower_schema({"type": "object"}, "gemini")
    assert_type(lowered, LoweredSchema)
    assert_type(lowered.losses, tuple[SchemaLoss, ...])
    assert_type(lower_tools([], "anthropic").lowered["x"], LoweredSchema)
    assert_type(current_mcp_call(), MCPCall | None)
    assert_type(is_cancelled(), bool)
    match event:
        case TextDelta(text=text):
            return assert_type(text, str)
        case CallStarted(call=call):
            return assert_type(call.name, str)
        case CallFinished(result=result):
            assert_type(result, ToolResult)
        case RunFinished(error=error):
            assert_type(error, BaseException | None)
        case CallRefused(call=call, result=result):
            assert_type(call, ToolCall)
            assert_type(result, ToolResult)
    assert_type(
        (event.type, event.path, event.depth, event.number, event.at),
        tuple[str, str, int, int, float],
    )
    assert_type(event.as_json(), dict[str, Any])
    return event.run_id


async def what_readers_get(stream: EventStream) -> None:
    async for event in stream.follow(after=3):
        assert_type(event, Event)


def what_must_not() -> None:
    lower_schema({"type": "object"}, "openai")  # type: ignore[arg-type]
    TextDelta("c1")  # type: ignore[call-arg]
    TextDelta("c1", "t").type = "other"  # type: ignore[misc]
