"""Twenty recorded conversations of gpt-4o, driven turn by turn: a user message, the `History` so
far, a program over the recorded model messages.
"""

from __future__ import annotations

import json
from typing import Any

from shared_files import shared_file

from ferrule import History, InputField, OutputField, Predict, Signature, Tool, ToolCall
from ferrule.errors import ScriptError
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Response

CONVERSATIONS = shared_file("data/transcripts/airline_gpt4o.jsonl")
TOOLS = CONVERSATIONS.with_name("airline_tools.json")


class Chat(Signature):
    """Replaced by each conversation's own policy."""

    history: History = InputField()
    message: str = InputField()
    answer: str = OutputField()


class Airline:
    """The tools of the recordings: schemas as published, results as recorded, in order."""

    def __init__(self, results: list[str]) -> None:
        self.results = iter(results)
        self.ran: list[tuple[str, dict[str, Any]]] = []

    def tools(self) -> list[Tool]:
        declared = [each["function"] for each in json.loads(TOOLS.read_text())]
        return [
            Tool(each["name"], each["description"], self._replay(each["name"]), each["parameters"])
            for each in declared
        ]

    def _replay(self, name: str) -> Any:
        def replayed(**arguments: Any) -> str:
            self.ran.append((name, arguments))
            return next(self.results)

        return replayed


def turns(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """A conversation cut at each user message."""
    cut: list[list[dict[str, Any]]] = []
    for message in messages:
        if message["role"] == "user":
            cut.append([])
        if message["role"] != "system":
            cut[-1].append(message)
    return cut


def recorded_answer(message: dict[str, Any]) -> Response:
    return Response(
        message["content"],
        tuple(ToolCall.read(call) for call in message.get("tool_calls") or ()),
    )


def conversations() -> list[list[dict[str, Any]]]:
    return [
        json.loads(line)["messages"]
        for line in CONVERSATIONS.read_text(encoding="utf-8").splitlines()
    ]


def drive(messages: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Drive one conversation and check every answer and result on the way; returns the calls that
    ran.
    """
    airline = Airline([message["content"] for message in messages if message["role"] == "tool"])
    chat = Predict(
        Chat.with_instructions(messages[0]["content"]),
        tools=airline.tools(),
        native=True,
        max_turns=30,
    )
    history = History(messages=[])
    for turn in turns(messages):
        said = [message for message in turn if message["role"] == "assistant"]
        results = [message["content"] for message in turn if message["role"] == "tool"]
        lm = ScriptedLM([recorded_answer(message) for message in said])
        run = chat.start(history=history, message=turn[0]["content"], lm=lm)
        assert [
            result.content for step in run.trajectory.steps for result in step.results
        ] == results
        if turn[-1]["role"] != "assistant":  # the recording ends before the model's answer
            assert isinstance(run.error, ScriptError)
            break
        lm.assert_done()
        assert run.prediction.answer == said[-1]["content"]
        history = run.prediction.history
    return airline.ran


def test_all_calls_run_with_validated_arguments_and_all_answers_come_out_as_recorded() -> None:
    """All 114 calls of the recordings."""
    ran = [call for messages in conversations() for call in drive(messages)]
    recorded = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for messages in conversations()
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
    assert len(ran) == 114
    assert ran == recorded


def test_the_history_holds_the_conversation_as_it_was_said() -> None:
    """Real messages, with the provider's ids."""
    messages = conversations()[0]
    airline = Airline([message["content"] for message in messages if message["role"] == "tool"])
    chat = Predict(Chat, tools=airline.tools(), native=True)
    said = [message for message in messages if message["role"] == "assistant"]
    history, done = History(messages=[]), 0
    for turn in turns(messages)[:3]:
        answers = [message for message in turn if message["role"] == "assistant"]
        done += len(answers)
        prediction = chat(
            history=history,
            message=turn[0]["content"],
            lm=ScriptedLM([recorded_answer(each) for each in answers]),
        )
        history = prediction.history
    kept = [message for message in prediction.messages if message.role == "assistant"]
    assert [message.text for message in kept] == [
        message["content"] or "" for message in said[:done]
    ]
    assert [call.id for message in kept for call in message.tool_calls] == [
        call["id"] for message in said[:done] for call in message.get("tool_calls") or ()
    ]
