"""What the demo needs to ask a server of somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.cli.demo import mcp as demo_mcp


@pytest.mark.parametrize("missing", ["choice", "sdk", "checkout"])
def test_what_is_missing_is_said_and_nothing_is_installed(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A demo never fails for want of this part."""
    monkeypatch.delenv("FERRULE_DEMO_MCP", raising=False)
    monkeypatch.chdir(tmp_path)
    if missing == "choice":
        monkeypatch.setenv("FERRULE_DEMO_MCP", "0")
    if missing == "sdk":
        monkeypatch.setattr(demo_mcp, "find_spec", lambda _: None)
    command, why = demo_mcp.command()
    assert command == []
    assert {"choice": "FERRULE_DEMO_MCP", "sdk": "ferrule[mcp]", "checkout": "no checkout"}[missing] in why
    assert list(tmp_path.iterdir()) == []
