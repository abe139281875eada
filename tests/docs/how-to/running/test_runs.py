"""The claims of docs/how-to/running/runs.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from ferrule import SQLiteStore, Store

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "running" / "runs.md"


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/running/runs.md")["store"].close()


def test_no_link_of_the_page_is_broken(links) -> None:
    """Ours."""
    assert links("docs/how-to/running/runs.md") == []


def test_the_numbers_of_the_page_are_the_defaults() -> None:
    """R14, A3: thirty seconds, five recoveries."""
    defaults = {name: each.default for name, each in inspect.signature(SQLiteStore).parameters.items()}
    assert (defaults["path"], defaults["lease_s"], defaults["max_recoveries"], defaults["full_sync"]) == ("ferrule.db", 30.0, 5, True)


def test_the_page_names_what_a_store_does() -> None:
    """Ours: every method of the port, but the ways of writing an entry, which are one."""
    [said] = re.findall(r"small protocol: ([a-z_, ]+)\.", PAGE.read_text(encoding="utf-8"))
    methods = {name for name in vars(Store) if not name.startswith("_")} - {"aappend", "transaction"}
    assert set(said.split(", ")) == methods
