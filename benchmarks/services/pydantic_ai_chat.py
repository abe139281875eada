"""The chat service with pydantic-ai: the messages are the state, also while an approval waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool
from pydantic_ai.messages import (
    FunctionToolResultEvent,
    ModelMessagesTypeAdapter,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.run import AgentRunResultEvent

from services import desk
from services.desk import Conversations, sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

agent = Agent(
    OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=desk.MODEL_URL, api_key="x")),
    instructions=desk.INSTRUCTIONS,
    tools=[
        Tool(desk.order, takes_ctx=False),
        Tool(desk.stock, takes_ctx=False),
        Tool(desk.refund, takes_ctx=False, requires_approval=True),
    ],
    output_type=[str, DeferredToolRequests],
)
conversations = Conversations()
app = FastAPI()


async def turn(chat: str, text: str | None, **options: Any) -> AsyncIterator[str]:
    async with agent.run_stream_events(text, **options) as events:
        async for event in events:
            match event:
                case PartStartEvent(part=TextPart(content=content)) if content:
                    yield sse("token", content)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=content)) if content:
                    yield sse("token", content)
                case FunctionToolResultEvent():
                    yield sse("tool")
                case AgentRunResultEvent(result=result):
                    history = result.all_messages_json().decode()
                    if isinstance(result.output, DeferredToolRequests):
                        call_id = result.output.approvals[0].tool_call_id
                        conversations.write(chat, history, call_id)
                        yield sse("question", call_id)
                    else:
                        conversations.write(chat, history)
                        yield sse("end")
                case _:
                    pass


@app.post("/chats/{chat}")
async def say(chat: str, text: str = Body(embed=True)) -> StreamingResponse:
    stored, _ = conversations.read(chat)
    history = ModelMessagesTypeAdapter.validate_json(stored) if stored else None
    return StreamingResponse(
        turn(chat, text, message_history=history), media_type="text/event-stream"
    )


@app.post("/chats/{chat}/decision")
async def decide(chat: str) -> StreamingResponse:
    stored, call_id = conversations.read(chat)
    events = turn(
        chat,
        None,
        message_history=ModelMessagesTypeAdapter.validate_json(stored or "[]"),
        deferred_tool_results=DeferredToolResults(approvals={call_id or "": True}),
    )
    return StreamingResponse(events, media_type="text/event-stream")
