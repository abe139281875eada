"""`MCPServer` with a server of the SDK in this process, of the newer era."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ferrule import MCPServer, ReAct, Tool, context, mcp, progress
from ferrule.concurrency.offload import background_loop, run_async
from ferrule.errors import (
    ConfigurationError,
    MCPConnectionError,
    MCPProtocolError,
    MCPTimeoutError,
    UnknownToolError,
)
from ferrule.mcp_bridge import MCPApp
from ferrule.mcp_bridge.client.mcp_server import ServerInfo
from ferrule.testing import ScriptedLM

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


class Remote:
    """A server in this process: tools by name, what it was sent, and what it may be told to do."""

    def __init__(self, *names: str) -> None:
        import mcp_types as types
        from mcp.server import Server
        from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

        self.types = types
        self.names = list(names or ("echo",))
        self.calls: list[dict] = []
        self.lists = 0
        self.ttl_ms: int | None = None
        self.bus = InMemorySubscriptionBus()
        self.server = Server(
            "remote", version="7", instructions="be brief", on_list_tools=self.list, on_call_tool=self.call,
            on_subscriptions_listen=ListenHandler(self.bus),
        )  # fmt: skip

    async def list(self, context, params):
        self.lists += 1
        hint = {} if self.ttl_ms is None else {"ttl_ms": self.ttl_ms}
        return self.types.ListToolsResult(
            tools=[
                self.types.Tool(name=each, input_schema={"type": "object"}) for each in self.names
            ],
            **hint,
        )

    async def call(self, context, params):
        self.calls.append(params.model_dump(by_alias=True, exclude_none=True))
        if params.name == "ask" and not params.input_responses:
            return self.question()
        if params.name == "forever":
            return self.question()
        if params.name == "state" and params.request_state is None:
            return self.types.InputRequiredResult(request_state="again")
        return self.types.CallToolResult(
            content=[self.types.TextContent(type="text", text=f"{params.name} done")],
        )

    def question(self):
        asked = self.types.ElicitRequestFormParams(
            message="sure?",
            requested_schema={"type": "object", "properties": {}},
        )
        return self.types.InputRequiredResult(
            input_requests={"q": self.types.ElicitRequest(params=asked)},
            request_state="S",
        )

    def publish(self) -> None:
        from mcp.server.subscriptions import ToolsListChanged

        async def told() -> None:
            await self.bus.publish(ToolsListChanged())

        run_async(told())


def test_it_connects_gives_its_tools_and_closes() -> None:
    server = MCPServer.in_memory(Remote("echo", "other").server)
    with server as tools:
        assert [each.name for each in tools] == ["echo", "other"] == tools.keys()
        assert tools["echo"]() == "echo done"
        assert server.is_connected
    assert not server.is_connected
    assert server.name == "remote"


def test_it_works_the_same_in_async_code() -> None:
    async def use() -> None:
        async with MCPServer.in_memory(Remote().server) as tools:
            assert await tools["echo"].acall() == "echo done"

    asyncio.run(use())


def test_it_says_what_the_server_says_of_itself() -> None:
    """Instructions are there for who wants them."""
    server = MCPServer.in_memory(Remote().server)
    assert server.info == ServerInfo(
        name="remote",
        version="7",
        instructions="be brief",
        protocol_version="2026-07-28",
        capabilities={"tools": {"listChanged": True}},
    )
    assert server.ping() >= 0
    server.close()


def test_a_tool_that_is_not_there_is_named_with_those_that_are() -> None:
    with (
        MCPServer.in_memory(Remote().server) as tools,
        pytest.raises(UnknownToolError, match="`echo`"),
    ):
        _ = tools["nothing"]


def test_meta_and_the_trace_travel_with_a_call() -> None:
    """The parent span is that of the caller, although the call is made by another thread."""
    trace = pytest.importorskip("opentelemetry.trace")
    remote = Remote()
    context = trace.SpanContext(
        trace_id=0xABC,
        span_id=0xDEF,
        is_remote=False,
        trace_flags=trace.TraceFlags(1),
    )
    server = MCPServer.in_memory(remote.server)
    with trace.use_span(trace.NonRecordingSpan(context)):
        server.call("echo", meta={"who": "me"})
    server.close()
    meta = remote.calls[-1]["_meta"]
    assert meta["who"] == "me"
    assert meta["traceparent"] == f"00-{0xABC:032x}-{0xDEF:016x}-01"


def test_a_question_that_nobody_here_answers_comes_back_and_can_be_answered_later() -> None:
    """From another server object, as it would be in another process."""
    remote = Remote("ask")
    first, second = MCPServer.in_memory(remote.server), MCPServer.in_memory(remote.server)
    asked = first.call("ask")
    assert asked["resultType"] == "input_required"
    done = second.call(
        "ask",
        answers={"q": {"action": "accept", "content": {}}},
        state=asked["requestState"],
    )
    assert done["content"][0]["text"] == "ask done"
    assert (
        remote.calls[-1]["inputResponses"]["q"]["action"],
        remote.calls[-1]["requestState"],
    ) == ("accept", "S")
    first.close()
    second.close()


def test_a_hook_answers_questions() -> None:
    """And only then is the capability declared."""
    remote = Remote("ask")
    asked: list = []

    async def elicit(params: dict) -> dict:
        asked.append(params["message"])
        return {"action": "decline"}

    with MCPServer.in_memory(remote.server, elicit=elicit) as tools:
        assert tools["ask"]() == "ask done"
    assert asked == ["sure?"]
    assert remote.calls[0]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {
        "elicitation": {"form": {}, "url": {}},
    }
    without = MCPServer.in_memory(remote.server)
    without.call("echo")
    without.close()
    assert remote.calls[-1]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}


@pytest.mark.parametrize(
    "said",
    [
        ValueError("SECRET"),
        None,
        {"action": "nope"},
        {"action": "accept", "content": {"a": float("nan")}},
    ],
    ids=str,
)
def test_a_hook_that_breaks_answers_cancel_here_too(
    said: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that asks in its result got no answer, and the caller, or the model, the hook's own
    error.
    """

    async def elicit(_: dict) -> object:
        if isinstance(said, Exception):
            raise said
        return said

    server = MCPServer.in_memory(
        MCPApp([Tool(lambda: "gone", "delete", "Delete.", require_confirmation=True)]).server,
        elicit=elicit,
    )
    with server:
        result = server.call("delete")
    assert result["isError"]
    assert "it was not approved" in result["content"][0]["text"]
    assert "`elicit`" in caplog.text


def test_questions_without_end_are_an_error() -> None:
    """Ten rounds."""

    async def elicit(params: dict) -> dict:
        return {"action": "accept", "content": {}}

    remote = Remote("forever")
    server = MCPServer.in_memory(remote.server, elicit=elicit)
    with pytest.raises(MCPProtocolError, match="10 times"):
        server.call("forever")
    assert len(remote.calls) == 11
    server.close()


def test_a_server_that_only_wants_its_state_again_is_asked_again() -> None:
    server = MCPServer.in_memory(Remote("state").server)
    assert server.call("state")["content"]
    server.close()


def test_a_stream_tells_of_changes_and_a_burst_is_one_list() -> None:
    """Five notifications, one list, and that when it is asked for."""
    remote = Remote()
    server = MCPServer.in_memory(remote.server)
    before = server.tools
    for _ in range(3_000):  # the stream is opened beside the first request
        remote.publish()
        if server.client.catalog.is_stale():
            break
        time.sleep(0.02)
    for _ in range(5):
        remote.publish()
    assert remote.lists == 1
    remote.names = ["other"]
    changes = server.changes()
    assert (changes.added, changes.removed) == (("other",), ("echo",))
    assert remote.lists == 2
    assert server.tools is not before
    with pytest.raises(UnknownToolError, match="`other`"):  # M55
        server.call("echo")
    server.close()


def test_a_list_that_runs_out_is_listed_again_when_it_is_asked_for() -> None:
    remote = Remote()
    remote.ttl_ms = 60_000
    server = MCPServer.in_memory(remote.server)
    _ = server.tools
    assert not server.changes()
    assert remote.lists == 1
    server.client.catalog._listed_at -= 61
    assert not server.changes()
    assert remote.lists == 2
    server.close()


def test_refresh_lists_at_once() -> None:
    remote = Remote()
    server = MCPServer.in_memory(remote.server)
    _ = server.tools
    remote.names.append("new")
    assert server.refresh().added == ("new",)
    assert "new" in server.tools
    server.close()


def test_a_rule_that_looks_at_more_than_the_name_sees_it_before_a_call() -> None:
    remote = Remote("echo", "other")
    server = MCPServer.in_memory(
        remote.server,
        allow=lambda definition: definition.input_schema and definition.name == "echo",
    )
    assert server.call("echo")["content"]
    with pytest.raises(UnknownToolError):
        server.call("other")
    server.close()


def test_a_server_is_a_value() -> None:
    one, same, other = (
        MCPServer.stdio("npx", ["-y", each], timeout_s=5)
        for each in ("@scope/files@1.2", "@scope/files@1.2", "x")
    )
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one.name == "files"
    assert one != MCPServer.stdio("npx", ["-y", "@scope/files@1.2"], timeout_s=6)


def test_mcp_takes_a_command_line_or_an_address() -> None:
    assert mcp("npx -y 'a b'", ["c"]).spec.args == ("-y", "a b", "c")
    assert mcp("https://example.com/mcp", headers={"A": "b"}).spec.transport == "http"
    assert mcp(" uvx mcp-server-time ").name == "mcp-server-time"
    for wrong in ("  ", ["npx", "-y", "server"], None, Path("server.py")):
        with pytest.raises(
            ConfigurationError,
            match=r"takes a command line or an address. For words, use `MCPServer.stdio",
        ):
            mcp(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"allow": 5}, "names with"),
        ({"deny": ["a", 1]}, "names with"),
        ({"tool_timeouts_s": [1]}, "mapping of names to seconds"),
        ({"tool_timeouts_s": {"a": -1}}, "mapping of names to seconds"),
        ({"prefix": "yes"}, "'auto', True or False"),
        ({"pins": "strict"}, "one of warn"),
        ({"elicit": 5}, "a function or None"),
        ({"max_concurrency": 1.5}, "whole number"),
        ({"max_concurrency": True}, "whole number"),
        ({"timeout_s": True}, "greater than zero"),
        ({"timeout_s": None}, "greater than zero"),
        ({"timeout_s": float("nan")}, "greater than zero"),
        ({"poll_s": "1"}, "greater than zero or None"),
        ({"trust": "no"}, "True or False"),
        ({"record": 5}, "a path or None"),
    ],
    ids=lambda each: str(each) if isinstance(each, dict) else "",
)
def test_what_cannot_be_an_option_is_told(option: dict, told: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=rf"`{next(iter(option))}` of an MCP server must be .*{told}",
    ):
        MCPServer.stdio("x", **option)


@pytest.mark.parametrize(
    "seconds",
    [0, -1, float("nan"), True, "5"],
    ids=["zero", "less", "nan", "true", "text"],
)
def test_the_time_of_one_call_is_checked(seconds: object) -> None:
    server = MCPServer.in_memory(Remote().server)
    with pytest.raises(ConfigurationError, match="`timeout_s`"):
        server.call("echo", timeout_s=seconds)
    assert not server.is_connected


def test_options_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"`timout_s`.*`timeout_s`"):
        MCPServer.stdio("x", timout_s=1)
    with pytest.raises(ConfigurationError, match=r"`timeout_s`.*greater than zero"):
        MCPServer.stdio("x", timeout_s=0)
    with pytest.raises(ConfigurationError, match="http_client"):
        MCPServer.http("https://example.com", headers={"a": "b"}, http_client=object())


def test_http_without_tls_stays_on_this_machine_unless_it_is_allowed() -> None:
    with pytest.raises(ConfigurationError, match="plain http"):
        MCPServer.http("http://example.com/mcp").connect()
    with pytest.raises(ConfigurationError, match="URL"):
        MCPServer.http("ftp://example.com/mcp").connect()


def test_a_missing_extra_is_told_with_the_command() -> None:
    program = (
        "import sys\nsys.modules['mcp'] = None\nfrom ferrule import MCPServer\n"
        "try:\n    MCPServer.stdio('true').connect()\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "pip install 'ferrule[mcp]'" in done.stdout


def test_making_a_server_does_not_import_the_sdk() -> None:
    program = "import sys\nfrom ferrule import MCPServer, mcp\nmcp('npx x'); print('mcp' in sys.modules, 'asyncio.windows_events' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "False False\n"


def test_a_question_to_a_person_stops_the_clock_of_the_call() -> None:
    """In the older era the server waits inside the call; half a second of thinking under a timeout
    of a quarter.
    """
    program = (
        "import json, sys\n"
        "def send(m): print(json.dumps({'jsonrpc': '2.0', **m}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line); i = m.get('id'); method = m.get('method')\n"
        "    if method == 'initialize':\n"
        "        send({'id': i, 'result': {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 's', 'version': '1'}}})\n"
        "    elif method == 'tools/call':\n"
        "        call = i\n"
        "        asked = {'message': 'sure?', 'requestedSchema': {'type': 'object', 'properties': {}}}\n"
        "        send({'id': 'e1', 'method': 'elicitation/create', 'params': asked})\n"
        "    elif method is None:\n"
        "        send({'id': call, 'result': {'content': [{'type': 'text', 'text': m['result']['action']}]}})\n"
        "    elif i is not None:\n"
        "        send({'id': i, 'error': {'code': -32601, 'message': 'no'}})\n"
    )

    async def elicit(params: dict) -> dict:
        await asyncio.sleep(2.2)  # longer than the timeout
        return {"action": "decline"}

    server = MCPServer.stdio(
        sys.executable,
        ["-c", program],
        name="asks",
        elicit=elicit,
        timeout_s=2,
    )
    try:
        assert server.call("x")["content"][0]["text"] == "decline"
    finally:
        server.close()


def test_a_call_that_takes_too_long_is_a_timeout_error() -> None:
    assert issubclass(MCPTimeoutError, TimeoutError)


def test_a_server_is_shared_by_copies_and_travels_as_what_says_how_it_is_reached() -> None:
    server = MCPServer.stdio("npx", ["x"], env={"A": "b"}, timeout_s=5)
    assert copy.deepcopy(server) is copy.copy(server) is server
    assert pickle.loads(pickle.dumps(server)) == server


def test_a_server_that_nobody_holds_any_more_is_closed() -> None:
    remote = Remote()
    server = MCPServer.in_memory(remote.server)
    server.call("echo")
    connection = server.client.link._connection
    del server
    gc.collect()
    for _ in range(3_000):
        if not connection.alive:
            break
        time.sleep(0.02)
    assert not connection.alive


def test_closing_ends_a_connecting_too() -> None:
    server = MCPServer.stdio(sys.executable, ["-c", "import time; time.sleep(60)"], name="mute")
    failed: list = []

    def connect() -> None:
        try:
            server.connect()
        except MCPConnectionError as error:
            failed.append(str(error))

    thread = threading.Thread(target=connect)
    thread.start()
    for _ in range(3_000):
        if (
            server.client.link._opening is not None
            and server.client.link._opening._channel.child is not None
        ):
            break
        time.sleep(0.02)
    server.close()
    thread.join(60)
    assert "closed before it was connected" in failed[0]


class Slow(Remote):
    """Its tool only reads, and never answers."""

    def __init__(self) -> None:
        super().__init__("look")
        self.begun = threading.Event()

    async def list(self, context, params):
        hints = self.types.ToolAnnotations(read_only_hint=True)
        tool = self.types.Tool(name="look", input_schema={"type": "object"}, annotations=hints)
        return self.types.ListToolsResult(tools=[tool])

    async def call(self, context, params):
        self.calls.append({})
        self.begun.set()
        await asyncio.Event().wait()


def test_closing_ends_what_is_under_way_also_what_could_be_sent_again() -> None:
    """And what still waits for its turn; nothing connects again by itself."""
    remote = Slow()
    server = MCPServer.in_memory(remote.server, max_concurrency=1)
    _ = server.tools
    failed: list[str] = []

    def look() -> None:
        try:
            server.call("look")
        except MCPConnectionError as error:
            failed.append(str(error))

    first, second = threading.Thread(target=look), threading.Thread(target=look)
    first.start()
    assert remote.begun.wait(60)
    second.start()
    for _ in range(3_000):
        if server.client.link._turns._waiters:
            break
        time.sleep(0.02)
    server.close()
    first.join(60)
    second.join(60)
    assert sorted("during this request" in each for each in failed) == [False, True]
    assert sorted("closed meanwhile" in each for each in failed) == [False, True]
    assert (len(remote.calls), server.client.link.starts, server.is_connected) == (1, 1, False)


def test_closing_again_and_again_is_no_fault_of_the_server() -> None:
    server = MCPServer.in_memory(Remote().server)
    for _ in range(8):
        assert server.call("echo")["content"]
        server.close()
    assert server.client.link.starts == 8


def test_a_hook_that_blocks_the_loop_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another server's hook: this code is not the one that the loop waits for."""
    monkeypatch.setattr("ferrule.mcp_bridge.client.mcp_server._LOOP_ANSWERS_WITHIN_S", 0.2)
    server = MCPServer.in_memory(Remote().server)
    stands, go_on = threading.Event(), threading.Event()

    async def careless() -> None:
        stands.set()
        go_on.wait(60)

    blocking = asyncio.run_coroutine_threadsafe(careless(), background_loop())
    assert stands.wait(60)
    try:
        with pytest.raises(MCPTimeoutError, match="a hook perhaps, blocks it") as error:
            asyncio.run(server.acall("echo"))
    finally:
        go_on.set()
    blocking.result(60)
    assert "waiting for this code" not in str(error.value)


@pytest.mark.parametrize("mode", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_progress_of_a_call_reaches_the_observers_of_its_run_and_the_hook(
    mode: str,
    way: str,
) -> None:
    """As the progress of a local tool does; outside a run, only the hook has it."""

    def dig(metres: int) -> str:
        """Dig."""
        progress("digging", done=1, total=metres)
        return "dug"

    hooked: list[tuple] = []
    server = MCPServer.in_memory(
        MCPApp([dig], name="spade").server,
        mode=mode,
        on_progress=lambda *told: hooked.append(told),
    )
    silent = MCPServer.in_memory(MCPApp([dig], name="spade").server, mode=mode)
    script = [{"name": "dig", "args": {"metres": 3}}, {"name": "finish", "args": {"answer": "dug"}}]

    async def read(stream) -> list:
        return [event async for event in stream]

    for each in (server, silent):
        agent = ReAct("task -> answer", [each], native=True)
        with context(lm=ScriptedLM(script)):
            seen = (
                list(agent.stream(task="Dig."))
                if way == "sync"
                else asyncio.run(read(agent.astream(task="Dig.")))
            )
        told = [
            event for event in seen if event.type in {"CallStarted", "CallProgress", "CallFinished"}
        ]
        assert [event.type for event in told] == ["CallStarted", "CallProgress", "CallFinished"]
        assert (told[1].call_id, told[1].message, told[1].done, told[1].total) == (
            told[0].call.id,
            "digging",
            1,
            3,
        )
        assert told[1].path == told[0].path
    server.call("dig", {"metres": 3})
    assert hooked == [("dig", 1, 3, "digging")] * 2
    server.close()
    silent.close()
