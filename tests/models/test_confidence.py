"""`LM(..., confidence=True)`: how sure a model is of its calls, by the tokens that a server
reports.
"""

from __future__ import annotations

import asyncio
import json
from math import log
from typing import Any

import pytest
from pydantic import SecretStr

from ferrule import (
    LM,
    InputField,
    MemoryStore,
    OutputField,
    Policy,
    Predict,
    ReAct,
    Response,
    Run,
    Signature,
    Tool,
    ToolCall,
    ToolCalls,
    ask,
    call,
    context,
    lt,
)
from ferrule.errors import ConfigurationError
from ferrule.events import ModelAnswered
from ferrule.models.wires.openai_chat import read as read_chat
from ferrule.models.wires.wire import wire
from ferrule.net.sse import event
from ferrule.testing import ScriptedLM
from ferrule.values.calls.confidence import Token
from ferrule.values.conversation.exchange import Request, Shape
from ferrule.values.conversation.message import Message, Messages

REQUEST = Request(Messages([Message("user", "hi")]))
UNSURE = Policy([ask("*", when=call(confidence=lt(0.6)))])
WRITTEN = '<tool_call>{"name": "pay", "arguments": {"euros": 5}}</tool_call>'


def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def entries(text: str, probability: float, name: str = "logprob") -> list[dict[str, Any]]:
    """A token for each word; that with the 5 has this probability, the others are certain."""
    pieces = [piece for piece in text.replace(" ", "\0 ").split("\0") if piece]
    return [{"token": piece, name: log(probability) if "5" in piece else 0.0} for piece in pieces]


def tokens(text: str, probability: float) -> tuple[Token, ...]:
    return tuple(Token(entry["token"], entry["logprob"]) for entry in entries(text, probability))


def body(name: str, **settings: Any) -> dict[str, Any]:
    return json.loads(wire(name).render(REQUEST, model="gpt-4.1", settings=settings))


# -- what is asked for


def test_each_protocol_asks_in_its_own_way():
    assert body("openai_chat", confidence=True)["logprobs"] is True
    assert body("openai_responses", confidence=True)["include"] == ["message.output_text.logprobs"]
    config = body("gemini", confidence=True)["generationConfig"]
    assert config == {"responseLogprobs": True}


def test_what_else_is_included_stays():
    included = body("openai_responses", confidence=True, include=["file_search_call.results"])
    assert included["include"] == ["file_search_call.results", "message.output_text.logprobs"]


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "anthropic", "gemini"])
@pytest.mark.parametrize("wish", [False, None])
def test_nobody_is_asked_without_the_wish(name, wish):
    assert body(name, confidence=wish) == body(name)


def test_a_request_overrides_the_model():
    request = Request(REQUEST.messages, settings={"confidence": False})
    for name in ("openai_chat", "openai_responses", "gemini"):
        sent = wire(name).render(request, model="m", settings={"confidence": True})
        assert b"ogprobs" not in sent


def test_a_protocol_without_log_probabilities_says_so():
    lm = LM("anthropic/claude-sonnet-4-5", api_key="k", confidence=True)
    with pytest.raises(ConfigurationError, match="no log-probabilities"):
        lm("hi")


def test_anything_but_true_and_false_is_refused():
    with pytest.raises(ConfigurationError, match="`confidence` is True or False"):
        body("openai_chat", confidence=0.9)


# -- structured calls


def chat_choice(**fields: Any) -> dict[str, Any]:
    function = {"name": "pay", "arguments": '{"euros":5}'}
    calls = [{"id": "a", "index": 0, "type": "function", "function": function}]
    return {"index": 0, "finish_reason": "tool_calls", **fields, "tool_calls": calls}


def chat(text: str | None, written: str) -> tuple[dict[str, Any], bytes]:
    """An answer of vLLM, whose tokens are those of the text as the model wrote it."""
    choice = chat_choice()
    message = {"role": "assistant", "content": text, "tool_calls": choice.pop("tool_calls")}
    logprobs = entries(written, 0.4)
    half = len(logprobs) // 2
    first = {**choice, "finish_reason": None, "delta": {"role": "assistant", "content": text}}
    second = {**choice, "delta": {"tool_calls": message["tool_calls"]}}
    chunks = [
        {"id": "r", "model": "m", "choices": [{**first, "logprobs": {"content": logprobs[:half]}}]},
        {
            "id": "r",
            "model": "m",
            "choices": [{**second, "logprobs": {"content": logprobs[half:]}}],
        },
    ]
    whole = {**choice, "message": message, "logprobs": {"content": logprobs}}
    return {"id": "r", "model": "m", "choices": [whole]}, b"".join(map(event, chunks))


def gemini(text: str | None, written: str) -> tuple[dict[str, Any], bytes]:
    said = [] if text is None else [{"text": text}]
    called = [{"functionCall": {"name": "pay", "args": {"euros": 5}}}]
    chosen = entries(written, 0.4, "logProbability")
    half = len(chosen) // 2
    chunks = [
        {"content": {"parts": said}, "logprobsResult": {"chosenCandidates": chosen[:half]}},
        {
            "content": {"parts": called},
            "logprobsResult": {"chosenCandidates": chosen[half:]},
            "finishReason": "STOP",
        },
    ]
    whole = {
        "content": {"parts": [*said, *called]},
        "logprobsResult": {"chosenCandidates": chosen},
        "finishReason": "STOP",
    }
    stream = b"".join(event({"candidates": [chunk], "modelVersion": "m"}) for chunk in chunks)
    return {"candidates": [whole], "modelVersion": "m"}, stream


@pytest.mark.parametrize(("name", "answer"), [("openai_chat", chat), ("gemini", gemini)])
def test_a_structured_call_has_the_probability_of_its_tokens(name, answer):
    whole, stream = answer("I pay 5 euros.", f"I pay 5 euros. {WRITTEN}")
    response = wire(name).read(whole)
    assert [made.confidence for made in response.tool_calls] == [pytest.approx(0.4)]
    assembly = wire(name).Assembly()
    for _ in (*assembly.feed(stream), *assembly.end()):
        pass
    assert assembly.response() == response


@pytest.mark.parametrize(("name", "answer"), [("openai_chat", chat), ("gemini", gemini)])
def test_tokens_of_the_text_alone_say_nothing_about_its_calls(name, answer):
    """OpenAI reports the tokens of the text, but not those of calls."""
    said = "I use pay with euros = 5"
    response = wire(name).read(answer(said, said)[0])
    assert [made.confidence for made in response.tool_calls] == [None]


def test_tokens_that_share_a_character_become_one():
    logprobs = [
        {"token": "\\xe2\\x82", "bytes": [0xE2, 0x82], "logprob": -0.5},
        {"token": "\\xac", "bytes": [0xAC], "logprob": -0.25},
        {"token": "!", "bytes": None, "logprob": 0.0},
    ]
    answer = {"choices": [{"message": {"content": "€!"}, "logprobs": {"content": logprobs}}]}
    assert read_chat(answer).tokens == (Token("€", -0.75), Token("!", 0.0))


@pytest.mark.parametrize("logprob", [None, "0", True, float("nan"), float("-inf")])
def test_tokens_without_a_probability_are_not_kept(logprob):
    entry = {"token": "a", "logprob": logprob}
    answer = {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [entry]}}]}
    assert read_chat(answer).tokens == ()


def test_the_text_of_responses_has_its_tokens():
    part = {"type": "output_text", "text": "5 euros", "logprobs": entries("5 euros", 0.4)}
    answer = {"output": [{"type": "message", "role": "assistant", "content": [part]}]}
    assert wire("openai_responses").read(answer).tokens == tokens("5 euros", 0.4)


# -- calls in text


def test_a_rescued_call_has_the_probability_of_its_tokens():
    lm = ScriptedLM([Response(WRITTEN, tokens=tokens(WRITTEN, 0.4))])
    with context(lm=lm, policy=UNSURE):
        [question] = ReAct("task -> answer", [pay]).start(task="Pay.").pending
    assert question.call.is_rescued
    assert question.call.confidence == pytest.approx(0.4)


STEP = '[[ ## next_thought ## ]]\nSo.\n\n[[ ## next_tool_name ## ]]\npay\n\n[[ ## next_tool_args ## ]]\n{"euros": 5}\n\n[[ ## completed ## ]]'


def test_a_prompted_call_has_it_too_also_in_a_replay():
    agent = ReAct("task -> answer", [pay], calls="prompted")
    store = MemoryStore()
    with context(lm=ScriptedLM([Response(STEP, tokens=tokens(STEP, 0.4))]), policy=UNSURE):
        run = agent.start(task="Pay.", store=store)
    [question] = run.pending
    assert question.call.confidence == pytest.approx(0.4)
    with context(lm=ScriptedLM([])):
        [again] = Run.load(store, run.id, agent).pending
    assert again == question


@pytest.mark.parametrize("is_native", [True, False])
def test_calls_as_an_output_have_it(is_native):
    class Choose(Signature):
        """Choose."""

        question: str = InputField()
        tools: list[Tool] = InputField()
        calls: ToolCalls = OutputField()

    text = WRITTEN
    if not is_native:
        text = '[[ ## calls ## ]]\n{"tool_calls": [{"name": "pay", "args": {"euros": 5}}]}\n\n[[ ## completed ## ]]'
    program = Predict(Choose, calls="native" if is_native else "prompted")
    lm = ScriptedLM([Response(text, tokens=tokens(text, 0.4))])
    [made] = program(question="Pay.", tools=[Tool(pay)], lm=lm).calls.tool_calls
    assert made.confidence == pytest.approx(0.4)


@pytest.mark.parametrize("program", [ReAct, Predict])
@pytest.mark.parametrize("kind", ["native", "prompted"])
def test_the_text_beside_structured_calls_says_nothing_about_them(program, kind):
    """Only a wire knows which tokens are those of a structured call."""
    said = "[[ ## next_thought ## ]]\nI use pay with euros = 5"
    structured = ToolCall(name="pay", args={"euros": 5}, id="a")
    answer = Response(said, tool_calls=(structured,), tokens=tokens(said, 0.4))
    options = {"calls": kind, "policy": UNSURE} if program is ReAct else {"calls": kind}
    with context(lm=ScriptedLM([answer]), policy=UNSURE):
        [question] = program("task -> answer", tools=[pay], **options).start(task="Pay.").pending
    assert question.call.confidence is None


def test_a_constrained_call_has_the_probability_of_its_tokens():
    lm = LM("http://localhost:1/v1", model="m").constrained()
    lm._known[:] = ["response_format"]
    written = '{"name": "pay", "arguments": {"euros": 5}}'

    async def ask(request):
        return Response(written, tokens=tokens(written, 0.4))

    shape = Shape("call")
    request = Request(REQUEST.messages, [Tool(pay).declaration], "required", shape=shape)
    [made] = asyncio.run(lm._answer(request, ask)).tool_calls
    assert made.confidence == pytest.approx(0.4)


# -- where tokens are seen


def test_tokens_do_not_show_a_secret():
    def log_in(password: SecretStr) -> str:
        """Log in."""
        return "in"

    seen: list[Any] = []
    written = '<tool_call>{"name": "log_in", "arguments": {"password": "hunter2"}}</tool_call>'
    lm = ScriptedLM([Response(written, tokens=tokens(written, 0.4)), "done"])
    with context(lm=lm, callbacks=[seen.append]):
        ReAct("task -> answer", [log_in])(task="Log in.")
    answered = next(each for each in seen if isinstance(each, ModelAnswered))
    assert answered.response.tokens == ()


def test_events_hold_the_confidence_but_not_the_tokens():
    seen: list[Any] = []
    lm = ScriptedLM([Response(WRITTEN, tokens=tokens(WRITTEN, 0.4))])
    with context(lm=lm, policy=UNSURE, callbacks=[seen.append]):
        ReAct("task -> answer", [pay]).start(task="Pay.")
    [answered] = [each.as_json() for each in seen if isinstance(each, ModelAnswered)]
    assert "tokens" not in answered["response"]
    assert answered["response"]["tool_calls"][0]["confidence"] == pytest.approx(0.4)
