"""The claims of docs/reference/cli.md."""

from __future__ import annotations

from pathlib import Path

from typer.main import get_command

from ferrule.cli.commands.app import app
from ferrule.cli.exit_code import ExitCode

ROOT = Path(__file__).parents[3]


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/reference/cli.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/reference/cli.md") == []


def test_the_page_names_every_option_and_exit_code() -> None:
    """The tables are complete."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    options = {
        option
        for command in get_command(app).commands.values()
        for parameter in command.params
        for option in parameter.opts
    }
    missing = [
        option
        for option in options
        if option.startswith("--") and option != "--help" and f"`{option}" not in page
    ]
    assert missing == []
    assert [code for code in ExitCode if f"| {code} |" not in page] == []
