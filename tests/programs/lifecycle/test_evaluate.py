"""`Evaluate`: examples, scores, and what changed since (`programs/lifecycle/evaluate.py`)."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest

from ferrule import Evaluate, Evaluation, MemoryStore, Module, Predict, ReAct, SQLiteStore
from ferrule.errors import ConfigurationError, InputError, RunError
from ferrule.testing import ScriptedLM

CASES = [
    {"review": "I love it", "mood": "good"},
    {"review": "It broke", "mood": "bad"},
    {"review": "Not bad", "mood": "good"},
]


def model(request: Any) -> dict[str, Any]:
    text = request.messages[-1].text
    if "boom" in text:
        raise RuntimeError("no answer")
    return {"outputs": {"mood": "good" if "love" in text else "bad"}}


def classify(lm: Any = None) -> Predict:
    return Predict("review -> mood", lm=lm or ScriptedLM(by=model))


def exact(example: Any, prediction: Any) -> bool:
    return example["mood"] == prediction.mood


async def exact_async(example: Any, prediction: Any, trace: Any) -> bool:
    await asyncio.sleep(0)
    assert trace is None
    return exact(example, prediction)


def evaluated(evaluate: Evaluate, program: Any, how: str) -> Evaluation:
    if how == "sync":
        return evaluate(program)
    return asyncio.run(evaluate.acall(program))


both = pytest.mark.parametrize("how", ["sync", "async"])


@both
@pytest.mark.parametrize("metric", [exact, exact_async])
def test_answers_are_scored_in_the_order_of_the_examples(metric: Any, how: str) -> None:
    result = evaluated(Evaluate(CASES, metric), classify(), how)
    assert [item.scores[metric.__name__] for item in result] == [1.0, 1.0, 0.0]
    assert result.score == pytest.approx(2 / 3)
    assert [item.prediction.mood for item in result] == ["good", "bad", "bad"]
    assert result.usage.calls == 3
    assert result[0].run.status == "done"


def test_only_the_inputs_that_the_program_declares_are_passed_to_it() -> None:
    class Shout(Module):
        def forward(self, review: str) -> str:
            return review.upper()

    result = Evaluate(CASES, lambda example, prediction: 1)(Shout())
    assert [item.prediction for item in result] == ["I LOVE IT", "IT BROKE", "NOT BAD"]


def test_inputs_can_be_named() -> None:
    class Any_(Module):
        def forward(self, **inputs: Any) -> Any:
            return SimpleNamespace(names=sorted(inputs), toDict=dict)

    with pytest.raises(ConfigurationError, match="name those of the examples"):
        Evaluate(CASES, lambda example, prediction: 1)(Any_())
    result = Evaluate(CASES, lambda example, prediction: 1, inputs=["mood"])(Any_())
    assert result[0].prediction.names == ["mood"]


@both
def test_an_item_that_fails_has_its_error_and_the_failure_score(how: str) -> None:
    cases = [*CASES, {"review": "boom", "mood": "bad"}]
    result = evaluated(Evaluate(cases, exact, failure_score=-1), classify(), how)
    assert result[3].scores == {"exact": -1.0}
    assert "no answer" in str(result[3].error)
    assert result.failed == [result[3]]
    assert result.score == pytest.approx((2 - 1) / 4)


def test_an_item_whose_metric_raises_has_failed_too() -> None:
    def broken(example: Any, prediction: Any) -> float:
        raise KeyError("rubric")

    result = Evaluate(CASES, {"broken": broken, "exact": exact}, failure_score=0.5)(classify())
    assert [item.scores for item in result] == [{"broken": 0.5, "exact": 0.5}] * 3
    assert {type(item.error) for item in result.failed} == {KeyError}


def test_so_has_one_whose_metric_is_cancelled_though_nobody_cancelled() -> None:
    async def cancelled(example: Any, prediction: Any) -> float:
        raise asyncio.CancelledError

    result = Evaluate(CASES, {"cancelled": cancelled})(classify())
    assert {type(item.error) for item in result.failed} == {RunError}


@pytest.mark.parametrize("answer", [None, "good", [1], float("nan"), float("-inf")])
def test_a_metric_that_returns_no_number_is_named(answer: Any) -> None:
    result = Evaluate(CASES[:1], {"odd": lambda example, prediction: answer})(classify())
    assert isinstance(result[0].error, ConfigurationError)
    assert "`odd`" in str(result[0].error)


def test_the_inputs_of_an_agent_are_those_of_its_signature() -> None:
    agent = ReAct("review -> mood", [], lm=ScriptedLM(by=lambda request: "good"))
    assert Evaluate(CASES, exact)(agent).score == pytest.approx(2 / 3)


def test_several_metrics_and_words_from_them() -> None:
    def graded(example: Any, prediction: Any) -> Any:
        return SimpleNamespace(score=0.25, feedback=f"wanted {example['mood']}")

    result = Evaluate(CASES, [exact, graded])(classify())
    assert result.scores == {"exact": pytest.approx(2 / 3), "graded": 0.25}
    assert result[2].feedback == "wanted good"


@both
def test_after_too_many_errors_the_first_one_is_raised_and_no_other_item_begins(how: str) -> None:
    asked: list[str] = []

    def failing(request: Any) -> Any:
        asked.append(request.messages[-1].text)
        raise RuntimeError(f"error {len(asked)}")

    cases = [{"review": str(number), "mood": "x"} for number in range(50)]
    evaluate = Evaluate(cases, exact, max_errors=2, max_concurrency=1)
    with pytest.raises(RuntimeError, match="error 1"):
        evaluated(evaluate, classify(ScriptedLM(by=failing)), how)
    assert len(asked) == 2


def test_a_stored_evaluation_asks_the_model_only_for_what_is_missing() -> None:
    asked: list[str] = []

    def counting(request: Any) -> Any:
        asked.append(request.messages[-1].text)
        return model(request)

    store, lm = MemoryStore(), ScriptedLM(by=counting)
    first = Evaluate(CASES[:2], exact, store=store, evaluation_id="moods")(classify(lm))
    again = Evaluate(CASES, exact, store=store, evaluation_id="moods")(classify(lm))
    assert (len(asked), len(again), first.evaluation_id) == (3, 3, "moods")
    assert again.scores["exact"] == pytest.approx(2 / 3)


@both
def test_a_stored_evaluation_keeps_its_scores_with_the_runs(how: str) -> None:
    store = MemoryStore()
    cases = [*CASES, {"review": "boom", "mood": "bad"}]
    result = evaluated(Evaluate(cases, exact, store=store, evaluation_id="v1"), classify(), how)
    [figures] = store.evaluations()
    assert (figures.name, figures.items, figures.failed) == ("v1", 4, 1)
    assert figures.scores == result.scores
    assert {run.id for run in store.list(evaluation="v1")} == {item.run.id for item in result}


def test_two_evaluations_are_compared_by_example() -> None:
    before = Evaluate(CASES, exact)(classify())
    better = ScriptedLM(by=lambda request: {"outputs": {"mood": "good"}})
    cases = [CASES[2], CASES[1], CASES[0], {"review": "new", "mood": "good"}]
    comparison = Evaluate(cases, exact)(classify(better)).compare(before)
    assert [item.after.example["review"] for item in comparison.improved] == ["Not bad"]
    assert [item.before.prediction.mood for item in comparison.worsened] == ["bad"]
    assert (comparison.same, len(comparison.only_after), comparison.only_before) == (1, 1, [])
    assert str(comparison) == "1 improved, 1 worsened, 1 the same; 1 in one evaluation only"


def test_the_result_is_a_table_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [*CASES, {"review": "boom\nx", "mood": "bad"}]
    result = Evaluate(cases, exact, display_table=2)(classify())
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["review", "mood", "predicted", "mood", "exact", "error"]
    assert printed[1].split() == ["I", "love", "it", "good", "good", "1"]
    assert printed[3] == "... and 2 more"
    assert "exact 0.5; 1 failed" in printed[4]
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert [row["review"] for row in rows] == [case["review"] for case in cases]
    document = json.loads(result.to_json())
    assert document["scores"] == {"exact": 0.5}
    assert document["items"][0]["predicted mood"] == "good"


def test_without_examples_there_is_no_score_and_no_error() -> None:
    result = Evaluate([], exact)(classify())
    assert (len(result), result.score, result.table()) == (0, 0.0, "")


@pytest.mark.parametrize("devset", [{"review": "x"}, "text", 3, None])
def test_what_is_no_list_of_examples_is_refused(devset: Any) -> None:
    with pytest.raises(InputError, match="`devset` is a list of examples"):
        Evaluate(devset, exact)


@pytest.mark.parametrize("metric", [None, [], "exact", [3], {"a": 3}], ids=range(5))
def test_what_is_no_metric_is_refused(metric: Any) -> None:
    with pytest.raises(ConfigurationError, match="`metric` is a function"):
        Evaluate(CASES, metric)


def test_two_metrics_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="same name"):
        Evaluate(CASES, [exact, exact])


KILLED = """
import sys, time
from ferrule import Evaluate, Predict, SQLiteStore
from ferrule.testing import ScriptedLM

def model(request):
    with open("asked.txt", "a") as file:
        file.write("x")
    time.sleep(0.002)
    return {"outputs": {"answer": "a"}}

cases = [{"question": str(number), "answer": "a"} for number in range(200)]
evaluate = Evaluate(
    cases,
    lambda example, prediction: example["answer"] == prediction.answer,
    store=SQLiteStore("runs.db"), evaluation_id="e", max_concurrency=4,
)
print(evaluate(Predict("question -> answer", lm=ScriptedLM(by=model))).score)
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal of POSIX")
def test_an_evaluation_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(KILLED, encoding="utf-8")
    asked = tmp_path / "asked.txt"
    kills = 0
    for part in (60, 130):
        process = forked.Forked("run.py", cwd=tmp_path)
        while process.poll() is None:
            if asked.exists() and asked.stat().st_size >= part:
                process.kill()
                process.wait()
                kills += 1
            time.sleep(0.001)
    done = forked.run("run.py", cwd=tmp_path)
    assert kills == 2
    assert float(done.stdout) == 1.0
    # A request that a kill cut off is sent again: at most those of the four items at work.
    assert 200 <= asked.stat().st_size <= 200 + 4 * kills
    with SQLiteStore(tmp_path / "runs.db") as store:
        assert {run.status for run in store.list(limit=None)} == {"done"}


KILLS_ITSELF = """
import os, signal, sys
from ferrule import Evaluate, Predict, SQLiteStore
from ferrule.testing import ScriptedLM

ends_at = int(sys.argv[1])

def model(request):
    with open("asked.txt", "a") as file:
        if file.tell() == ends_at:  # before this request is counted
            os.kill(os.getpid(), signal.SIGKILL)
        file.write("x")
    return {"outputs": {"answer": "a"}}

cases = [{"question": str(number), "answer": "a"} for number in range(1000)]
evaluate = Evaluate(
    cases,
    lambda example, prediction: example["answer"] == prediction.answer,
    store=SQLiteStore("runs.db"), evaluation_id="e", max_concurrency=1,
)
print(evaluate(Predict("question -> answer", lm=ScriptedLM(by=model))).score)
"""


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal of POSIX")
def test_an_evaluation_of_1000_items_killed_five_times_asks_1000_times(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(KILLS_ITSELF, encoding="utf-8")

    def run(ends_at: int) -> subprocess.CompletedProcess[str]:
        return forked.run("run.py", str(ends_at), cwd=tmp_path)

    ends = [run(ends_at).returncode for ends_at in (1, 200, 400, 600, 999)]
    assert ends == [-signal.SIGKILL] * 5
    done = run(-1)
    assert float(done.stdout) == 1.0, done.stderr
    assert (tmp_path / "asked.txt").stat().st_size == 1000
