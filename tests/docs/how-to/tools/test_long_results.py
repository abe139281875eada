"""The claims of docs/how-to/tools/long-results.md; more of them are in
tests/tools/test_read_result.py.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/tools/long-results.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/long-results.md") == []
