from __future__ import annotations

import asyncio
import gc
import logging
import re

import pytest
from agent_script import fields, native_step, text_step

from ferrule import AdapterParseError, BaseLM, Capabilities, Predict, ReAct, Response, context, tool
from ferrule.errors import BadRequestError
from ferrule.programs.asking import refusals
from ferrule.testing import ScriptedLM


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


TEXT = [
    text_step("hm", "add", {"a": 1, "b": 2}),
    text_step("done", "finish"),
    fields(reasoning="r", answer="3"),
]
REFUSALS = {
    "ollama": "registry.ollama.ai/library/gemma3:4b does not support tools",
    "openrouter": 'No endpoints found that support tool use. Try disabling "add"',
    "vllm": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    "groq": "tool calling is not supported with this model",
    "plain": "this model doesn't support function calling",
    "openai": "Unsupported parameter: 'tools' is not supported with this model.",
    "openai_chat_latest": "tools is not supported in this model. For a list of supported models, refer to the guide.",
    "google": "Function calling is not enabled for models/gemma-3-27b-it",
    "groq_quoted": "`tool calling` is not supported with this model",
    "llama.cpp": "tools param requires --jinja flag",
    "xai": "Invalid request content: The model does not support tool use or function calling but tools or tool_choice have been specified.",
    "litellm": "openai does not support parameters: ['tools', 'parallel_tool_calls'], for model=m.",
    "novita": "model features function calling not support",
    "unsupported": "Unsupported parameter(s): `tools`",
}
NARROWER = {
    "parallel": "this model does not support parallel tool calls",
    "parallel_parameter": "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
    "pictures": "this model does not support image input in tool results",
    "pictures_first": "images in tool results are not supported",
    "choice": "deepseek-reasoner does not support this tool_choice",
    "choice_parameter": "Unsupported parameter: 'tool_choice' is not supported with this model.",
    "choice_endpoints": "No endpoints found that support the provided 'tool_choice' value.",
    "strict": "this model does not support strict function calling",
    "strict_field": "Unsupported parameter: 'tools[0].function.strict' is not supported with this model.",
    "strict_schemas": "the model does not support tools with strict schemas",
    "schema": "Invalid schema for function 'add': 'default' is not supported",
    "shape": "a response schema with function calling is unsupported",
    "hosted": "Hosted tool 'web_search_preview' is not supported with m.",
    "other": "the parameter `tools[0]` is not valid",
}


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch):
    monkeypatch.setattr(refusals, "_warned", set())
    refusals._refusing.clear()


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
            raise BadRequestError(
                self.message,
                provider="ollama",
                status=400,
                request_id=f"req-{self.refused}",
            )
        return self.script.complete(request)


@pytest.mark.parametrize("message", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_model_that_refuses_tools_gets_them_in_the_text_once(message, caplog):
    """The fallback is tried once and logged with its reason."""
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
    assert lm.refused == 1  # and tried once


def test_a_run_that_fell_back_replays_without_the_model():
    lm = Refusing(REFUSALS["ollama"], TEXT)
    with context(lm=lm):
        run = ReAct("question -> answer", [add]).start(question="1+2?")
        first = run.prediction
        run.status = "failed"  # as after a crash: everything is in the journal
        run.resume()
    assert run.prediction.answer == first.answer
    assert lm.refused == 1


@pytest.mark.parametrize("knows", ["the_first", "the_second"])
def test_a_run_replays_whether_or_not_its_process_remembers_the_refusal(knows):
    """A journal may be resumed in a process where the model was not asked yet, and the other way
    round.
    """
    lm = Refusing(REFUSALS["ollama"], TEXT * 2)
    with context(lm=lm):
        if knows == "the_first":
            ReAct("question -> answer", [add])(question="1+2?")
        run = ReAct("question -> answer", [add]).start(question="1+2?")
        first = run.prediction
        refusals._refusing.clear()
        if knows == "the_second":
            refusals._refusing[id(lm)] = lm
        run.status = "failed"
        run.resume()
    assert run.prediction.answer == first.answer
    assert lm.refused == 1


def test_who_streams_or_awaits_is_not_refused_twice_either():
    lm = Refusing(REFUSALS["ollama"], TEXT * 4)
    agent = ReAct("question -> answer", [add])

    async def again() -> None:
        assert [event async for event in agent.stream(question="1+2?")]
        assert (await agent.acall(question="1+2?")).answer == "3"

    with context(lm=lm):
        assert list(agent.stream(question="1+2?"))
        assert list(agent.stream(question="1+2?"))
        asyncio.run(again())
    assert lm.refused == 1


def test_who_insists_on_native_calls_gets_the_error():
    """An explicit choice is never overridden."""
    with (
        context(lm=Refusing(REFUSALS["ollama"], TEXT)),
        pytest.raises(BadRequestError, match="does not support tools"),
    ):
        ReAct("question -> answer", [add], native=True)(question="1+2?")


def test_who_insists_on_native_calls_asks_a_model_that_refused_before():
    lm = Refusing(REFUSALS["ollama"], TEXT)
    with context(lm=lm):
        ReAct("question -> answer", [add])(question="1+2?")
        with pytest.raises(BadRequestError, match="req-2"):
            ReAct("question -> answer", [add], native=True)(question="1+2?")


@pytest.mark.parametrize("message", NARROWER.values(), ids=NARROWER.keys())
def test_other_bad_requests_are_raised(message, caplog):
    """Also those that refuse a part of calling tools."""
    with (
        context(lm=Refusing(message, TEXT)),
        pytest.raises(BadRequestError, match=re.escape(message)),
    ):
        ReAct("question -> answer", [add])(question="1+2?")
    assert not caplog.records


def test_what_is_remembered_of_refusals_does_not_grow(caplog):
    """One word for each name, and models are forgotten when they go."""
    lm = Refusing("", [])
    for n in range(3):
        lm = Refusing("", [])
        assert refusals.refuses_tools(
            lm,
            BadRequestError(REFUSALS["ollama"], request_id=f"req-{n}"),
        )
        assert len(refusals._refusing) == 1
    assert len(refusals._warned) == len(caplog.records) == 1
    del lm
    gc.collect()
    assert not refusals._refusing


def test_a_model_that_nothing_can_refer_to_weakly_falls_back_each_time():
    class Slotted:
        __slots__ = ("lm",)
        name, capabilities = "slotted", Capabilities()

        def __getattr__(self, name):
            return getattr(self.lm, name)

        def complete(self, request):
            return self.lm.complete(request)

        def stream(self, request):
            return self.lm.stream(request)

        def acomplete(self, request):
            return self.lm.acomplete(request)

        def astream(self, request):
            return self.lm.astream(request)

    lm = Slotted()
    lm.lm = Refusing(REFUSALS["ollama"], TEXT)
    with context(lm=lm):
        assert ReAct("question -> answer", [add])(question="1+2?").answer == "3"
    assert lm.lm.refused == 1


def test_capabilities_choose_and_say_so(caplog):
    lm = ScriptedLM(TEXT)
    lm.capabilities = Capabilities(native_tools=False)
    with context(lm=lm), caplog.at_level(logging.WARNING, "ferrule"):
        assert ReAct("question -> answer", [add])(question="1+2?").answer == "3"
    assert "capabilities" in caplog.text
    assert (
        'Pass `calls="prompted"` to choose this, or `calls="native"` to force declarations.'
        in caplog.text
    )
    assert not lm.requests[0].tools


def test_choosing_text_oneself_is_nothing_to_tell(caplog):
    with context(lm=ScriptedLM(TEXT)), caplog.at_level(logging.WARNING, "ferrule"):
        assert ReAct("question -> answer", [add], native=False)(question="1+2?").answer == "3"
    with context(lm=ScriptedLM([native_step("hm", "finish", {"answer": "3"})])):
        assert ReAct("question -> answer", [add])(question="1+2?").answer == "3"
    assert not caplog.records


def test_predict_falls_back_as_well(caplog):
    """In every program with tools."""
    lm = Refusing(
        REFUSALS["ollama"],
        [fields(tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}}]), fields(answer="3")],
    )
    with context(lm=lm), caplog.at_level(logging.WARNING, "ferrule"):
        assert Predict("question -> answer", tools=[add])(question="1+2?").answer == "3"
        lm.script = ScriptedLM([fields(tool_calls=[], answer="4")])
        assert Predict("question -> answer", tools=[add])(question="2+2?").answer == "4"
    assert lm.refused == len(caplog.records) == 1
    assert Response is not None


UNREADABLE = BadRequestError(
    "The model produced output that does not match the expected peg-native format",
    provider="llama",
    status=500,
)


def test_an_answer_that_the_server_could_not_parse_goes_back_to_the_model():
    """Llama.cpp's server answers 500 to a call that its model wrote badly; the run goes on."""
    lm = ScriptedLM(
        [
            UNREADABLE,
            native_step("hm", "add", {"a": 1, "b": 2}),
            UNREADABLE,
            native_step("done", "finish", {"answer": "3"}),
        ],
    )
    assert ReAct("question -> answer", [add])(question="?", lm=lm).answer == "3"
    problem = lm.requests[1].messages[-1].text
    assert "could not be read" in problem
    assert "Make all your calls again." in problem
    assert (
        len(lm.requests[2].messages) == len(lm.requests[0].messages) + 2
    )  # the repair is no part of the conversation


def test_an_agent_survives_answers_that_the_server_cannot_parse():
    """After the repairs it is a faulty step like any other."""
    lm = ScriptedLM(
        [UNREADABLE, UNREADABLE, UNREADABLE, native_step("done", "finish", {"answer": "3"})],
    )
    prediction = ReAct("question -> answer", [add])(question="?", lm=lm)
    assert (prediction.answer, len(prediction.trajectory.steps)) == ("3", 2)


def test_predict_raises_if_no_answer_could_be_parsed():
    with (
        pytest.raises(AdapterParseError, match="the server could not parse it"),
        context(lm=ScriptedLM([UNREADABLE] * 3)),
    ):
        Predict("question -> answer")(question="?")
