"""The claims of docs/how-to/agents/steering.md; what is read, when and by whom is in
tests/runs/test_steering.py.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/agents/steering.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/agents/steering.md") == []
