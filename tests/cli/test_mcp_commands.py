"""`--mcp` of `ferrule ask` and `ferrule tools`, and forms at the terminal."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ferrule.approval.question import Question
from ferrule.cli.main import main
from ferrule.cli.prompt import ask_at_terminal
from ferrule.testing import ScriptedLM, serve
from ferrule.values.calls.call import ToolCall

SERVER = Path(__file__).parents[1] / "asking_server.py"


@pytest.fixture
def where(tmp_path: Path) -> str:
    return shlex.join([sys.executable, str(SERVER), "modern", str(tmp_path / "calls")])


def ask(*words: str, steps: list[Any]) -> int:
    with serve(ScriptedLM([*steps, {"name": "finish", "args": {"answer": "done"}}])) as server:
        return main(["ask", "x", *words, "--lm", "m", "--base-url", server.base_url])


PAY = [{"name": "pay", "args": {"what": "rent"}}]


def test_a_destructive_tool_of_a_server_asks_unless_yes_opens_it(
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tools = [
        {
            "name": "pay",
            "inputSchema": {"type": "object"},
            "annotations": {"destructiveHint": True},
        },
    ]
    (tmp_path / "calls.tools").write_text(json.dumps(tools))
    assert ask("--mcp", where, steps=PAY) == 3
    assert "Confirm execution of pay ('pay' of the MCP server" in capsys.readouterr().err
    assert "call" not in (tmp_path / "calls").read_text()
    assert ask("--mcp", where, "--yes", steps=PAY) == 0
    out, err = capsys.readouterr()
    assert "done {'what': 'rent'}" in out
    assert "--yes: the tools of asking_server run without confirmation." in err


def test_a_file_of_servers_and_local_tools_go_together(
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "own.py").write_text('def own() -> str:\n    """Ours."""\n    return "ours"\n')
    command, *args = shlex.split(where)
    (tmp_path / "servers.json").write_text(
        json.dumps({"mcpServers": {"hall": {"command": command, "args": args}}}),
    )
    assert (
        main(["tools", str(tmp_path / "own.py"), "--mcp", str(tmp_path / "servers.json"), "--json"])
        == 0
    )
    assert [each["function"]["name"] for each in json.loads(capsys.readouterr().out)] == [
        "book",
        "pay",
        "page",
        "changed",
        "own",
    ]


def test_a_server_that_does_not_start_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["tools", "--mcp", shlex.join([sys.executable, "-c", "raise SystemExit('no key')"])])
        == 1
    )
    assert "no key" in capsys.readouterr().err
    assert ask("--mcp", "no-such-command-anywhere", steps=[]) == 1
    assert "The run failed." in capsys.readouterr().err


class Terminal(io.StringIO):
    """Standard input of a person."""

    def isatty(self) -> bool:
        return True


def test_an_input_of_a_file_is_asked_at_a_terminal_and_refused_by_name_elsewhere(
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, *args = shlex.split(where)
    (tmp_path / "mcp.json").write_text(
        json.dumps(
            {
                "inputs": [
                    {
                        "type": "promptString",
                        "id": "mode",
                        "description": "Which\x1b[2J mode",
                        "default": "read",
                    },
                ],
                "servers": {
                    "hall": {
                        "command": command,
                        "args": args,
                        "env": {"MODE": "${input:mode}", "OTHER": "${input:other}"},
                    },
                },
            },
        ),
    )
    monkeypatch.setattr(sys, "stdin", Terminal("write\nx\n"))
    assert main(["tools", "--mcp", str(tmp_path / "mcp.json"), "--json"]) == 0
    assert "Which mode [read]: other: " in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["tools", "--mcp", str(tmp_path / "mcp.json")]) != 0
    assert "`hall` needs the input `other`" in capsys.readouterr().err


def test_where_the_input_ends_at_a_question_for_a_password_there_is_none(
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, *args = shlex.split(where)
    entry = {"command": command, "args": args, "env": {"TOKEN": "${input:token}"}}
    (tmp_path / "mcp.json").write_text(
        json.dumps({"inputs": [{"id": "token", "password": True}], "servers": {"hall": entry}}),
    )

    def ended(text: str) -> str:
        raise EOFError

    monkeypatch.setattr("ferrule.cli.arguments.getpass", ended)
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert main(["tools", "--mcp", str(tmp_path / "mcp.json")]) != 0
    assert "`hall` needs the input `token`" in capsys.readouterr().err


def test_a_server_that_does_not_start_leaves_the_others_and_the_local_tools(
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "own.py").write_text('def own() -> str:\n    """Ours."""\n    return "ours"\n')
    bad = shlex.join([sys.executable, "-c", "raise SystemExit('no \x1b[2J key')"])
    for words in (["--mcp", where], [str(tmp_path / "own.py")]):
        assert main(["tools", *words, "--mcp", bad]) == 0
        out, err = capsys.readouterr()
        assert ("own" in out) or ("book" in out)
        assert err.count("left out") == err.count("no key") == 1
    assert ask("--mcp", where, "--mcp", bad, "--yes", steps=PAY) == 0
    out, err = capsys.readouterr()
    assert "done" in out
    assert err.count("left out") == 1


def test_no_tools_at_all_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mcp.json").write_text(
        '{"mcpServers": {"a": {"command": "no-such-command-anywhere"}}}',
    )
    assert main(["tools", "--mcp", str(tmp_path / "mcp.json")]) == 1
    assert "the command `no-such-command-anywhere` was not found" in capsys.readouterr().err


FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 3}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("said", "kind", "content"),
    [
        (["Ann"], "reply", {"name": "Ann", "age": 3}),
        (
            ['{"name": "Ann", "age": "x"}', '{"name": "Ann", "age": 4}'],
            "reply",
            {"name": "Ann", "age": 4},
        ),
        (["y", "n"], "deny", None),
    ],
    ids=["one value", "a misfit is asked again", "the defaults do not do"],
)
def test_a_form_is_filled_at_the_terminal(said: list[str], kind: str, content: Any) -> None:
    question = Question(
        "input",
        "The server asks",
        ToolCall(name="book"),
        "q",
        server="hall",
        form=FORM,
    )
    lines = iter(said)
    decision = ask_at_terminal(question, Console(file=io.StringIO()), lambda: next(lines))
    assert decision is not None
    assert decision.kind == kind
    assert content is None or json.loads(decision.text) == content
    assert next(lines, None) is None
