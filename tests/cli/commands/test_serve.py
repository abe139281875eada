"""`ferrule serve`: what the words of the command line become.

That it serves is proved in tests/integration/test_mcp_round_trip.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule.cli.commands.tools import _served_name
from ferrule.cli.main import main
from ferrule.mcp_bridge.server.app import MCPApp

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

MODULE = """
import ferrule

def one(a: int) -> int:
    return a

def two() -> str:
    return ""

agent = ferrule.Predict("question -> answer")
critic = ferrule.Predict("question -> answer")
"""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """What would have been served, and how."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        MCPApp,
        "run",
        lambda app, transport="stdio", **options: found.append(
            (app.names, app.name, transport, options),
        ),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    monkeypatch.delitem(sys.modules, "of_you", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_mine.py").write_text(MODULE, encoding="utf-8")
    return found


def test_over_stdio_nothing_is_printed(served: list, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "of_mine:one", "of_mine:two", "--name", "mine"]) == 0
    assert served == [(("one", "two"), "mine", "stdio", {})]
    assert capsys.readouterr().out == ""


def test_over_http_it_says_where(served: list, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["serve", "of_mine.py", "--http", "--port", "8123", "--allowed-host", "a.example"])
        == 0
    )
    [(*_, options)] = served
    on_listening = options.pop("on_listening")
    assert served == [
        (
            ("one", "two"),
            "ferrule",
            "http",
            {
                "host": "127.0.0.1",
                "port": 8123,
                "allowed_hosts": ["a.example"],
                "verify_token": None,
            },
        ),
    ]
    assert tuple(capsys.readouterr()) == ("", "")  # not before it listens
    on_listening("http://127.0.0.1:8123/mcp")
    assert tuple(capsys.readouterr()) == (
        "",
        "Serving 2 tools on http://127.0.0.1:8123/mcp. Ctrl-C ends it.\n",
    )


@pytest.mark.parametrize("place", ["of_mine:agent", "of_mine.py:agent"], ids=["module", "file"])
def test_a_program_is_served_as_one_tool_under_the_name_it_was_given_by(
    served: list,
    place: str,
) -> None:
    assert main(["serve", place]) == 0
    assert served[0][0] == ("agent",)


def test_two_programs_of_one_signature_are_no_clash(served: list) -> None:
    assert main(["serve", "of_mine:agent", "of_mine.py:critic"]) == 0
    assert served[0][0] == ("agent", "critic")


def test_things_of_one_name_are_served_with_the_name_of_their_file_before_it(served: list) -> None:
    Path("of_you.py").write_text(MODULE, encoding="utf-8")
    assert main(["serve", "of_mine.py:agent", "of_you.py:agent", "of_mine.py:critic"]) == 0
    assert main(["serve", "of_mine:one", "of_you:one"]) == 0
    assert [names for names, *_ in served] == [
        ("of_mine_agent", "of_you_agent", "critic"),
        ("of_mine_one", "of_you_one"),
    ]


def test_the_name_of_a_file_is_found_behind_folders_of_any_system() -> None:
    places = [r"C:\shops\of_mine.py:agent", "shops/of_you.py:agent", "shops.of_hers:agent"]
    assert [_served_name(each, places) for each in places] == [
        "of_mine_agent",
        "of_you_agent",
        "of_hers_agent",
    ]


@pytest.mark.parametrize(
    "places",
    [("of_mine.py:agent", "of_mine.py:agent"), ("of_mine.py", "of_you.py")],
    ids=["program", "files"],
)
def test_a_clash_says_what_to_do_on_the_command_line(
    served: list,
    places: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("of_you.py").write_text(MODULE, encoding="utf-8")
    assert main(["serve", *places]) == 2
    said = capsys.readouterr().err
    assert "name each place once, and tools of several files as `module:name`" in said
    assert "{" not in said
    assert served == []


def test_without_a_place_the_demo_is_served(served: list) -> None:
    """As the other commands."""
    assert main(["serve"]) == 0
    assert served[0][0]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["nowhere:tool"], id="no such module"),
        pytest.param(["of_mine:absent"], id="no such tool"),
        pytest.param(["of_mine:one", "of_mine:one"], id="twice"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    served: list,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert served == []


@pytest.mark.parametrize("place", ["loud.py", "loud", "kit"], ids=["file", "module", "folder"])
def test_what_a_file_prints_while_it_is_loaded_goes_to_standard_error_and_once(
    served: list,
    place: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Standard output is the protocol's from the first byte."""
    monkeypatch.delitem(sys.modules, "loud", raising=False)
    loud = "print('loaded')\ndef one() -> int:\n    return 1\ndef two() -> int:\n    return 2\n"
    Path("loud.py").write_text(loud, encoding="utf-8")
    Path("kit").mkdir()
    Path("kit/one.py").write_text(loud, encoding="utf-8")
    assert main(["serve", place]) == 0
    assert tuple(capsys.readouterr()) == ("", "loaded\n")
    assert served[0][0] == (("one",) if place == "kit" else ("one", "two"))


@pytest.mark.parametrize(
    "place",
    ["leaves.py", "leaves", "leaves.py:agent", "out", "out/leaves"],
    ids=lambda place: place.replace("/", " in "),
)
def test_a_file_that_ends_the_process_is_told(
    served: list,
    place: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("leaves.py").write_text("raise SystemExit(4)", encoding="utf-8")
    Path("out").mkdir()
    Path("out/leaves.py").write_text("raise SystemExit(4)", encoding="utf-8")
    assert main(["serve", place]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n"), "4" in said.err) == ("", 1, True)
    assert served == []


@pytest.mark.parametrize("source", ["word", "file", "environment"])
def test_a_token_is_checked(
    source: str,
    served: list,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the command line, a file or the environment, in this order."""
    Path("token").write_text("of-file\n", encoding="utf-8")
    monkeypatch.setenv("FERRULE_SERVE_TOKEN", "of-environment")
    words = {"word": ["--token", "of-word"], "file": ["--token-file", "token"], "environment": []}[
        source
    ]
    assert (
        main(
            [
                "serve",
                "of_mine:one",
                "--http",
                "--host",
                "0.0.0.0",
                "--allowed-host",
                "a.example",
                *words,
            ],
        )
        == 0
    )
    [(*_, options)] = served
    given = ("of-word", "of-file", "of-environment", "", "\u00e9")
    assert [each for each in given if options["verify_token"](each)] == [f"of-{source}"]
    options["on_listening"]("http://0.0.0.0:8000/mcp")
    assert "FERRULE_SERVE_TOKEN" not in os.environ  # the processes of tools do not see it
    said = capsys.readouterr().err
    assert ("can see a token on the command line" in said) == (source == "word")
    assert "of-" not in said


def test_other_machines_are_answered_without_a_token_only_if_that_is_said(
    served: list,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["serve", "of_mine:one", "--http", "--host", "0.0.0.0", "--allowed-host", "a.example"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert served == []
    assert said.count("\n") == 1
    assert all(
        word in said for word in ("0.0.0.0", "FERRULE_SERVE_TOKEN", "--token-file", "--no-token")
    )
    assert main([*words, "--no-token"]) == 0
    assert served[0][-1]["verify_token"] is None


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--token", "x"], id="over stdio"),
        pytest.param(["--no-token"], id="none over stdio"),
        pytest.param(["--http", "--token", "x", "--token-file", "token"], id="two"),
        pytest.param(["--http", "--token", "x", "--no-token"], id="one and none"),
        pytest.param(["--http", "--token", ""], id="empty"),
        pytest.param(["--http", "--token", "two words"], id="two words"),
        pytest.param(["--http", "--token-file", "absent"], id="no file"),
        pytest.param(["--http", "--token-file", "empty"], id="an empty file"),
        pytest.param(["--http", "--token-file", "bytes"], id="no text"),
    ],
)
def test_a_token_that_cannot_be_checked_is_told_and_not_shown(
    served: list,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("token").write_text("secret", encoding="utf-8")
    Path("empty").write_text("", encoding="utf-8")
    Path("bytes").write_bytes(b"\xff")
    assert main(["serve", "of_mine:one", *words]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "secret" not in said.err
    assert "two words" not in said.err
    assert served == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--port", "99999"], id="no such port"),
        pytest.param(["--host", "0.0.0.0"], id="open to all"),
        pytest.param(["--host", "0.0.0.0", "--token", "x"], id="open to all, without a name"),
    ],
)
def test_an_address_that_cannot_be_served_on_is_told_and_nothing_else(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--http", *words]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "Serving" not in said.err
