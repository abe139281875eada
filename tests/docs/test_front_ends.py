"""The claims of docs/front-ends.md. What it says of the encoders is proved in tests/bridges/front_ends."""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/front-ends.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    """Ours."""
    assert links("docs/front-ends.md") == []
