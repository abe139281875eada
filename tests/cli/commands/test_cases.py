"""`ferrule cases`: stored runs as cases, and held against cases (`cli/commands/cases.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule import ReAct, SQLiteStore, context
from ferrule.cli.commands.app import run_command
from ferrule.testing import ScriptedLM


def find(order: str) -> float:
    """Find an order."""
    return 30.0


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The file of a store with two runs."""
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        for message, order in (("first", "A1"), ("second", "B2")):
            script: list[Any] = [
                {"name": "find", "args": {"order": order}},
                {"name": "finish", "args": {"reply": f"found {order}"}},
            ]
            with context(lm=ScriptedLM(script)):
                ReAct("message -> reply", [find], name="desk").start(message=message, store=store)
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run_command(["cases", *arguments])
    return code, capsys.readouterr().out


def test_runs_become_cases_that_they_meet(place: str, tmp_path: Path, capsys: Any) -> None:
    code, text = printed(capsys, place, "--outputs")
    form = json.loads(text)
    assert code == 0
    assert form["cases"][0] == {
        "name": "first",
        "program": "desk",
        "inputs": {"message": "first"},
        "expect": ["called('find', order='A1')"],
        "outputs": {"reply": "found A1"},
    }
    cases = tmp_path / "cases.json"
    cases.write_text(text, encoding="utf-8")
    code, text = printed(capsys, place, "--grade", str(cases))
    assert (code, text) == (0, "2 of 2 runs are as expected\n")


def test_runs_that_are_not_as_expected_are_shown_with_their_calls(
    place: str, tmp_path: Path, capsys: Any
) -> None:
    cases = tmp_path / "cases.json"
    form = {
        "ferrule_cases": 1,
        "cases": [
            {"name": "one", "inputs": {"message": "first"}, "expect": ["never('find')"]},
            {"name": "gone", "inputs": {"message": "third"}},
        ],
    }
    cases.write_text(json.dumps(form), encoding="utf-8")
    code, text = printed(capsys, place, "--grade", str(cases))
    assert code == 1
    assert text.splitlines()[1:] == [
        "  never('find') does not hold: call 1 fits.",
        "  The calls of the run:",
        "    1. find(order='A1') -> 30.0",
        "no run: gone",
        "0 of 1 runs are as expected; 1 cases have no run; 1 runs have no case",
    ]
    code, text = printed(capsys, place, "--grade", str(cases), "--json")
    document = json.loads(text)
    assert code == 1
    assert [(run["case"], run["met"]) for run in document["runs"]] == [("one", False)]
    assert document["without_run"] == [{"case": "gone", "inputs": {"message": "third"}}]
    assert (document["without_case"], document["unread"]) == (1, {})


@pytest.mark.parametrize("form", ["pydantic-evals", "inspect"])
def test_cases_are_printed_in_the_form_of_other_libraries(
    place: str, capsys: Any, form: str
) -> None:
    code, text = printed(capsys, place, "--format", form)
    assert code == 0
    if form == "inspect":
        assert [json.loads(line)["input"] for line in text.splitlines()] == ["first", "second"]
    else:
        assert [case["name"] for case in json.loads(text)["cases"]] == ["first", "second"]


def test_only_the_runs_of_one_program(place: str, capsys: Any) -> None:
    code, text = printed(capsys, place, "--program", "other")
    assert (code, json.loads(text)["cases"]) == (0, [])


@pytest.mark.parametrize("file", ["none.json", "wrong.json"])
def test_a_file_that_has_no_cases_is_an_error_of_the_command_line(
    place: str, tmp_path: Path, capsys: Any, file: str
) -> None:
    (tmp_path / "wrong.json").write_text("[]", encoding="utf-8")
    code, text = printed(capsys, place, "--grade", str(tmp_path / file))
    assert (code, text) == (2, "")


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path, capsys: Any) -> None:
    code, _ = printed(capsys, str(tmp_path / "none.db"))
    assert code == 2
