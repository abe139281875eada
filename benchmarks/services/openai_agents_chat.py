"""The chat service with the OpenAI Agents SDK: a session keeps the history, a text the run's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI

from services import desk
from services.desk import Conversations, sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

set_tracing_disabled(disabled=True)
agent = Agent(
    name="desk",
    instructions=desk.INSTRUCTIONS,
    tools=[
        function_tool(desk.order),
        function_tool(desk.stock),
        function_tool(needs_approval=True)(desk.refund),
    ],
    model=OpenAIChatCompletionsModel(
        "gpt-4o", AsyncOpenAI(base_url=desk.MODEL_URL, api_key="x", max_retries=0)
    ),
)
conversations = Conversations()
sessions: dict[str, SQLiteSession] = {}
app = FastAPI()


def session(chat: str) -> SQLiteSession:
    """In a file, or in memory as long as the process lives."""
    if desk.KEEPS_RUNS:
        return SQLiteSession(chat, desk.FOLDER / "sessions.db")
    if chat not in sessions:
        sessions[chat] = SQLiteSession(chat)
    return sessions[chat]


async def turn(chat: str, given: Any) -> AsyncIterator[str]:
    result = Runner.run_streamed(agent, given, session=session(chat))
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            if event.data.type == "response.output_text.delta":
                yield sse("token", event.data.delta)
        elif event.type == "run_item_stream_event" and event.name == "tool_output":
            yield sse("tool")
    if result.interruptions:
        conversations.write(chat, None, result.to_state().to_string())
        yield sse("question", result.interruptions[0].name)
    else:
        yield sse("end")


@app.post("/chats/{chat}")
async def say(chat: str, text: str = Body(embed=True)) -> StreamingResponse:
    return StreamingResponse(turn(chat, text), media_type="text/event-stream")


@app.post("/chats/{chat}/decision")
async def decide(chat: str) -> StreamingResponse:
    _, stored = conversations.read(chat)
    state = await RunState.from_string(agent, stored or "")
    state.approve(state.get_interruptions()[0])
    return StreamingResponse(turn(chat, state), media_type="text/event-stream")
