"""Servers that hang, die or never start, as real processes: what an agent with other tools notices
of it. (M16, M55, M86)
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agent_script import fields, text_step
from mcp_leaks import nothing_left

import ferrule
from ferrule import BaseLM, Capabilities, MCPServer, Predict, ReAct, Response
from ferrule.errors import (
    AdapterParseError,
    BadRequestError,
    ConfigurationError,
    MCPConnectionError,
    MCPTimeoutError,
    TooManyFaultsError,
)
from ferrule.events import ServerUnavailable
from ferrule.mcp_bridge.client import catalog
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule import Request

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

SCRIPT = Path(__file__).parents[2] / "moody_server.py"
FINISH = {"name": "finish", "args": {"answer": "done"}}
_ = nothing_left


def moody(folder: Path, name: str = "moody", **options: Any) -> MCPServer:
    folder.mkdir(exist_ok=True)
    return MCPServer.stdio(sys.executable, [str(SCRIPT), str(folder)], name=name, **options)


def pid(folder: Path) -> int:
    return int((folder / "pid").read_text())


def asked(folder: Path, method: str) -> int:
    return (folder / "log").read_text().split().count(method)


def wait_until(is_true: Callable[[], bool]) -> None:
    for _ in range(1_200):
        if is_true():
            return
        time.sleep(0.05)
    pytest.fail("it did not come about within a minute")


def tick() -> str:
    """Say that time goes on."""
    return "tick"


def turns(count: int) -> list[Any]:
    return [*({"name": "tick", "args": {}} for _ in range(count)), FINISH]


def text_turns(count: int) -> list[Any]:
    return [
        *(text_step("", "tick", {}) for _ in range(count)),
        text_step("", "finish"),
        fields(reasoning="", answer="done"),
    ]


@pytest.mark.usefixtures("nothing_left")
def test_a_hung_server_is_listed_once_in_seventeen_turns_and_its_tools_stay(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = moody(tmp_path, poll_s=0.000001, timeout_s=0.5)
    told = list[Any]()
    lm = ScriptedLM(turns(17))
    with server:
        agent = ReAct("task -> answer", [server, tick])
        _ = agent.tools
        before = asked(tmp_path, "tools/list")
        (tmp_path / "hang").touch()
        with ferrule.context(lm=lm, callbacks=[told.append]):
            assert agent(task="x").answer == "done"
        assert asked(tmp_path, "tools/list") == before + 1
    assert [len(each.tools) for each in lm.requests] == [3] * 18
    [event] = [each for each in told if isinstance(each, ServerUnavailable)]
    assert event.server == "moody"
    assert isinstance(event.error, MCPTimeoutError)
    [line] = [each.getMessage() for each in caplog.records if "moody" in each.getMessage()]
    assert "could not be listed again" in line


@pytest.mark.usefixtures("nothing_left")
def test_a_stopped_process_does_not_hold_up_the_turns(tmp_path: Path) -> None:
    """With the usual limit of a minute for an answer, seventeen turns that wait for one would not
    end in time for anybody.
    """
    server = moody(tmp_path, poll_s=0.000001)
    with server:
        agent = ReAct("task -> answer", [server, tick])
        _ = agent.tools
        os.kill(pid(tmp_path), signal.SIGSTOP)
        lm = ScriptedLM(turns(17))
        agent(task="x", lm=lm)
        assert len(lm.requests) == 18
        os.kill(pid(tmp_path), signal.SIGCONT)
        wait_until(
            lambda: server.client.catalog.trouble is None and not server.client.catalog.is_listing,
        )


@pytest.mark.usefixtures("nothing_left")
def test_a_slow_listing_goes_on_and_its_changes_come_in_a_later_turn(tmp_path: Path) -> None:
    server = moody(tmp_path, poll_s=0.000001)

    def wake() -> str:
        """Let the server answer again."""
        os.kill(pid(tmp_path), signal.SIGCONT)
        wait_until(lambda: not server.client.catalog.is_listing)
        return "awake"

    with server:
        agent = ReAct("task -> answer", [server, tick, wake])
        _ = agent.tools
        (tmp_path / "tools").write_text("echo more")
        os.kill(pid(tmp_path), signal.SIGSTOP)
        lm = ScriptedLM(
            [
                {"name": "tick", "args": {}},
                {"name": "wake", "args": {}},
                {"name": "more", "args": {}},
                FINISH,
            ],
        )
        prediction = agent(task="x", lm=lm)
    assert prediction.trajectory["observation_1"] == "awake"
    assert "moody_server.py" in prediction.trajectory["observation_2"]
    assert [len(each.tools) for each in lm.requests] == [4, 4, 5, 5]


def test_a_server_that_answers_again_is_listed_again_over_its_new_connection(
    tmp_path: Path,
) -> None:
    """After a failure it is left alone for a while; a new process is another server, which may have
    other tools.
    """
    server = moody(tmp_path, poll_s=0.000001, timeout_s=0.5)
    with server:
        (tmp_path / "hang").touch()
        with pytest.raises(MCPTimeoutError):
            server.changes()
        assert not server.is_stale
        assert not server.changes()
        (tmp_path / "hang").unlink()
        (tmp_path / "tools").write_text("echo more")
        os.kill(pid(tmp_path), signal.SIGKILL)
        wait_until(lambda: not server.is_connected)
        server.call("echo")
        assert server.is_stale
        assert server.changes().added == ("more",)
        assert server.client.catalog.trouble is None


# -- servers that cannot be connected


def broken(folder: Path, name: str) -> MCPServer:
    """A server that ends at its start, until `crash` is removed."""
    made = moody(folder, name, on_error="skip")
    (folder / "crash").write_text("no API_KEY here")
    return made


NOTE = "Not available at the moment, with all their tools: the MCP servers `crashing`, `missing`, `unset`."


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("native", [True, False])
def test_servers_that_cannot_start_leave_the_others_and_are_told_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    native: bool,
) -> None:
    missing = MCPServer.stdio("no-such-command-anywhere", name="missing", on_error="skip")
    unset = MCPServer.load(
        {"mcpServers": {"unset": {"command": "x", "args": ["${NO_SUCH_VARIABLE}"]}}},
    )["unset"]
    servers = [moody(tmp_path / "one", "one"), broken(tmp_path / "two", "crashing"), missing, unset]
    told = list[Any]()
    lm = ScriptedLM(turns(2)) if native else ScriptedLM(text_turns(2))
    agent = ReAct("task -> answer", [*servers, tick], native=native)
    with ferrule.context(lm=lm, callbacks=[told.append]):
        assert agent(task="x").answer == "done"
    assert list(agent.tools)[:2] == ["echo", "tick"]
    assert lm.requests[0].messages[0].text.count(NOTE) == 1
    assert all(each.messages[0] == lm.requests[0].messages[0] for each in lm.requests[:3])
    assert [each.server for each in told if isinstance(each, ServerUnavailable)] == [
        "crashing",
        "missing",
        "unset",
    ]
    lines = sorted(
        each.getMessage() for each in caplog.records if "is left out" in each.getMessage()
    )
    assert [each.split("`")[1] for each in lines] == ["crashing", "missing", "unset"]
    assert "no API_KEY here" in lines[0]
    assert "`NO_SUCH_VARIABLE`" in lines[2]
    for each in servers:
        each.close()


class Refusing(BaseLM):
    """Takes no tool declarations, although its capabilities say so."""

    name = "refusing"
    capabilities = Capabilities(native_tools=True)

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def complete(self, request: Request) -> Response:
        if request.tools:
            raise BadRequestError("this model does not support tools")
        self.requests.append(request)
        return Response(fields(answer="done"))


@pytest.mark.parametrize("kind", [Predict, ReAct])
def test_a_model_that_refuses_tools_is_told_once_of_a_server_that_is_away(kind: Any) -> None:
    lm, missing = (
        Refusing(),
        MCPServer.stdio("no-such-command-anywhere", name="missing", on_error="skip"),
    )
    with suppress(AdapterParseError, TooManyFaultsError):
        kind("task -> answer", tools=[missing, tick], lm=lm)(task="x")
    assert lm.requests[0].messages[0].text.count("Not available at the moment") == 1
    missing.close()


def test_a_server_that_cannot_start_raises_if_its_program_did_not_say_to_skip_it(
    tmp_path: Path,
) -> None:
    good = moody(tmp_path / "one", "one")
    with pytest.raises(MCPConnectionError, match="missing"):
        _ = ReAct(
            "task -> answer",
            [good, MCPServer.stdio("no-such-command-anywhere", name="missing")],
        ).tools
    good.close()
    with pytest.raises(ConfigurationError, match="on_error"):
        MCPServer.stdio("x", on_error="ignore")


@pytest.mark.usefixtures("nothing_left")
def test_a_server_that_comes_back_during_a_run_has_its_tools_offered_from_then_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog, "_FIRST_PAUSE_S", 0.0)
    server = broken(tmp_path, "late")

    def mend() -> str:
        """Let the server start."""
        (tmp_path / "crash").unlink()
        return "mended"

    def wait() -> str:
        """Wait until it has."""
        wait_until(lambda: server.listed is not None)
        return "waited"

    steps: list[Any] = [{"name": name, "args": {}} for name in ("mend", "wait", "echo")]
    lm = ScriptedLM([*steps, FINISH])
    store = ferrule.MemoryStore()
    agent = ReAct("task -> answer", [mend, wait, server])
    with ferrule.context(lm=lm):
        run = agent.start(task="x", store=store, run_id="r")
        again = ferrule.Run.load(
            store,
            "r",
            agent,
        ).prediction  # a replay, with a server that is there
    assert again == run.prediction
    assert len(lm.requests) == 4
    assert "moody_server.py" in run.prediction.trajectory["observation_2"]
    assert [len(each.tools) for each in lm.requests] == [3, 3, 4, 4]
    assert "`late`" in lm.requests[0].messages[0].text
    assert lm.requests[-1].messages[0] == lm.requests[0].messages[0]  # the prompt stays as it began
    server.close()


@pytest.mark.usefixtures("nothing_left")
def test_a_later_run_has_the_tools_of_a_server_that_was_away(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if every run ends with its first turn."""
    monkeypatch.setattr(catalog, "_FIRST_PAUSE_S", 0.0)
    server = broken(tmp_path, "late")
    agent = ReAct("task -> answer", [server, tick])
    lm = ScriptedLM([FINISH] * 4)
    agent(task="x", lm=lm)
    assert "echo" not in agent.tools
    (tmp_path / "crash").unlink()
    agent(task="x", lm=lm)
    wait_until(lambda: server.listed is not None)
    agent(task="x", lm=lm)
    assert "echo" in agent.tools
    assert ["`late`" in each.messages[0].text for each in lm.requests][::2] == [True, False]
    server.close()


def test_predict_is_told_too(tmp_path: Path) -> None:
    server = broken(tmp_path, "late")
    lm = ScriptedLM(["[[ ## answer ## ]]\nsix\n\n[[ ## completed ## ]]"])
    assert ferrule.Predict("task -> answer", tools=[server, tick])(task="x", lm=lm).answer == "six"
    assert "with all their tools: the MCP servers `late`." in lm.requests[0].messages[0].text
    server.close()


def test_servers_of_one_program_connect_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other to have started."""
    servers = [moody(tmp_path / each, each) for each in ("one", "two")]
    (tmp_path / "one" / "wait_for").write_text(str(tmp_path / "two" / "pid"))
    (tmp_path / "two" / "wait_for").write_text(str(tmp_path / "one" / "pid"))
    assert list(ferrule.Toolbox(servers).names) == ["one__echo", "two__echo"]
    for each in servers:
        each.close()


def test_an_entry_that_is_no_server_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    assert list(
        MCPServer.load({"mcpServers": {"odd": {"settings": {}}, "good": {"command": "x"}}}),
    ) == ["good"]
    assert "`odd`: it is left out" in caplog.text


@pytest.mark.usefixtures("nothing_left")
def test_a_server_that_hangs_at_its_start_is_waited_for_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later tries run beside the turns: there are fewer of them than turns, which would each wait
    for one otherwise.
    """
    server = moody(tmp_path, on_error="skip", connect_timeout_s=1)
    (tmp_path / "wait_for").write_text(str(tmp_path / "never"))
    agent = ReAct("task -> answer", [server, tick])
    assert "echo" not in agent.tools
    monkeypatch.setattr(catalog, "_FIRST_PAUSE_S", 0.0)
    lm = ScriptedLM([*turns(9)[:-1], FINISH] * 2)
    for _ in range(2):
        agent(task="x", lm=lm)
    assert len(lm.requests) == 20
    assert server.client.link._failures < 10
    server.close()
