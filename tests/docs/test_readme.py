"""The claims of README.md."""

from __future__ import annotations

from pathlib import Path


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("README.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    """Ours."""
    assert links("README.md") == []


def test_the_page_opens_with_the_two_commands_and_one_whole_program() -> None:
    """Style: the README shows one whole program before any feature list."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    places = [text.index(found) for found in ("make demo", "make test", "```python", "\n## ")]
    assert places == sorted(places)
