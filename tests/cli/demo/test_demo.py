"""`make demo`: right answers, a last screen that makes sense, and an exit code that tells."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mcp_servers
import pytest

from ferrule.cli.demo import mcp as demo_mcp
from ferrule.cli.demo import recorded, tour

TRANSCRIPTS = Path(__file__).parents[4] / "shared" / "data" / "transcripts"
there = pytest.mark.skipif(not TRANSCRIPTS.exists(), reason="the recorded conversations (shared/data) are not beside this checkout")


@pytest.fixture(autouse=True)
def _wide(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("FERRULE_DEMO_MCP", "0")  # no test installs anything by the way


@pytest.fixture
def _unrecorded(monkeypatch) -> None:
    monkeypatch.setattr(recorded, "load", lambda: None)


@pytest.mark.usefixtures("_unrecorded")
def test_three_questions_are_answered_right(capsys) -> None:
    """Issue 8."""
    assert tour.run() == 0
    out = capsys.readouterr().out
    assert out.count("right\n") >= 1
    assert "3 of 3 answers are right" in out
    assert "No recorded conversations lie beside this checkout" in out
    last_screen = out[out.index("What you saw") :].splitlines()
    assert len(last_screen) < 24
    for question in tour.QUESTIONS:
        assert question.text in out
        assert f"{question.tool}(" in out


@pytest.mark.usefixtures("_unrecorded")
@pytest.mark.parametrize("change", [{"expected": "something else"}, {"tool": "another"}], ids=["answer", "tool"])
def test_a_wrong_answer_is_told_and_fails(capsys, monkeypatch, change) -> None:
    """Issue 8: the demo checks its answers."""
    monkeypatch.setattr(tour, "QUESTIONS", (*tour.QUESTIONS[:2], replace(tour.QUESTIONS[2], **change)))
    assert tour.run() == 1
    out = capsys.readouterr().out
    assert "2 of 3 answers are right" in out
    assert "WRONG" in out


@pytest.mark.usefixtures("_unrecorded")
def test_a_server_out_of_the_package_index_answers_one_more_question(capsys, monkeypatch) -> None:
    """Issue 5: a real MCP server."""
    monkeypatch.setattr(demo_mcp, "command", lambda: (mcp_servers.command("calculator"), ""))
    assert tour.run() == 0
    out = capsys.readouterr().out
    assert "4 of 4 answers are right" in out
    assert 'calculate(expression="12345679 * 81")' in out


def test_where_the_server_cannot_be_installed_the_demo_says_so_in_a_line(tmp_path, monkeypatch) -> None:
    """Issue 5: never failing for lack of a network."""
    monkeypatch.delenv("FERRULE_DEMO_MCP")
    monkeypatch.chdir(tmp_path)
    assert demo_mcp.command() == ([], "this is no checkout, so there is no build folder to install it into")
    (tmp_path / "Makefile").touch()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    found, why = demo_mcp.command()
    assert found == []
    assert "could not be installed" in why


@there
def test_the_recorded_conversation_comes_out_as_recorded() -> None:
    """Issue 8: real data, driven turn by turn."""
    recording = recorded.load()
    assert recording is not None
    heard: list[object] = []
    assert [recording.play(turn, heard.append) for turn in recording.turns] == [turn.answer for turn in recording.turns]
    assert recording.calls > 0
    assert len([event for event in heard if type(event).__name__ == "CallFinished" and not event.result.is_error]) == recording.calls


@there
def test_every_recorded_conversation_can_be_played() -> None:
    """Ours: the demo's choice of one is free."""
    declarations = json.loads((TRANSCRIPTS / "airline_tools.json").read_text())
    for line in (TRANSCRIPTS / "airline_gpt4o.jsonl").read_text().splitlines():
        recording = recorded.Recording(json.loads(line)["messages"], declarations)
        for turn in recording.turns:
            assert recording.play(turn, lambda _: None) == turn.answer


@there
def test_the_demo_tells_whether_the_conversation_came_out(capsys, monkeypatch) -> None:
    """Issue 8."""
    monkeypatch.setattr(tour, "QUESTIONS", ())
    assert tour.run() == 0
    out = capsys.readouterr().out
    assert "customer" in out
    assert "get_user_details(" in out
    assert "word for word as it was recorded" in out
    monkeypatch.setattr(recorded.Recording, "play", lambda *_: "something else")
    assert tour.run() == 1


def test_without_the_files_there_is_no_recording(tmp_path) -> None:
    """Issue 8: skipped with one line."""
    assert recorded.load(tmp_path) is None


def test_it_runs_as_a_module() -> None:
    """Issue 8: `python -m ferrule.cli.demo.__main__`, the whole of it, with warnings as errors."""
    run = subprocess.run([sys.executable, "-W", "error", "-m", "ferrule.cli.demo.__main__"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
