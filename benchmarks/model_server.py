"""A scripted OpenAI-compatible server on loopback: `python model_server.py` prints its port, and ends with its input.

The answer depends only on the request, so any number of agents can use it at once. The path begins
with the form in which a library writes a run, and the number of calls of `add(a, b)` that the model
makes: `/native/10/v1/chat/completions`. A request takes about 100 us of CPU.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import TYPE_CHECKING

from peers.script import ANSWER, fields

if TYPE_CHECKING:
    from collections.abc import Callable

OUTPUT_TOOLS = ("final_result", "finish", "submit", "Answer", "final_answer")
ASSISTANT = (b'"role":"assistant"', b'"role": "assistant"')


def native(body: bytes, steps: int) -> dict:
    """The protocol's tool calls; the typed answer is a call of the tool that the library declares for it, or text."""
    done = body.count(b'"tool_call_id"')
    if done < steps:
        return _call(f"call_{done}", "add", {"a": done, "b": 1})
    output_tool = next(
        (
            name
            for name in OUTPUT_TOOLS
            if f'"name":"{name}"'.encode() in body.replace(b'": "', b'":"')
        ),
        None,
    )
    if output_tool is None:
        return {"content": json.dumps({"answer": ANSWER})}
    return _call("call_end", output_tool, {"answer": ANSWER})


def smolagents(body: bytes, steps: int) -> dict:
    """Native calls, whose results the library sends as text."""
    done = (
        (len(json.loads(body)["messages"]) - 2) // 2
        if b'"Observation:' in body or b"Observation:\\n" in body
        else 0
    )
    name, args = (
        ("add", {"a": done, "b": 1}) if done < steps else ("final_answer", {"answer": ANSWER})
    )
    return _call(f"call_{done}", name, args)


def dspy(body: bytes, steps: int) -> dict:
    """DSPy's `ReAct`: calls in text; after `finish`, one more request for the outputs."""
    done = body.count(b"[[ ## observation_")
    if done > steps:
        return {"content": fields(reasoning="sum", answer=ANSWER)}
    name, args = ("add", {"a": done, "b": 1}) if done < steps else ("finish", {})
    return {"content": fields(next_thought="add", next_tool_name=name, next_tool_args=args)}


def dspy_v2(body: bytes, steps: int) -> dict:
    """DSPy's `ReActV2` with its default adapter: a list of calls in text."""
    done = body.count(ASSISTANT[0]) + body.count(ASSISTANT[1])
    name, args = ("add", {"a": done, "b": 1}) if done < steps else ("submit", {"answer": ANSWER})
    return {
        "content": fields(
            next_thought="add",
            tool_calls={"tool_calls": [{"name": name, "args": args}]},
        ),
    }


def udspy(body: bytes, steps: int) -> dict:
    """Udspy's `ReAct`: JSON in text; after `finish`, one more request for the outputs."""
    done = body.count(rb"\"observation\":")
    if done > steps:
        return {"content": json.dumps({"reasoning": "sum", "answer": ANSWER})}
    name, args = ("add", {"a": done, "b": 1}) if done < steps else ("finish", {})
    return {
        "content": json.dumps(
            {"next_thought": "add", "next_tool_name": name, "next_tool_args": args},
        ),
    }


def text(body: bytes, steps: int) -> dict:
    """Ferrule's calls in text; the call of `finish` has the outputs."""
    done = body.count(b"[[ ## observation_")
    name, args = ("add", {"a": done, "b": 1}) if done < steps else ("finish", {"answer": ANSWER})
    return {"content": fields(next_thought="add", next_tool_name=name, next_tool_args=args)}


RECORD = {
    "customer": "Ada",
    "city": "Rome",
    "items": [{"name": "rope", "count": 2}, {"name": "tent", "count": 1}],
    "euros": 120.5,
    "express": False,
}


def record(body: bytes, steps: int) -> dict:
    """An order, as a call of the tool that the library declares for it, or as JSON; ferrule's has the name of its output around it."""
    del steps
    request = json.loads(body)
    if request.get("tools"):
        return _call("call_end", request["tools"][0]["function"]["name"], RECORD)
    schema = request["response_format"]["json_schema"]["schema"]
    is_output = "order" in schema["properties"]
    return {"content": json.dumps({"order": RECORD} if is_output else RECORD)}


FORMS: dict[str, Callable[[bytes, int], dict]] = {
    answer.__name__: answer for answer in (native, smolagents, dspy, dspy_v2, udspy, text, record)
}


def _call(id: str, name: str, args: dict) -> dict:
    return {
        "content": None,
        "tool_calls": [
            {
                "id": id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(args)},
            },
        ],
    }


def _completion(path: str, body: bytes) -> bytes:
    _, form, steps, *_ = path.split("/")
    message = {"role": "assistant", **FORMS[form](body, int(steps))}
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
    }
    usage = {
        "prompt_tokens": len(body) // 4,
        "completion_tokens": 10,
        "total_tokens": len(body) // 4 + 10,
    }
    return json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-4o",
            "choices": [choice],
            "usage": usage,
        },
    ).encode()


async def _serve(started: Callable[[int], None], bodies: list[bytes] | None) -> None:
    async def handle(reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    int(line[15:])
                    for line in head.lower().split("\r\n")
                    if line.startswith("content-length:")
                )
                body = await reader.readexactly(length)
                if bodies is not None:
                    bodies.append(body)
                answer = _completion(head.split(" ", 2)[1], body)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % len(answer)
                    + answer,
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=2**26, backlog=1024)
    started(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def in_thread(bodies: list[bytes]) -> str:
    """Serve from a thread that keeps each request's body; return the address."""
    ports: list[int] = []
    started = threading.Event()

    def on_start(port: int) -> None:
        ports.append(port)
        started.set()

    threading.Thread(target=lambda: asyncio.run(_serve(on_start, bodies)), daemon=True).start()
    started.wait()
    return f"http://127.0.0.1:{ports[0]}"


if __name__ == "__main__":
    threading.Thread(
        target=lambda: asyncio.run(_serve(lambda port: print(port, flush=True), None)),
        daemon=True,
    ).start()
    sys.stdin.read()
    os._exit(0)  # open connections need no orderly close
