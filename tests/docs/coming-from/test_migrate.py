"""The claims of docs/coming-from/migrate.md."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

PAGE = "docs/coming-from/migrate.md"
PROGRAM = """
import dspy


class QA(dspy.Module):
    answer = dspy.ChainOfThought("question -> answer")
    question = dspy.InputField()
    run = dspy.Parallel()
    demos = dspy.KNNFewShot
"""


def test_every_block_of_the_page_runs(execute) -> None:
    execute(PAGE)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links(PAGE) == []


@pytest.mark.skipif(importlib.util.find_spec("typer") is None, reason="needs the command line")
def test_the_output_on_the_page_is_that_of_the_command(tmp_path, capsys) -> None:
    from ferrule.cli.commands.app import run_command

    text = (Path(__file__).parents[3] / PAGE).read_text(encoding="utf-8")
    [output] = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "qa.py").write_text(PROGRAM.lstrip("\n") + "\n", encoding="utf-8")
    run_command(["migrate", "check", str(tmp_path)])
    printed = capsys.readouterr().out
    assert _without_notes(printed) == _without_notes(output)


def _without_notes(text: str) -> list[str]:
    """The lines apart from those of the tables, which change with the facades."""
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    return [re.sub(r"^\d+ differences", "N differences", line) for line in lines]
