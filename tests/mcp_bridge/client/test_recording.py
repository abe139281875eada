"""Recording and replay of a server (M68)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ferrule.errors import ConfigurationError, MCPError, MCPProtocolError
from ferrule.mcp_bridge.client.mcp_server import MCPServer
from ferrule.programs.react import ReAct
from ferrule.testing.scripted import ScriptedLM

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

SERVER = Path(__file__).parents[2] / "asking_server.py"


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """A recording of a list, two calls, and an error."""
    command = [str(SERVER), "modern", str(tmp_path / "calls")]
    server = MCPServer.stdio(
        sys.executable,
        command,
        name="hall",
        record=tmp_path / "tape.jsonl",
        trust=True,
        confirm=False,
    )
    with server as tools:
        tools["pay"](what="rent")
        tools["pay"](what="tax")
        with pytest.raises(MCPError):
            server.get_prompt("none")
    (tmp_path / "calls").unlink()
    return tmp_path / "tape.jsonl"


def test_what_was_recorded_is_answered_without_the_server(tape: Path) -> None:
    """Listings and calls."""
    server = MCPServer.replay(tape, trust=True, confirm=False)
    steps = [
        {"name": "pay", "args": {"what": "rent"}},
        {"name": "finish", "args": {"answer": "done"}},
    ]
    prediction = ReAct("task -> answer", [server])(task="x", lm=ScriptedLM(steps))
    assert prediction.trajectory["observation_0"] == "done {'what': 'rent'}"
    assert server.name == "hall"
    assert server.tools.keys() == ["book", "pay", "page", "changed"]
    assert not (tape.parent / "calls").exists()


def test_an_error_comes_again_as_it_was(tape: Path) -> None:
    with pytest.raises(MCPProtocolError, match="no") as raised:
        MCPServer.replay(tape).get_prompt("none")
    assert raised.value.code == -32601


def test_what_was_not_recorded_or_is_asked_too_often_is_said(tape: Path) -> None:
    server = MCPServer.replay(tape)
    server.call("pay", {"what": "tax"})
    with pytest.raises(MCPProtocolError, match="has no \\(further\\) `tools/call`"):
        server.call("pay", {"what": "tax"})
    server.refresh()
    server.refresh()  # a list may be asked for again


@pytest.mark.parametrize(
    "text",
    ["", "no json", json.dumps({"ferrule_mcp": 2})],
    ids=["empty", "text", "version"],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tape").write_text(text)
    with pytest.raises(ConfigurationError, match="not a recording"):
        MCPServer.replay(tmp_path / "tape")
