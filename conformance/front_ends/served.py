"""Serves examples/apps/chat.py with an agent that does what `driver.mjs` asks for: `served.py PORT`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

import ferrule

if TYPE_CHECKING:
    from starlette.requests import Request

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "apps"))
from chat import Chat, book, find, model


@ferrule.tool
def fail(text: str) -> str:
    """Fail."""
    ferrule.progress("about to fail", done=1, total=2)
    ferrule.emit_event("chart", {"points": [1, 2]})
    raise ValueError(text)


scout = ferrule.ReAct("place -> report", [book], native=True)
agent = ferrule.ReAct(
    "question, history: History, tools: list[Tool] -> answer, stars: list[int]",
    [find, book, fail, scout.as_tool("scout")],
    native=True,
    enable_user_clarification=True,
)
talker = ferrule.ReAct(
    "question, history: History, tools: list[Tool] -> answer", [find], native=True
)
"""Its only output is a text, so the model may answer without `finish`."""
ANSWER = "The butler did it, with a knife."
TALK: dict[str, list[Any]] = {
    "speak": [ANSWER],
    "look": [
        {
            "text": "I look there first.",
            "tool_calls": [{"name": "find", "args": {"city": "Rome"}}],
        },
        ANSWER,
    ],
    "think": [{"reasoning": "Who has a knife?", "text": ANSWER}],
}
LONG = " ".join(f"word{number}" for number in range(300))


def finish(answer: str, stars: Any = (5,)) -> dict[str, Any]:
    """The answer of the model."""
    return {
        "name": "finish",
        "args": {"answer": answer, "stars": list(stars) if isinstance(stars, tuple) else stars},
    }


def play(request: ferrule.Request) -> Any:
    """Play the model: the person's last words say what happens."""
    messages = list(request.messages)
    last = max(k for k, message in enumerate(messages) if message.role == "user")
    results = [message.text for message in messages[last:] if message.role == "tool"]
    names = {tool["function"]["name"] for tool in request.tools}
    said = messages[last].text
    if "find" in names and "book" not in names:
        return TALK[said][len(results)]
    if "find" not in names:  # the agent inside
        return (
            {"name": "book", "args": {"hotel": "Roma"}}
            if not results
            else {"name": "finish", "args": {"report": results[-1]}}
        )
    if "scout" in said:
        calls = [
            {"name": "scout", "args": {"place": "Rome"}},
            {"name": "book", "args": {"hotel": "Ritz"}},
        ]
        return {"tool_calls": calls} if not results else finish(" and ".join(results))
    if "place" in said:
        if "get_place" not in names or "set_place" in names:
            return finish("The page may not do this.")
        return finish(f"In {results[-1]}") if results else {"name": "get_place", "args": {}}
    if "wrong" in said:
        return finish("half", "bad") if not results else finish("whole", (1, 2))
    if "fail" in said:
        return {"name": "fail", "args": {"text": "no"}} if not results else finish("It failed.")
    if "break" in said:
        return ferrule.errors.BadRequestError("a secret text")
    if "long" in said:
        return finish(LONG)
    if "ask" in said:
        return (
            {"name": "user_clarification", "args": {"question": "Which city?"}}
            if not results
            else finish(f"You said {results[-1]}")
        )
    made: dict[str, Any] = dict(model(request))
    return (
        {**made, "args": {**made["args"], "stars": [5]}} if made.get("name") == "finish" else made
    )


if __name__ == "__main__":
    ferrule.configure(lm=ferrule.testing.ScriptedLM(by=play))
    path = Path(tempfile.mkdtemp()) / "chat.db"
    chats = [Chat(agent, ferrule.SQLiteStore(path)), Chat(talker, ferrule.SQLiteStore(path))]

    def restart(_: Request) -> Response:
        """Forget everything but the file, as a new process would."""
        for chat in chats:
            chat.runs.clear()
            chat.store = ferrule.SQLiteStore(path)
        return Response()

    served = [
        Route("/restart", restart, methods=["POST"]),
        Mount("/talk", chats[1].app),
        Mount("/", chats[0].app),
    ]
    uvicorn.run(Starlette(routes=served), port=int(sys.argv[1]), log_level="warning")
