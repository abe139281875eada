"""An agent that `service.py` serves, and a client. The client leaves and comes back; the server stops in the middle of a call.

`python service_client.py serve 8000` serves the agent with uvicorn. Without arguments, this starts that server and talks to it.
"""

import asyncio
import json
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import uvicorn
from service import Service

from ferrule import Context, ReAct, Request, configure, tool
from ferrule.testing import ScriptedLM


@tool(effect="read")
async def measure(seconds: float, ctx: Context) -> str:
    """Measure the temperature for some seconds."""
    for tenth in range(10):
        ctx.progress("measuring", done=tenth, total=10)
        await asyncio.sleep(seconds / 10)
    return "21 degrees"


@tool(effect="idempotent", require_confirmation=True)
async def publish(text: str, ctx: Context[sqlite3.Connection]) -> str:
    """Write on the board in the hall."""
    ctx.deps.execute(
        "INSERT OR IGNORE INTO board VALUES (?, ?)",
        (ctx.key, text),
    )  # a second attempt has the same key
    return f"The board says: {text}."


def model(request: Request) -> dict[str, Any]:
    """Play the model, so that this runs anywhere. With a real one: `configure(lm=LM("openai/gpt-5-mini"))`."""
    results = [message.text for message in request.messages if message.role == "tool"]
    if not results:
        return {
            "name": "measure",
            "args": {"seconds": re.findall(r"for ([\d.]+) s", request.messages[1].text)[0]},
        }
    return (
        {"name": "publish", "args": {"text": results[0]}}
        if len(results) == 1
        else {"name": "finish", "args": {"answer": results[1]}}
    )


def serve(port: int) -> None:
    """Serve the agent until a signal arrives."""
    configure(lm=ScriptedLM(by=model))
    board = sqlite3.connect("service.db", isolation_level=None)
    board.execute("CREATE TABLE IF NOT EXISTS board (key TEXT PRIMARY KEY, text TEXT)")
    service = Service(ReAct("task -> answer", [measure, publish]), "service.db", deps=board)
    uvicorn.run(service.app, port=port, log_level="warning")


def start_server(folder: str, port: int) -> subprocess.Popen[bytes]:
    """Start the server in its own process, and wait until it answers."""
    server = subprocess.Popen([sys.executable, __file__, "serve", str(port)], cwd=folder)
    while server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.05)
    return server


def follow(run: str, after: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a run after an id: the last id so far, and the event. In a browser, `EventSource` does this."""
    with httpx2.stream(
        "GET",
        f"{run}/events",
        headers={"Last-Event-ID": after},
        timeout=60,
    ) as response:
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                after = value
            elif name == "data":
                yield after, json.loads(value)


def show_until(kind: str, run: str, after: str = "0") -> tuple[str, dict[str, Any]]:
    """Print events until one of a kind arrives; returns it, with the id to continue from."""
    for last, event in follow(run, after):
        match event:
            case {"type": "CallStarted" | "CallFinished" as name, "call": call}:
                print(f"{name} {call['name']}")
            case {"type": "QuestionAsked", "question": question}:
                print("QuestionAsked", question["text"])
            case {"type": "RunFinished", "status": status}:
                print("RunFinished", status, (event["prediction"] or {}).get("outputs", ""))
        if event["type"] == kind:
            return last, event
    raise RuntimeError(f"the stream ended without {kind}")


def main() -> None:
    """Start a run, leave, stop the server, start it again, come back and approve."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with TemporaryDirectory() as folder:
        server = start_server(folder, port)
        url = f"http://127.0.0.1:{port}/runs"
        run = f"{url}/{httpx2.post(url, json={'task': 'Measure for 3 s, and publish it.'}).json()['id']}"
        last, _ = show_until("CallStarted", run)  # then the client leaves
        server.terminate()  # SIGTERM, as a deployment sends it: the call that is running ends, and is recorded
        server.wait()
        print("the server has stopped")
        server = start_server(folder, port)
        last, event = show_until("QuestionAsked", run, last)
        last, _ = show_until(
            "RunFinished",
            run,
            last,
        )  # until then, other calls of the step may still run
        httpx2.post(
            f"{run}/decisions",
            json={"question": event["question"]["id"], "answer": {"text": "mild"}},
        )
        show_until("RunFinished", run, last)
        server.terminate()
        server.wait()


if __name__ == "__main__":
    serve(int(sys.argv[2])) if sys.argv[1:] else main()
