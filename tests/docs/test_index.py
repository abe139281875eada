"""The claims of docs/index.md."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_block_of_the_page_runs_and_prints_what_it_shows(execute, printed) -> None:
    """Style: a page's claims have a test."""
    execute("docs/index.md")
    printed("docs/index.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/index.md") == []


def test_the_pages_say_that_optimizers_are_not_part_of_ferrule() -> None:
    """Architecture: optimizers are not part of ferrule, and the docs say so."""
    pages = [ROOT / "README.md", ROOT / "docs" / "index.md"]
    assert all(
        "not part of ferrule" in " ".join(page.read_text(encoding="utf-8").split())
        for page in pages
    )


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [
        page
        for page in pages
        if page != "index.md" and "decisions/" not in page and f"({page})" not in index
    ] == []


def test_the_index_names_every_example() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    examples = (ROOT / "examples").glob("[0-9]*.py")
    assert [path.name for path in examples if f"(../examples/{path.name})" not in index] == []
