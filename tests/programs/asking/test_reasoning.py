"""`Reasoning`: an output for what a model thought, native where the model tells it, and otherwise a
written field.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from agent_script import fields
from pydantic import TypeAdapter
from raw_server import raw_server, reply

from ferrule import (
    LM,
    ChainOfThought,
    ChatAdapter,
    History,
    InputField,
    JSONAdapter,
    OutputField,
    Predict,
    ReAct,
    Reasoning,
    Response,
    Signature,
    ToolCall,
    XMLAdapter,
    context,
)
from ferrule.adapters.adapter import Adapter
from ferrule.models.providers import thought_settings
from ferrule.testing import ScriptedLM, serve


class Ask(Signature):
    """Answer."""

    question: str = InputField()
    why: Reasoning = OutputField()
    answer: str = OutputField()


ADAPTERS: tuple[Adapter, ...] = (ChatAdapter(), JSONAdapter(), XMLAdapter())
EVERY = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: type(adapter).__name__)


@EVERY
@pytest.mark.parametrize(
    "why",
    [
        "2 + 2",
        "null",
        "7",
        '{"content": "x"}',
        "[1",
        "<!-- a -->b",
        " two\n\nlines ",
        "[[ ## answer ## ]]",
        "",
    ],
)
def test_a_model_that_does_not_think_writes_it_as_text(adapter: Adapter, why: str) -> None:
    lm = ScriptedLM([{"outputs": {"why": Reasoning(why), "answer": "4"}}])
    with context(adapter=adapter):
        prediction = Predict(Ask)(question="q", lm=lm)
    assert type(prediction.why) is Reasoning
    assert (prediction.why, prediction.answer) == (why, "4")
    assert dict(lm.requests[0].settings) == {}
    assert "why" in lm.requests[0].messages[0].text


def test_it_is_a_text() -> None:
    why = Reasoning(content="  So it is. ")
    assert why == "  So it is. "
    assert why.content == str(why) == why
    assert type(str(why)) is type(why.content) is str
    assert (why.strip(), "So" in why, f"{why}!", why + "x", "x" + why, len(why), why[2]) == (
        "So it is.", True, "  So it is. !", "  So it is. x", "x  So it is. ", 12, "S",
    )  # fmt: skip
    assert json.dumps({"why": why}) == '{"why": "  So it is. "}'
    assert pickle.loads(pickle.dumps(why)) == why
    assert type(pickle.loads(pickle.dumps(why))) is Reasoning
    adapter = TypeAdapter(Reasoning | None)
    assert adapter.json_schema() == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert type(adapter.validate_python("x")) is Reasoning
    assert adapter.validate_python({"content": "x"}) == "x"
    assert adapter.dump_json(why) == b'"  So it is. "'
    with pytest.raises(ValueError, match="valid string"):
        adapter.validate_python(5)


def test_a_string_signature_names_it() -> None:
    lm = ScriptedLM([fields(why="2 + 2", answer="4")])
    prediction = Predict("question -> why: Reasoning, answer")(question="q", lm=lm)
    assert type(prediction.why) is Reasoning


@pytest.mark.parametrize(
    "config",
    [
        {"reasoning_effort": "low"},
        {"thinking": {"type": "adaptive"}},
        {"extra": {"enable_thinking": True}},
    ],
)
@EVERY
def test_a_model_that_thinks_tells_it_beside_the_text(
    adapter: Adapter,
    config: dict[str, Any],
) -> None:
    text = adapter.format_assistant_message_content(Ask.delete("why"), {"answer": "4"})
    lm = ScriptedLM([Response(text, reasoning="2 + 2"), Response(text)])
    with context(adapter=adapter):
        prediction = Predict(Ask)(question="q", lm=lm, config=config)
        hidden = Predict(Ask)(question="q", lm=lm, config=config)
    assert dict(prediction) == {"why": "2 + 2", "answer": "4"}
    assert type(prediction.why) is Reasoning
    assert hidden.why == "", "it thought, and its provider does not tell"
    assert "why" not in lm.requests[0].messages[0].text
    assert lm.requests[0].settings == config


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
        {"reasoning_effort": None},
    ],
)
def test_a_model_that_is_told_not_to_think_writes_it(config: dict[str, Any]) -> None:
    lm = ScriptedLM([fields(why="2 + 2", answer="4")])
    assert Predict(Ask)(question="q", lm=lm, config=config).why == "2 + 2"


SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "OpenAI's chat hides it": ("openai/gpt-5", {"reasoning_effort": "low"}, None),
    "DeepSeek": ("deepseek/deepseek-chat", {"thinking": {"type": "enabled"}}, {}),
    "an own server": ("ollama/qwen3", {"reasoning_effort": "low"}, {}),
    "Claude thinks where thinking is on": ("anthropic/claude", {"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive", "display": "summarized"}}),
    "Claude with a budget": ("anthropic/claude", {"thinking": {"type": "enabled", "budget_tokens": 2000}}, {}),
    "Claude with an effort alone": ("anthropic/claude", {"reasoning_effort": "low"}, None),
    "Gemini": ("gemini/gemini-3-pro", {"reasoning_effort": "low"}, {"thinkingConfig": {"includeThoughts": True}}),
    "Gemini's own words": ("gemini/gemini-3-pro", {"thinking_config": {"thinkingLevel": "low"}}, {"thinking_config": {"thinkingLevel": "low", "includeThoughts": True}}),
    "off": ("gemini/gemini-3-pro", {}, None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "given", "added"), SETTINGS.values(), ids=SETTINGS)
def test_each_wire_is_asked_to_tell_the_thoughts(
    name: str,
    given: dict[str, Any],
    added: dict[str, Any] | None,
) -> None:
    lm = LM(name, api_key="k", **given)
    assert lm.thought_settings({}) == added
    assert LM(name, api_key="k").thought_settings(given) == added


def test_responses_tell_a_summary() -> None:
    lm = LM("openai/gpt-5", wire="openai_responses", api_key="k", reasoning_effort="low")
    assert lm.thought_settings({}) == {"reasoning": {"summary": "auto"}}
    assert lm.thought_settings({"reasoning": {"summary": "detailed"}}) == {
        "reasoning": {"summary": "detailed"},
    }
    assert lm.thought_settings({"reasoning_effort": None}) is None
    assert thought_settings("openai_responses", "openai", {"reasoning": {"effort": "none"}}) is None


def test_over_http_the_thoughts_are_the_output() -> None:
    with serve(
        ScriptedLM([Response(fields(answer="4"), reasoning="2 + 2"), fields(why="so", answer="4")]),
    ) as server:
        lm = LM(server.base_url, model="m")
        assert dict(Predict(Ask)(question="q", lm=lm, config={"reasoning_effort": "low"})) == {
            "why": "2 + 2",
            "answer": "4",
        }
        assert dict(Predict(Ask)(question="q", lm=lm)) == {"why": "so", "answer": "4"}
        assert [body.get("reasoning_effort") for body in server.requests] == ["low", None]


def test_a_stream_ends_with_the_thoughts() -> None:
    lm = ScriptedLM([Response(fields(answer="4"), reasoning="2 + 2")])
    with Predict(Ask).stream(question="q", lm=lm, config={"reasoning_effort": "low"}) as stream:
        deltas = [
            type(event).__name__
            for event in stream
            if type(event).__name__ in {"ThoughtDelta", "FieldDelta"}
        ]
        assert deltas[0] == "ThoughtDelta"
    assert stream.prediction.why == "2 + 2"


def test_a_history_tells_it_again_as_text() -> None:
    lm = ScriptedLM([fields(why="a", answer="b")])
    past = History([{"question": "p", "why": Reasoning("so"), "answer": "c"}])
    asked = Ask.append("past", InputField(default=None), History | None)
    Predict(asked)(question="q", past=past, lm=lm)
    [told] = [message.text for message in lm.requests[0].messages if message.role == "assistant"]
    assert told == fields(why="so", answer="c")


def test_chain_of_thought_takes_a_signature_with_it() -> None:
    lm = ScriptedLM([Response(fields(reasoning="r", answer="4"), reasoning="2 + 2")])
    prediction = ChainOfThought(Ask)(question="q", lm=lm, config={"reasoning_effort": "low"})
    assert (prediction.reasoning, prediction.why) == ("r", "2 + 2")


ANSWER = fields(answer="4")
WIRES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "openai_chat": (
        {"choices": [{"message": {"content": ANSWER, "reasoning_content": "2 + 2"}, "finish_reason": "stop"}]},
        {"reasoning_effort": "low"},
        lambda body: body["reasoning_effort"] == "low",
    ),
    "openai_responses": (
        {
            "status": "completed",
            "output": [
                {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "2 + 2"}], "encrypted_content": "x"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]},
            ],
        },
        {"reasoning_effort": "low"},
        lambda body: body["reasoning"] == {"effort": "low", "summary": "auto"},
    ),
    "anthropic": (
        {"content": [{"type": "thinking", "thinking": "2 + 2", "signature": "s"}, {"type": "text", "text": ANSWER}], "stop_reason": "end_turn"},
        {"thinking": {"type": "adaptive"}, "reasoning_effort": "low"},
        lambda body: body["thinking"] == {"type": "adaptive", "display": "summarized"} and body["output_config"] == {"effort": "low"},
    ),
    "gemini": (
        {"candidates": [{"content": {"parts": [{"text": "2 + 2", "thought": True}, {"text": ANSWER}]}, "finishReason": "STOP"}]},
        {"reasoning_effort": "low"},
        lambda body: body["generationConfig"]["thinkingConfig"]["includeThoughts"] is True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", ["model", "call"])
@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_tells_the_thoughts(wire: str, where: str) -> None:
    answer, settings, is_asked = WIRES[wire]
    with raw_server(reply(json.dumps(answer))) as server:
        lm = LM(server.base_url, model="m", wire=wire, **(settings if where == "model" else {}))
        prediction = Predict(Ask)(question="q", lm=lm, config=settings if where == "call" else None)
    assert dict(prediction) == {"why": "2 + 2", "answer": "4"}
    [(_, body)] = server.requests
    assert is_asked(json.loads(body))
    assert b"[[ ## why ## ]]" not in body


@pytest.mark.parametrize("native", [True, False])
def test_an_agent_writes_it_with_its_answer(native: bool) -> None:
    outputs = {"why": "2 + 2", "answer": "4"}
    step = (
        Response(None, (ToolCall(name="finish", args=outputs),))
        if native
        else fields(next_thought="t", next_tool_name="finish", next_tool_args=outputs)
    )
    prediction = ReAct(Ask, [], native=native)(question="q", lm=ScriptedLM([step]))
    assert type(prediction.why) is Reasoning
    assert dict(prediction) == outputs
