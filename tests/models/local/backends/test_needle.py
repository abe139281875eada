"""`LM("needle")` over a scripted engine: which turns and records it gets, and what becomes of its
answers.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from pydantic import Field

from ferrule import (
    LM,
    ChainOfThought,
    History,
    Image,
    InputField,
    OutputField,
    Predict,
    ReAct,
    Signature,
    Tool,
    ToolCall,
    ToolCalls,
    settings,
)
from ferrule.embedded.engine import engine_with, has_needle
from ferrule.errors import BadRequestError, ConfigurationError, RefusalError
from ferrule.models.local.backends import needle


class Engine:
    """Answers with scripted envelopes, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.asked: list[SimpleNamespace] = []

    def complete(self, tools, turns, **options):
        self.asked.append(SimpleNamespace(tools=tools, turns=turns, **options))
        return self.answers.pop(0)

    def calls(self, *calls, confidence=0.9, **envelope):
        made = [{"name": name, "arguments": arguments} for name, arguments in calls]
        self.answers.append(
            {
                "type": "call",
                "success": True,
                "function_calls": made,
                "suppressed_calls": [],
                "reasoning": "because",
                "confidence": confidence,
                **envelope,
            }
        )

    def responds(self):
        self.answers.append({"type": "respond", "success": True, "function_calls": []})


@pytest.fixture
def engine(monkeypatch):
    scripted = Engine()
    monkeypatch.setattr(needle, "engine_with", lambda weights: scripted)
    with settings.context(lm=LM("needle")):
        yield scripted


def weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


def refund(order: int, euros: float) -> dict[str, Any]:
    """Pay money back."""
    return {"order": order, "paid": euros}


def test_an_agent_sends_the_question_and_then_the_results_and_answers_with_them(engine):
    engine.calls(("weather", {"city": "Paris"}), ("refund", {"order": 17, "euros": 20.0}))
    engine.responds()
    agent = ReAct("question -> answer", [weather, refund])
    prediction = agent(question="Weather in Paris, and refund order 17 with 20 euros")
    assert prediction.answer == 'sunny in Paris\n{"order":17,"paid":20.0}'
    first, second = engine.asked
    assert first.turns == ["Weather in Paris, and refund order 17 with 20 euros"]
    assert json.loads(second.turns[1]) == ["sunny in Paris", {"order": 17, "paid": 20.0}]
    assert [tool["name"] for tool in first.tools] == ["weather", "refund"]
    step = prediction.trajectory.steps[0]
    assert [call.confidence for call in step.calls] == [0.9, 0.9]
    assert prediction.usage.calls == 2
    assert prediction.usage.cost == 0.0


def test_a_call_whose_result_is_there_is_not_made_again(engine):
    """The engine likes to repeat its calls: the order would be refunded twice."""
    paid = []

    def pay(order: int, euros: float) -> str:
        """Pay money back."""
        paid.append((order, euros))
        return "paid"

    engine.calls(("pay", {"order": 17, "euros": 20.0}), ("pay", {"order": 17, "euros": 20.0}))
    engine.calls(("pay", {"order": 17, "euros": 20.0}), ("pay", {"order": 18, "euros": 5.0}))
    engine.calls(("pay", {"order": 17, "euros": 20.0}))
    prediction = ReAct("question -> answer", [pay])(question="Refund 20 euros for 17, 5 for 18")
    assert paid == [(17, 20.0), (18, 5.0)]
    assert prediction.answer == "paid\npaid"


def test_a_call_for_another_question_may_be_the_same(engine):
    agent = ReAct("question, history: History -> answer", [weather])
    question = "Weather in Paris?"
    for history in ([], [{"question": question, "answer": "sunny"}]):
        engine.calls(("weather", {"city": "Paris"}))
        engine.responds()
        prediction = agent(question=question, history=History(messages=history))
        assert prediction.answer == "sunny in Paris"


def test_typed_outputs_are_extracted_from_the_question_and_the_results(engine):
    engine.calls(("weather", {"city": "Paris"}))
    engine.responds()
    engine.calls(("record", {"city": "Paris", "degrees": 21}))
    prediction = ReAct("question -> city, degrees: int", [weather])(question="Warm in Paris?")
    assert (prediction.city, prediction.degrees) == ("Paris", 21)
    extraction = engine.asked[-1]
    assert extraction.turns == ["Warm in Paris?\nResult: sunny in Paris"]
    assert extraction.tools[0]["parameters"]["required"] == ["city", "degrees"]


def test_outputs_that_the_program_refuses_are_read_again_without_calling_a_tool(engine):
    engine.calls(("weather", {"city": "Paris"}))
    engine.responds()
    engine.calls(("record", {"city": "Paris", "degrees": "warm"}))
    engine.calls(("record", {"city": "Paris", "degrees": 21}))
    prediction = ReAct("question -> city, degrees: int", [weather])(question="Warm in Paris?")
    assert prediction.degrees == 21
    assert engine.asked[-1].tools[0]["name"] == "record"


def test_a_question_that_fits_no_tool_is_refused(engine):
    engine.calls()
    with pytest.raises(RefusalError, match="no tool fits"):
        ReAct("question -> answer", [weather])(question="Tell me a joke")


def test_the_error_of_a_tool_is_not_an_answer(engine):
    def fail(city: str) -> str:
        """Get the weather of a city."""
        raise OSError("no connection")

    engine.calls(("fail", {"city": "Paris"}))
    engine.responds()
    with pytest.raises(RefusalError, match="no call of a tool succeeded"):
        ReAct("question -> answer", [fail])(question="Weather in Paris?")
    assert "no connection" in engine.asked[1].turns[1]


def test_predict_extracts_without_the_markup_of_the_prompt(engine):
    engine.calls(("record", {"city": "Paris", "degrees": 21}))
    prediction = Predict("text -> city, degrees: int")(text="21 in Paris")
    assert (prediction.city, prediction.degrees) == ("Paris", 21)
    assert engine.asked[0].turns == ["21 in Paris"]


def test_several_inputs_keep_their_names(engine):
    engine.calls(("record", {"total": 3}))
    Predict("text, order: int -> total: int")(text="3 apples", order=17)
    assert engine.asked[0].turns == ["text: 3 apples\norder: 17"]


def test_a_chain_of_thought_holds_the_thoughts_of_the_engine(engine):
    engine.calls(("record", {"total": 3}))
    prediction = ChainOfThought("text -> total: int")(text="3 apples")
    assert (prediction.reasoning, prediction.total) == ("because", 3)


def test_an_output_that_may_be_null_is_null_where_the_text_does_not_give_it(engine):
    engine.calls(("record", {"name": "Ann"}))
    prediction = Predict("text -> name, age: int | None")(text="Ann came")
    assert prediction.age is None
    parameters = engine.asked[0].tools[0]["parameters"]
    assert parameters["required"] == ["name"]
    assert parameters["properties"]["age"]["type"] == "integer"


def test_a_number_that_is_not_in_the_text_is_not_taken(engine):
    invented = {"validation": {"ungrounded": ["record.age"]}}
    engine.calls(("record", {"name": "Ann", "age": 7}), **invented)
    with pytest.raises(RefusalError, match="`age`"):
        Predict("text -> name, age: int")(text="Ann came")


def test_a_number_in_another_spelling_is_taken(engine):
    reported = {"validation": {"ungrounded": ["record.total"]}}
    engine.calls(("record", {"total": 1299.0}), **reported)
    assert Predict("text -> total: float")(text="1,299.00 EUR").total == 1299.0


def test_calls_as_an_output_are_the_calls_of_the_engine(engine):
    engine.calls(("weather", {"city": "Paris"}), confidence=0.4)

    prediction = Predict(Choose)(question="Weather in Paris?", tools=[Tool(weather)])
    [call] = prediction.calls.tool_calls
    assert (call.name, call.args, call.confidence) == ("weather", {"city": "Paris"}, 0.4)


class Choose(Signature):
    """Choose."""

    question: str = InputField()
    tools: list[Tool] = InputField()
    calls: ToolCalls = OutputField()


class MayChoose(Choose):
    """Choose, or not."""

    calls: ToolCalls | None = OutputField()


DOUBTFUL = [{"name": "weather", "arguments": {"city": "Paris"}}]


def test_calls_that_are_demanded_as_an_output_are_made_even_if_the_engine_holds_them_back(engine):
    engine.calls(suppressed_calls=DOUBTFUL, confidence=0.02)
    prediction = Predict(Choose)(question="Is it warm?", tools=[Tool(weather)])
    [call] = prediction.calls.tool_calls
    assert (call.args, call.confidence) == ({"city": "Paris"}, 0.02)


def test_calls_that_may_be_none_are_none_if_the_engine_holds_them_back(engine):
    engine.calls(suppressed_calls=DOUBTFUL, confidence=0.02)
    prediction = Predict(MayChoose)(question="Is it warm?", tools=[Tool(weather)])
    assert prediction.calls is None


def test_a_question_without_a_call_is_refused_where_calls_are_demanded(engine):
    engine.responds()
    with pytest.raises(RefusalError, match="no tool fits"):
        Predict(Choose)(question="Tell me a joke", tools=[Tool(weather)])


def test_prose_is_refused_by_the_name_of_its_output(engine):
    class Essay(Signature):
        """Write."""

        topic: str = InputField()
        essay: Annotated[str, Field(min_length=500)] = OutputField()

    with pytest.raises(BadRequestError, match="`essay`"):
        Predict(Essay)(topic="rain")
    with pytest.raises(BadRequestError, match="does not chat"):
        LM("needle")("hello")


def test_images_are_refused(engine):
    with pytest.raises(BadRequestError, match="reads text only"):
        Predict("picture: Image -> city")(picture=Image(url="https://example.com/a.png"))


@pytest.mark.parametrize("setting", [{"stop": ["x"]}, {"temperature": 0.7}, {"top_p": 0.1}])
def test_settings_that_it_does_not_have_are_refused(engine, setting):
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        LM("needle", **setting)


@pytest.mark.parametrize("argument", ["api_key", "base_url", "max_retries"])
def test_arguments_for_servers_are_refused(engine, argument):
    with pytest.raises(ConfigurationError, match=argument):
        LM("needle", **{argument: "x"})


def test_weights_tuned_by_others_have_no_confidence_unless_the_user_says_so(engine):
    for options, confidence in (({}, None), ({"calibrated": True}, 0.9)):
        engine.calls(("weather", {"city": "Paris"}))
        engine.responds()
        lm = LM("needle:mine.cact", **options)
        prediction = ReAct("question -> answer", [weather])(question="Paris?", lm=lm)
        assert prediction.trajectory.steps[0].calls[0].confidence == confidence


def test_the_confidence_is_in_the_stored_form_of_a_call(engine):
    call = ToolCall(name="weather", args={"city": "Paris"}, confidence=0.4)
    assert ToolCall.model_validate(call.model_dump()) == call
    assert call.model_dump()["confidence"] == 0.4


# -- the files of the package


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `needle` without an engine, as `pip` installs it where there is no wheel."""
    folder = tmp_path / "needle"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NEEDLE3_LIB_PATH", raising=False)
    monkeypatch.delitem(sys.modules, "needle", raising=False)
    return folder


def test_a_platform_without_a_wheel_is_refused_without_an_import(package):
    with pytest.raises(ConfigurationError, match="without its engine"):
        LM("needle")
    assert not has_needle()


def test_weights_are_checked_by_their_first_bytes(package, tmp_path, monkeypatch):
    library = tmp_path / "engine.so"
    library.touch()
    monkeypatch.setenv("NEEDLE3_LIB_PATH", str(library))
    with pytest.raises(ConfigurationError, match=r"needle3\.cact"):
        LM("needle")
    other = tmp_path / "other.cact"
    other.write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match="not a file of weights"):
        LM(f"needle:{other}")
    with pytest.raises(ConfigurationError, match="Which weights"):
        LM("needle:")
    other.write_bytes((0x05E12A84).to_bytes(4, "little"))
    assert engine_with(str(other)) is engine_with(str(other))


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "needle", None)
    monkeypatch.setattr("ferrule.embedded.engine.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"ferrule\[embedded\]"):
        LM("needle")
