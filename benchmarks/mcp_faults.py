"""The cost of broken MCP servers for an agent: `python mcp_faults.py TURNS MODEL_MS` prints one JSON line.

There are five servers with twenty tools each, whose lists are stale at every turn. In the second
run, one server is stopped (SIGSTOP) after a quarter of the turns, one is killed after half of them
and cannot restart, and one is killed after three quarters and restarts. Each turn, the model calls
a tool of the other two or of the one that restarts, and once a tool of the dead one; an answer
takes MODEL_MS milliseconds.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ferrule import Event, MCPServer, ReAct, context
from ferrule.events import ServerUnavailable
from ferrule.testing import ScriptedLM

NAMES = ("one", "two", "hung", "dead", "restarted")
SERVER = """
import json, os, sys
folder, name = sys.argv[1], sys.argv[2]
if os.path.exists(f"{folder}/{name}.broken"):
    sys.exit("no key")
with open(f"{folder}/{name}.pid", "w") as file:
    file.write(str(os.getpid()))
tools = [{"name": f"{name}_{i}", "description": f"Tool {i}.", "inputSchema": {"type": "object", "properties": {}}} for i in range(20)]
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": name, "version": "1"}}
        answer["result"] = {"protocolVersion": message["params"]["protocolVersion"], **about}
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": tools}
    elif message["method"] == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": "ok"}]}
    else:
        answer["error"] = {"code": -32601, "message": "no"}
    print(json.dumps(answer), flush=True)
"""


class Faults:
    """The model of a run; it breaks servers between its answers."""

    def __init__(self, folder: Path, turns: int, model_s: float, *, breaks: bool) -> None:
        self._folder, self._turns, self._model_s, self._breaks = folder, turns, model_s, breaks
        self._turn = 0

    def answer(self, _: object) -> Any:
        """Cause the fault of this turn, then return the next call."""
        time.sleep(self._model_s)
        at, self._turn = self._turn, self._turn + 1
        if at == self._turns:
            return {"name": "finish", "args": {"answer": "done"}}
        if self._breaks and at == self._turns // 4:
            self._send("hung", signal.SIGSTOP)
        if at == self._turns // 2:
            if self._breaks:
                (self._folder / "dead.broken").touch()
                self._send("dead", signal.SIGKILL)
            return {"name": "dead_0", "args": {}}
        if self._breaks and at == self._turns * 3 // 4:
            self._send("restarted", signal.SIGKILL)
        return {"name": f"{('one', 'two', 'restarted')[at % 3]}_{at % 20}", "args": {}}

    def _send(self, name: str, number: int) -> None:
        os.kill(int((self._folder / f"{name}.pid").read_text()), number)


def run(turns: int, model_s: float, *, breaks: bool) -> tuple[float, int]:
    """The seconds of one run, and the number of servers reported as unavailable."""
    told: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = [["-c", SERVER, name, each] for each in NAMES]
        servers = [
            MCPServer.stdio(sys.executable, each, name=each[-1], poll_s=0.000001)
            for each in arguments
        ]
        agent = ReAct("task -> answer", servers, max_iters=turns + 1, native=True)
        assert len(agent.tools) == 102
        lm = ScriptedLM(by=Faults(folder, turns, model_s, breaks=breaks).answer)
        start = time.perf_counter()

        def observe(event: Event) -> None:
            if isinstance(event, ServerUnavailable):
                told.append(event.server)

        with context(lm=lm, callbacks=[observe]):
            prediction = agent(task="x")
        taken = time.perf_counter() - start
        assert len(prediction.trajectory.steps) == turns + 1
        if breaks:
            os.kill(int((folder / "hung.pid").read_text()), signal.SIGKILL)
        for each in servers:
            each.close()
    return taken, len(told)


def main() -> None:
    """Execute both runs, the one without faults first."""
    logging.getLogger("ferrule.mcp").setLevel(logging.ERROR)
    turns, model_s = int(sys.argv[1]), float(sys.argv[2]) / 1000
    without, _ = run(turns, model_s, breaks=False)
    with_faults, told = run(turns, model_s, breaks=True)
    print(
        json.dumps(
            {
                "turns": turns,
                "without faults": without,
                "with faults": with_faults,
                "servers reported": told,
            },
        ),
    )


if __name__ == "__main__":
    main()
