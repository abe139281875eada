"""A recorded conversation of a real model, played again: its words and its tools' results are those of the recording.

The recordings (tau-bench, MIT) lie beside a checkout, in `../shared/data/transcripts`. All else is live: the history, the requests, the
checking of every call's arguments against the published schema, the tool loop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule.programs.predict import Predict
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import InputField, OutputField, Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ferrule.values.run.event import Event

TRANSCRIPTS = Path(__file__).parent.parent.parent.parent.parent.parent / "shared" / "data" / "transcripts"
_CONVERSATION = 1
"""The line of the recordings that is played: a passenger looks for a reservation and changes it."""


class Chat(Signature):
    """Replaced by the recording's own instructions."""

    history: History = InputField(desc="What was said before.")
    message: str = InputField(desc="What the customer says.")
    answer: str = OutputField(desc="What the agent says.")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the customer and what the agent answered to it, in the recording."""

    message: str
    answer: str


class Recording:
    """One recorded conversation, with a program that goes through it again."""

    def __init__(self, messages: Sequence[Mapping[str, Any]], declarations: Sequence[Mapping[str, Any]]) -> None:
        self._said = [_response(message) for message in messages if message["role"] == "assistant"]
        self._results = _results(messages)
        self.turns = _turns(messages)
        tools = [self._tool(declared["function"]) for declared in declarations]
        self._chat = Predict(Chat.with_instructions(messages[0]["content"]), tools=tools, native=True, lm=ScriptedLM(by=self._next))
        self._history = History(messages=[])
        self.calls = 0
        """How many tool calls ran so far."""

    def play(self, turn: Turn, hear: Callable[[Event], None]) -> str:
        """Have the program answer the turn's message; returns its answer."""
        stream = self._chat.stream(history=self._history, message=turn.message)
        for event in stream:
            hear(event)
        prediction = stream.prediction
        self._history = prediction.history
        self.calls += sum(len(step.calls) for step in prediction.trajectory.steps)
        return prediction.answer

    def _next(self, request: Request) -> Response:
        """What the model said at this place of the conversation: the place is how often it has spoken."""
        return self._said[sum(message.role == "assistant" for message in request.messages)]

    def _tool(self, declared: Mapping[str, Any]) -> Tool:
        name = declared["name"]

        def recorded(**arguments: Any) -> str:
            return self._results[_key(name, arguments)]

        return Tool(name, declared["description"], recorded, declared["parameters"])


def load(folder: Path = TRANSCRIPTS) -> Recording | None:
    """The recording; None where it does not lie there."""
    conversations, declared = folder / "airline_gpt4o.jsonl", folder / "airline_tools.json"
    if not conversations.is_file() or not declared.is_file():
        return None
    with conversations.open(encoding="utf-8") as lines:
        chosen = [json.loads(line) for _, line in zip(range(_CONVERSATION + 1), lines, strict=False)][-1]
    return Recording(chosen["messages"], json.loads(declared.read_text(encoding="utf-8")))


def _response(message: Mapping[str, Any]) -> Response:
    return Response(message["content"], tuple(ToolCall.read(call) for call in message.get("tool_calls") or ()))


def _key(name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    return name, json.dumps(arguments, sort_keys=True)


def _results(messages: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """What each call brought, by its name and arguments."""
    asked = {call["id"]: call["function"] for message in messages for call in message.get("tool_calls") or ()}
    found: dict[tuple[str, str], str] = {}
    for message in messages:
        if message["role"] == "tool":
            function = asked[message["tool_call_id"]]
            found[_key(function["name"], json.loads(function["arguments"]))] = message["content"]
    return found


def _turns(messages: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Each message of the customer with the answer in words that ends the agent's turn; a message without one is left out."""
    turns: list[Turn] = []
    for at, message in enumerate(messages):
        if message["role"] == "user":
            rest = messages[at + 1 :]
            answer = next((each for each in rest if each["role"] == "assistant" and not each.get("tool_calls")), None)
            if answer is not None:
                turns.append(Turn(message["content"], answer["content"]))
    return tuple(turns)
