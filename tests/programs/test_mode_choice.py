from __future__ import annotations

import logging

import pytest
from agent_script import fields, native_step, text_step

from ferrule import BadRequest, BaseLM, Capabilities, Predict, ReAct, Response, ScriptedLM, context, tool
from ferrule.programs import mode_choice


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


TEXT = [text_step("hm", "add", {"a": 1, "b": 2}), text_step("done", "finish"), fields(reasoning="r", answer="3")]
REFUSALS = {
    "ollama": "registry.ollama.ai/library/gemma3:4b does not support tools",
    "openrouter": 'No endpoints found that support tool use. Try disabling "add"',
    "vllm": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    "groq": "tool calling is not supported with this model",
    "plain": "this model doesn't support function calling",
}


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch):
    monkeypatch.setattr(mode_choice, "_told", set())


class Refusing(BaseLM):
    """Takes no declared tools, which its capabilities do not know."""

    name = "local/refusing"

    def __init__(self, message: str, answers: list[str]) -> None:
        self.message = message
        self.script = ScriptedLM(answers)
        self.refused = 0

    def complete(self, request):
        if request.tools:
            self.refused += 1
            raise BadRequest(self.message, provider="ollama", status=400)
        return self.script.complete(request)


@pytest.mark.parametrize("message", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_model_that_refuses_tools_gets_them_in_the_text_once(message, caplog):
    """E65: the fallback is tried once and logged with its reason."""
    lm = Refusing(message, TEXT)
    with context(lm=lm), caplog.at_level(logging.WARNING, "ferrule"):
        run = ReAct("question -> answer", [add]).start(question="1+2?")
    assert run.prediction.answer == "3"
    assert lm.refused == 1
    [record] = caplog.records
    assert message in record.getMessage()
    assert "local/refusing" in record.getMessage()
    lm.script = ScriptedLM(TEXT)
    with context(lm=lm), caplog.at_level(logging.WARNING, "ferrule"):
        assert ReAct("question -> answer", [add])(question="1+2?").answer == "3"
    assert len(caplog.records) == 1  # said once


def test_a_run_that_fell_back_replays_without_the_model():
    lm = Refusing(REFUSALS["ollama"], TEXT)
    with context(lm=lm):
        run = ReAct("question -> answer", [add]).start(question="1+2?")
        first = run.prediction
        run.status = "failed"  # as after a crash: everything is in the journal
        run.resume()
    assert run.prediction.answer == first.answer
    assert lm.refused == 1


def test_who_insists_on_native_calls_gets_the_error():
    """E65: an explicit choice is never overridden."""
    with context(lm=Refusing(REFUSALS["ollama"], TEXT)), pytest.raises(BadRequest, match="does not support tools"):
        ReAct("question -> answer", [add], native=True)(question="1+2?")


def test_other_bad_requests_are_raised():
    with context(lm=Refusing("the parameter `tools[0]` is not valid", TEXT)), pytest.raises(BadRequest, match="not valid"):
        ReAct("question -> answer", [add])(question="1+2?")


def test_capabilities_choose_and_say_so(caplog):
    """E65."""
    lm = ScriptedLM(TEXT)
    lm.capabilities = Capabilities(native_tools=False)
    with context(lm=lm), caplog.at_level(logging.WARNING, "ferrule"):
        assert ReAct("question -> answer", [add])(question="1+2?").answer == "3"
    assert "capabilities" in caplog.text
    assert not lm.requests[0].tools


def test_choosing_text_oneself_is_nothing_to_tell(caplog):
    with context(lm=ScriptedLM(TEXT)), caplog.at_level(logging.WARNING, "ferrule"):
        assert ReAct("question -> answer", [add], native=False)(question="1+2?").answer == "3"
    with context(lm=ScriptedLM([native_step("hm", "finish", {"answer": "3"})])):
        assert ReAct("question -> answer", [add])(question="1+2?").answer == "3"
    assert not caplog.records


def test_predict_falls_back_as_well(caplog):
    """E65: in every program with tools."""
    lm = Refusing(REFUSALS["ollama"], [fields(tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}}]), fields(answer="3")])
    with context(lm=lm), caplog.at_level(logging.WARNING, "ferrule"):
        assert Predict("question -> answer", tools=[add])(question="1+2?").answer == "3"
    assert lm.refused == 1
    assert Response is not None
