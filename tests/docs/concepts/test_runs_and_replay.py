"""The claims of docs/concepts/runs-and-replay.md."""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/concepts/runs-and-replay.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/concepts/runs-and-replay.md") == []
