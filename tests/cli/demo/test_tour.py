"""`make demo`: right answers, a last screen that fits, and an exit code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import mcp_servers
import pytest

from ferrule import ReAct, Response, SQLiteStore, context
from ferrule.cli.demo import __main__ as demo
from ferrule.cli.demo import tour
from ferrule.embedded import engine as needle_engine
from ferrule.errors import UnavailableError
from ferrule.testing import ScriptedLM

ROOT = Path(__file__).parents[3]
needs_needle = pytest.mark.skipif(
    not needle_engine.has_needle(),
    reason="the embedded model is not installed: pip install 'ferrule[embedded]'",
)


@contextmanager
def scripted(*answers):
    """A script in place of the model."""
    with pytest.MonkeyPatch.context() as patch:
        lm = ScriptedLM(list(answers))
        patch.setattr(tour, "choose_model", lambda *_: lm)
        yield


@pytest.fixture(autouse=True)
def _wide(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("FERRULE_DEMO_MCP", "0")  # tests install nothing


@pytest.mark.needle
@needs_needle
def test_the_questions_are_answered_by_the_model_and_a_crash_is_survived(tmp_path) -> None:
    """`python -m ferrule.cli.demo` with warnings as errors, in an empty checkout."""
    (tmp_path / "Makefile").touch()
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "ferrule.cli.demo"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    out = run.stdout
    assert (run.returncode, run.stderr) == (0, ""), out
    assert re.search(r"\d of 5 answers are right", out)
    for question in tour.QUESTIONS:
        assert question.text in out
    assert "The demo agrees in your place." in out
    assert "No tool fits, and the model says so" in out
    assert "Payments made: 1." in out
    with closing(SQLiteStore(tmp_path / "build" / "demo.db")) as store:
        assert len(store.list(status="waiting")) == 1


def commands_to_try(out: str) -> list[str]:
    return re.findall(r"^  (\S.*)$", out.partition("Three things to try:")[2], re.MULTILINE)


def last_screen(capsys, monkeypatch, *, is_checkout: bool) -> str:
    monkeypatch.setattr(tour, "_is_checkout", lambda: is_checkout)
    monkeypatch.setenv("COLUMNS", "40")
    tour._print_things_to_try(tour.console_on(sys.stdout))
    return capsys.readouterr().out


@pytest.mark.needle
@needs_needle
@pytest.mark.parametrize("is_checkout", [True, False], ids=["a checkout", "an installed wheel"])
def test_the_three_things_to_try_work_when_they_are_pasted(
    capsys, monkeypatch, tmp_path: Path, is_checkout
) -> None:
    commands = commands_to_try(last_screen(capsys, monkeypatch, is_checkout=is_checkout))
    assert len(commands) == 3
    folder = Path(sys.executable).parent
    for command in commands:
        program, *arguments = shlex.split(command.replace("\\", "/"))
        arguments = [
            str(ROOT / each) if each.startswith("examples/") else each for each in arguments
        ]
        if arguments[0].endswith("support_desk.py"):
            assert Path(arguments[0]).is_file()  # `tests/test_apps.py` runs it
            continue
        if "ui" in arguments:
            arguments = ["ui", "--no-open", "--port", "0", *arguments[1:]]
            (tmp_path / "build").mkdir()
            SQLiteStore(tmp_path / "build" / "demo.db").list()
        process = subprocess.Popen(
            [folder / Path(program).name, *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if "ui" in arguments:  # serves until it is ended
            lines = iter(process.stdout.readline, "")
            assert next(line for line in lines if "http://127.0.0.1" in line)
            process.terminate()
        out, _ = process.communicate()
        assert "ui" in arguments or process.returncode == 0, out


def test_without_the_model_the_demo_says_where_it_runs(monkeypatch, capsys) -> None:
    monkeypatch.setattr(needle_engine, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() != 0
    captured = capsys.readouterr()
    assert "macOS (arm64)" in captured.out + captured.err


def test_a_wrong_answer_is_shown_as_wrong_and_is_no_failure(capsys, monkeypatch) -> None:
    answers = [tour._Answer(tour.QUESTIONS[0], "3", ("calculate",))]
    monkeypatch.setattr(tour, "_answer_all", lambda console: answers)
    monkeypatch.setattr(tour, "_is_checkout", lambda: False)
    with scripted():
        assert tour.run_tour() == 0
    out = capsys.readouterr().out
    assert "0 of 1 answers are right" in out
    assert "WRONG" in out


def test_a_failed_run_fails_the_demo(capsys, monkeypatch) -> None:
    answers = [tour._Answer(tour.QUESTIONS[0], "", (), has_failed=True)]
    monkeypatch.setattr(tour, "_answer_all", lambda console: answers)
    monkeypatch.setattr(tour, "_is_checkout", lambda: False)
    with scripted():
        assert tour.run_tour() == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("question", "answer", "sentence"),
    [
        (tour.QUESTIONS[-1], Response(refusal="no tool fits"), "No tool fits, and the model says"),
        (tour.QUESTIONS[0], Response(refusal="no"), "A tool fits. The model declined: no"),
        (tour.QUESTIONS[0], UnavailableError("it ended"), "The run failed: it ended"),
    ],
)
def test_a_run_without_an_answer_ends_with_a_sentence(
    question, answer, sentence, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(tour, "QUESTIONS", (question,))
    monkeypatch.setattr(tour, "_is_checkout", lambda: False)
    with scripted(answer):
        tour.run_tour()
    assert sentence in capsys.readouterr().out


def test_only_the_latest_refund_waits(tmp_path: Path, monkeypatch) -> None:
    """Four waited after four demos, and a stranger did not know which to decide on.

    What is decided stays, and so does any other question.
    """
    monkeypatch.chdir(tmp_path)
    Path("Makefile").touch()
    monkeypatch.setattr(tour, "_answer_all", lambda console: [])
    monkeypatch.setattr(tour, "_crash_and_resume", lambda console: None)
    refund = {"name": "refund", "args": tour._REFUND_ARGUMENTS}
    store = tour._open_store()
    with context(lm=ScriptedLM([{"name": "refund", "args": {"order": 7, "euros": 5}}])):
        ReAct("message -> answer", [tour.refund]).start(message="x", store=store, run_id="mine")

    def waiting() -> list[str]:
        with scripted(refund):
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
    command = mcp_servers.command("calculator")[0]
    monkeypatch.setattr(tour, "install_mcp_server", lambda: (command, ""))
    call = {"name": "calculate", "args": {"expression": "sqrt(144)"}}
    finish = {"name": "finish", "args": {"answer": "12"}}
    monkeypatch.setattr(tour, "QUESTIONS", ())
    monkeypatch.setattr(tour, "_is_checkout", lambda: False)
    with scripted(call, finish):
        assert tour.run_tour() == 0
    out = capsys.readouterr().out
    assert "1 of 1 answers are right" in out
    assert 'calculate(expression="sqrt(144)")' in out


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
