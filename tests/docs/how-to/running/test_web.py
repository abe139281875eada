"""docs/how-to/running/web.md holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    pytest.importorskip("jinja2")
    execute("docs/how-to/running/web.md")


def test_the_page_names_every_option() -> None:
    page = (ROOT / "docs" / "how-to" / "running" / "web.md").read_text(encoding="utf-8")
    command = (ROOT / "src" / "ferrule" / "cli" / "commands" / "ui.py").read_text(encoding="utf-8")
    assert [option for option in re.findall(r'"(--[a-z-]+)', command) if option not in page] == []
