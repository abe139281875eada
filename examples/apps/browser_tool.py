"""A chat page with a tool that runs in the browser: the page declares it, the model calls it, and the page answers.

`python browser_tool.py serve 8000` serves it, with browser_tool.html. Without arguments, this plays the page, and loads
it again from a server that was restarted.
"""

import json
import sys
import tempfile
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import ferrule

agent = ferrule.ReAct("question, history: History, tools: list[Tool] -> answer", [], native=True)
REFUSALS = {
    ferrule.InputError: 400,
    ferrule.errors.StoreError: 404,
    ferrule.errors.DecisionError: 409,
}


def service(store: ferrule.Store) -> Starlette:
    """`POST /chat` speaks AG-UI. The page may bring the tools that `page_tools` names, and no other."""

    async def chat(request: Request) -> StreamingResponse:
        front = ferrule.AGUI(await request.json(), page_tools=["get_*"])
        if front.run_id:  # the page has run its tool
            run = ferrule.Run.load(store, front.run_id, agent)
            decisions = front.decisions(run)
            for decision in decisions:
                run.answer(decision)
            stream = ferrule.EventStream(run) if decisions else run.events()
        else:
            inputs = {"question": front.text, "history": front.history, "tools": front.tools}
            stream = agent.astream(**inputs, store=store)
        return StreamingResponse(front(stream), media_type=front.media_type, headers=front.headers)

    page = Path(__file__).with_name("browser_tool.html")
    routes = [Route("/chat", chat, methods=["POST"]), Route("/", lambda _: FileResponse(page))]
    handlers = dict.fromkeys(
        REFUSALS, lambda _, error: JSONResponse({"error": str(error)}, REFUSALS[type(error)])
    )
    return Starlette(routes=routes, exception_handlers=handlers)


def model(request: ferrule.Request) -> dict[str, object]:
    """Play the model, so that this runs anywhere. With a real one: `configure(lm=LM("openai/gpt-5-mini"))`."""
    last = request.messages[-1]
    if last.role == "tool":
        return {"name": "finish", "args": {"answer": f"Your time zone is {last.text}."}}
    return {"name": "get_time_zone", "args": {}}


def main(folder: str) -> None:
    """Play the page: ask, run the tool after a restart of the server, and read the answer."""
    declared = {"name": "get_time_zone", "description": "The user's time zone.", "parameters": {}}
    messages = [{"id": "1", "role": "user", "content": "Which time is it here?"}]

    def send() -> dict[str, object]:
        body = {"threadId": "t", "runId": "r", "messages": messages, "tools": [declared]}
        with ferrule.SQLiteStore(Path(folder) / "chat.db") as store:
            text = TestClient(service(store)).post("/chat", json=body).text
        return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line][-1]

    [call_id] = send()["outcome"]["pendingToolCallIds"]
    print("the page runs get_time_zone")
    messages.append({"id": "2", "role": "tool", "toolCallId": call_id, "content": "Europe/Rome"})
    print("answer:", send()["result"]["answer"])
    print("sent again:", send()["result"]["answer"])


if __name__ == "__main__":
    ferrule.configure(lm=ferrule.testing.ScriptedLM(by=model))
    if sys.argv[1:]:
        uvicorn.run(service(ferrule.SQLiteStore("chat.db")), port=int(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
