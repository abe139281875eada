"""The claims of docs/concepts/effects.md.

What it says of kills is proved by tests/integration/test_kills.py.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/concepts/effects.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/concepts/effects.md") == []
