"""The claims of docs/reference/cli.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typer.main import get_command

import ferrule
from ferrule.cli.commands.app import app
from ferrule.cli.exit_code import ExitCode
from ferrule.testing import ScriptedLM

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/reference/cli.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/reference/cli.md") == []


def test_the_page_names_every_option_and_exit_code() -> None:
    """The tables are complete."""
    missing = [
        option
        for option in options_of(get_command(app))
        if option.startswith("--") and option != "--help" and f"`{option}" not in PAGE
    ]
    assert missing == []
    assert [code for code in ExitCode if f"| {code} |" not in PAGE] == []


def options_of(command: Any) -> set[str]:
    """The options of a command and of those below it."""
    options = {option for parameter in command.params for option in parameter.opts}
    for inner in getattr(command, "commands", {}).values():
        options |= options_of(inner)
    return options


def test_the_page_explains_every_kind_of_place_that_the_journal_shows() -> None:
    """The table of places has each mark that `ferrule show` prints."""

    @ferrule.tool(require_confirmation=True)
    def pay(euros: int) -> str:
        return f"paid {euros}"

    payer = ferrule.ReAct("bill -> receipt", [pay], native=True, name="payer")
    inner = {"name": "payer", "args": {"bill": "rent"}}
    script = [
        inner,
        {"name": "pay", "args": {"euros": 3}},
        {"name": "finish", "args": {"receipt": "r"}},
        {"name": "finish", "args": {"answer": "a"}},
    ]
    policy = ferrule.Policy([ferrule.ask("pay", expires_s=60)])
    store = ferrule.MemoryStore()
    agent = ferrule.ReAct("task -> answer", [payer.as_tool()], native=True)
    with ferrule.context(lm=ScriptedLM(script), policy=policy):
        run = agent.start(task="Pay.", store=store, run_id="r")
        store.say("r", "Quickly, please.")
        run.answer(run.pending[0].approve(euros="many"))
        run.resume()
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.status == "done"
    places = re.findall(r"^\| `(\d[^`]*)`", PAGE.partition("| place | where |")[2], re.MULTILINE)
    known = {mark_of(place) for place in places}
    shown = {mark_of(entry.slot) for entry in run.journal.entries}
    assert shown - known == set()


def mark_of(slot: str) -> str:
    """The last part of a place, without its numbers: `1.0/payer/3.0?a0` is `N.N?aN`."""
    return re.sub(r"\d+", "N", slot.rpartition("/")[2])
