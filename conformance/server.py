"""The server that the conformance suite is pointed at: an ordinary use of `serve`, with the tools, resources and prompts the suite wants.

`python conformance/server.py PORT`. What is special stands here, and nothing of it in ferrule.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import mcp_types as types
from lists import register_lists
from long_tools import LONG, SUPPORT
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.shared.exceptions import MCPError
from questions import QUESTIONS, forms

import ferrule
from ferrule.mcp_bridge import MCPApp, current_mcp_call

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
PAUSE_S = 0.05
RICH_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        },
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def test_simple_text() -> str:
    """Answer with a text."""
    return "This is a simple text response for testing."


def test_image_content() -> ferrule.Image:
    """Answer with a picture."""
    return ferrule.Image(data=PIXEL)


def test_audio_content() -> ferrule.Audio:
    """Answer with a sound."""
    return ferrule.Audio(data=SILENCE)


def test_embedded_resource() -> Any:
    """Answer with a resource."""
    return _resource(
        "test://embedded-resource",
        "text/plain",
        "This is an embedded resource content.",
    )


def test_multiple_content_types() -> list[Any]:
    """Answer with a text, a picture and a resource."""
    resource = _resource(
        "test://mixed-content-resource",
        "application/json",
        '{"test":"data","value":123}',
    )
    return ["Multiple content types test:", ferrule.Image(data=PIXEL), resource]


def _resource(uri: str, media_type: str, text: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(
        resource=types.TextResourceContents(uri=uri, mime_type=media_type, text=text),
    )


def test_error_handling() -> str:
    """Fail."""
    msg = "This tool intentionally returns an error for testing"
    raise RuntimeError(msg)


async def test_tool_with_logging() -> str:
    """Send three messages."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        ferrule.emit_event("info", text)
        await asyncio.sleep(PAUSE_S)
    return "Tool with logging executed successfully"


def test_logging_tool() -> str:
    """Send one message, which only reaches those who asked for it."""
    ferrule.emit_event("info", "A message")
    return "done"


async def test_tool_with_progress() -> str:
    """Tell how far it is."""
    for done in (0, 50, 100):
        ferrule.progress(f"Completed step {done} of 100", done=done, total=100)
        await asyncio.sleep(PAUSE_S)
    return "done"


async def test_reconnection() -> str:
    """Close the stream of the answer on the way; the client is to come back for it."""
    call = current_mcp_call()
    if call is not None and call.request.close_sse_stream is not None:
        await call.request.close_sse_stream()
    await asyncio.sleep(4 * PAUSE_S)
    return "Reconnection test completed"


async def test_sampling(prompt: str) -> str:
    """Have the client's model answer."""
    session = _request().session
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    asked = types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=100),
    )
    answer = await session.send_request(asked, types.CreateMessageResult)
    return f"LLM response: {getattr(answer.content, 'text', answer.content)}"


async def test_elicitation(message: str) -> str:
    """Ask the client's user."""
    return await _asked(
        message,
        {"username": {"type": "string"}, "email": {"type": "string"}},
        ["username", "email"],
    )


async def test_elicitation_sep1034_defaults() -> str:
    """Ask with a default for every kind of value."""
    return await _asked("Your details", forms["defaults"], [])


async def test_elicitation_sep1330_enums() -> str:
    """Ask with every kind of choice."""
    return await _asked("Your choices", forms["choices"], [])


async def _asked(message: str, properties: dict[str, Any], required: list[str]) -> str:
    request = _request()
    schema = {"type": "object", "properties": properties, "required": required}
    answer = await request.session.elicit_form(
        message,
        schema,
        related_request_id=request.request_id,
    )
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


def test_missing_capability() -> str:
    """Refuse clients that cannot sample."""
    capabilities = _request().session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This needs sampling.",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return "done"


def with_header(region: str, query: str = "") -> str:
    """Take one argument that is also sent as a header."""
    return f"{region}: {query}"


def _request() -> Any:
    call = current_mcp_call()
    if call is None:
        msg = "This runs for an MCP client only."
        raise RuntimeError(msg)
    return call.request


class Kept(EventStore):
    """Events of streams, so that a client that lost one can go on."""

    def __init__(self) -> None:
        self._events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Keep one."""
        self._events.append((stream_id, message))
        return str(len(self._events) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        """Send what came after."""
        last = int(last_event_id)
        if last >= len(self._events):
            return None
        stream = self._events[last][0]
        for at, (owner, message) in enumerate(self._events[last + 1 :], last + 1):
            if owner == stream and message is not None:
                await send_callback(EventMessage(message, str(at)))
        return stream


def application() -> MCPApp:
    """All of it."""
    header = {"type": "string", "x-mcp-header": "Region"}
    app = MCPApp(
        [
            test_simple_text,
            test_image_content,
            test_audio_content,
            test_embedded_resource,
            test_multiple_content_types,
            test_error_handling,
            test_tool_with_logging,
            test_logging_tool,
            test_tool_with_progress,
            test_reconnection,
            test_sampling,
            test_elicitation,
            test_elicitation_sep1034_defaults,
            test_elicitation_sep1330_enums,
            test_missing_capability,
            ferrule.Tool(with_header, args={"region": header}),
            ferrule.Tool(
                "json_schema_2020_12_tool",
                "Has a rich schema.",
                lambda **given: given,
                RICH_SCHEMA,
            ),
            *QUESTIONS,
            *LONG,
        ],
        name="ferrule-conformance",
        version="1",
        tasks=SUPPORT,
    )

    def test_trigger_tool_change() -> str:
        """Serve one tool more, and no longer."""
        app.add(test_simple_text, "for_a_moment")
        app.remove("for_a_moment")
        return "done"

    def test_trigger_prompt_change() -> str:
        """Say that the prompts have changed."""
        app.changed("prompts")
        return "done"

    app.add(test_trigger_tool_change)
    app.add(test_trigger_prompt_change)
    register_lists(app.server, PIXEL)
    return app


if __name__ == "__main__":
    application().run("http", port=int(sys.argv[1]), event_store=Kept(), retry_interval=100)
