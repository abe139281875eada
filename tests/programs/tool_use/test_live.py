"""Tools of MCP servers that come, go and change while a program runs (M54-M56, P66, P69, P73)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest
from agent_script import fields, text_step
from mcp.server.mcpserver import MCPServer as Remote

import ferrule
from ferrule.approval.policy import Policy, ask
from ferrule.errors import MCPConnectionError
from ferrule.mcp_bridge.client.mcp_server import MCPServer
from ferrule.programs.predict import Predict
from ferrule.programs.react import ReAct
from ferrule.programs.tool_use import live
from ferrule.runs.run import Run
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.server_tools import separate_names
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import LiveToolbox, Toolbox


def remote(name: str = "sums", *functions: Any) -> Remote:
    made = Remote(name)

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    made.add_tool(add)
    for each in functions:
        made.add_tool(each)
    return made


def times(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def tell(server: Any) -> Any:
    """A local tool that changes the remote server while the agent runs."""

    def change(what: str) -> str:
        """Change the server."""
        if what == "more":
            server.add_tool(times)
        elif what == "less":
            server.remove_tool("add")
        else:
            server.remove_tool("add")

            def add(a: int, b: int) -> int:
                """Add two numbers, and one."""
                return a + b + 1

            server.add_tool(add)
        return "changed"

    return change


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def script(native: bool, *calls: dict[str, Any]) -> ScriptedLM:
    """The calls and the end, in either mode."""
    if native:
        return ScriptedLM([*calls, FINISH])
    return ScriptedLM(
        [
            *(text_step("", each["name"], each["args"]) for each in calls),
            text_step("", "finish"),
            fields(reasoning="", answer="done"),
        ],
    )


FINISH = call("finish", answer="done")


@pytest.fixture
def sums() -> Any:
    made = remote()
    server = MCPServer.in_memory(
        made,
        trust=True,
        confirm=False,
        poll_s=0.000001,
        result_mode="content",
    )
    yield made, server
    server.close()


@pytest.mark.parametrize("native", [True, False])
def test_a_tool_that_came_is_offered_from_the_next_turn_on_and_the_prompt_before_it_stays(
    sums: Any,
    native: bool,
) -> None:
    made, server = sums
    lm = script(native, call("change", what="more"), call("times", a=2, b=3))
    agent = ReAct("task -> answer", [server, tell(made)], native=native)
    prediction = agent(task="x", lm=lm)
    assert prediction.trajectory["observation_1"] == "6"
    first, second, third = lm.requests[:3]
    assert list(second.messages)[: len(first.messages)] == list(first.messages)
    assert list(third.messages)[: len(second.messages)] == list(second.messages)
    if native:
        assert [each["function"]["name"] for each in second.tools] == [
            "add",
            "change",
            "finish",
            "times",
        ]
    else:
        assert "From now on there are these tools too:\n- times" in second.messages[-1].text
    assert "times" not in agent.tools  # the next run learns of it in its turn


@pytest.mark.parametrize("native", [True, False])
def test_a_tool_that_went_is_told_to_a_model_that_calls_it(sums: Any, native: bool) -> None:
    """A clear error."""
    made, server = sums
    lm = script(native, call("change", what="less"), call("add", a=2, b=3))
    prediction = ReAct("task -> answer", [server, tell(made)], native=native)(task="x", lm=lm)
    assert "add" in prediction.trajectory["observation_1"]
    assert prediction.trajectory.steps[1].results[0].is_fault
    if not native:
        assert "No longer there: `add`" in lm.requests[1].messages[-1].text


def test_async_programs_take_in_changes_too(sums: Any) -> None:
    """On an event loop."""
    made, server = sums

    async def whole() -> Any:
        await server.atools()
        lm = ScriptedLM([call("change", what="more"), call("times", a=2, b=3), FINISH])
        return await ReAct("task -> answer", [server, tell(made)]).acall(task="x", lm=lm)

    assert asyncio.run(whole()).trajectory["observation_1"] == "6"


def test_a_server_that_cannot_be_listed_again_leaves_the_tools_as_they_were(
    sums: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, server = sums
    lm = ScriptedLM([call("add", a=1, b=1), call("add", a=2, b=3), FINISH])
    agent = ReAct("task -> answer", [server])
    _ = agent.tools

    async def fails() -> Any:
        raise MCPConnectionError("gone", server="sums")

    monkeypatch.setattr(server, "achanges", fails)
    assert agent(task="x", lm=lm).trajectory["observation_1"] == "5"


def test_a_tool_that_changed_is_the_new_one(sums: Any) -> None:
    made, server = sums
    lm = ScriptedLM([call("change", what="other"), call("add", a=2, b=3), FINISH])
    prediction = ReAct("task -> answer", [server, tell(made)])(task="x", lm=lm)
    assert prediction.trajectory["observation_1"] == "6"
    assert "and one" in str(lm.requests[1].tools)


def test_an_approval_of_a_tool_that_changed_meanwhile_is_asked_for_again(sums: Any) -> None:
    """In the process that asked, too: the person saw another definition."""
    made, server = sums
    policy = Policy([ask("add")])
    agent = ReAct("task -> answer", [server], lm=script(True, call("add", a=1, b=2)), policy=policy)
    run = agent.start(task="x")
    run.answer(run.pending[0].approve())
    tell(made)("other")
    assert server.refresh().changed == ("add",)
    run.resume()
    assert [(each.kind, each.call.name) for each in run.pending] == [("confirm", "add")]
    run.answer(run.pending[0].approve())
    run.resume()
    assert run.trajectory["observation_0"] == "4"


def test_a_run_after_a_refresh_begins_with_the_tools_of_now(sums: Any) -> None:
    made, server = sums
    lm = ScriptedLM([FINISH, FINISH])
    agent = ReAct("task -> answer", [server], lm=lm, native=True)
    agent(task="x")
    tell(made)("more")
    server.refresh()
    agent(task="y")
    names = [[each["function"]["name"] for each in request.tools] for request in lm.requests]
    assert [("times" in each) for each in names] == [False, True]


def test_tools_that_were_picked_change_and_go_and_no_others_come(sums: Any) -> None:
    made, server = sums
    lm = ScriptedLM(
        [call("change", what="more"), call("change", what="other"), call("add", a=1, b=1), FINISH],
    )
    prediction = ReAct("task -> answer", [*server, tell(made)])(task="x", lm=lm)
    assert prediction.trajectory["observation_2"] == "3"
    assert "times" not in str(lm.requests[-1].tools)


def test_predict_sees_changes_too(sums: Any) -> None:
    made, server = sums
    lm = ScriptedLM(
        [
            call("change", what="more"),
            call("times", a=2, b=3),
            "[[ ## answer ## ]]\nsix\n\n[[ ## completed ## ]]",
        ],
    )
    prediction = Predict("task -> answer", tools=[server, tell(made)])(task="x", lm=lm)
    assert prediction.trajectory.steps[1].results[0].content == "6"


def test_a_replay_has_the_same_tools_and_lists_none(sums: Any) -> None:
    """What changed stands in the journal."""
    made, server = sums

    def ask(what: str) -> str:
        """Wait for a person."""
        return what

    script = [call("change", what="more"), call("times", a=2, b=3), call("ask", what="?"), FINISH]
    agent = ReAct("task -> answer", [server, tell(made), Tool(ask, require_confirmation=True)])
    with ferrule.context(lm=ScriptedLM(script)):
        run = agent.start(task="x")
    assert run.status == "waiting"
    entries = [each.slot for each in run.journal.entries if each.digest == "tools of servers"]
    assert entries
    made.remove_tool("add")  # what the server lists now is not what the run had
    text = run.to_json()
    again = Run.from_json(text, agent)
    again.answer(again.pending[0].approve())
    lm = ScriptedLM(script[3:])
    with ferrule.context(lm=lm):
        assert again.resume().status == "done", again.error
    assert again.trajectory["observation_1"] == "6"
    assert [json.loads(text)["journal"][k]["slot"] for k in range(3)] == [
        each.slot for each in again.journal.entries[:3]
    ]


def test_a_quiet_server_costs_no_entry_and_no_list(sums: Any) -> None:
    """Nothing is listed unless there is a reason."""
    made, _ = sums
    quiet = MCPServer.in_memory(made, trust=True, confirm=False, result_mode="content")
    lm = ScriptedLM([call("add", a=2, b=3), FINISH])
    with ferrule.context(lm=lm):
        run = ReAct("task -> answer", [quiet]).start(task="x")
    assert [each.kind for each in run.journal.entries] == ["model", "begun", "result", "model"]
    quiet.close()


def test_many_tools_of_a_server_go_on_the_shelf_and_new_ones_too(sums: Any) -> None:
    """`Toolbox(search=..., keep=...)` over servers."""
    made, server = sums
    box = Toolbox([server, tell(made)], search="bm25", keep=["change"])
    lm = ScriptedLM(
        [
            call("change", what="more"),
            call("search_tools", query="multiply numbers", limit=1),
            call("times", a=2, b=3),
            FINISH,
        ],
    )
    prediction = ReAct("task -> answer", box)(task="x", lm=lm)
    assert prediction.trajectory["observation_2"] == "6"
    assert len(lm.requests[1].tools) == len(lm.requests[0].tools)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_run_of_a_forked_process_has_the_tools_and_connects_for_a_call_alone(sums: Any) -> None:
    _, server = sums
    agent = ReAct("task -> answer", [server], lm=ScriptedLM([FINISH, FINISH]), native=True)
    agent(task="x")
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        agent(task="y")
        os._exit(0 if server.listed is None and "add" in agent.tools else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_run_finds_new_tools_on_the_shelf_after_another_run_has_begun_with_them(
    sums: Any,
) -> None:
    made, server = sums

    def change(what: str) -> str:
        """Change the server, and run the agent."""
        tell(made)(what)
        server.refresh()
        agent(task="y", lm=ScriptedLM([FINISH]))
        return "changed"

    agent = ReAct("task -> answer", Toolbox([server, change], search="bm25", keep=["change"]))
    lm = ScriptedLM(
        [
            call("change", what="more"),
            call("search_tools", query="multiply numbers", limit=1),
            call("times", a=2, b=3),
            FINISH,
        ],
    )
    assert agent(task="x", lm=lm).trajectory["observation_2"] == "6"


def test_servers_are_connected_when_their_tools_are_first_needed(sums: Any) -> None:
    """`ReAct([server])` spawns nothing."""
    _, server = sums
    agent = ReAct("task -> answer", [server])
    assert isinstance(agent.react.toolbox, LiveToolbox)
    assert not agent.react.toolbox.is_listed
    assert not server.is_connected
    assert repr(agent.react.toolbox) == "Toolbox([sums])"
    assert list(agent.tools) == ["add", "finish"]
    assert server.is_connected


def test_names_that_two_servers_have_are_told_apart_by_the_server() -> None:
    """And a server cannot take the names of the built-in tools."""

    def finish() -> str:
        """Not ours."""
        return "no"

    one, two = MCPServer.in_memory(remote("one", finish)), MCPServer.in_memory(remote("two"))
    agent = ReAct("task -> answer", [one, two, times])
    assert list(agent.tools) == [
        "one__add",
        "one__finish",
        "two__add",
        "times",
        "finish",
    ]
    assert [each.name for each in Toolbox([*one.tools, *two.tools])] == [
        "one__add",
        "finish",
        "two__add",
    ]
    assert [each.name for each in Toolbox([*one.tools, *one.tools])] == ["add", "finish"]
    assert [each.name for each in separate_names([*one.tools])] == ["add", "finish"]
    one.close()
    two.close()


def test_a_server_can_be_added_while_the_agent_works_once_a_person_agrees(sums: Any) -> None:
    """Nothing is connected before."""
    _, server = sums

    def add_server(name: str) -> Any:
        """Connect a server."""

        @ferrule.module_callback
        def change(context: Any) -> str:
            context.module.init_module(tools=[*context.module.tools.values(), server])
            return f"{name} is connected"

        return change

    lm = ScriptedLM(
        [{"name": "add_server", "args": {"name": "sums"}}, call("add", a=2, b=3), FINISH],
    )
    agent = ReAct("task -> answer", [Tool(add_server, require_confirmation=True)])
    with ferrule.context(lm=lm):
        run = agent.start(task="x")
        assert not server.is_connected
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.trajectory["observation_1"] == "5"
    assert "add" not in agent.tools


def test_what_a_program_cannot_offer_is_said_when_the_tools_are_known(sums: Any) -> None:
    made, server = sums

    def odd(intention: str) -> str:
        """Has a parameter of a name that the agent needs."""
        return intention

    made.add_tool(odd)
    agent = ReAct("task -> answer", [server], intention=True)
    with pytest.raises(ferrule.errors.ToolDefinitionError, match="intention"):
        _ = agent.tools


def test_a_run_does_not_walk_over_all_tools_of_its_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shelf may hold 10,000 of them: they are grouped once, and again if the shelf changes."""
    grouped: list[str] = []
    server_of = live._server_of
    monkeypatch.setattr(
        live, "_server_of", lambda tool: grouped.append(tool.name) or server_of(tool)
    )
    with MCPServer.in_memory(remote("sums", times), name="sums") as tools:
        toolbox = Toolbox([tools["add"]], shelf=[tools["times"]])
        agent = ReAct("task -> answer", toolbox, native=True)
        assert agent(task="Go.", lm=script(True)).answer
        assert "times" in grouped
        grouped.clear()
        for _ in range(2):
            assert agent(task="Go.", lm=script(True)).answer
        assert grouped == []
        assert toolbox.shelf is not None
        toolbox.shelf.replace([tools["times"]])
        assert agent(task="Go.", lm=script(True)).answer
        assert "times" in grouped
