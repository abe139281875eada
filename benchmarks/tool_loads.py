"""The share of the prompts of a run that repeats the request before, with and without loads of tools.

`python benchmarks/tool_loads.py [STEPS]` sends real requests to a server on loopback that answers as OpenAI's Responses API does: one run that loads no tool, one that loads a tool in
every second step where its provider takes additions, and one where it does not.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from ferrule import LM, Load, ReAct, Tool, Toolbox

if TYPE_CHECKING:
    from collections.abc import Generator


def load(name: str) -> Load:
    """Load a tool."""
    return Load(name)


def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} means {word}. " * 20


class _Server(ThreadingHTTPServer):
    script: list[tuple[str, dict[str, Any]]]
    bodies: list[bytes]


class _Answers(BaseHTTPRequestHandler):
    """Answers with the calls of a script, one after the other."""

    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        name, args = self.server.script[len(self.server.bodies)]
        self.server.bodies.append(body)
        call = {"type": "function_call", "id": "f", "name": name, "arguments": json.dumps(args)}
        call["call_id"] = f"call_{len(self.server.bodies)}"
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        answer = {"id": "r", "object": "response", "status": "completed", "model": "m"}
        content = json.dumps({**answer, "output": [call], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def _serving(script: list[tuple[str, dict[str, Any]]]) -> Generator[_Server]:
    server = _Server(("127.0.0.1", 0), _Answers)
    server.script, server.bodies = script, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def share(steps: int, *, with_loads: bool, with_additions: bool) -> float:
    """The share of all bytes of a run's requests that repeats the beginning of the one before."""
    script: list[tuple[str, dict[str, Any]]] = []
    for number in range(steps):
        if with_loads and number % 2 == 0:
            script.append(("load", {"name": f"tool_{number}"}))
        else:
            script.append(("look_up", {"word": f"word{number}"}))
    script.append(("finish", {"answer": "done"}))
    shelf = [Tool(look_up, f"tool_{number}", f"Look up {number}. " * 10) for number in range(steps)]
    with _serving(script) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        # A server of one's own is not known to take additions.
        lm = LM(url, model="m", wire="openai_responses")
        if with_additions:
            lm = LM("openai/m", base_url=url, api_key="k", wire="openai_responses")
        agent = ReAct("task -> answer", Toolbox([load, look_up], shelf=shelf), max_iters=99, lm=lm)
        agent(task="Look words up.")
        bodies = server.bodies
    repeated = sum(len(commonprefix([one, other])) for one, other in pairwise(bodies))  # noqa: RUF071  bytes are meant
    return repeated / sum(map(len, bodies))


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(
        json.dumps(
            {
                "no loads": share(count, with_loads=False, with_additions=True),
                "loads, added where they come": share(count, with_loads=True, with_additions=True),
                "loads, declared with the others": share(
                    count, with_loads=True, with_additions=False
                ),
            }
        )
    )
