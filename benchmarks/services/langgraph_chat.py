"""The chat service with LangGraph, through LangChain's `create_agent`: a checkpointer keeps all."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

os.environ["LANGSMITH_TRACING"] = "false"

from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from services import desk
from services.desk import sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

agent: Any = None


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    global agent
    async with AsyncExitStack() as stack:
        saver: Any = InMemorySaver()
        # Without a checkpointer there is no history and no approval: it keeps both in memory then.
        if desk.KEEPS_RUNS:
            path = str(desk.FOLDER / "checkpoints.db")
            saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
        agent = create_agent(
            ChatOpenAI(
                model="gpt-4o", base_url=desk.MODEL_URL, api_key="x", use_responses_api=False
            ),
            tools=[tool(desk.order), tool(desk.stock), tool(desk.refund)],
            system_prompt=desk.INSTRUCTIONS,
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"refund": True})],
            checkpointer=saver,
        )
        yield


app = FastAPI(lifespan=lifespan)


async def turn(chat: str, given: Any) -> AsyncIterator[str]:
    config = {"configurable": {"thread_id": chat}}
    asks = False
    async for mode, part in agent.astream(given, config, stream_mode=["messages", "updates"]):
        if mode == "messages":
            message = part[0]
            if isinstance(message, AIMessageChunk) and message.content:
                yield sse("token", message.content)
            elif isinstance(message, ToolMessage):
                yield sse("tool", message.name)
        elif "__interrupt__" in part:
            asks = True
            yield sse("question", str(part["__interrupt__"][0].value))
    if not asks:
        yield sse("end")


@app.post("/chats/{chat}")
async def say(chat: str, text: str = Body(embed=True)) -> StreamingResponse:
    given = {"messages": [{"role": "user", "content": text}]}
    return StreamingResponse(turn(chat, given), media_type="text/event-stream")


@app.post("/chats/{chat}/decision")
async def decide(chat: str) -> StreamingResponse:
    given = Command(resume={"decisions": [{"type": "approve"}]})
    return StreamingResponse(turn(chat, given), media_type="text/event-stream")
