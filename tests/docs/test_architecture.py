"""The claims of docs/architecture.md.

Floors, circles and sizes are proved in tests/test_house.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from ferrule.acts import Act

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ferrule"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/architecture.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/architecture.md") == []


def test_the_table_names_every_act() -> None:
    assert sorted(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)) == sorted(
        act.__name__ for act in get_args(Act)
    )


def test_the_page_names_every_folder_and_no_file_that_is_not_there() -> None:
    folders = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*")
        if path.is_dir() and (path / "__init__.py").is_file()
    ]
    tree = PAGE.partition("## Folders")[2].split("```")[1]
    assert set(re.findall(r"(\w+)/", tree)) == {folder.name for folder in folders}
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE)
    assert named
    assert [
        place for place in named if not (PACKAGE / place).exists() and not (ROOT / place).exists()
    ] == []
