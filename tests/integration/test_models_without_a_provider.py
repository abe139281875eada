"""`AutoLM` answers whole programs, with every adapter, in this process and behind a real server."""

from __future__ import annotations

import asyncio

import pytest

from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.xml_tags import XMLAdapter
from ferrule.programs.predict import ChainOfThought, Predict
from ferrule.programs.react import ReAct
from ferrule.settings import context
from ferrule.testing import AutoLM, block_network, serve
from ferrule.testing.replay import RecordLM, ReplayLM
from ferrule.values.conversation.exchange import Capabilities


def calculator(expression: str) -> int:
    """Evaluate an arithmetic expression."""
    return {"17 * (23 + 4)": 459, "12*12": 144}.get(expression, -1)


def get_weather(city: str) -> dict:
    """Current weather in a city."""
    return {"city": city, "sky": "grey"}


TOOLS = [calculator, get_weather]
adapters = pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), JSONAdapter(), XMLAdapter()],
    ids=["chat", "json", "xml"],
)
TEXT = Capabilities(native_tools=False)


def names(prediction) -> list[str]:
    return [call.name for step in prediction.trajectory.steps for call in step.calls]


@adapters
def test_the_automatic_model_calls_everything_once(adapter):
    with context(lm=AutoLM("yes"), adapter=adapter):
        prediction = ReAct("question -> answer, score: float", TOOLS, native=True)(question="What?")
        assert (prediction.answer, names(prediction)) == (
            "yes",
            ["calculator", "get_weather", "finish"],
        )
        assert isinstance(prediction.score, float)
        predicted = Predict("question -> answer", tools=TOOLS, native=True)(question="What?")
        assert (predicted.answer, names(predicted)) == ("yes", ["calculator", "get_weather"])
        assert ChainOfThought("question -> answer")(question="What?").answer == "yes"


@adapters
def test_tools_in_the_text_of_a_prompt_are_not_called(adapter):
    """The agent ends at once, with outputs of their types."""
    with context(adapter=adapter):
        agent = ReAct("question -> answer, score: float", TOOLS)
        automatic = agent(question="What?", lm=AutoLM("yes", capabilities=TEXT))
        predicted = Predict("question -> answer", tools=TOOLS)(
            question="What?",
            lm=AutoLM("yes", capabilities=TEXT),
        )
    assert (automatic.answer, automatic.score, names(automatic)) == ("yes", 1, ["finish"])
    assert (predicted.answer, names(predicted)) == ("yes", [])


@pytest.mark.integration
@adapters
def test_a_served_model_carries_an_agent_in_every_way(adapter):
    """Over HTTP, whole and streamed."""
    with serve(AutoLM("459")) as served, context(lm=served.lm(), adapter=adapter), block_network():
        agent = ReAct("question -> answer", TOOLS, native=True)
        assert agent(question="What is 17 * (23 + 4)?").answer == "459"
        assert asyncio.run(agent.acall(question="What is 17 * (23 + 4)?")).answer == "459"
        with agent.stream(question="What is 17 * (23 + 4)?") as stream:
            list(stream)
            assert stream.prediction.answer == "459"


def test_a_recorded_agent_is_replayed(tmp_path):
    path = tmp_path / "agent.jsonl"
    agent = ReAct("question -> answer", TOOLS)
    with context(lm=RecordLM(AutoLM(), path)):
        recorded = agent(question="What is 12*12?")
    with context(lm=ReplayLM(path)):
        replayed = agent(question="What is 12*12?")
    assert dict(replayed) == dict(recorded)
    assert names(replayed) == names(recorded)
