"""The claims of README.md and CHANGELOG.md."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.needle
def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("README.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("README.md") == []


def test_the_page_opens_with_the_two_commands_and_one_whole_program() -> None:
    """Style: the README shows one whole program before any feature list."""
    places = [
        README.index(found)
        for found in (
            "make demo",
            "make test",
            "```python\n",
            "\n## ",
        )
    ]
    assert places == sorted(places)


def test_the_page_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert [extra for extra in extras if f"pip install '.[{extra}]'" not in README] == []


def test_the_page_and_the_unreleased_changes_are_short() -> None:
    assert len(README.splitlines()) < 90
    unreleased = (
        (ROOT / "CHANGELOG.md")
        .read_text(encoding="utf-8")
        .partition("\n## [Unreleased]\n")[2]
        .partition("\n## ")[0]
    )
    assert 0 < len(unreleased.splitlines()) < 80
