"""The claims of docs/how-to/tools/provider-tools.md; the wires are in
tests/programs/test_provider_tools.py.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/tools/provider-tools.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/provider-tools.md") == []
