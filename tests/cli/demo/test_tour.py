"""`make demo`: right answers, a last screen that fits, and an exit code."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mcp_servers
import pytest

from ferrule import ReAct, context
from ferrule.cli.demo import tour
from ferrule.testing import ScriptedLM


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


@pytest.mark.parametrize(
    "change",
    [{"expected": "something else"}, {"tool": "another"}],
    ids=["answer", "tool"],
)
def test_a_wrong_answer_fails(capsys, monkeypatch, change) -> None:
    monkeypatch.setattr(
        tour,
        "QUESTIONS",
        (*tour.QUESTIONS[:2], replace(tour.QUESTIONS[2], **change)),
    )
    assert tour.run_tour() == 1
    out = capsys.readouterr().out
    assert "2 of 3 answers are right" in out
    assert "WRONG" in out


def test_only_the_latest_refund_waits(tmp_path: Path, monkeypatch) -> None:
    """Four waited after four demos, and a stranger did not know which to decide on. What is decided stays, and so does any other question."""
    monkeypatch.chdir(tmp_path)
    Path("Makefile").touch()
    monkeypatch.setattr(tour, "QUESTIONS", ())
    store = tour._open_store()
    with context(lm=ScriptedLM([{"name": "refund", "args": {"order": "A-7", "euros": 5}}])):
        ReAct("message -> answer", [tour.refund]).start(message="x", store=store, run_id="mine")

    def waiting() -> list[str]:
        assert tour.run_tour() == 0
        return [each.id for each in store.list(status="waiting")]

    first, mine = waiting()
    second, _ = waiting()
    store.decide(second, store.summary(second).questions[0].approve())
    third, *rest = waiting()
    assert (mine, rest, store.summary(first).status) == ("mine", [second, "mine"], "cancelled")
    assert len({first, second, third}) == 3
    store.close()


def test_an_mcp_server_from_the_package_index_answers_one_more_question(
    capsys,
    monkeypatch,
) -> None:
    monkeypatch.setattr(
        tour,
        "install_mcp_server",
        lambda: (mcp_servers.command("calculator")[0], ""),
    )
    assert tour.run_tour() == 0
    out = capsys.readouterr().out
    assert "4 of 4 answers are right" in out
    assert 'calculate(expression="12345679 * 81")' in out


def test_it_runs_as_a_module() -> None:
    """`python -m ferrule.cli.demo` with warnings as errors."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "ferrule.cli.demo"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""


@pytest.mark.parametrize("missing", ["choice", "sdk", "checkout"])
def test_without_its_requirements_nothing_is_installed(
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("FERRULE_DEMO_MCP", raising=False)
    monkeypatch.chdir(tmp_path)
    if missing == "choice":
        monkeypatch.setenv("FERRULE_DEMO_MCP", "0")
    if missing == "sdk":
        monkeypatch.setattr(tour, "find_spec", lambda _: None)
    command, why_not = tour.install_mcp_server()
    assert command == ""
    assert {"choice": "FERRULE_DEMO_MCP", "sdk": "ferrule[mcp]", "checkout": "in a checkout"}[
        missing
    ] in why_not
    assert list(tmp_path.iterdir()) == []


def test_a_failed_install_gives_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FERRULE_DEMO_MCP", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").touch()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    assert tour.install_mcp_server() == (
        "",
        "the server could not be installed from the package index",
    )
