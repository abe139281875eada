"""The claims of docs/how-to/agents/types.md. What type checkers say of them is in tests/typing/check_types.py."""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/agents/types.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    """Ours."""
    assert links("docs/how-to/agents/types.md") == []
