"""The demo skips its MCP server, with the reason, where the server cannot be installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ferrule.cli.demo import mcp


@pytest.mark.parametrize("missing", ["choice", "sdk", "checkout"])
def test_without_its_requirements_nothing_is_installed(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FERRULE_DEMO_MCP", raising=False)
    monkeypatch.chdir(tmp_path)
    if missing == "choice":
        monkeypatch.setenv("FERRULE_DEMO_MCP", "0")
    if missing == "sdk":
        monkeypatch.setattr(mcp, "find_spec", lambda _: None)
    command, why_not = mcp.install_server()
    assert command == ""
    assert {"choice": "FERRULE_DEMO_MCP", "sdk": "ferrule[mcp]", "checkout": "in a checkout"}[missing] in why_not
    assert list(tmp_path.iterdir()) == []


def test_a_failed_install_gives_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FERRULE_DEMO_MCP", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").touch()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    assert mcp.install_server() == ("", "the server could not be installed from the package index")
