"""An MCP server on stdio without the SDK, which starts at once and does what the files of a folder
tell it: `moody_server.py FOLDER`.

`FOLDER/tools` lists the names of its tools (otherwise `echo`); `hang` leaves `tools/list`
unanswered; `crash` ends it at its start, with that text on stderr; `deaf` makes it ignore the end
of stdin, and SIGTERM then; `wait_for` names a file that must be there first; `child` starts a
process of its own, whose pid goes to `child_pid`. It writes its `pid`, and each method that it got
as a line of `log`. The tool `environment` returns the environment, `wait` is not answered, and
every other tool returns its arguments.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])


def names() -> list[str]:
    place = FOLDER / "tools"
    return place.read_text().split() if place.exists() else ["echo"]


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        server = {"name": "moody", "version": "1"}
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": server,
        }
    if method == "tools/list":
        tools = [
            {"name": each, "description": f"To {each}.", "inputSchema": {"type": "object"}}
            for each in names()
        ]
        return None if (FOLDER / "hang").exists() else {"tools": tools}
    if method == "tools/call" and params["name"] == "wait":
        return None
    if method == "tools/call":
        said = (
            dict(os.environ)
            if params["name"] == "environment"
            else [sys.argv, params.get("arguments"), str(Path.cwd())]
        )
        return {"content": [{"type": "text", "text": json.dumps(said)}]}
    return {}


def main() -> None:
    if (FOLDER / "crash").exists():
        sys.stderr.write((FOLDER / "crash").read_text())
        raise SystemExit(3)
    (FOLDER / "pid").write_text(str(os.getpid()))
    while (FOLDER / "wait_for").exists() and not Path((FOLDER / "wait_for").read_text()).exists():
        time.sleep(0.01)
    if (FOLDER / "child").exists():
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
        )
        (FOLDER / "child_pid").write_text(str(child.pid))
    with (FOLDER / "log").open("a") as log:
        for line in sys.stdin:
            asked = json.loads(line)
            log.write(f"{asked['method']}\n")
            log.flush()
            if "id" not in asked:
                continue
            if asked["method"] == "server/discover":
                answer: dict[str, Any] = {"error": {"code": -32601, "message": "no such method"}}
            else:
                found = result(asked["method"], asked.get("params") or {})
                if found is None:
                    continue
                answer = {"result": found}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}) + "\n")
            sys.stdout.flush()
    if (FOLDER / "deaf").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (FOLDER / "deaf_now").touch()
    while (FOLDER / "deaf").exists():
        time.sleep(0.05)


main()
