"""The claims of docs/mcp-safety.md.

They are proved in tests/integration/test_mcp_runs.py, in tests/programs (`live_tools`, `saved_servers`) and in tests/bridges (`mcp_guard`,
`mcp_sampling`, `mcp_recorded`).
"""

from __future__ import annotations

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


def test_every_block_of_the_page_runs(execute, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    execute("docs/mcp-safety.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/mcp-safety.md") == []
