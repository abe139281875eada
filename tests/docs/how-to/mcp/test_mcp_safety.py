"""The claims of docs/how-to/mcp/mcp-safety.md.

Its tables are proved in tests/integration/test_mcp_runs.py, tests/programs (tool_use/test_live.py,
lifecycle/test_saved_servers.py) and tests/mcp_bridge (test_sampling.py, client/test_pinning.py,
client/test_recording.py).
"""

from __future__ import annotations

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/mcp/mcp-safety.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/mcp/mcp-safety.md") == []
