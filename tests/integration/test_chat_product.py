"""Five programs of a chat product on one fake server: each token is shown once, in order.

The server answers in text, in text with a call behind it, and in reasoning and then text.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from front_pages import AGUIClient, UIClient
from raw_server import Connection, begin, end, raw_server

from ferrule import AGUI, LM, Predict, ReAct, VercelAI
from ferrule.events import FieldDelta, Preamble, ThoughtDelta
from ferrule.testing import ScriptedLM, serve

pytestmark = pytest.mark.integration

CALL = {"name": "look", "args": {"place": "library"}}
ANSWER = "The butler did it, with a knife."
SCRIPTS: dict[str, list[Any]] = {
    "text": [ANSWER],
    "text with a call behind it": [
        {"text": "I look there first.", "tool_calls": [CALL]},
        ANSWER,
    ],
    "reasoning, then text": [{"reasoning": "Who has a knife?", "text": ANSWER}],
}
SHOWN: dict[str, list[tuple[str, str]]] = {
    "text": [("answer", ANSWER)],
    "text with a call behind it": [
        ("preamble", "I look there first."),
        ("call", "look"),
        ("answer", ANSWER),
    ],
    "reasoning, then text": [("thought", "Who has a knife?"), ("answer", ANSWER)],
}
"""What each page shows at the end, in order."""


def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: a knife"


@pytest.fixture(params=SCRIPTS)
def script(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["ReAct", "Predict"])
def make(request: pytest.FixtureRequest) -> Any:
    def made(lm: LM) -> Any:
        if request.param == "ReAct":
            return ReAct("question -> answer", [look], lm=lm)
        return Predict("question -> answer", tools=[look], lm=lm)

    return made


@contextmanager
def model(script: str) -> Iterator[LM]:
    """The model behind OpenAI's protocol; no request may have a marker."""
    with serve(ScriptedLM(SCRIPTS[script])) as server:
        yield server.lm()
        assert "[[ ##" not in json.dumps(server.requests)


class Reader:
    """Shows the events of a run, as a client of SSE or a terminal does."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []
        self.tokens = ""
        """Everything that was shown, also what was moved later."""

    def take(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "FieldDelta":
                self._add("answer", event["text"])
            case "ThoughtDelta":
                self._add("thought", event["text"])
            case "Preamble":
                assert self.shown.pop() == ("answer", event["text"])
                self.shown.append(("preamble", event["text"]))
            case "CallStarted":
                self.shown.append(("call", event["call"]["name"]))
            case _:
                pass

    def _add(self, kind: str, text: str) -> None:
        self.tokens += text
        if self.shown and self.shown[-1][0] == kind:
            text = self.shown.pop()[1] + text
        self.shown.append((kind, text))


def tokens_of(script: str) -> str:
    return "".join(text for kind, text in SHOWN[script] if kind != "call")


def test_a_service_with_fastapi_and_sse(script: str, make: Any) -> None:
    fastapi = pytest.importorskip("fastapi")
    with model(script) as lm:
        app, agent = fastapi.FastAPI(), make(lm)

        @app.get("/ask")
        async def ask() -> Any:
            async def events() -> AsyncIterator[str]:
                async for event in agent.astream(question="Who did it?"):
                    yield f"data: {json.dumps(event.as_json())}\n\n"

            return fastapi.responses.StreamingResponse(events(), media_type="text/event-stream")

        async def get() -> str:
            async with httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=app), base_url="http://chat"
            ) as client:
                return (await client.get("/ask")).text

        reader = Reader()
        for frame in asyncio.run(get()).split("\n\n"):
            if frame:
                reader.take(json.loads(frame.removeprefix("data: ")))
    assert (reader.shown, reader.tokens) == (SHOWN[script], tokens_of(script))


def test_a_page_with_ag_ui(script: str, make: Any) -> None:
    client = AGUIClient()
    with model(script) as lm:
        stream = make(lm).stream(question="Who did it?")
        events = client.receive("".join(AGUI()(stream)))
    assert "MESSAGES_SNAPSHOT" not in {event["type"] for event in events}
    preambles = [event["value"]["messageId"] for event in events if event.get("name") == "preamble"]
    shown: list[tuple[str, str]] = []
    for message in client.messages:
        if message["role"] == "reasoning":
            shown.append(("thought", message["content"]))
        elif message["role"] == "assistant" and "toolCalls" in message:
            shown.append(("call", message["toolCalls"][0]["function"]["name"]))
        elif message["role"] == "assistant":
            kind = "preamble" if message["id"] in preambles else "answer"
            shown.append((kind, message["content"]))
    assert shown == SHOWN[script]
    deltas = [event["delta"] for event in events if event["type"].endswith("MESSAGE_CONTENT")]
    assert "".join(deltas) == tokens_of(script)


def test_a_page_with_vercels_sdk(script: str, make: Any) -> None:
    client = UIClient()
    with model(script) as lm:
        chunks = client.receive("".join(VercelAI()(make(lm).stream(question="Who did it?"))))
    shown: list[tuple[str, str]] = []
    for part in client.parts:
        facts = (part.get("providerMetadata") or {}).get("ferrule", {})
        assert "void" not in facts
        if part["type"] == "reasoning":
            shown.append(("thought", part["text"]))
        elif part["type"] == "text":
            shown.append(("preamble" if facts.get("preamble") else "answer", part["text"]))
        elif part["type"].startswith("tool-"):
            shown.append(("call", part["type"].removeprefix("tool-")))
    assert shown == SHOWN[script]
    assert "".join(chunk["delta"] for chunk in chunks if "delta" in chunk) == tokens_of(script)


def test_a_terminal(script: str, make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot take back what it printed: a line ends where the text was no answer."""
    with model(script) as lm:
        kind: type | None = None
        for event in make(lm).stream(question="Who did it?"):
            if isinstance(event, (FieldDelta, ThoughtDelta)):
                if kind not in {None, type(event)}:
                    sys.stdout.write("\n")
                kind = type(event)
                sys.stdout.write(event.text)
            elif isinstance(event, Preamble):
                sys.stdout.write(" ...\n")
                kind = None
    lines = [
        text + (" ..." if shown == "preamble" else "")
        for shown, text in SHOWN[script]
        if shown != "call"
    ]
    assert capsys.readouterr().out == "\n".join(lines)


def test_each_token_is_shown_before_the_server_sends_the_next(make: Any) -> None:
    """A page is as fast as a bare client: nothing of a text waits for what follows it."""
    words = [f"{word} " for word in ANSWER.split()]
    is_shown = {word: threading.Event() for word in words}

    def chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        data = b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()
        return b"%x\r\n%b\r\n" % (len(data), data)

    def send(connection: Connection) -> None:
        for word in words:
            connection.send(chunk({"content": word}))
            assert is_shown[word].wait(60)
        connection.send(chunk({}, "stop"))
        end(connection)

    with raw_server(begin(b": a comment\n\n", send)) as server:
        lm = LM("openai/gpt-4o", base_url=server.base_url, api_key="x")
        with make(lm).stream(question="Who did it?") as stream:
            for event in stream:
                if isinstance(event, FieldDelta):
                    is_shown[event.text].set()
    assert stream.prediction.answer.split() == ANSWER.split()


def test_a_notebook(script: str, make: Any) -> None:
    """A cell shows `stream.partial()` again and again, on the loop of the kernel."""

    async def cell(agent: Any) -> tuple[list[str], Any]:
        frames: list[str] = []
        stream = agent.astream(question="Who did it?")
        async for event in stream:
            answer = stream.partial().get("answer", "")
            if isinstance(event, FieldDelta) or not frames or frames[-1] != answer:
                frames.append(answer)
        return frames, stream.prediction

    with model(script) as lm:
        frames, prediction = asyncio.run(cell(make(lm)))
    assert frames[-1] == prediction.answer == ANSWER
    begun = next(number for number, frame in enumerate(frames) if frame and frame in ANSWER)
    for before, after in zip(frames[begun:], frames[begun + 1 :], strict=False):
        assert after.startswith(before)
