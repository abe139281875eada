"""Counts what a reader must follow: the calls of a trip, and its changes of file.

`python -m tests.trips [decision|native|mcp]` prints, for each of the three trips, how many calls of
ferrule's functions it makes, how often the file changes from one call to the next (the fewer, the
less a reader jumps), and which files hold most of them. With a trip's name, it prints the trip
itself: each call, indented by its depth. Nothing checks these figures.

- decision: a person's decision that is in a store: from loading its run to the tool's first line.
- native: a run of an agent with native calls: one tool call, then `finish`.
- mcp: one call of a tool of an MCP server over stdio.

Each trip is made twice, and counted the second time: caches are filled and modules imported.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import ferrule
from ferrule import Capabilities, MCPServer, ReAct, Run, SQLiteStore, tool
from ferrule.testing import ScriptedLM

SOURCE = str(Path(ferrule.__file__).parent) + "/"
SERVER = """
import json, sys
TOOL = {"name": "ok", "inputSchema": {"type": "object", "properties": {"x": {"type": "string"}}}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            server = {"name": "trips", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            result = {"tools": [TOOL]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": "ok"}]}
        case _:
            result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


class Trip:
    """The calls of ferrule's functions in all threads, from `begin` to `end`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, str]] = []
        """The depth, the file and the function of each."""
        self._is_on = False
        # Before any thread starts: a thread keeps the profile function that it starts with.
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def begin(self) -> None:
        """Forget what was counted, and count from here."""
        self.calls.clear()
        self._is_on = True

    def end(self) -> None:
        """Count no further."""
        self._is_on = False

    @property
    def changes(self) -> int:
        """How often the next call is in another file."""
        files = [file for _, file, _ in self.calls]
        return sum(file != last for last, file in pairwise(files))

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not self._is_on or event != "call" or not code.co_filename.startswith(SOURCE):
            return
        # Not calls: a comprehension, and a coroutine or generator that goes on.
        if code.co_name.startswith("<") or frame.f_lineno != code.co_firstlineno:
            return
        depth, outer = 0, frame.f_back
        while outer is not None:
            depth += outer.f_code.co_filename.startswith(SOURCE)
            outer = outer.f_back
        self.calls.append((depth, code.co_filename.removeprefix(SOURCE), code.co_qualname))


def decision(trip: Trip) -> None:
    @tool(require_confirmation=True)
    def refund(order: str) -> str:
        """Refund an order."""
        trip.end()
        return f"{order} refunded"

    script = [
        {"name": "refund", "args": {"order": "A1"}},
        {"name": "finish", "args": {"answer": "done"}},
    ]
    lm = ScriptedLM(script * 2, capabilities=Capabilities(native_tools=True))
    agent = ReAct("question -> answer", [refund], lm=lm)
    with TemporaryDirectory() as folder, SQLiteStore(f"{folder}/runs.db") as store:
        for run_id in ("r1", "r2"):
            run = agent.start(question="Refund A1?", store=store, run_id=run_id)
            run.answer(run.pending[0].approve())
            trip.begin()
            Run.load(store, run_id, agent).resume()


def native(trip: Trip) -> None:
    def look(order: str) -> str:
        """Look up an order."""
        return f"{order} is paid"

    script = [
        {"name": "look", "args": {"order": "A1"}},
        {"name": "finish", "args": {"answer": "paid"}},
    ]
    lm = ScriptedLM(script * 2, capabilities=Capabilities(native_tools=True))
    agent = ReAct("question -> answer", [look], lm=lm)
    for _ in range(2):
        trip.begin()
        agent(question="Is A1 paid?")
        trip.end()


def mcp(trip: Trip) -> None:
    with MCPServer.stdio(sys.executable, ["-c", SERVER], name="trips") as tools:
        ok = tools["ok"]
        for _ in range(2):
            trip.begin()
            ok(x="a")
            trip.end()


TRIPS: dict[str, Callable[[Trip], None]] = {"decision": decision, "native": native, "mcp": mcp}


def main(names: list[str]) -> None:
    trip = Trip()
    for name in names or TRIPS:
        TRIPS[name](trip)
        files = Counter(file for _, file, _ in trip.calls)
        print(
            f"{name}: {len(trip.calls)} calls, {trip.changes} changes of file, {len(files)} files"
        )
        if not names:
            for file, count in files.most_common(8):
                print(f"  {count:>4} {file}")
            continue
        for depth, file, function in trip.calls:
            print(f"{'  ' * depth}{file} {function}")


if __name__ == "__main__":
    main(sys.argv[1:])
