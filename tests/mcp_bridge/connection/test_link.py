"""A server that stops answering in the middle of its work, as a real process that is stopped and
continued. (M26, M86)
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp_leaks import nothing_left

import ferrule
from ferrule import MCPServer, ReAct
from ferrule.errors import MCPTimeoutError
from ferrule.mcp_bridge.connection import link
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
    pytest.mark.usefixtures("nothing_left"),
]

SCRIPT = Path(__file__).parents[2] / "moody_server.py"
LONG_S = 1000.0
"""More than a test may take: nothing waits for it."""
_ = nothing_left


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MCPServer]:
    (tmp_path / "tools").write_text("echo wait")
    made = MCPServer.stdio(
        sys.executable,
        [str(SCRIPT), str(tmp_path)],
        name="moody",
        timeout_s=LONG_S,
        tool_timeouts_s={"wait": 0.2},
    )
    yield made
    made.close()


def native(*names: str) -> list[Any]:
    return [
        *({"name": name, "args": {}} for name in names),
        {"name": "finish", "args": {"answer": "done"}},
    ]


def send(folder: Path, number: int) -> None:
    os.kill(int((folder / "pid").read_text()), number)


def pings(folder: Path) -> int:
    return (folder / "log").read_text().split().count("ping")


def wait_until(is_true: Callable[[], bool]) -> None:
    for _ in range(1_200):
        if is_true():
            return
        time.sleep(0.05)
    pytest.fail("it did not come about within a minute")


def stop(server: MCPServer, folder: Path) -> None:
    """Stop the process, and have one call notice it."""
    send(folder, signal.SIGSTOP)
    with pytest.raises(
        MCPTimeoutError,
        match=r"`echo` .* did not answer within 0.2 s. It may still have been executed",
    ):
        server.call("echo", timeout_s=0.2)


def test_a_stopped_server_holds_up_one_call_and_the_next_ones_fail_at_once(
    server: MCPServer,
    tmp_path: Path,
) -> None:
    server.connect()
    stop(server, tmp_path)
    for _ in range(3):
        with pytest.raises(
            MCPTimeoutError,
            match=r"^`echo` of MCP server `moody` was not called: the server does not answer",
        ) as raised:
            server.call("echo")
        assert raised.value.may_have_run is False
        assert (raised.value.server, raised.value.tool, raised.value.phase) == (
            "moody",
            "echo",
            "call",
        )
    send(tmp_path, signal.SIGCONT)


def test_it_is_called_again_once_it_answers(server: MCPServer, tmp_path: Path) -> None:
    server.connect()
    stop(server, tmp_path)
    with pytest.raises(MCPTimeoutError, match="does not answer"):
        server.call("echo")
    send(tmp_path, signal.SIGCONT)
    wait_until(lambda: pings(tmp_path) == 1)
    for _ in range(2):
        assert "content" in server.call("echo")
    assert pings(tmp_path) == 1


def test_a_question_that_timed_out_is_asked_again(
    server: MCPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "_PING_S", 0.1)
    server.connect()
    stop(server, tmp_path)
    for _ in range(2):
        with pytest.raises(MCPTimeoutError, match="does not answer"):
            server.call("echo")
    send(tmp_path, signal.SIGCONT)
    wait_until(lambda: pings(tmp_path) > 1)
    assert "content" in server.call("echo")


def test_a_tool_that_takes_too_long_does_not_make_its_server_one_that_hangs(
    server: MCPServer,
    tmp_path: Path,
) -> None:
    """The server is asked whether it is there, and it is."""
    for _ in range(2):
        with pytest.raises(MCPTimeoutError, match="may still have been executed"):
            server.call("wait")
        assert "content" in server.call("echo")
    assert pings(tmp_path) == 2


def test_a_server_that_was_closed_and_started_again_is_not_the_one_that_hung(
    server: MCPServer,
    tmp_path: Path,
) -> None:
    server.connect()
    stop(server, tmp_path)
    server.close()
    assert "content" in server.call("echo")


def test_an_agent_is_told_and_goes_on(server: MCPServer, tmp_path: Path) -> None:
    def stop_it() -> str:
        """Stop the server."""
        stop(server, tmp_path)
        return "stopped"

    lm = ScriptedLM(native("stop_it", "echo", "echo"))
    prediction = ReAct("task -> answer", [server, stop_it])(task="x", lm=lm)
    told = [prediction.trajectory[f"observation_{at}"] for at in (1, 2)]
    assert all(
        "`echo` of MCP server `moody` was not called: the server does not answer" in each
        for each in told
    )
    assert prediction.answer == "done"
    send(tmp_path, signal.SIGCONT)


def test_the_time_limit_of_a_tool_call_bounds_it_and_the_model_is_told(
    server: MCPServer,
    tmp_path: Path,
) -> None:
    agent = ReAct("task -> answer", [server], limits=ferrule.Limits(tool_s=0.5))
    _ = agent.tools
    send(tmp_path, signal.SIGSTOP)
    prediction = agent(task="x", lm=ScriptedLM(native("echo", "echo")))
    assert "0.5" in prediction.trajectory["observation_0"]
    assert prediction.answer == "done"
    send(tmp_path, signal.SIGCONT)
