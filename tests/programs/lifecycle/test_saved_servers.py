"""Saved programs and their MCP servers (M67, M63)."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import ferrule
from ferrule.errors import ConfigurationError
from ferrule.mcp_bridge.client.mcp_server import MCPServer
from ferrule.programs.react import ReAct
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.toolbox import LiveToolbox, Toolbox

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

SERVER = Path(__file__).parents[2] / "asking_server.py"


def server(folder: Path, **options: Any) -> MCPServer:
    return MCPServer.stdio(
        sys.executable,
        [str(SERVER), "legacy", str(folder / "calls")],
        name="hall",
        env={"API_KEY": "hunter2"},
        trust=True,
        confirm=False,
        **options,
    )


def local(text: str) -> str:
    """Note something."""
    return text


def listing(folder: Path, *names: str) -> None:
    listed = [
        {"name": name, "description": f"To {name}.", "inputSchema": {"type": "object"}}
        for name in names
    ]
    (folder / "calls.tools").write_text(json.dumps(listed))


def saved(folder: Path, tools: Any) -> Path:
    agent = ReAct("task -> answer", tools)
    agent.save(folder / "agent.json")
    for each in agent.react.toolbox.servers:
        each.close()
    (folder / "calls").unlink()
    return folder / "agent.json"


def answered(agent: ReAct, *names: str) -> Any:
    steps = [{"name": name, "args": {}} for name in names]
    return agent(task="x", lm=ScriptedLM([*steps, {"name": "finish", "args": {"answer": "done"}}]))


def test_a_program_keeps_its_servers_and_what_they_listed_and_no_secret(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spec and pins, no live session; loading reconnects lazily."""
    path = saved(tmp_path, [server(tmp_path), local])
    text = path.read_text()
    assert "hunter2" not in text
    [state] = json.loads(text)["predictors"]["react"]["servers"]
    assert state["env"] == {"API_KEY": "${API_KEY}"}
    assert list(state["pins"]["tools"]) == ["book", "changed", "page", "pay"]
    assert state["whole"] is True

    agent = ReAct("task -> answer", [local])
    with pytest.raises(ConfigurationError, match="API_KEY"):
        agent.load(path)
    monkeypatch.setenv("API_KEY", "again")
    agent.load(path)
    assert list(agent.tools) == [
        "book",
        "pay",
        "page",
        "changed",
        "local",
        "finish",
    ]
    assert not (tmp_path / "calls").exists()  # nobody was asked
    assert agent.tools["pay"].require_confirmation is False
    assert answered(agent, "pay").trajectory["observation_0"] == "done {}"
    agent.react.toolbox.servers[0].close()


def test_a_program_that_has_the_server_itself_goes_on_with_that_one(tmp_path: Path) -> None:
    path = saved(tmp_path, [server(tmp_path)])
    mine = server(tmp_path)
    agent = ReAct("task -> answer", [mine])
    agent.load(path)
    assert agent.react.toolbox.servers == (mine,)
    assert not mine.is_connected
    answered(agent, "pay")
    assert mine.is_connected
    mine.close()


def test_a_server_that_changed_since_is_told_and_its_new_tools_come_in_the_next_turn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was saved is what the server is compared with."""
    monkeypatch.setenv("API_KEY", "again")
    caplog.set_level(logging.WARNING, "ferrule.mcp")
    path = saved(tmp_path, [server(tmp_path)])
    listing(tmp_path, "pay", "fly")
    agent = ReAct("task -> answer", [])
    agent.load(path)
    prediction = answered(agent, "pay", "fly")
    assert prediction.trajectory["observation_1"] == "done {}"
    assert "`fly` is new since it was pinned" in caplog.text
    assert "`book` is gone since it was pinned" in caplog.text
    agent.react.toolbox.servers[0].close()


def test_tools_that_were_picked_come_back_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "again")
    there = server(tmp_path)
    path = saved(tmp_path, [there.tools["pay"], local])
    there.close()
    agent = ReAct("task -> answer", [local])
    agent.load(path)
    assert list(agent.tools) == ["pay", "local", "finish"]
    assert not isinstance(agent.react.toolbox, LiveToolbox)
    assert answered(agent, "pay").trajectory["observation_0"] == "done {}"
    agent.tools["pay"].func.caller.close()


def test_a_toolbox_with_a_search_is_asked_for_again(tmp_path: Path) -> None:
    path = saved(tmp_path, Toolbox([server(tmp_path)], search="bm25", keep=["pay"]))
    mine = server(tmp_path)
    agent = ReAct("task -> answer", Toolbox([mine], search="bm25", keep=["pay"]))
    agent.load(path)
    assert not mine.is_connected
    assert list(agent.tools) == ["pay", "search_tools", "finish"]
    mine.close()


@pytest.mark.parametrize("has_server", [True, False], ids=["its own server", "the saved server"])
@pytest.mark.parametrize("options", [{"spill_over": 2000}, {"concurrent": False}], ids=str)
def test_the_options_of_the_toolbox_hold_beside_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], has_server: bool
) -> None:
    """Before the servers list their tools again, and after it."""
    monkeypatch.setenv("API_KEY", "again")
    path = saved(tmp_path, Toolbox([server(tmp_path), local], **options))
    tools: list[Any] = [local]
    if has_server:
        tools = [server(tmp_path), local]
    agent = ReAct("task -> answer", Toolbox(tools, **options))
    agent.load(path)
    toolbox = agent.react.toolbox
    [there] = toolbox.servers
    assert not there.is_connected
    listed = toolbox.list_tools()
    for each in (toolbox, listed):
        assert {name: getattr(each, name) for name in options} == options
        assert ("read_result" in each) is ("spill_over" in options)
    there.close()


def test_a_run_is_resumed_with_the_saved_program_though_the_server_changed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tools of a kept run are those of the saved program, not those that the server lists by
    now.
    """
    monkeypatch.setenv("API_KEY", "again")
    there = server(tmp_path)
    agent = ReAct("task -> answer", [there, ferrule.Tool(local, require_confirmation=True)])
    store = ferrule.MemoryStore()
    with ferrule.context(lm=ScriptedLM([{"name": "local", "args": {"text": "a"}}])):
        agent.start(task="x", store=store, run_id="r")
    path = saved(tmp_path, agent.react.toolbox)
    listing(tmp_path, "pay")
    again = ReAct("task -> answer", [ferrule.Tool(local, require_confirmation=True)])
    again.load(path)
    run = ferrule.Run.load(store, "r", again)
    run.answer(run.pending[0].approve())
    with ferrule.context(
        lm=ScriptedLM(
            [{"name": "pay", "args": {}}, {"name": "finish", "args": {"answer": "done"}}]
        ),
    ):
        assert run.resume().status == "done", run.error
    assert run.trajectory["observation_1"] == "done {}"
    again.react.toolbox.servers[0].close()


def test_the_form_of_results_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    made = server(tmp_path, result_mode="structured")
    assert MCPServer.from_state(made.dump_state()).options.rules.show.result_mode == "structured"
    assert "result_mode" not in json.dumps(server(tmp_path).dump_state())
