"""States of programs that DSPy saved: what of them is loaded, what is warned about, and what is
refused.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ferrule import Capabilities
from ferrule.compat import dspy
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM

HOW_TO_3_0 = (
    "You are an Agent. In each episode, you will be given the fields `question` as input. And you "
    "can see your past trajectory so far.\nWhen selecting the next_tool_name and its "
    "next_tool_args, the tool must be one of:\n\n(1) get_weather, whose description is "
    "<desc>Get the weather.</desc>. It takes arguments {'city': {'type': 'string'}}."
)
HOW_TO_V2 = (
    "You are an Agent. Use the supplied tools to produce `answer` from `question`.\n"
    "The available tools are: `get_weather`, `submit`."
)
STEP_DEMO = {
    "augmented": True,
    "question": "Rome?",
    "trajectory": "",
    "next_thought": "I look.",
    "next_tool_name": "get_weather",
    "next_tool_args": {"city": "Rome"},
}
TASK_DEMO = {"question": "Oslo?", "answer": "Rain."}


def get_weather(city: str) -> str:
    """Get the weather."""
    return f"{city}: sunny"


class Ask(dspy.Signature):
    """Answer briefly."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def make_agent(**options: Any) -> Any:
    return dspy.ReAct(Ask, tools=[get_weather], **options)


def fields(**descriptions: str) -> list[dict[str, str]]:
    """Fields as DSPy writes them; without a description, it writes the name as a placeholder."""
    return [
        {
            "prefix": f"{name.replace('_', ' ').title()}:",
            "description": description or f"${{{name}}}",
        }
        for name, description in descriptions.items()
    ]


def predictor(instructions: str, fields: list[Any], demos: list[Any], lm: Any = None) -> Any:
    signature = {"instructions": instructions, "fields": fields}
    return {"traces": [], "train": [], "demos": demos, "signature": signature, "lm": lm}


def state_of_agent() -> dict[str, Any]:
    """What `program.save` of DSPy 3.4 writes for `make_agent()`, after an optimizer."""
    step = fields(
        question="about a city",
        trajectory="",
        next_thought="",
        next_tool_name="",
        next_tool_args="",
    )
    answer = fields(question="", trajectory="", reasoning="", answer="in one word")
    answer_demo = {"question": "Oslo?", "trajectory": "...", "reasoning": "r", "answer": "Rain."}
    return {
        "react": predictor(
            f"Answer like a pirate.\n\n{HOW_TO_3_0}", step, [STEP_DEMO, TASK_DEMO, STEP_DEMO]
        ),
        "extract.predict": predictor("Answer like a pirate, briefly.", answer, [answer_demo]),
        "metadata": {"dependency_versions": {"dspy": "3.4.1"}},
    }


# -- agents


def test_an_agent_that_dspy_saved_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "agent.json").write_text(json.dumps(state_of_agent()), encoding="utf-8")
    agent = make_agent()
    agent.load(tmp_path / "agent.json")
    assert agent.signature.instructions == "Answer like a pirate."
    assert agent.signature.plan.fields["question"].description == "about a city"
    assert agent.react.signature.instructions.startswith("Answer like a pirate.\n\nYou solve")
    assert "In each episode" not in agent.react.signature.instructions
    assert [demo.toDict() for demo in agent.react.demos] == [TASK_DEMO]
    extractor = agent.extract.predict
    assert extractor.signature.instructions == "Answer like a pirate, briefly."
    assert extractor.signature.plan.fields["answer"].description == "in one word"
    assert [demo.answer for demo in extractor.demos] == ["Rain."]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "2 saved demos of `react` are left out"
    ]


@pytest.mark.parametrize("native", [False, True])
def test_a_loaded_agent_shows_the_model_what_was_saved(native: bool) -> None:
    agent = make_agent(native=native)
    agent.load_state(state_of_agent())
    prompts: list[str] = []

    def answer(request: Any) -> Any:
        prompts.append("\n".join(message.text for message in request.messages))
        if native:
            return {"name": "finish", "args": {"answer": "Arr."}}
        if len(prompts) == 1:
            finish = {"next_thought": "t", "next_tool_name": "finish", "next_tool_args": {}}
            return request.form.write(finish)
        return request.form.write({"reasoning": "r", "answer": "Arr."})

    lm = ScriptedLM(by=answer, capabilities=Capabilities(native_tools=native))
    assert agent(question="Bern?", lm=lm).answer == "Arr."
    assert "Answer like a pirate." in prompts[0]
    assert "Oslo?" in prompts[0]
    assert ("Answer like a pirate, briefly." in prompts[-1]) is not native


def test_an_agent_inside_a_module_is_loaded() -> None:
    class Desk(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.agent = make_agent()

    desk = Desk()
    desk.load_state({f"agent.{name}": saved for name, saved in state_of_agent().items()})
    assert desk.agent.signature.instructions == "Answer like a pirate."


def test_the_state_of_the_second_agent_is_loaded_into_one() -> None:
    state = {"react": dspy.ReActV2(Ask, tools=[get_weather]).dump_state()["react"]}
    state["react"]["signature"]["instructions"] = "Answer like a pirate."
    agent = dspy.ReActV2(Ask, tools=[get_weather])
    agent.load_state(state)
    assert agent.react.signature.instructions == "Answer like a pirate."


def test_the_state_of_the_second_agent_is_loaded_into_the_first() -> None:
    """It has no extractor, and other fields in a step."""
    step = fields(question="about a city", history="", tools="", next_thought="", tool_calls="")
    state = {"react": predictor(f"Answer like a pirate.\n{HOW_TO_V2}", step, [TASK_DEMO])}
    agent = dspy.ReAct(Ask, tools=[get_weather])
    extractor = agent.extract.predict.dump_state()
    agent.load_state(state)
    assert agent.signature.instructions == "Answer like a pirate."
    assert [demo.toDict() for demo in agent.react.demos] == [TASK_DEMO]
    assert agent.extract.predict.dump_state() == extractor


def test_instructions_that_an_optimizer_wrote_are_all_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = state_of_agent()
    state["react"]["signature"]["instructions"] = "Think hard, then choose a tool."
    agent = make_agent()
    agent.load_state(state)
    assert agent.signature.instructions == "Think hard, then choose a tool."
    assert "an optimizer may have" in caplog.records[0].getMessage()


@pytest.mark.parametrize("intention", [False, True])
def test_an_agent_that_the_facade_saved_is_loaded(intention: bool) -> None:
    """With demos of steps in ferrule's form, and into an agent whose tools have changed."""
    agent = make_agent(intention=intention)
    agent.load_state(state_of_agent())
    agent.react.demos = [TASK_DEMO, {"question": "?", "next_tool_name": "get_weather"}]
    more = dspy.ReAct(Ask, tools=[get_weather, len], intention=intention)
    more.load_state(agent.dump_state())
    assert more.signature.instructions == "Answer like a pirate."
    assert [demo.toDict() for demo in more.react.demos] == agent.react.demos
    again = make_agent(intention=intention)
    again.load_state(agent.dump_state())
    assert again.dump_state() == agent.dump_state()


def test_a_state_that_dspy_makes_here_is_loaded(tmp_path: Path) -> None:
    real = pytest.importorskip("dspy")
    saved = real.ReAct("question -> answer", tools=[get_weather])
    saved.react.signature = saved.react.signature.with_instructions(
        saved.react.signature.instructions.replace("Given the fields", "Given, arr, the fields")
    )
    saved.save(tmp_path / "agent.json")
    agent = dspy.ReAct("question -> answer", tools=[get_weather])
    agent.load(tmp_path / "agent.json")
    assert agent.signature.instructions.startswith("Given, arr, the fields")
    assert "In each episode" not in agent.signature.instructions


# -- all or nothing


def damaged_states() -> dict[str, Any]:
    """States of which a part is wrong, by what is wrong."""
    damaged: dict[str, Any] = {}
    for name in ("react", "extract.predict"):
        for key in ("demos", "signature", "lm"):
            state = state_of_agent()
            del state[name][key]
            damaged[f"{name} without {key}"] = state
        state = state_of_agent()
        del state[name]
        damaged[f"without {name}"] = state
        state = state_of_agent()
        del state[name]["signature"]["fields"][0]
        damaged[f"{name} of other fields"] = state
        state = state_of_agent()
        del state[name]["signature"]["instructions"]
        damaged[f"{name} without instructions"] = state
        state = state_of_agent()
        state[name]["demos"] = 7
        damaged[f"{name} with a number for demos"] = state
        state = state_of_agent()
        state[name]["lm"] = {"model": "no-such-provider/x", "model_type": "chat"}
        damaged[f"{name} with a model that there is not"] = state
    return damaged


DAMAGED = damaged_states()


@pytest.mark.parametrize("what", DAMAGED)
def test_a_state_is_loaded_completely_or_not_at_all(what: str) -> None:
    agent = make_agent()
    before = copy.deepcopy(agent.dump_state())
    with pytest.raises(ConfigurationError):
        agent.load_state(DAMAGED[what])
    assert agent.dump_state() == before


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", '{"a": ' + "[" * 5000, "\ud800"])
def test_a_file_that_is_no_state_is_not_loaded_at_all(tmp_path: Path, text: str) -> None:
    agent = make_agent()
    before = copy.deepcopy(agent.dump_state())
    path = tmp_path / "state.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigurationError):
        agent.load(path)
    assert agent.dump_state() == before


# -- models, and what a load returns


def saved_model() -> dict[str, Any]:
    """A model as DSPy 3.4 saves it."""
    return {
        "_dspy_lm_class": "dspy.clients.lm.LM",
        "model": "openai/gpt-5",
        "model_type": "chat",
        "cache": True,
        "num_retries": 3,
        "temperature": 0.5,
        "api_base": "http://127.0.0.1:9/v1",
        "finetuning_model": None,
        "launch_kwargs": {},
        "train_kwargs": {},
    }


def test_a_model_is_loaded_without_its_address_unless_the_file_is_trusted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address says where the key is sent."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    state = predictor("Be kind.", fields(question="", answer=""), [], saved_model())
    predict = dspy.Predict("question -> answer")
    predict.load_state(state)
    assert (predict.lm.model, predict.lm.kwargs) == ("openai/gpt-5", {"temperature": 0.5})
    assert "127.0.0.1" not in predict.lm.url
    assert "allow_unsafe_lm_state" in caplog.records[0].getMessage()
    predict.load_state(state, allow_unsafe_lm_state=True)
    assert predict.lm.url.startswith("http://127.0.0.1:9/v1")


def test_a_load_returns_what_dspys_returns() -> None:
    """A predictor itself, a module None."""
    state = predictor("Be kind.", fields(question="", answer=""), [])
    predict = dspy.Predict("question -> answer")
    assert predict.load_state(state) is predict
    assert make_agent().load_state(state_of_agent()) is None
