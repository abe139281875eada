"""`make demo`: right answers, a last screen that fits, and an exit code."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import mcp_servers
import pytest

from ferrule.cli.demo import mcp, tour


@pytest.fixture(autouse=True)
def _wide(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("FERRULE_DEMO_MCP", "0")  # tests install nothing


def test_three_questions_are_answered_right(capsys) -> None:
    assert tour.run_tour() == 0
    out = capsys.readouterr().out
    assert out.count("right\n") >= 1
    assert "3 of 3 answers are right" in out
    last_screen = out[out.index("What you saw") :].splitlines()
    assert len(last_screen) < 24
    for question in tour.QUESTIONS:
        assert question.text in out
        assert f"{question.tool}(" in out


@pytest.mark.parametrize("change", [{"expected": "something else"}, {"tool": "another"}], ids=["answer", "tool"])
def test_a_wrong_answer_fails(capsys, monkeypatch, change) -> None:
    monkeypatch.setattr(tour, "QUESTIONS", (*tour.QUESTIONS[:2], replace(tour.QUESTIONS[2], **change)))
    assert tour.run_tour() == 1
    out = capsys.readouterr().out
    assert "2 of 3 answers are right" in out
    assert "WRONG" in out


def test_an_mcp_server_from_the_package_index_answers_one_more_question(capsys, monkeypatch) -> None:
    monkeypatch.setattr(mcp, "install_server", lambda: (mcp_servers.command("calculator")[0], ""))
    assert tour.run_tour() == 0
    out = capsys.readouterr().out
    assert "4 of 4 answers are right" in out
    assert 'calculate(expression="12345679 * 81")' in out


def test_it_runs_as_a_module() -> None:
    """`python -m ferrule.cli.demo` with warnings as errors."""
    run = subprocess.run([sys.executable, "-W", "error", "-m", "ferrule.cli.demo"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
