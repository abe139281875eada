"""`dspy.Evaluate` in the facade: DSPy's arguments, result and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ferrule.compat.dspy.evaluate import Evaluate
from ferrule.compat.dspy.utils import DummyLM

from ferrule.compat import dspy
from ferrule.errors import InputError

DEVSET = [
    dspy.Example(question=f"q{number}", answer="b" if number % 2 else "a").with_inputs("question")
    for number in range(4)
]


def exact(example: Any, prediction: Any, trace: Any = None) -> bool:
    return example.answer == prediction.answer


def program() -> Any:
    return dspy.Predict("question -> answer", lm=DummyLM([{"answer": "a"}] * 20))


def test_the_score_is_a_percentage_and_the_results_are_triples() -> None:
    result = Evaluate(devset=DEVSET, metric=exact, num_threads=2)(program())
    assert result.score == 50.0
    assert [score for _, _, score in result.results] == [True, False, True, False]
    example, prediction, _ = result.results[0]
    assert (example, prediction.answer) == (DEVSET[0], "a")
    assert repr(result) == "EvaluationResult(score=50.0, results=<list of 4 results>)"


def test_a_call_replaces_what_the_evaluation_was_made_with() -> None:
    evaluate = Evaluate(devset=DEVSET, metric=exact)
    assert (
        evaluate(program(), devset=DEVSET[:1], metric=lambda example, prediction: 0.25).score == 25
    )


def test_a_program_that_fails_has_an_empty_prediction_and_the_failure_score() -> None:
    def failing(question: str) -> Any:
        if question == "q1":
            raise ValueError(question)
        return dspy.Prediction(answer="a")

    result = Evaluate(devset=DEVSET, metric=exact, failure_score=0.5)(failing)
    assert [score for _, _, score in result.results] == [True, 0.5, True, False]
    assert dict(result.results[1][1]) == {}


@pytest.mark.parametrize("most", [1, 3])
def test_at_max_errors_it_stops_with_the_first_error(most: int) -> None:
    asked: list[str] = []

    def failing(question: str) -> Any:
        asked.append(question)
        raise ValueError(f"error {len(asked)}")

    with pytest.raises(ValueError, match="error 1"):
        Evaluate(devset=DEVSET * 10, metric=exact, num_threads=1, max_errors=most)(failing)
    assert len(asked) == most


def test_the_table_is_printed_and_files_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"save_as_json": tmp_path / "e.json", "save_as_csv": tmp_path / "e.csv"}
    Evaluate(devset=DEVSET, metric=exact, display_table=2, **files)(program())
    assert "... and 2 more" in capsys.readouterr().out
    assert json.loads((tmp_path / "e.json").read_text())["scores"] == {"exact": 0.5}
    assert (tmp_path / "e.csv").read_text().splitlines()[1] == "q0,a,a,1.0"


def test_without_a_metric_it_says_what_is_missing() -> None:
    with pytest.raises(InputError, match="no `metric`"):
        Evaluate(devset=DEVSET)(program())


@pytest.mark.parametrize(
    ("expected", "answer", "is_match"),
    [
        ("Paris", "the Paris!", True),
        (["Rome", "Paris"], "paris", True),
        ("Paris", "Paris, France", False),
        ("Paris", "", False),
    ],
)
def test_answers_match_exactly_without_case_articles_and_punctuation(
    expected: Any, answer: str, is_match: bool
) -> None:
    example, prediction = dspy.Example(answer=expected), dspy.Prediction(answer=answer)
    assert dspy.evaluate.answer_exact_match(example, prediction) is is_match


def test_a_part_of_the_words_is_enough_if_it_is_asked_for() -> None:
    example, prediction = dspy.Example(answer="Paris"), dspy.Prediction(answer="Paris, France")
    assert dspy.evaluate.answer_exact_match(example, prediction, frac=0.6)
    assert not dspy.evaluate.answer_exact_match(example, prediction, frac=0.8)
