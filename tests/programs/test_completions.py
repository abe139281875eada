"""Several answers to one question: `n`, and `prediction.completions`."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from agent_script import fields

from ferrule import (
    LM,
    AdapterParseError,
    ChainOfThought,
    InputField,
    JSONAdapter,
    OutputField,
    Predict,
    ReAct,
    Reasoning,
    Response,
    Run,
    Signature,
    SQLiteStore,
    ToolCalls,
    ToolRetry,
    context,
)
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Usage
from ferrule.values.outcome import Completions, Prediction

ANSWERS = [Response(fields(answer=str(i)), usage=Usage(10, 1, 0, 1)) for i in (1, 2, 3)]


@pytest.mark.parametrize("given", ["program", "call"])
@pytest.mark.parametrize("kind", [Predict, ChainOfThought])
def test_the_first_answer_is_the_prediction_and_all_are_its_completions(
    kind: Any,
    given: str,
) -> None:
    outputs = {"answer": "x"} if kind is Predict else {"reasoning": "r", "answer": "x"}
    lm = ScriptedLM([Response(fields(**outputs), usage=Usage(10, 1, 0, 1))] * 3)
    program = kind("question -> answer", **({"n": 3} if given == "program" else {}))
    prediction = program(question="q", lm=lm, config={"n": 3} if given == "call" else None)
    assert dict(prediction) == outputs
    assert len(prediction.completions) == 3
    assert [dict(each) for each in prediction.completions] == [outputs] * 3
    assert prediction.completions.answer == prediction.completions["answer"] == ["x", "x", "x"]
    assert prediction.completions[0] == prediction
    assert prediction.usage == Usage(30, 3, 0, 3)
    assert all("n" not in request.settings for request in lm.requests)


def test_without_n_the_prediction_is_the_only_completion() -> None:
    lm = ScriptedLM([ANSWERS[0], ANSWERS[0], ANSWERS[0]])
    for more in ({}, {"config": {"n": 1}}, {"config": {"n": None}}):
        prediction = Predict("question -> answer")(question="q", lm=lm, **more)
        assert list(prediction.completions) == [prediction]
    with pytest.raises(
        AttributeError,
        match=r"`other` is not an output of these completions; their outputs are: answer\.",
    ):
        _ = prediction.completions.other


@pytest.mark.parametrize("how", ["async", "stream", "astream"])
def test_it_is_the_same_in_every_way_to_run(how: str) -> None:
    lm, program = ScriptedLM(ANSWERS), Predict("question -> answer", n=3)
    if how == "async":
        prediction = asyncio.run(program.acall(question="q", lm=lm))
    elif how == "stream":
        with program.stream(question="q", lm=lm) as stream:
            assert list(stream)
        prediction = stream.prediction
    else:

        async def run() -> Any:
            async with program.astream(question="q", lm=lm) as stream:
                assert [event async for event in stream]
                return stream.prediction

        prediction = asyncio.run(run())
    assert prediction.completions.answer == ["1", "2", "3"]
    assert prediction.completions.answer[0] == prediction.answer
    assert prediction.usage.calls == 3


def test_a_script_gives_its_answers_in_order_also_when_several_are_asked_for() -> None:
    answers = [fields(answer=str(number)) for number in range(20)]
    for _ in range(20):
        assert Predict("question -> answer", n=20)(
            question="q",
            lm=ScriptedLM(answers),
        ).completions.answer == [str(n) for n in range(20)]


def test_answers_that_cannot_be_parsed_are_left_out() -> None:
    lm = ScriptedLM([Response("?"), ANSWERS[1], Response("?")])
    assert Predict("question -> answer", n=3)(question="q", lm=lm).completions.answer == ["2"]
    lm = ScriptedLM([fields(count="x", answer="a"), fields(count=2, answer="b"), "?"])
    prediction = Predict("question -> count: int, answer", n=3)(question="q", lm=lm)
    assert [dict(each) for each in prediction.completions] == [{"count": 2, "answer": "b"}]


def test_if_none_can_be_parsed_the_model_corrects_them() -> None:
    lm = ScriptedLM(["?", "?", fields(answer="a"), fields(answer="a")])
    assert Predict("question -> answer", n=2)(question="q", lm=lm).completions.answer == ["a", "a"]
    with context(adapter=JSONAdapter(repairs=0)), pytest.raises(AdapterParseError):
        Predict("question -> answer", n=2)(question="q", lm=ScriptedLM(["?", "?"]))


def test_a_validator_sees_each_answer() -> None:
    program = Predict("question -> answer: int", n=3)

    @program.output_validator
    def even(found: Any) -> None:
        if found.answer % 2:
            raise ToolRetry("an even number")

    prediction = program(question="q", lm=ScriptedLM([fields(answer=i) for i in (1, 2, 4)]))
    assert sorted(prediction.completions.answer) == [2, 4]


def test_a_validator_that_gives_no_reason_still_says_that_the_answer_was_refused() -> None:
    """The model got an empty line."""
    program = Predict("question -> answer: int")

    @program.output_validator
    def even(found: Any) -> None:
        if found.answer % 2:
            raise ToolRetry

    lm = ScriptedLM([fields(answer=1), fields(answer=2)])
    assert program(question="q", lm=lm).answer == 2
    assert "not accepted, change it and try again" in lm.requests[1].messages[-1].content


def test_thoughts_belong_to_their_answer() -> None:
    lm = ScriptedLM(
        [Response(fields(answer=each), reasoning=f"because {each}") for each in ("a", "b")],
    )
    program = Predict("question -> why: Reasoning, answer", n=2, reasoning_effort="low")
    for each in program(question="q", lm=lm).completions:
        assert each.why == Reasoning(f"because {each.answer}")


def test_completions_survive_a_stored_run_and_a_pickle(tmp_path: Path) -> None:
    lm = ScriptedLM([fields(answer="a"), fields(answer="a")])
    store, program = SQLiteStore(tmp_path / "runs.db"), Predict("question -> answer", n=2, lm=lm)
    run = program.start(question="q", store=store, run_id="r")
    assert run.prediction.completions.answer == ["a", "a"]
    again = Run.load(store, "r", program)
    assert again.prediction.completions.answer == ["a", "a"]
    assert len(lm.requests) == 2
    copy = pickle.loads(pickle.dumps(again.prediction))
    assert copy.completions.answer == ["a", "a"]
    store.close()


def look(place: str) -> str:
    """Look."""
    return place


class Calls(Signature):
    """Answer."""

    question: str = InputField()
    calls: ToolCalls = OutputField()


@pytest.mark.parametrize(
    "program",
    [
        ReAct("question -> answer", [look]),
        Predict("question -> answer", tools=[look]),
        Predict(Calls),
    ],
    ids=["ReAct", "Predict with tools", "calls as an output"],
)
def test_a_program_with_tools_takes_one_answer(program: Any) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"`n=2` asks for several answers to one question\. A program with tools continues from one",
    ):
        program(question="q", lm=ScriptedLM([]), config={"n": 2})


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_n_is_a_number_of_answers(n: Any) -> None:
    with pytest.raises(ConfigurationError, match="`n` must be a whole number of at least 1"):
        Predict("question -> answer", n=n)
    with pytest.raises(ConfigurationError, match="`n` must be a whole number of at least 1"):
        Predict("question -> answer")(question="q", lm=ScriptedLM([]), config={"n": n})


def test_a_model_says_where_n_belongs() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"A program asks for several answers: `Predict\(\.\.\., n=3\)`",
    ):
        LM("openai/gpt-5", n=3)


def test_an_output_may_be_called_completions() -> None:
    lm = ScriptedLM([fields(completions="c")])
    assert Predict("question -> completions")(question="q", lm=lm).completions == "c"
    assert repr(Completions([Prediction(a=1)])) == "Completions([Prediction(a=1)])"
