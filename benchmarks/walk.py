"""Counts the files of ferrule that one call passes through.

`python walk.py` prints one JSON line; with `--list`, the files come first.

Four calls are traced: a native `ReAct` run with one tool call over HTTP; a person's decision, from
the resume of the run that waits for it in a `SQLiteStore` to the tool's function; a direct call of
an MCP tool over stdio, and the same call with `ToolCall.execute`. Model and server run in other
processes; the decision comes through another connection to the store. Each call is made many times
before, so that imports, connections and first uses do not count. `files` counts the files of ferrule in which a function was called; `changes`
counts how often the next call on a thread was in another file. Threads that ferrule starts for the
call are included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import closing
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import ferrule
from ferrule import LM, MCPServer, ReAct, Run, SQLiteStore, Tool, ToolCall
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ferrule import Request

PACKAGE = f"{Path(ferrule.__file__).parent}/"
MODEL = """
import sys
from ferrule import Response, ToolCall
from ferrule.testing import ScriptedLM, serve

def answer(request):
    name, args = ("finish", {"answer": 3}) if len(request.messages) > 2 else ("add", {"a": 1, "b": 2})
    return Response(tool_calls=(ToolCall(name=name, args=args, id=name),))

with serve(ScriptedLM(by=answer)) as served:
    print(served.base_url, flush=True)
    sys.stdin.read()
"""
SERVER = """
import ferrule

@ferrule.tool
def add(a: int, b: int) -> int:
    "Add two integers."
    return a + b

ferrule.serve([add])
"""


class Walk:
    """A profiler of all threads that start after it.

    Records the calls of ferrule's functions by thread.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._files: dict[int, list[str]] = {}
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Record a call of one of ferrule's functions."""
        if self._is_on and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._files.setdefault(threading.get_ident(), []).append(
                frame.f_code.co_filename.removeprefix(PACKAGE),
            )

    def stop(self) -> None:
        """End the trace, inside the traced call."""
        self._is_on = False

    def of(
        self,
        name: str,
        call: Callable[..., object],
        prepare: Callable[[], tuple[object, ...]] = tuple,
    ) -> dict[str, int]:
        """Make the call forty times, and trace the last one.

        `prepare` makes its arguments, without being traced.
        """
        for _ in range(39):
            call(*prepare())
        args = prepare()
        self._files.clear()
        self._is_on = True
        call(*args)
        self.stop()
        threads = [*self._files.values()]
        files = sorted({file for thread in threads for file in thread})
        if "--list" in sys.argv:
            print(name, *files, sep="\n  ")
        changes = sum(one != other for thread in threads for one, other in pairwise(thread))
        return {"files": len(files), "changes": changes, "calls": sum(map(len, threads))}


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def native_run(walk: Walk) -> dict[str, dict[str, int]]:
    with subprocess.Popen(
        [sys.executable, "-c", MODEL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        url = server.stdout.readline().strip()
        ferrule.configure(lm=LM("openai/any", base_url=url))
        agent = ReAct("question -> answer: int", tools=[add], native=True)

        def run() -> None:
            assert agent(question="1+2?").answer == 3

        found = walk.of("native run", run)
        server.stdin.close()
    return {"native run": found}


def decision(walk: Walk) -> dict[str, dict[str, int]]:
    def pay(euros: int) -> str:
        """Pay."""
        walk.stop()
        return f"paid {euros}"

    def answer(request: Request) -> object:
        if len(request.messages) > 2:
            return {"name": "finish", "args": {"answer": "done"}}
        return {"name": "pay", "args": {"euros": 3}}

    tool = Tool(pay, require_confirmation=True)
    agent = ReAct("question -> answer", [tool], native=True, lm=ScriptedLM(by=answer))

    def waiting() -> tuple[Run]:
        run = agent.start(question="?", store=store)
        other.decide(run.id, run.pending[0].approve())
        return (run,)

    def resume(run: Run) -> None:
        assert run.resume().status == "done"

    with (
        TemporaryDirectory() as folder,
        closing(SQLiteStore(f"{folder}/runs.db")) as store,
        closing(SQLiteStore(f"{folder}/runs.db")) as other,
    ):
        return {"decision to tool": walk.of("decision to tool", resume, waiting)}


def mcp_calls(walk: Walk) -> dict[str, dict[str, int]]:
    args = {"a": 1, "b": 2}
    with MCPServer.stdio(sys.executable, ["-c", SERVER], name="walk") as tools:
        called = walk.of("MCP tool, called", lambda: tools["add"](**args))
        executed = walk.of(
            "MCP tool, executed",
            lambda: ToolCall(name="add", args=args).execute([tools["add"]]),
        )
    return {"MCP tool, called": called, "MCP tool, executed": executed}


if __name__ == "__main__":
    profiler = Walk()
    found = {**native_run(profiler), **decision(profiler)}
    if find_spec("mcp"):
        found |= mcp_calls(profiler)
    print(json.dumps(found))
