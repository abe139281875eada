"""The claims of docs/how-to/tools/dynamic-tools.md; tests/programs/tool_use/test_dynamic.py has the
details.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/tools/dynamic-tools.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/dynamic-tools.md") == []
