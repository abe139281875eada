"""An MCP server on stdio, without the SDK, that makes a task of every call of `work`: in the way of
either era.

`python task_server.py {legacy|modern} FOLDER`. Each request leaves a line in `FOLDER/log`: its
method, and a call's or a task's own. The states of a task stand in `FOLDER/states.json`: each
`tasks/get` takes the next one, the last one stays, an answer to questions moves on. They are
counted in a file, so that a server that is started again goes on. Instead of a state: `exit` ends
the process, `silent` answers nothing, `error` is a JSON-RPC error. `FOLDER/plain`: no tasks are
declared; `FOLDER/unlisted`: `work` is not listed. `FOLDER/able` has what the client declared with
the last `tasks/get`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ERA, FOLDER = sys.argv[1], Path(sys.argv[2])
MODERN, EXTENSION = "2026-07-28", "io.modelcontextprotocol/tasks"
IS_PLAIN = (FOLDER / "plain").exists()
ABOUT = {"createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z"}
TIMES = (
    {"ttlMs": 60000, "pollIntervalMs": 20}
    if ERA == "modern"
    else {"ttl": 60000, "pollInterval": 20}
)
OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WORK: dict[str, Any] = {
    "name": "work",
    "description": "To work.",
    "inputSchema": {"type": "object"},
}
TOOLS = [
    {**WORK, **({"execution": {"taskSupport": "required"}} if ERA == "legacy" else {})},
    {
        **WORK,
        "name": "may",
        **({"execution": {"taskSupport": "optional"}} if ERA == "legacy" else {}),
    },
    {
        **WORK,
        "name": "counts",
        "outputSchema": OUTPUT,
        **({"execution": {"taskSupport": "required"}} if ERA == "legacy" else {}),
    },
]


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
    sys.stdout.flush()


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit
    return json.loads(line)


def logged(*words: Any) -> None:
    with (FOLDER / "log").open("a") as file:
        file.write(
            " ".join(each if isinstance(each, str) else json.dumps(each) for each in words) + "\n",
        )


def at(more: int = 0) -> int:
    """The number of the current state; `more` moves on."""
    path = FOLDER / "at"
    found = int(path.read_text()) if path.exists() else 0
    if more:
        path.write_text(str(found + more))
    return found


def states() -> list[dict[str, Any]]:
    return json.loads((FOLDER / "states.json").read_text())


def get(number: Any, task: str) -> None:
    every = states()
    now = at()
    state = every[min(now, len(every) - 1)]
    if "inputRequests" not in state and not state.get("stays"):
        at(1)
    if state.get("exit"):
        os._exit(1)
    if state.get("silent"):
        return
    if "rpc_error" in state:
        send({"id": number, "error": state["rpc_error"]})
        return
    shown = (
        state
        if ERA == "modern"
        else {
            key: each
            for key, each in state.items()
            if key not in {"result", "error", "inputRequests"}
        }
    )
    send(
        {
            "id": number,
            "result": {"resultType": "complete", "taskId": task, **ABOUT, **TIMES, **shown},
        },
    )


def result(number: Any) -> None:
    """`tasks/result` of the older revision: with questions first, then as the task ended."""
    state = states()[min(at(), len(states()) - 1)]
    for key, each in (state.get("inputRequests") or {}).items():
        send({"id": f"ask-{key}", "method": each["method"], "params": each["params"]})
        while (message := read()).get("id") != f"ask-{key}":
            pass
        logged("answer", key, message.get("result"))
        at(1)
    every = states()
    last = next(each for each in reversed(every) if "result" in each or "error" in each)
    send(
        {
            "id": number,
            **({"result": last["result"]} if "result" in last else {"error": last["error"]}),
        },
    )


def call(number: Any, params: dict[str, Any]) -> None:
    able = params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {})
    wants = params["name"] == "may" or (
        "task" in params if ERA == "legacy" else EXTENSION in able.get("extensions", {})
    )
    logged(
        "call",
        params["name"],
        "task" if "task" in params or EXTENSION in able.get("extensions", {}) else "plain",
    )
    if not wants or (params["name"] == "may" and "task" not in params):
        send(
            {
                "id": number,
                "result": {
                    "resultType": "complete",
                    "content": [{"type": "text", "text": "plainly done"}],
                },
            },
        )
        return
    path = FOLDER / "tasks"
    made = len(path.read_text().split()) + 1 if path.exists() else 1
    with path.open("a") as file:
        file.write(f"t{made}\n")
    task = {"taskId": f"t{made}", "status": "working", **ABOUT, **TIMES}
    send(
        {
            "id": number,
            "result": {"resultType": "task", **task} if ERA == "modern" else {"task": task},
        },
    )


def handle(message: dict[str, Any]) -> None:
    method, number, params = (
        message.get("method", ""),
        message.get("id"),
        message.get("params") or {},
    )
    if method == "server/discover" and ERA == "modern":
        abilities = {"tools": {}, **({} if IS_PLAIN else {"extensions": {EXTENSION: {}}})}
        send({"id": number, "result": {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": abilities,
              "serverInfo": {"name": "tasks", "version": "1"}, "ttlMs": 0, "cacheScope": "private"}})  # fmt: skip
    elif method == "initialize" and ERA == "legacy":
        tasks = {"tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
        send({"id": number, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, **({} if IS_PLAIN else tasks)},
              "serverInfo": {"name": "tasks", "version": "1"}}})  # fmt: skip
    elif method == "tools/list":
        logged(method)
        send(
            {
                "id": number,
                "result": {
                    "resultType": "complete",
                    "tools": TOOLS[(FOLDER / "unlisted").exists() :],
                    "ttlMs": 3600000,
                    "cacheScope": "private",
                },
            },
        )
    elif method == "tools/call":
        call(number, params)
    elif method == "tasks/get":
        logged(method, params["taskId"])
        (FOLDER / "able").write_text(
            json.dumps(params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities")),
        )
        get(number, params["taskId"])
    elif method == "tasks/result" and ERA == "legacy":
        logged(method, params["taskId"])
        result(number)
    elif method == "tasks/update" and ERA == "modern":
        logged(method, params["taskId"], params["inputResponses"])
        at(1)
        send({"id": number, "result": {"resultType": "complete"}})
    elif method == "tasks/cancel":
        logged(method, params["taskId"])
        send({"id": number, "result": {"resultType": "complete"}})
    elif number is not None and method:
        send({"id": number, "error": {"code": -32601, "message": "no such method"}})


while True:
    handle(read())
