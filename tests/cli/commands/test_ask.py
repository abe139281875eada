"""`ferrule ask` and `ferrule tools`, as a person at a terminal or a script meets them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferrule.cli import arguments as parse
from ferrule.cli.main import main
from ferrule.embedded import engine as needle_engine
from ferrule.models.local.backends import needle
from ferrule.runs.store.sqlite.store import SQLiteStore
from ferrule.testing import ScriptedLM, serve

NEEDS_YES = '''
import pathlib
from ferrule import tool

@tool(require_confirmation=True)
def guarded(path: str) -> str:
    """Delete the file at a path."""
    pathlib.Path(path).unlink()
    return f"{path} is gone"
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def embedded(monkeypatch):
    """Has the embedded model make one call, and then answer with its result."""

    def answer(name: str, **arguments: Any) -> None:
        lines = [
            {"type": "call", "function_calls": [{"name": name, "arguments": arguments}]},
            {"type": "respond", "function_calls": []},
        ]
        engine = SimpleNamespace(complete=lambda *_, **__: lines.pop(0))
        monkeypatch.setattr(needle, "engine_with", lambda weights: engine)

    return answer


def served(*answers: Any):
    return serve(ScriptedLM(list(answers)))


def ask(server: Any, *words: str) -> int:
    return main(["ask", *words, "--lm", "m", "--base-url", server.base_url])


def test_a_question_without_anything_else_is_answered_by_the_embedded_model(
    here, capsys, embedded
) -> None:
    """No key, and one line that says which model answers."""
    embedded("calculate", expression="(0.1 + 0.2) * 10**20")
    assert main(["ask", "What is (0.1 + 0.2) * 10**20?"]) == 0
    out, err = capsys.readouterr()
    places = [out.index(found) for found in ("calculate(", "→ 30000000000000000000", "answer")]
    assert places == sorted(places)
    assert err == f"{parse.EMBEDDED_NOTE}\n"


def test_without_the_embedded_model_the_error_names_the_extra_and_the_option(
    here, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(needle_engine, "find_spec", lambda name: None)
    assert main(["ask", "What is 2 + 2?"]) == 2
    err = capsys.readouterr().err
    assert "ferrule[embedded]" in err
    assert "--lm" in err


def test_the_json_adapter_answers(here, capsys) -> None:
    """--adapter json, with a model that writes JSON."""
    with served(
        {
            "text": '{"next_thought": "I add.", "next_tool_name": "calculate", "next_tool_args": {"expression": "1+1"}}',
        },
        {"text": '{"next_thought": "Done.", "next_tool_name": "finish", "next_tool_args": {}}'},
        {"text": '{"reasoning": "Read off.", "answer": "2"}'},
    ) as server:
        assert ask(server, "1+1?", "--adapter", "json") == 0
        assert not server.requests[0].get("tools")
    out = capsys.readouterr().out
    places = [
        out.index(found)
        for found in ("• I add.", 'calculate(expression="1+1")', "→ 2", "• Read off.", "answer")
    ]
    assert places == sorted(places)


def test_a_key_in_the_environment_chooses_no_model(here, capsys, monkeypatch, embedded) -> None:
    """No environment configuration (U168)."""
    embedded("calculate", expression="2 + 2")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert main(["ask", "What is 2 + 2?"]) == 0
    assert parse.EMBEDDED_NOTE in capsys.readouterr().err


def test_json_is_one_document_and_nothing_else(here, capsys) -> None:
    """--json."""
    with served(
        {"text": "t", "tool_calls": [{"name": "calculate", "args": {"expression": "1+1"}}]},
        {"name": "finish", "args": {"answer": 2, "why": "\x1b[31m\ud83d\ude00"}},
    ) as server:
        code = ask(server, "1+1?", "--signature", "question -> answer: int, why", "--json")
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert code == 0
    assert err == ""
    assert set(document) == {"answer", "why", "trajectory", "usage", "reason"}
    assert document["answer"] == 2
    assert document["trajectory"]["observation_0"] == "2"
    assert document["usage"]["calls"] == 2
    assert document["reason"] is None
    assert out.isascii()
    assert "\x1b" not in out


def test_further_inputs_reach_the_model(here, capsys) -> None:
    """--input name=value."""
    with served({"name": "finish", "args": {"answer": True}}) as server:
        code = ask(
            server,
            "Swim?",
            "--signature",
            "question, city, k: int -> answer: bool",
            "--input",
            "city=Utrecht",
            "--input",
            "k=3",
        )
        assert code == 0
        assert "Utrecht" in json.dumps(server.requests[0])


def test_a_server_that_is_down_is_one_line_that_names_the_address(
    here, capfd, monkeypatch, retries_do_not_wait
) -> None:
    """Nothing but that line, and no key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    assert main(["ask", "x", "--lm", "openai/gpt-5", "--base-url", "http://127.0.0.1:1/v1"]) == 1
    _, err = capfd.readouterr()
    assert err.startswith("The run failed. openai: the connection failed: ")
    assert "Is the server running" in err
    assert "Asked `gpt-5` at http://127.0.0.1:1/v1/chat/completions. Tried 3 times" in err
    assert err.count("\n") == 1
    assert "sk-very-secret" not in err


def test_a_failed_run_is_one_message_and_code_1(here, capsys) -> None:
    """Exit codes; no traceback."""
    with served(RuntimeError("never shown")) as server:
        assert ask(server, "?") == 1
    out, err = capsys.readouterr()
    assert err.startswith("The run failed. ")
    assert "Traceback" not in out + err


def test_a_missing_key_is_named(here, capsys) -> None:
    """The variable, never a value."""
    assert main(["ask", "?", "--lm", "openai/gpt-5-mini"]) == 1
    assert "OPENAI_API_KEY" in capsys.readouterr().err


WRONG = {
    "no_command": [],
    "unknown_command": ["answer"],
    "no_question": ["ask"],
    "unknown_option": ["ask", "?", "--model", "x"],
    "unknown_provider": ["ask", "?", "--lm", "nobody/x"],
    "unknown_adapter": ["ask", "?", "--adapter", "yaml"],
    "bad_signature": ["ask", "?", "--signature", "question"],
    "bad_iters": ["ask", "?", "--max-iters", "0"],
    "bad_input": ["ask", "?", "--input", "x"],
    "unknown_input": ["ask", "?", "--input", "x=1"],
    "missing_input": ["ask", "?", "--signature", "question, city -> answer"],
    "no_tools": ["ask", "?", "--tools", "nowhere.py"],
    "tools_twice": [
        "ask",
        "?",
        "--tools",
        "ferrule.cli.sample_tools",
        "--tools",
        "ferrule.cli.sample_tools",
    ],
    "reserved_output": ["ask", "?", "--json", "--signature", "question -> usage"],
    "url_alone": ["ask", "?", "--base-url", "http://localhost:1/v1"],
    "nothing_to_list": ["tools", "no_such_module_here"],
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_command_line_is_code_2_and_says_why(here, capsys, arguments: list[str]) -> None:
    """Exit codes."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err or not arguments  # without a command, the help is the message
    assert "Traceback" not in out + err


def test_with_nobody_to_ask_nothing_runs_and_the_question_is_printed(here, capsys) -> None:
    """Code 3; without a terminal it never waits for input."""
    (here / "guarded.py").write_text(NEEDS_YES)
    (here / "victim").write_text("still here")
    with served({"name": "guarded", "args": {"path": "victim"}}) as server:
        assert ask(server, "Delete it", "--tools", "guarded.py") == 3
    assert (
        'Confirm execution of guarded with args: {"path":"victim"}? (yes/no)'
        in capsys.readouterr().err
    )
    assert (here / "victim").exists()


@pytest.mark.parametrize(
    ("said", "left", "code"),
    [
        ("y\n", False, 0),
        pytest.param("\nno\n", True, 0, marks=pytest.mark.long),
        pytest.param("rather not\n", True, 0, marks=pytest.mark.long),
        ("", True, 3),
    ],
)
def test_at_a_terminal_the_person_is_asked(here, said: str, left: bool, code: int) -> None:
    """`y`, `n` or text in a panel; the run goes on with the decision.

    A real terminal: a pseudo one.
    """
    (here / "guarded.py").write_text(NEEDS_YES)
    (here / "victim").write_text("still here")
    with served(
        {"name": "guarded", "args": {"path": "victim"}},
        {"name": "finish", "args": {"answer": "so be it"}},
    ) as server:
        arguments = [
            "ask",
            "Delete it",
            "--tools",
            "guarded.py",
            "--lm",
            "m",
            "--base-url",
            server.base_url,
        ]
        found, shown = at_a_terminal(arguments, said, "what to do instead")
        asked = json.dumps(server.requests[-1])
    assert (found, (here / "victim").exists()) == (code, left), shown
    assert "May this run?" in shown
    assert ("The input ended without a decision, so the call was not run." in shown) == (said == "")
    assert "This is not a terminal" not in shown
    if code == 0:
        assert "so be it" in shown
    assert ("rather not" in asked) == ("rather" in said)


def at_a_terminal(arguments: list[str], said: str, prompt: str) -> tuple[int, str]:
    """Run the command on a pseudo terminal; type `said` when `prompt` is there, and Ctrl-D where it
    is empty.
    """
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "100"}
    command = [sys.executable, "-m", "ferrule.cli.main", *arguments]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        shown, typed = "", False
        while True:
            try:
                piece = os.read(ours, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                piece = ""
            if not piece:
                break
            shown += piece
            if prompt in shown and not typed:
                os.write(ours, said.encode() or b"\x04")
                typed = True
    os.close(ours)
    return process.returncode, shown


def test_ctrl_c_is_one_line_and_code_130(here) -> None:
    """130, no traceback."""
    (here / "hang.py").write_text(
        "import time\ndef hang() -> str:\n    print('hanging', flush=True)\n    time.sleep(60)\n    return ''\n",
    )
    with served({"name": "hang", "args": {}}) as server:
        command = [
            sys.executable,
            "-m",
            "ferrule.cli.main",
            "ask",
            "?",
            "--tools",
            "hang.py",
            "--lm",
            "m",
            "--base-url",
            server.base_url,
        ]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout
            while "hanging" not in process.stdout.readline():
                pass
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
    assert process.returncode == 130
    assert err.strip() == "Interrupted."


def test_tools_are_listed_with_their_schemas(here, capsys) -> None:
    """`ferrule tools FILE`."""
    (here / "guarded.py").write_text(NEEDS_YES)
    assert main(["tools", "guarded.py"]) == 0
    out, _ = capsys.readouterr()
    assert all(
        found in out for found in ("guarded", "Delete the file at a path.", '"path"', '"string"')
    )


def test_tools_are_listed_as_json(here, capsys) -> None:
    """The declarations as models get them."""
    assert main(["tools", "--json"]) == 0
    declared = json.loads(capsys.readouterr().out)
    assert [each["function"]["name"] for each in declared] == [
        "calculate",
        "days_between",
        "date_after",
        "search_documents",
    ]


def test_a_broken_file_in_a_folder_is_a_note_and_no_end(here, capsys) -> None:
    """P27 at the terminal."""
    (here / "kit").mkdir()
    (here / "kit" / "bad.py").write_text("1 +\n")
    (here / "kit" / "good.py").write_text("def good() -> int:\n    return 1\n")
    assert main(["tools", "kit"]) == 0
    out, err = capsys.readouterr()
    assert "good" in out
    assert err.startswith("Note: `bad.py` could not be loaded")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.long), "utf-8"]
)
def test_any_encoding_of_the_terminal_will_do(here, encoding: str) -> None:
    with served({"name": "finish", "args": {"answer": "漢字 \ud83d\ude00 →"}}) as server:
        command = [
            sys.executable,
            "-m",
            "ferrule.cli.main",
            "ask",
            "?",
            "--lm",
            "m",
            "--base-url",
            server.base_url,
        ]
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        run = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    assert b"answer" in run.stdout


def test_help_is_help(here, capsys) -> None:
    for arguments in (["--help"], ["ask", "--help"], ["tools", "--help"]):
        assert main(arguments) == 0
        assert "Usage: ferrule" in capsys.readouterr().out


def test_the_folder_one_stands_in_is_found_by_the_installed_command(here) -> None:
    """`ferrule` has no current folder on its path, `python -m` has."""
    (here / "tools_of_mine.py").write_text("def mine() -> int:\n    return 1\n")
    program = "import sys; sys.path = [p for p in sys.path if p]; from ferrule.cli.main import main; sys.exit(main(['tools', 'tools_of_mine']))"
    run = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path.cwd(),
    )
    assert run.returncode == 0, run.stderr
    assert "mine" in run.stdout


def test_tools_are_listed_with_their_effect_and_confirmation(here, capsys) -> None:
    (here / "guarded.py").write_text(NEEDS_YES)
    assert main(["tools", "guarded.py"]) == 0
    assert "effect: once; asks a person: always" in capsys.readouterr().out


def test_a_question_comes_from_standard_input(here, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is 6 x 7?\n"))
    with served({"name": "finish", "args": {"answer": "42"}}) as server:
        assert ask(server, "-") == 0
        assert "What is 6 x 7?" in json.dumps(server.requests[0])


def waiting() -> tuple[str, str]:
    """The run that waits, and its question."""
    [run] = SQLiteStore("runs.db").list()
    return run.id, run.questions[0].id


def approve(run: str, question: str) -> list[str]:
    return ["approve", run, "--store", "runs.db", "--yes", "--question", question]


def test_a_run_is_kept_in_a_store_and_continued_after_a_decision(here, capsys) -> None:
    (here / "guarded.py").write_text(NEEDS_YES)
    (here / "victim").write_text("still here")
    words = ("Delete it", "--tools", "guarded.py", "--store", "runs.db")
    with served(
        {"name": "guarded", "args": {"path": "victim"}},
        {"name": "finish", "args": {"answer": "so be it"}},
    ) as server:
        assert ask(server, *words) == 3
        run, question = waiting()
        err = capsys.readouterr().err
        assert f"ferrule approve {run} --store runs.db" in err
        assert f"--resume {run}" in err
        assert main(approve(run, question)) == 0
        assert ask(server, *words, "--resume", run) == 0
    assert "so be it" in capsys.readouterr().out
    assert not (here / "victim").exists()
    assert main(["show", run, "--store", "runs.db"]) == 0
    shown = capsys.readouterr().out
    assert "started 20" in shown
    assert "guarded returned: victim is gone" in shown


def test_a_run_to_resume_is_in_a_store(here, capsys) -> None:
    assert main(["ask", "?", "--resume", "r"]) == 2
    assert "add `--store FILE`" in capsys.readouterr().err
    assert main(["ask", "?", "--resume", "r", "--store", "none.db"]) == 2
    assert "no file 'none.db'" in capsys.readouterr().err
    assert not (here / "none.db").exists()


SHOP = """
from dataclasses import dataclass
import ferrule

@dataclass
class Shop:
    owner: str = "ann"

def make():
    return Shop("bob")

@ferrule.tool(require_confirmation=lambda args: args["euros"] > 100)
def pay(euros: int, ctx: ferrule.Context[Shop]) -> str:
    "Pay."
    return f"{ctx.deps.owner} paid {euros}"
"""
PAY = {"name": "pay", "args": {"euros": 7}}
DONE = {"name": "finish", "args": {"answer": "ok"}}


@pytest.fixture
def shop(here, monkeypatch):
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    (here / "shop.py").write_text(SHOP)
    return here


@pytest.mark.parametrize(
    ("tools", "deps", "owner"),
    [("shop.py", "shop.py:make", "bob"), ("shop:pay", "shop:Shop", "ann")],
)
def test_tools_find_the_deps_of_the_command_line(
    shop,
    capsys,
    tools: str,
    deps: str,
    owner: str,
) -> None:
    """api.md, 21: as `ferrule resume` has it."""
    for words in ((), ("--store", "runs.db")):
        with served(PAY, DONE) as server:
            assert ask(server, "Pay.", "--tools", tools, "--deps", deps, *words) == 0
        assert f"{owner} paid 7" in capsys.readouterr().out


def test_deps_of_the_module_for_tools_of_its_file_are_refused_with_the_file_to_name(
    shop,
    capsys,
) -> None:
    """Two classes of one name, and no cure."""
    with served(PAY, DONE) as server:
        assert ask(server, "Pay.", "--tools", "shop.py", "--deps", "shop:make") == 2
        assert server.requests == []
    assert "give the file as `--deps shop.py:factory`" in capsys.readouterr().err


def test_a_kept_run_is_continued_with_the_deps_of_the_command_line(shop, capsys) -> None:
    """api.md, 21."""
    words = ("Pay.", "--tools", "shop.py", "--store", "runs.db", "--deps", "shop.py:make")
    with served({"name": "pay", "args": {"euros": 700}}, DONE) as server:
        assert ask(server, *words) == 3
        run, question = waiting()
        assert main(approve(run, question)) == 0
        assert ask(server, *words, "--resume", run) == 0
    assert "bob paid 700" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("deps", "says"),
    [
        (None, "no `deps` were passed. Add `--deps module:factory`.\n"),
        ("shop:absent", "`shop` has no deps `absent`"),
        ("shop", "Name the deps as module"),
    ],
)
def test_without_the_deps_that_a_tool_needs_no_model_is_asked(
    shop,
    capsys,
    deps: str | None,
    says: str,
) -> None:
    """api.md, 21."""
    with served(PAY, DONE) as server:
        assert ask(server, "Pay.", "--tools", "shop.py", *(["--deps", deps] if deps else [])) == 2
        assert server.requests == []
    assert says in capsys.readouterr().err


def test_the_commands_that_it_names_can_be_pasted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    embedded: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    embedded("calculate", expression="2+2")
    assert main(["ask", "What is 2+2?", "--store", "my runs.db"]) == 0
    assert "is kept in 'my runs.db': ferrule show " in (err := capsys.readouterr().err)
    assert err.endswith(" --store 'my runs.db'\n")
