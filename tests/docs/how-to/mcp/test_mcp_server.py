"""The claims of docs/how-to/mcp/mcp-server.md. What its tables say is proved in tests/bridges/mcp/server."""

from __future__ import annotations

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/mcp/mcp-server.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    """Ours."""
    assert links("docs/how-to/mcp/mcp-server.md") == []
