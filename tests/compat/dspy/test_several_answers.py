"""DSPy's small modules: several attempts, a comparison of answers, and code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ferrule.compat.dspy.predict.aggregation import majority
from msgspec.structs import asdict

import ferrule
from ferrule import settings
from ferrule.compat import dspy
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = settings.current()
    yield
    ferrule.configure(**asdict(before))


def is_short(inputs: dict[str, Any], prediction: Any) -> float:
    """Whether the answer is one word."""
    assert inputs == {"question": "Capital?"}
    return 1 / len(prediction.answer.split())


def answers(*texts: str) -> Any:
    lm = dspy.DummyLM([{"answer": text} for text in texts])
    dspy.configure(lm=lm)
    return lm


def test_the_best_of_several_answers_is_returned() -> None:
    answers("It is Brussels", "Brussels then", "The town of Brussels")
    best = dspy.BestOfN(dspy.Predict("question -> answer"), 3, is_short, threshold=1.0)
    assert best(question="Capital?").answer == "Brussels then"


def test_a_reward_of_the_threshold_ends_the_attempts() -> None:
    answers("It is Brussels", "Brussels", "Antwerp")
    program = dspy.Predict("question -> answer")
    assert dspy.BestOfN(program, 3, is_short, 1.0)(question="Capital?").answer == "Brussels"
    assert program(question="And then?").answer == "Antwerp"
    assert program.lm is None


@pytest.mark.parametrize(("fail_count", "calls"), [(None, 3), (1, 2), (5, 3)])
def test_attempts_that_fail_are_left_out_up_to_a_number(fail_count: Any, calls: int) -> None:
    class Failing(dspy.Module):
        made = 0

        def forward(self, **inputs: Any) -> Any:
            Failing.made += 1
            raise ValueError("on purpose")

    best = dspy.BestOfN(Failing(), 3, is_short, 1.0, fail_count)
    with pytest.raises(ValueError, match="on purpose"):
        best(question="Capital?")
    assert Failing.made == calls


def test_refine_tells_the_next_attempt_what_to_do() -> None:
    def answer(request: Any) -> str:
        text = "\n".join(message.text or "" for message in request.messages)
        if "module_names" in text:
            assert "It is Brussels" in text
            assert "is_short" in text
            return '{"discussion": "too long", "advice": {"self": "Use one word."}}'
        word = (
            "Brussels"
            if "Advice from an earlier attempt: Use one word." in text
            else "It is Brussels"
        )
        return f"[[ ## answer ## ]]\n{word}\n\n[[ ## completed ## ]]"

    program = dspy.Predict("question -> answer")
    dspy.configure(lm=ScriptedLM(by=answer))
    [(name, _)] = program.named_predictors()
    assert name == "self"
    refine = dspy.Refine(program, 2, is_short, 1.0)
    assert refine(question="Capital?").answer == "Brussels"
    assert "Advice" not in program.signature.instructions


def test_refine_goes_on_without_advice() -> None:
    answers("It is Brussels", "no advice", "Brussels")
    refine = dspy.Refine(dspy.Predict("question -> answer"), 3, is_short, None)
    assert refine(question="Capital?") is not None


@pytest.mark.parametrize(
    "completions",
    [
        [{"answer": "2"}, {"answer": "3"}, {"answer": " 3."}],
        dspy.Completions([{"answer": "2"}, {"answer": "3"}, {"answer": "3"}]),
        dspy.Prediction.from_completions({"answer": ["2", "3", "3"]}),
    ],
    ids=["list", "completions", "prediction"],
)
def test_the_majority_of_answers(completions: Any) -> None:
    assert majority(completions).completions[0]["answer"] == "3"


def test_the_majority_counts_one_field_and_ignores_answers_without_words() -> None:
    rows = [
        {"answer": "a", "other": ""},
        {"answer": "b", "other": "x"},
        {"answer": "b", "other": ""},
    ]
    assert majority(rows, field="other").answer == "b"
    assert majority(rows, normalize=None).answer == "a"
    assert majority([{"answer": 2}, {"answer": 3}]).answer == 2


def test_attempts_are_compared() -> None:
    lm = ScriptedLM(
        ["[[ ## rationale ## ]]\nBoth say so\n\n[[ ## answer ## ]]\nblue\n\n[[ ## completed ## ]]"]
    )
    dspy.configure(lm=lm)
    attempts = [
        dspy.Prediction(rationale="I look up\nand see", answer="blue"),
        {"reasoning": "At sunset", "answer": "red"},
    ]
    compare = dspy.MultiChainComparison("question -> answer", M=2)
    result = compare(attempts, question="Sky?")
    assert (result.rationale, result.answer) == ("Both say so", "blue")
    text = lm.requests[0].messages[-1].text
    assert "I think: I look up My answer is: blue" in text
    assert "I think: At sunset My answer is: red" in text
    with pytest.raises(ValueError, match="compares 2 attempts; found 1"):
        compare(attempts[:1], question="Sky?")


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def code(text: str) -> dict[str, Any]:
    return {"name": "run_code", "args": {"code": text}}


def test_a_model_writes_code_that_calls_tools() -> None:
    lm = ScriptedLM(
        [code("1 / 0"), code("print(await add(1, 2))"), {"name": "finish", "args": {"answer": 3}}]
    )
    result = dspy.CodeAct("question -> answer: int", [add])(question="1 + 2?", lm=lm)
    assert result.answer == 3
    assert [*result.trajectory] == [
        "generated_code_0",
        "observation_0",
        "generated_code_1",
        "code_output_1",
    ]
    assert "ZeroDivisionError" in result.trajectory["observation_0"]
    assert result.trajectory["generated_code_1"] == "print(await add(1, 2))"
    assert result.trajectory["code_output_1"].strip() == "3"


def test_a_model_computes_the_outputs_with_code() -> None:
    lm = ScriptedLM([code("sum(range(10))"), {"name": "finish", "args": {"answer": 45}}])
    result = dspy.ProgramOfThought("question -> answer: int")(question="Sum?", lm=lm)
    assert (result.answer, "trajectory" in result) == (45, False)


def test_an_interpreter_of_your_own_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="interpreter_factory"):
        dspy.CodeAct("question -> answer", [add], interpreter_factory=object)
