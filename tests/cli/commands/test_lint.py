"""`ferrule lint`: what tools lose at a provider, as a person or a script reads it."""

from __future__ import annotations

import json
import sys

import pytest

from ferrule.cli.commands import tools
from ferrule.cli.main import main
from ferrule.errors import ConfigurationError

TOOLS = '''
from typing import Annotated, Any
from pydantic import Field
from ferrule import tool

@tool
def fine(city: str, days: int = 3) -> str:
    """Loses nothing."""
    return city

@tool(name="looser")
def loser(code: Annotated[str, Field(min_length=2)], tags: dict[str, Any]) -> str:
    """Loses something."""
    return code
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder one stands in, with two tools in a module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "linted_here.py").write_text(TOOLS)
    yield tmp_path
    sys.modules.pop("linted_here", None)


def test_where_nothing_is_lost_the_status_is_0(here, capsys) -> None:
    assert main(["lint", "linted_here:fine"]) == 0
    assert capsys.readouterr().out == "".join(
        f"{target}\n  nothing is lost\n" for target in ("openai-strict", "anthropic", "gemini")
    )


def test_a_tool_without_a_description_is_reported_for_every_model(here, capsys) -> None:
    (here / "bare_here.py").write_text(
        "from ferrule import tool\n@tool\ndef bare(city: str) -> str:\n    return city\n"
    )
    assert main(["lint", "bare_here", "--target", "gemini"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "every model",
        "  bare  the whole  description: the model has only the name to go by: write a docstring",
        "gemini",
        "  nothing is lost",
    ]
    assert main(["lint", "bare_here", "--target", "gemini", "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)
    assert (found["target"], found["tool"], found["keyword"]) == (
        "every model",
        "bare",
        "description",
    )
    sys.modules.pop("bare_here", None)


def test_each_loss_is_a_line_with_tool_and_path_and_the_status_is_1(here, capsys) -> None:
    """Per tool and path."""
    assert main(["lint", "linted_here", "--target", "gemini", "--target", "openai-strict"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "openai-strict",
        "  looser  /properties/tags  additionalProperties: properties with names that the model chooses are not supported",
        "  looser  the whole  strict: strict mode does not support this schema: the tool is sent unchanged, without strict mode",
        "gemini",
        "  looser  /properties/code  minLength: not enforced; the description says it: At least 2 characters.",
    ]
    assert err == ""


def test_json_is_one_document(here, capsys) -> None:
    """L6, for scripts."""
    assert main(["lint", "linted_here", "--target", "gemini", "--json"]) == 1
    found = {
        "target": "gemini",
        "tool": "looser",
        "path": "/properties/code",
        "keyword": "minLength",
        "breaking": False,
    }
    assert json.loads(capsys.readouterr().out) == [
        {**found, "lost": "not enforced; the description says it: At least 2 characters."},
    ]
    assert main(["lint", "linted_here:fine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["linted_here", "--target", "cohere"], "openai-strict, anthropic, gemini"),
        (["nowhere.py"], "nowhere.py"),
    ],
    ids=["target", "tools"],
)
def test_what_is_wrong_is_told_with_status_2(here, capsys, words: list[str], told: str) -> None:
    assert main(["lint", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err


def test_help_says_what_the_status_means(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["lint", "--help"]) == 0
    assert "0 if nothing is lost, 1 if something is" in capsys.readouterr().out


def test_without_tools_the_demo_s_are_looked_at(capsys) -> None:
    """As `ferrule tools`."""
    assert main(["lint"]) in {0, 1}
    assert capsys.readouterr().out.startswith("openai-strict\n")


def test_targets_are_each_taken_once_and_all_without_a_name() -> None:
    assert tools.choose_targets([]) == ("openai-strict", "anthropic", "gemini")
    assert tools.choose_targets(["gemini", "gemini"]) == ("gemini",)
    with pytest.raises(ConfigurationError, match="no target 'x'"):
        tools.choose_targets(["x"])


def test_tools_are_called_by_their_own_names(here) -> None:
    """A wire name is a provider's matter."""
    (here / "linted_here.py").write_text(TOOLS.replace("looser", "loser.of.codes"))
    assert {tool for _, tool, _ in tools.find_losses(["linted_here"], ["gemini"])} == {
        "loser.of.codes",
    }
