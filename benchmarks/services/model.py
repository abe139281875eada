"""A model that streams OpenAI chat completions: `python -m services.model PORT TOKENS_PER_S`.

What it answers depends only on the request. A user's text that contains ORDER leads to a call of
`order`, one that contains REFUND to a call of `refund`; any other text, and a tool's result, to 40
words, or to as many as `MODEL_WORDS` says. With 0 tokens a second, all of an answer is sent at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

WORDS = [f"word{number} " for number in range(int(os.environ.get("MODEL_WORDS", "40")))]
CALLS = {
    "ORDER": ("order", {"number": "A1"}),
    "REFUND": ("refund", {"number": "A1", "euros": 20}),
}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    form = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**form, "choices": [choice], **more}).encode() + b"\n\n"


FIRST = chunk({"role": "assistant", "content": ""})
TOKENS = [chunk({"content": word}) for word in WORDS]
USAGE = {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140}
LAST = b"".join(
    [
        chunk({}, "stop"),
        chunk({}, None, usage=USAGE).replace(
            b'[{"index": 0, "delta": {}, "finish_reason": null}]', b"[]"
        ),
        b"data: [DONE]\n\n",
    ]
)


def call(name: str, args: dict[str, Any], number: int) -> list[bytes]:
    function = {"name": name, "arguments": json.dumps(args)}
    part = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return [chunk({"role": "assistant", "tool_calls": [part]}), chunk({}, "tool_calls"), LAST]


def answer(body: dict[str, Any]) -> list[bytes]:
    """The parts of the answer to a request."""
    last = body["messages"][-1]
    if last["role"] == "user":
        text = json.dumps(last["content"])
        for sign, (name, args) in CALLS.items():
            if sign in text:
                return call(name, args, len(body["messages"]))
    return [FIRST, *TOKENS, LAST]


class Model(asyncio.Protocol):
    """Speaks as much HTTP as the clients of the libraries need."""

    gap_s = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(body) < length:
            return
        self.received = body[length:]
        self.begin(answer(json.loads(body[:length])))

    def begin(self, parts: list[bytes]) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if self.gap_s:
            self.send(parts, 0)
            return
        self.transport.write(b"".join(framed(part) for part in parts) + b"0\r\n\r\n")

    def send(self, parts: list[bytes], index: int) -> None:
        if self.transport.is_closing():
            return
        if index == len(parts):
            self.transport.write(b"0\r\n\r\n")
            return
        self.transport.write(framed(parts[index]))
        asyncio.get_running_loop().call_later(self.gap_s, self.send, parts, index + 1)


def framed(part: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(part), part)


async def main(port: int, tokens_per_s: float) -> None:
    if tokens_per_s:
        Model.gap_s = 1 / tokens_per_s
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Model, "127.0.0.1", port, backlog=2000)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    run(main(int(sys.argv[1]), float(sys.argv[2])))
