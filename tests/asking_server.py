"""An MCP server on stdio, without the SDK, that asks before it goes on: in the way of either era.

`python asking_server.py {legacy|modern} LOG`: each `tools/call` leaves a line in LOG. Tools: `book`
asks twice, for a name and for seats (a "strict" one fails without an answer); `pay` asks nothing
and has no hints; `page` asks that a page be opened; `changed` says that the list changed.
`LOG.tools`, if it is there, is what is listed instead, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ERA, LOG = sys.argv[1], Path(sys.argv[2])
MODERN = "2026-07-28"
FORMS: list[tuple[str, dict[str, Any]]] = [
    (
        "Who are you?",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "title": {"type": "string", "default": "Dr"},
            },
            "required": ["name"],
        },
    ),
    (
        "How many seats?",
        {
            "type": "object",
            "properties": {"seats": {"type": "integer", "minimum": 1}},
            "required": ["seats"],
        },
    ),
]
ANY = {"type": "object", "properties": {"what": {"type": "string"}}}
TOOLS = [
    {"name": name, "description": f"To {name}.", "inputSchema": ANY}
    for name in ("book", "pay", "page", "changed")
]


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
    sys.stdout.flush()


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit
    return json.loads(line)


def params_of(index: int) -> dict[str, Any]:
    message, form = FORMS[index]
    return {"mode": "form", "message": message, "requestedSchema": form}


def text(words: Any) -> dict[str, Any]:
    return {
        "resultType": "complete",
        "content": [
            {"type": "text", "text": words if isinstance(words, str) else json.dumps(words)},
        ],
    }


def pushed(params: dict[str, Any], number: int) -> dict[str, Any]:
    """Ask in the middle of the call, and wait for the answer."""
    send({"id": f"ask-{number}", "method": "elicitation/create", "params": params})
    while True:
        message = read()
        if message.get("id") == f"ask-{number}":
            return message.get("result") or message["error"]


def legacy_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "page":
        answer = pushed(
            {
                "mode": "url",
                "message": "Sign in",
                "url": "https://login.example/x?y=1",
                "elicitationId": "e",
            },
            0,
        )
        return text(answer)
    if name != "book":
        return text(f"done {arguments}")
    answers: list[Any] = []
    for index in range(2):
        answer = pushed(params_of(index), index)
        if answer.get("action") != "accept":
            if arguments.get("what") == "strict":
                raise ValueError(answer["action"])
            return text(f"not booked: {answer}")
        answers.append(answer["content"])
    return text(answers)


def modern_call(name: str, arguments: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    able = params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    if name not in {"book", "page"}:
        return text(f"done {arguments}")
    if "elicitation" not in able:
        return text("nobody can be asked")
    answers = json.loads(params.get("requestState", "[]"))
    if "inputResponses" in params:
        answer = params["inputResponses"]["q"]
        if answer["action"] != "accept":
            return text(f"not booked: {answer}")
        answers.append(answer.get("content"))
    if len(answers) == (2 if name == "book" else 1):
        return text(answers)
    asked = (
        params_of(len(answers))
        if name == "book"
        else {
            "mode": "url",
            "message": "Sign in",
            "url": "https://login.example/x?y=1",
            "elicitationId": "e",
        }
    )
    request = {"method": "elicitation/create", "params": asked}
    return {
        "resultType": "input_required",
        "inputRequests": {"q": request},
        "requestState": json.dumps(answers),
    }


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    params = message.get("params") or {}
    match message.get("method"):
        case "server/discover" if ERA == "modern":
            about = {"name": "asking", "version": "1"}
            return {
                "resultType": "complete",
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {}},
                "serverInfo": about,
                "ttlMs": 0,
                "cacheScope": "private",
            }
        case "initialize" if ERA == "legacy":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "asking", "version": "1"},
            }
        case "tools/list":
            with LOG.open("a") as file:
                file.write("list\n")
            other = Path(f"{LOG}.tools")
            listed = json.loads(other.read_text()) if other.exists() else TOOLS
            return {
                "resultType": "complete",
                "tools": listed,
                **({"ttlMs": 3_600_000, "cacheScope": "private"} if ERA == "modern" else {}),
            }
        case "tools/call":
            with LOG.open("a") as file:
                file.write(f"call {params['name']}\n")
            if params["name"] == "changed":
                send({"method": "notifications/tools/list_changed"})
            arguments = params.get("arguments") or {}
            return (
                modern_call(params["name"], arguments, params)
                if ERA == "modern"
                else legacy_call(params["name"], arguments)
            )
        case "ping":
            return {}
        case _:
            return None


if __name__ == "__main__":
    while True:
        asked = read()
        if "id" in asked and "method" in asked:
            try:
                found = answer(asked)
            except ValueError:
                found = None
            refused = {
                "code": -32022,
                "message": "another version",
                "data": {"supported": [MODERN]},
            }
            other = {"code": -32601, "message": "no"}
            is_late = (
                ERA == "modern" and asked["method"] == "initialize"
            )  # a client that did not wait for `server/discover`
            outcome = (
                {"result": found} if found is not None else {"error": refused if is_late else other}
            )
            send({"id": asked["id"], **outcome})
