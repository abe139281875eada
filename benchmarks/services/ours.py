"""The chat service with ferrule."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse

from ferrule import (
    LM,
    EventStream,
    History,
    InputField,
    OutputField,
    ReAct,
    Run,
    Signature,
    SQLiteStore,
    Tool,
)
from ferrule.events import CallStarted, FieldDelta, QuestionAsked
from services import desk
from services.desk import Conversations, sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Desk(Signature):
    """Help the customer of a shop."""

    history: History = InputField(default_factory=History)
    message: str = InputField()
    reply: str = OutputField()


TOOLS = [
    Tool(desk.order, effect="read"),
    Tool(desk.stock, effect="read"),
    Tool(desk.refund, require_confirmation=True),
]
agent = ReAct(
    Desk, TOOLS, native=True, lm=LM("openai/gpt-4o", base_url=desk.MODEL_URL, api_key="x")
)
store = SQLiteStore(desk.FOLDER / "runs.db") if desk.KEEPS_RUNS else None
waiting: dict[str, Run] = {}
"""The runs of conversations that wait for a decision, without a store."""
conversations = Conversations()
app = FastAPI()


async def turn(chat: str, history: str | None, stream: EventStream) -> AsyncIterator[str]:
    async for event in stream:
        match event:
            case FieldDelta(text=text):
                yield sse("token", text)
            case CallStarted(call=call):
                yield sse("tool", call.name)
            case QuestionAsked(question=question):
                yield sse("question", question.text)
            case _:
                pass
    if stream.run.status == "waiting":
        conversations.write(chat, history, stream.run.id)
        if store is None:
            waiting[chat] = stream.run
        return
    conversations.write(chat, json.dumps(stream.prediction.history.format()))
    yield sse("end")


@app.post("/chats/{chat}")
async def say(chat: str, text: str = Body(embed=True)) -> StreamingResponse:
    stored, _ = conversations.read(chat)
    history = History.model_validate(json.loads(stored)) if stored else History()
    stream = agent.astream(message=text, history=history, store=store)
    return StreamingResponse(turn(chat, stored, stream), media_type="text/event-stream")


@app.post("/chats/{chat}/decision")
async def decide(chat: str) -> StreamingResponse:
    stored, run_id = conversations.read(chat)
    run = Run.load(store, run_id, agent) if store else waiting.pop(chat)
    run.answer(run.pending[0].approve())
    return StreamingResponse(turn(chat, stored, EventStream(run)), media_type="text/event-stream")
