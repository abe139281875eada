"""A chat service for pages built with AG-UI (/ag-ui) or Vercel's AI SDK (/api/chat), with a page that speaks both: chat.html.

`python chat.py serve 8000` serves it. Without arguments, this plays an AG-UI client, and approves a call.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import ferrule

HERE, FILES = Path(__file__).parent, {"/": "chat.html", "/chat_page.js": "chat_page.js"}
CODES = {
    ferrule.InputError: 400,
    json.JSONDecodeError: 400,
    ferrule.errors.StoreError: 404,
    ferrule.errors.DecisionError: 409,
}


@ferrule.tool(effect="read")
def find(city: str) -> str:
    """Find a hotel."""
    return f"Hotel {city}, 90 euros a night"


@ferrule.tool(require_confirmation=True)
def book(hotel: str, nights: int = 1) -> str:
    """Book a hotel."""
    return f"booked {hotel}, nights: {nights}"


agent = ferrule.ReAct(
    "question, history: History, tools: list[Tool] -> answer", [find, book], native=True
)


def model(request: ferrule.Request) -> dict[str, object]:
    """Play the model, so that this runs anywhere. With a real one: `configure(lm=LM("openai/gpt-5-mini"))`."""
    said = [message for message in request.messages if message.role in {"user", "tool"}]
    if said[-1].role == "user":
        return {
            "text": "I look for a hotel first.",
            "tool_calls": [{"name": "find", "args": {"city": "Rome"}}],
        }
    if "euros" in said[-1].text:
        return {"name": "book", "args": {"hotel": "Hotel Rome", "nights": 2}}
    return {"name": "finish", "args": {"answer": f"This is what happened: {said[-1].text}."}}


class Chat:
    """The last run of each conversation: its turn, its events before the last decision, and those since. It outlives its requests."""

    def __init__(self, agent: ferrule.ReAct, store: ferrule.Store) -> None:
        self.agent, self.store = agent, store
        self.runs: dict[str, tuple[str, list[ferrule.Event], ferrule.EventStream]] = {}
        routes = [
            *[Route(path, self.post, methods=["POST"]) for path in ("/ag-ui", "/api/chat")],
            Route("/api/chat/{id}/stream", self.come_back),
            *[
                Route(path, lambda _, name=name: FileResponse(HERE / name))
                for path, name in FILES.items()
            ],
        ]
        refuse = dict.fromkeys(
            CODES,
            lambda _, error: JSONResponse({"error": str(error)}, CODES[type(error)]),
        )
        self.app = Starlette(routes=routes, exception_handlers=refuse)

    async def post(self, request: Request) -> Response:
        front = (ferrule.AGUI if request.url.path.endswith("/ag-ui") else ferrule.VercelAI)(
            await request.json(),
            page_tools=["get_*"],  # what the browser may run for the agent
        )
        return self.stream(front, self.events_for(front))

    async def come_back(self, request: Request) -> Response:
        thread_id = request.path_params["id"]
        return (
            self.stream(ferrule.VercelAI(), self.all_events(thread_id))
            if thread_id in self.runs
            else Response(status_code=204)
        )

    def events_for(self, front: ferrule.AGUI | ferrule.VercelAI) -> AsyncIterator[ferrule.Event]:
        """The events that answer a request. Starts or resumes a run, unless the page reconnects."""
        turn = f"{sum(message['role'] == 'user' for message in front.history)}: {front.text}"
        if front.run_id:  # the person decided, or the page ran a tool
            run = ferrule.Run.load(self.store, front.run_id, self.agent)
            decisions = front.decisions(run)
            if not decisions and front.thread_id in self.runs:  # the page sends them again
                return self.all_events(front.thread_id)
            for decision in decisions:
                run.answer(decision)
            before, stream = run.events(), ferrule.EventStream(run)
        elif (
            front.thread_id in self.runs and self.runs[front.thread_id][0] == turn
        ):  # an AG-UI client that reconnects
            return self.all_events(front.thread_id)
        else:
            inputs = {"question": front.text, "history": front.history, "tools": front.tools}
            before, stream = [], self.agent.astream(**inputs, store=self.store)
        self.runs[front.thread_id] = (turn, before, stream)
        return stream.follow()

    async def all_events(self, thread_id: str) -> AsyncIterator[ferrule.Event]:
        """All events of the last run: from its journal, then from this process."""
        _, before, stream = self.runs[thread_id]
        for event in before:
            yield event
        async for event in stream.follow():
            yield event

    def stream(
        self,
        front: ferrule.AGUI | ferrule.VercelAI,
        events: AsyncIterator[ferrule.Event],
    ) -> StreamingResponse:
        return StreamingResponse(front(events), media_type=front.media_type, headers=front.headers)


async def main() -> None:
    """Talk to the service: ask, and approve."""
    body = {
        "threadId": "t1",
        "messages": [{"id": "1", "role": "user", "content": "Book a hotel in Rome."}],
    }
    transport = httpx2.ASGITransport(app=Chat(agent, ferrule.MemoryStore()).app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://chat") as client:
        for turn in ("r1", "r2"):
            text = (await client.post("/ag-ui", json={**body, "runId": turn})).text
            for event in (
                json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line
            ):
                match event:
                    case {"type": "TOOL_CALL_RESULT", "content": content}:
                        print("result:", content)
                    case {
                        "type": "RUN_FINISHED",
                        "outcome": {"interrupts": [{"id": asked, "message": message}]},
                    }:
                        print("asks:", message)
                        body["resume"] = [
                            {
                                "interruptId": asked,
                                "status": "resolved",
                                "payload": {"approved": True},
                            },
                        ]
                    case {"type": "RUN_FINISHED", "result": result}:
                        print("answer:", result)


if __name__ == "__main__":
    ferrule.configure(lm=ferrule.testing.ScriptedLM(by=model))
    uvicorn.run(
        Chat(agent, ferrule.MemoryStore()).app,
        port=int(sys.argv[2]),
        log_level="warning",
    ) if sys.argv[1:] else asyncio.run(main())
