"""Cases as datasets of `pydantic-evals` and `inspect_ai` (`runs/cases/export.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule.cases import Case, called, in_order, never, to_inspect, to_pydantic_evals

CASES = [
    Case(
        name="Pay A1 back.",
        program="desk",
        inputs={"message": "Pay A1 back."},
        expect=[in_order(called("find", order="A1"), called("pay")), called("find*"), never("x")],
        outputs={"reply": "Done."},
    ),
    Case(name="Pay A1 back.", inputs={"message": "x", "day": 3}, expect=[never("pay")]),
    Case(inputs={}),
]
EXPECT = ["in_order(called('find', order='A1'), called('pay'))", "called('find*')", "never('x')"]


def test_a_dataset_of_pydantic_evals_has_the_names_of_the_tools() -> None:
    form = json.loads(to_pydantic_evals(CASES, name="desk"))
    assert [case["name"] for case in form["cases"]] == ["Pay A1 back.", "Pay A1 back. (2)", "case"]
    assert form["cases"][0] == {
        "name": "Pay A1 back.",
        "inputs": {"message": "Pay A1 back."},
        "metadata": {"expect": EXPECT, "program": "desk", "case": "Pay A1 back."},
        "expected_output": {"reply": "Done."},
        "evaluators": [
            {"ToolCorrectness": {"expected_tools": ["find", "pay"], "allow_extra": True}}
        ],
    }
    assert form["cases"][1]["evaluators"] == []


def test_names_of_pydantic_evals_are_unique_whatever_they_are() -> None:
    cases = [Case(inputs={}, name=name) for name in ("a", "a", "a (2)", "a", "", "case")]
    names = [case["name"] for case in json.loads(to_pydantic_evals(cases))["cases"]]
    assert len(set(names)) == len(names)


def test_samples_of_inspect_have_a_text_as_input() -> None:
    samples = [json.loads(line) for line in to_inspect(CASES).splitlines()]
    assert samples[0] == {
        "id": 1,
        "input": "Pay A1 back.",
        "target": "Done.",
        "metadata": {
            "expect": EXPECT,
            "program": "desk",
            "case": "Pay A1 back.",
            "inputs": {"message": "Pay A1 back."},
        },
    }
    assert (samples[1]["input"], samples[1]["target"]) == ('{"message":"x","day":3}', "")


def test_pydantic_evals_reads_the_dataset(tmp_path: Path) -> None:
    evals = pytest.importorskip("pydantic_evals", reason="not among the pins for development")
    path = tmp_path / "cases.json"
    path.write_text(to_pydantic_evals(CASES), encoding="utf-8")
    dataset = evals.Dataset[dict[str, Any], Any, dict[str, Any]].from_file(path)
    assert [case.inputs for case in dataset.cases] == [dict(case) for case in CASES]
    assert dataset.cases[0].metadata["expect"] == EXPECT
    assert dataset.cases[0].evaluators[0].expected_tools == ["find", "pay"]


def test_inspect_reads_the_dataset(tmp_path: Path) -> None:
    dataset = pytest.importorskip("inspect_ai.dataset", reason="not among the pins for development")
    path = tmp_path / "cases.jsonl"
    path.write_text(to_inspect(CASES), encoding="utf-8")
    samples = list(dataset.json_dataset(str(path)))
    assert [sample.id for sample in samples] == [1, 2, 3]
    assert (samples[0].input, samples[0].target) == ("Pay A1 back.", "Done.")
    assert samples[0].metadata["expect"] == EXPECT
