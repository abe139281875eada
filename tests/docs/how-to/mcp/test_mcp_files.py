"""The claims of docs/how-to/mcp/mcp-files.md.

What its tables say is proved in tests/mcp_bridge/test_server_files.py and test_spec.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/mcp/mcp-files.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/mcp/mcp-files.md") == []
