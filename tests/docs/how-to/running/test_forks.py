"""The claims of docs/how-to/running/forks.md; what a fork keeps is in tests/runs/test_fork.py."""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/running/forks.md")["store"].close()


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/running/forks.md") == []
