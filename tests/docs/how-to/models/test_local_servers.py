"""The claims of docs/how-to/models/local-servers.md.

What servers do differently is tested in tests/models.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/models/local-servers.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/local-servers.md") == []
