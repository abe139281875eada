"""The claims of docs/how-to/tools/later.md; what is taken and refused is in
tests/runs/test_results_from_outside.py.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/tools/later.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/later.md") == []
