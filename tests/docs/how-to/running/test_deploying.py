"""The claims of docs/how-to/running/deploying.md.

That they hold over processes is proved in tests/integration/test_deploys.py.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/running/deploying.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/running/deploying.md") == []
