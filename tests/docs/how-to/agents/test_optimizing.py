"""The claims of docs/how-to/agents/optimizing.md."""

from __future__ import annotations

import pytest

PAGE = "docs/how-to/agents/optimizing.md"


def test_every_block_of_the_page_runs(execute) -> None:
    """With GEPA itself, which is not among the pins for development."""
    pytest.importorskip("gepa")
    execute(PAGE)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links(PAGE) == []
