"""No agent library: the model's tokens are passed on, the history is kept, one tool call is done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse

from services import desk
from services.desk import Conversations, sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

app = FastAPI()
conversations = Conversations()
client = httpx2.AsyncClient(base_url=desk.MODEL_URL, timeout=None)
TOOLS = {"order": desk.order, "refund": desk.refund}


async def model(messages: list[dict[str, Any]], answer: dict[str, Any]) -> AsyncIterator[str]:
    """The tokens of an answer, which is filled meanwhile."""
    body = {"model": "m", "messages": messages, "stream": True}
    async with client.stream("POST", "/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            choices = json.loads(line[6:])["choices"]
            delta = choices[0]["delta"] if choices else {}
            if delta.get("content"):
                answer["content"] += delta["content"]
                yield delta["content"]
            if delta.get("tool_calls"):
                answer["tool_calls"] = delta["tool_calls"]


async def turn(chat: str, messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    while True:
        answer: dict[str, Any] = {"role": "assistant", "content": ""}
        async for token in model(messages, answer):
            yield sse("token", token)
        messages.append(answer)
        if "tool_calls" not in answer:
            break
        function = answer["tool_calls"][0]["function"]
        if function["name"] == "refund":
            conversations.write(chat, json.dumps(messages), "refund")
            yield sse("question", function["name"])
            return
        messages.append(result_of(answer))
        yield sse("tool", function["name"])
    conversations.write(chat, json.dumps(messages))
    yield sse("end")


def result_of(answer: dict[str, Any]) -> dict[str, Any]:
    call = answer["tool_calls"][0]
    value = TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": value}


@app.post("/chats/{chat}")
async def say(chat: str, text: str = Body(embed=True)) -> StreamingResponse:
    history, _ = conversations.read(chat)
    messages = (
        json.loads(history) if history else [{"role": "system", "content": desk.INSTRUCTIONS}]
    )
    messages.append({"role": "user", "content": text})
    return StreamingResponse(turn(chat, messages), media_type="text/event-stream")


@app.post("/chats/{chat}/decision")
async def decide(chat: str) -> StreamingResponse:
    history, _ = conversations.read(chat)
    messages = json.loads(history or "[]")
    messages.append(result_of(messages[-1]))
    return StreamingResponse(turn(chat, messages), media_type="text/event-stream")
