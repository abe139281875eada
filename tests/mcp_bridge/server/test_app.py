"""`MCPApp`: what is served, to clients of both eras, in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from mcp_talk import ERAS, call, client, refusal, talk, text

import ferrule
from ferrule.errors import (
    ConfigurationError,
    DuplicateToolError,
    ToolDefinitionError,
    UnknownToolError,
)
from ferrule.mcp_bridge import MCPApp

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def other(a: int) -> str:
    return f"other {a}"


def names(app: MCPApp, era: str) -> list[str]:
    async def act(connected):
        return [each.name for each in (await connected.list_tools()).tools]

    return talk(app, era, act)


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_is_served_with_its_schema_and_can_be_called(era: str) -> None:
    app = MCPApp([add], name="sums", version="3", instructions="Be exact.")

    async def act(connected):
        listed = (await connected.list_tools()).tools
        return (
            connected.protocol_version,
            connected.server_info,
            connected.instructions,
            listed,
            await connected.call_tool("add", {"a": 1}),
        )

    version, info, instructions, (tool,), result = talk(app, era, act)
    assert version == era
    assert (info.name, info.version, instructions) == ("sums", "3", "Be exact.")
    assert (tool.name, tool.description) == ("add", "Add two numbers.")
    assert tool.input_schema == ferrule.Tool(add).parameters
    assert tool.input_schema["type"] == "object"
    assert text(result) == "3"


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_that_is_not_served_is_an_error_of_the_protocol(era: str) -> None:
    """-32602."""
    error = refusal(MCPApp([add]), era, "sub")
    assert (error.code, error.message) == (
        -32602,
        "There is no tool `sub`. Available tools: `add`.",
    )


def test_tools_come_in_the_order_given_and_change_at_run_time() -> None:
    app = MCPApp([add])
    app.add(other, "second")
    assert names(app, ERAS[1]) == ["add", "second"] == list(app.names)
    app.remove("add")
    assert names(app, ERAS[0]) == ["second"]
    with pytest.raises(UnknownToolError):
        app.remove("add")


def test_a_tool_under_a_name_that_is_served_replaces_the_other() -> None:
    app = MCPApp([add])
    app.add(other, "add")
    assert app.names == ("add",)
    assert text(call(app, ERAS[1], "add", {"a": 1})) == "other 1"


@pytest.mark.parametrize("thread", ["this", "another"])
def test_a_session_of_the_handshake_era_is_told_of_changes(thread: str) -> None:
    from mcp_types import ToolListChangedNotification

    app = MCPApp([add])
    told = asyncio.Event()

    async def hear(message) -> None:
        if isinstance(message, ToolListChangedNotification):
            told.set()

    async def act(connected):
        assert connected.server_capabilities.tools.list_changed
        await connected.list_tools()
        if thread == "this":
            app.add(other)
        else:
            worker = threading.Thread(target=app.add, args=(other,))
            worker.start()
            await asyncio.to_thread(worker.join)
        await told.wait()
        return True

    assert talk(app, ERAS[0], act, message_handler=hear)


def test_streams_of_the_newer_era_are_told_of_what_they_asked_for() -> None:
    from mcp.client.subscriptions import ToolsListChanged, listen

    app = MCPApp([add])

    async def act(connected):
        async with listen(connected.session, tools_list_changed=True) as stream:
            app.changed("prompts")
            app.add(other)
            return await anext(aiter(stream))

    assert isinstance(talk(app, ERAS[1], act), ToolsListChanged)


def test_a_session_that_ended_is_forgotten() -> None:
    """Ours."""
    app = MCPApp([add])
    names(app, ERAS[0])
    app.add(other)
    assert not app._changes._sessions
    assert not app._changes._listeners


def test_the_server_itself_takes_what_else_there_is() -> None:
    """Resources and prompts are the SDK's business."""
    import mcp_types as types

    app = MCPApp([add])

    async def prompts(context, params):
        return types.ListPromptsResult(prompts=[types.Prompt(name="p")])

    app.server.add_request_handler("prompts/list", types.PaginatedRequestParams, prompts)

    async def act(connected):
        return [each.name for each in (await connected.list_prompts()).prompts]

    assert talk(app, ERAS[1], act) == ["p"]


def test_a_mapping_gives_names() -> None:
    assert MCPApp({"plus": add, "minus": other}).names == ("plus", "minus")


@pytest.mark.parametrize(
    ("things", "error"),
    [
        pytest.param([add, add], DuplicateToolError, id="two of one name"),
        pytest.param("add", ToolDefinitionError, id="a text"),
        pytest.param([3], ToolDefinitionError, id="a number"),
        pytest.param({"a b": add}, ToolDefinitionError, id="a name with a blank"),
        pytest.param({"": add}, ToolDefinitionError, id="an empty name"),
        pytest.param({"x" * 129: add}, ToolDefinitionError, id="a long name"),
    ],
)
def test_what_cannot_be_served_is_refused(things: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        MCPApp(things)


@pytest.mark.parametrize("transport", ["carrier pigeon", ""])
def test_an_unknown_transport_is_refused(transport: str) -> None:
    with pytest.raises(ConfigurationError, match="'stdio' or 'http'"):
        ferrule.serve([add], transport=transport)


def test_options_of_http_are_refused_over_stdio() -> None:
    with pytest.raises(ConfigurationError, match="allowed_hosts"):
        MCPApp([add]).run("stdio", allowed_hosts=["x"])
    with pytest.raises(ConfigurationError, match="verify_token"):
        ferrule.serve([add], verify_token=lambda token: False)


def test_where_a_loop_runs_the_error_says_what_to_do() -> None:
    async def inside() -> None:
        MCPApp([add]).run()

    with pytest.raises(ConfigurationError, match=r"await app\.arun"):
        asyncio.run(inside())


def test_without_the_extra_the_error_names_it() -> None:
    """On the server's side."""
    script = """
import sys
sys.modules["mcp"] = None
from ferrule.mcp_bridge import MCPApp
try:
    MCPApp([])
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install 'ferrule[mcp]'" in done.stdout


def test_naming_it_does_not_load_the_sdk() -> None:
    script = "import sys, ferrule; ferrule.mcp_bridge.MCPApp, ferrule.serve; print([n for n in ('mcp', 'mcp_types', 'uvicorn', 'starlette') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_many_clients_are_served_at_once() -> None:
    """One app, several connections."""
    app = MCPApp([add])

    async def one(a: int) -> str:
        async with client(app, ERAS[a % 2]) as connected:
            return text(await connected.call_tool("add", {"a": a, "b": 0}))

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(one, range(6)))

    assert asyncio.run(all_of_them()) == [str(a) for a in range(6)]
