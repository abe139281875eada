"""The claims of docs/how-to/models/adapters.md. What its tables say is proved in tests/adapters/test_overrides.py."""

from __future__ import annotations

import re
from pathlib import Path

from ferrule.adapters.overrides import REFUSED

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "models" / "adapters.md"


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/models/adapters.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    """Ours."""
    assert links("docs/how-to/models/adapters.md") == []


def test_the_page_names_every_override_that_is_refused() -> None:
    """Ours."""
    table = PAGE.read_text(encoding="utf-8").partition("| of DSPy or udspy")[2]
    named = {name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == {*REFUSED}
