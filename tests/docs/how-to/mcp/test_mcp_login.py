"""The claims of docs/how-to/mcp/mcp-login.md.

What it says of log-ins is proved in tests/integration/test_mcp_login.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/mcp/mcp-login.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/mcp/mcp-login.md") == []
