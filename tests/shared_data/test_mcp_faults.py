"""The fault suite: a pathological server on three transports.

Nothing hangs, nothing is left behind, every fault is an error of ours. (M86)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import forked
import mcp_servers
import pytest
from mcp_leaks import nothing_left
from shared_files import shared_file

from ferrule import Grant, MCPServer, ReAct, context
from ferrule.errors import (
    MCPConnectionError,
    MCPError,
    MCPProtocolError,
    MCPTimeoutError,
    UnknownToolError,
)
from ferrule.mcp_bridge import connect_all
from ferrule.testing import ScriptedLM

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures(nothing_left.__name__)]

SERVER = shared_file("mcp/raw_server.py")
"""The pathological server; its head lists its flags."""
HTTP = Path(__file__).parents[1] / "mcp_raw_http.py"
TRANSPORTS = ["stdio", "http", "sse"]


@contextlib.contextmanager
def raw(transport: str = "stdio", flags: str = "", **options):
    """The pathological server, not yet connected; closed when left."""
    options = {"name": "raw", "connect_timeout_s": 60, "timeout_s": 60, **options}
    with contextlib.ExitStack() as stack:
        if transport == "stdio":
            server = MCPServer.stdio(sys.executable, [SERVER, flags], **options)
        else:
            port = mcp_servers.free_port()
            stack.enter_context(
                mcp_servers.listening(
                    [sys.executable, str(HTTP), str(SERVER), flags, transport, str(port)],
                    {},
                    port,
                ),
            )
            make, path = (MCPServer.http, "mcp") if transport == "http" else (MCPServer.sse, "sse")
            server = make(f"http://127.0.0.1:{port}/{path}", **options)
        stack.callback(server.close)
        yield server


def log_of(path: Path) -> list[dict]:
    """The messages that the pathological server wrote into its log."""
    return [
        json.loads(line.split(" ", 2)[2])
        for line in path.read_text().splitlines()
        if line[:2].isdigit()
    ]


# --- what a server may do wrong


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_plain_server_works(transport: str) -> None:
    with raw(transport) as server, server as tools:
        assert tools["ok"](x="a") == "ok"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("flags", "good", "bad"),
    [
        ("emptyschema,noschema,badann,arrayschema", 4, {"empty", "nosch", "badann", "arr"}),
        ("nulldesc,recursive,extra", 7, set()),
        ("weirdname,dupe", 5, {"ok"}),
        ("noise", 4, set()),
    ],
    ids=["four_bad_tools", "odd_but_fine", "names", "a_banner_on_stdout"],
)
def test_a_bad_tool_is_left_out_and_the_others_stay(
    transport: str,
    flags: str,
    good: int,
    bad: set[str],
) -> None:
    """The call works as well, although the list is bad. (M32)"""
    with raw(transport, flags) as server:
        assert server.call("ok", {"x": "a"})["content"][0]["text"] == "ok"
        assert len(server.tools) == good
        assert {each.name for each in server.dropped} == bad
        assert all(each.reason for each in server.dropped)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_of_a_list_without_end_the_tools_are_kept(transport: str, caplog) -> None:
    with raw(transport, "loop") as server:
        assert len(server.tools) > 0
    assert "a second time" in caplog.text


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("wish", ["unkcontent", "empty", "nocontent", "liststruct"])
def test_an_odd_result_comes_back_as_it_is(transport: str, wish: str) -> None:
    """The SDK's own models refuse these."""
    with raw(transport) as server:
        found = server.call("ok", {"x": wish})
    expected = {
        "unkcontent": [{"type": "video", "data": "x"}],
        "empty": [],
        "nocontent": None,
        "liststruct": [],
    }
    assert found.get("content") == expected[wish]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_result_of_20_mb_comes_whole(transport: str) -> None:
    """Over the older SSE the SDK takes at most 1 MiB, which is an error and no hang."""
    with raw(transport) as server:
        assert len(server.call("ok", {"x": "big"})["content"][0]["text"]) == 20_000_000


def test_a_result_that_is_too_large_for_sse_is_an_error_and_the_next_call_works() -> None:
    with raw("sse") as server:
        with pytest.raises(MCPConnectionError, match="limit"):
            server.call("ok", {"x": "big"})
        assert server.call("ok")["content"]


# --- start


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_never_answers_the_handshake_is_given_up(transport: str) -> None:
    with (
        raw(transport, "hanginit", connect_timeout_s=2.5) as server,
        pytest.raises(MCPTimeoutError, match=r"`raw` \(handshake\)") as error,
    ):
        server.connect()
    assert (error.value.server, error.value.phase) == ("raw", "handshake")


def test_a_server_that_never_answers_the_newer_question_is_connected_all_the_same() -> None:
    """By its own short time, and it is not asked again after a loss."""
    with raw("stdio", "hangdiscover") as server:
        server.connect()
        assert server.info.protocol_version == "2025-11-25"
        with pytest.raises(MCPConnectionError):
            server.call("die")
        assert server.client.link._known.is_legacy
        assert server.call("ok")["content"]


def test_a_server_that_dies_of_the_newer_question_is_started_again_without_it() -> None:
    with raw("stdio", "diediscover") as server:
        assert server.call("ok")["content"]


def test_a_server_that_cannot_start_tells_its_exit_code_and_last_words() -> None:
    with (
        raw("stdio", "crashstart") as server,
        pytest.raises(MCPConnectionError, match=r"code 3.*missing API_KEY"),
    ):
        server.connect()


@pytest.mark.parametrize("stderr", ["io.StringIO()", "None"])
def test_a_stderr_without_a_file_is_no_matter(stderr: str) -> None:
    program = (
        f"import io, sys; sys.stderr = {stderr}\nfrom ferrule import MCPServer\n"
        f"server = MCPServer.stdio(sys.executable, [{str(SERVER)!r}])\n"
        "print(server.call('ok')['content'][0]['text'])"
    )
    ended = forked.run("-c", program)
    assert (ended.returncode, ended.stdout) == (0, "ok\n"), ended.stderr


# --- calls


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_dies_in_a_call_may_have_executed_it_and_the_next_call_works(
    transport: str,
    tmp_path: Path,
    monkeypatch,
) -> None:
    """What may have run is not sent again."""
    monkeypatch.setenv("RAWLOG", str(tmp_path / "log"))
    options = {"env": {"RAWLOG": str(tmp_path / "log")}} if transport == "stdio" else {}
    with raw(transport, **options) as server:
        with pytest.raises(MCPConnectionError, match="may have been executed") as error:
            server.call("die")
        assert (
            error.value.server,
            error.value.tool,
            error.value.phase,
            error.value.may_have_run,
        ) == ("raw", "die", "call", True)
        assert server.call("ok")["content"][0]["text"] == "ok"
    deaths = [
        each
        for each in log_of(tmp_path / "log")
        if each.get("method") == "tools/call" and each["params"]["name"] == "die"
    ]
    assert len(deaths) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_call_that_takes_too_long_is_given_up_and_the_connection_stays(
    transport: str,
    tmp_path: Path,
    monkeypatch,
) -> None:
    """The server is told."""
    monkeypatch.setenv("RAWLOG", str(tmp_path / "log"))
    options = {"env": {"RAWLOG": str(tmp_path / "log")}} if transport == "stdio" else {}
    with raw(transport, **options) as server:
        with pytest.raises(MCPTimeoutError) as error:
            server.call("slow", {"s": 3}, timeout_s=0.3)
        assert (error.value.tool, error.value.may_have_run) == ("slow", True)
        assert server.call("ok")["content"]
        assert server.client.link.starts == 1
    assert "notifications/cancelled" in {each["method"] for each in log_of(tmp_path / "log")}


def test_timeouts_are_by_tool_and_by_call() -> None:
    with raw("stdio", tool_timeouts_s={"sl*": 0.3}) as server:
        with pytest.raises(MCPTimeoutError, match=r"0\.3 s"):
            server.call("slow", {"s": 3})
        assert server.call("slow", {"s": 0.5}, timeout_s=60)["content"]


def test_the_time_for_the_whole_call_holds_where_it_is_the_smaller_one() -> None:
    with raw("stdio", total_timeout_s=0.3) as server:
        with pytest.raises(MCPTimeoutError, match=r"0\.3 s"):
            server.call("slow", {"s": 3})
        with pytest.raises(MCPTimeoutError, match=r"0\.3 s"):
            server.call("slow", {"s": 3}, timeout_s=9)


def test_a_tool_that_answers_404_is_not_taken_for_a_lost_session() -> None:
    """The session answers a ping, so it is not made anew, and other tools go on."""
    with raw("http") as server:
        for _ in range(7):
            with pytest.raises(MCPConnectionError, match="HTTP 404"):
                server.call("ok", {"x": "http-404"})
        assert server.call("ok")["content"]
        assert server.client.link.starts == 1


def test_what_is_private_in_an_address_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    with raw("http") as server:
        private = MCPServer.http(f"{server.spec.url}?api_key=hunter2", name="raw")
        assert private.call("ok")["content"]
        private.close()
    assert "api_key=***" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize(
    ("wish", "status", "ran"),
    [
        ("http-401", 401, False),
        ("http-403", 403, False),
        ("http-404", 404, False),
        ("http-429", 429, False),
        ("http-500", 500, True),
        ("http-503", 503, True),
    ],
    ids=["401", "403", "404", "429", "500", "503"],
)
def test_a_status_is_in_the_error(transport: str, wish: str, status: int, ran: bool) -> None:
    with raw(transport) as server:
        with pytest.raises(MCPConnectionError, match=f"HTTP {status}") as error:
            server.call("ok", {"x": wish})
        assert (error.value.status, error.value.retry_after_s, error.value.may_have_run) == (
            status,
            7.0,
            ran,
        )
        assert server.call("ok")["content"]


def test_a_page_in_the_place_of_an_answer_is_an_error() -> None:
    with raw("http") as server:
        with pytest.raises(MCPProtocolError, match="text/html") as error:
            server.call("ok", {"x": "html"})
        assert error.value.status == 200
        assert server.call("ok")["content"]


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize("wish", ["drop", "half"])
def test_a_connection_that_breaks_off_is_an_error_and_never_a_cancellation(
    transport: str,
    wish: str,
) -> None:
    with raw(transport) as server:
        with pytest.raises(MCPConnectionError) as error:
            server.call("ok", {"x": wish})
        assert error.value.may_have_run
        assert isinstance(error.value, Exception)
        assert server.call("ok")["content"]


@pytest.mark.parametrize("flags", ["", "sess400"])
def test_a_legacy_http_server_with_new_sessions_is_met_again(flags: str) -> None:
    """Whether an unknown session is refused by 404 or by 400."""
    with raw("http", flags) as server:
        with pytest.raises(MCPConnectionError):
            server.call("die")
        assert server.call("ok")["content"]
        assert server.client.link.starts == 2


def test_20_calls_are_under_way_at_once(tmp_path: Path) -> None:
    """When the first is answered, the server has got all of them."""
    log = tmp_path / "log"
    with raw("stdio", env={"RAWLOG": str(log)}) as server:

        async def many() -> int:
            calls = [asyncio.ensure_future(server.acall("slow", {"s": 1})) for _ in range(20)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            arrived = [each["method"] for each in log_of(log)].count("tools/call")
            await asyncio.gather(*calls)
            return arrived

        assert asyncio.run(many()) == 20


def test_max_concurrency_holds(tmp_path: Path) -> None:
    """Of three calls the third is sent when the first is answered."""
    with raw("stdio", max_concurrency=2, env={"RAWLOG": str(tmp_path / "log")}) as server:

        async def three() -> None:
            calls = [asyncio.ensure_future(server.acall("slow", {"s": 0.6})) for _ in range(3)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*calls)

        asyncio.run(three())
        assert server.client.link._turns._value == 2


def test_calls_do_not_list(tmp_path: Path) -> None:
    with raw("stdio", env={"RAWLOG": str(tmp_path / "log")}) as server:
        _ = server.tools
        for _ in range(3):
            server.call("ok")
            server.tools["ok"]()
    assert [each["method"] for each in log_of(tmp_path / "log")].count("tools/list") == 1


def test_a_structured_result_that_breaks_its_schema_is_not_lost() -> None:
    with raw() as server:
        assert server.call("badout")["structuredContent"] == {"n": "notint"}


# --- cancelling


def test_cancelling_an_async_call_tells_the_server_and_returns_at_once(tmp_path: Path) -> None:
    """And it is a CancelledError, as it was the caller's. (M20)"""
    with raw("stdio", env={"RAWLOG": str(tmp_path / "log")}) as server:

        async def cancelled() -> None:
            await server.aconnect()
            call = asyncio.ensure_future(server.acall("slow", {"s": 600}))
            while not server.client._tools_in_use:
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        asyncio.run(cancelled())
        assert server.call("ok")["content"]
    assert "notifications/cancelled" in {each["method"] for each in log_of(tmp_path / "log")}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_a_sync_call(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom ferrule import MCPServer\n"
        f"server = MCPServer.stdio(sys.executable, [{str(SERVER)!r}], env={{'RAWLOG': {str(tmp_path / 'log')!r}}})\n"
        "server.connect(); print('go', flush=True)\n"
        "try:\n    server.call('slow', {'s': 30})\n"
        "except KeyboardInterrupt:\n    print(server.call('ok')['content'][0]['text'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "go\n"
        wait_for(tmp_path / "log", '"slow"')
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ok\n"
        # It may be on its way while the next call is answered, so the process stays until then.
        wait_for(tmp_path / "log", "notifications/cancelled")
        process.communicate(timeout=60)
    assert process.returncode == 0


def wait_for(log: Path, text: str) -> None:
    """Wait until the server has received a message with this text."""
    for _ in range(3_000):
        if text in log.read_text():
            return
        time.sleep(0.02)
    pytest.fail(f"the server got no {text}: {log.read_text()}")


# --- lists that change


def test_a_change_is_seen_when_it_is_asked_for() -> None:
    """The tools stand still until then; nothing is sent where nothing changed."""
    with raw("stdio") as server:
        before = server.tools
        assert not server.changes()
        server.call("ok", {"x": "rug"})
        for _ in range(3_000):
            if server.client.catalog.is_stale():
                break
            time.sleep(0.02)
        assert server.tools is before
        assert server.changes().changed == ("ok",)
        assert "IGNORE ALL" in server.tools["ok"].desc
        assert not server.changes()


def test_a_server_that_never_tells_is_asked_now_and_then(tmp_path: Path) -> None:
    with raw("stdio", poll_s=0.9, env={"RAWLOG": str(tmp_path / "log")}) as server:
        _ = server.tools
        server.client.catalog._listed_at -= 1
        server.changes()
    assert [each["method"] for each in log_of(tmp_path / "log")].count("tools/list") == 2


@pytest.mark.parametrize(
    "rule",
    [
        {"allow": ["ok", "slow"]},
        {"deny": "d*"},
        {"deny": lambda definition: definition.name == "die"},
    ],
    ids=["allow", "deny", "rule"],
)
def test_a_filtered_tool_is_neither_listed_nor_called(rule: dict) -> None:
    with raw("stdio", **rule) as server:
        assert "die" not in server.tools
        with pytest.raises(UnknownToolError):
            server.call("die")
        assert server.call("ok")["content"]


# --- loops, threads, the end


def test_it_is_used_from_any_loop_and_any_thread() -> None:
    with raw() as server:
        found: list = []

        async def use() -> None:
            found.append((await server.acall("ok"))["content"][0]["text"])
            found.append(server.call("ok")["content"][0]["text"])  # sync code inside a running loop

        threads = [threading.Thread(target=asyncio.run, args=(use(),)) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        asyncio.run(use())
        assert found == ["ok"] * 6


def test_three_servers_are_closed_in_any_order_from_other_threads_and_tasks() -> None:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(raw()) for _ in range(3)]
        for each in servers:
            each.connect()
        threading.Thread(target=servers[0].close).start()

        async def other() -> None:
            await asyncio.gather(servers[2].aclose(), servers[1].aclose())

        asyncio.run(other())
        servers[0].close()
        assert not any(each.is_connected for each in servers)
        assert servers[1].call("ok")["content"]  # and made anew when it is used again


def test_a_sync_call_on_the_background_loop_itself_is_refused_and_does_not_hang(
    monkeypatch,
) -> None:
    from ferrule.concurrency.offload import run_async
    from ferrule.mcp_bridge.client import mcp_server as mcp_client

    monkeypatch.setattr(mcp_client, "_LOOP_ANSWERS_WITHIN_S", 1)
    with raw() as server:
        server.connect()

        async def careless() -> None:
            server.call("ok")

        with pytest.raises(MCPTimeoutError, match="await"):
            run_async(careless())
        assert server.call("ok")["content"]


def is_gone(pid: int) -> bool:
    """Whether the process has ended and its parent has noted it: a zombie is not gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    "flags", [pytest.param("", marks=pytest.mark.long), "ignoreeof,ignoreterm"]
)
def test_a_script_that_never_closes_ends_by_itself_and_leaves_no_child(flags: str) -> None:
    """With its exit code."""
    program = (
        "import sys\nfrom ferrule import MCPServer\n"
        f"server = MCPServer.stdio(sys.executable, [{str(SERVER)!r}, {flags!r}])\n"
        "server.connect(); print(server.client.link._connection._channel.child.pid, flush=True); sys.exit(7)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        pid = int(process.stdout.readline())
        assert process.wait(timeout=60) == 7
    assert is_gone(pid)


def test_a_server_ends_when_its_parent_is_killed() -> None:
    """A server that reads its input to the end. One that ignores the end of input stays."""
    program = (
        "import sys, time\nfrom ferrule import MCPServer\n"
        f"server = MCPServer.stdio(sys.executable, [{str(SERVER)!r}])\n"
        "server.connect(); print(server.client.link._connection._channel.child.pid, flush=True); time.sleep(60)\n"
    )
    process = forked.Forked("-c", program)
    while not process.output.endswith("\n"):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    pid = int(process.ended().stdout)
    for _ in range(600):
        if is_gone(pid):
            return
        time.sleep(0.1)
    pytest.fail("the server outlives its parent")


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3),
    reason="this Python starts no threads at exit (CPython issue 113964)",
)
def test_a_server_that_is_used_while_the_process_ends_leaves_no_child() -> None:
    """What is registered after the server was made may still use it; later nothing is started any
    more.
    """
    program = (
        "import atexit, sys\nfrom ferrule import MCPServer\nfrom ferrule.errors import MCPConnectionError\n"
        "def use():\n"
        "    try:\n        server.connect(); print(server.client.link._connection._channel.child.pid, flush=True)\n"
        "    except MCPConnectionError as error:\n        print(error)\n"
        "atexit.register(use)\n"
        f"server = MCPServer.stdio(sys.executable, [{str(SERVER)!r}, 'ignoreeof,ignoreterm'])\n"
        "atexit.register(use)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    pid, why_not = done.stdout.splitlines()
    assert is_gone(int(pid))
    assert "the process is ending" in why_not


def test_a_child_that_comes_when_the_process_is_ending_is_killed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ferrule.mcp_bridge.transport import stdio as mcp_stdio

    monkeypatch.setattr(mcp_stdio, "is_leaving", lambda: True)

    async def start() -> int | None:
        child = await mcp_stdio.Child.start(
            "s",
            sys.executable,
            ["-c", "import time; time.sleep(60)"],
            {},
            None,
        )
        assert await child._gone(20)
        await child.close(0)
        return child.exit_code

    assert asyncio.run(start()) == -signal.SIGKILL


def test_a_wrapper_leaves_no_grandchild() -> None:
    """A shell that starts the server and waits for it."""
    server = MCPServer.stdio(
        "sh",
        ["-c", f"'{sys.executable}' '{SERVER}' ignoreeof,ignoreterm; true"],
        name="wrapped",
    )
    server.connect()
    group = server.client.link._connection._channel.child.pid
    server.close()
    for _ in range(3_000):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("somebody of the group is left")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_makes_a_connection_of_its_own_and_leaves_the_other_alone() -> None:
    program = (
        "import os, sys, warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\nfrom ferrule import MCPServer\n"
        f"server = MCPServer.stdio(sys.executable, [{str(SERVER)!r}])\n"
        "server.call('ok')\npid = os.fork()\n"
        "if not pid:\n    print('child', server.call('ok')['content'][0]['text'], flush=True); sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nprint('parent', server.call('ok')['content'][0]['text'])\n"
    )
    done = forked.run("-c", program)
    assert (done.stdout, done.stderr) == ("child ok\nparent ok\n", "")


def test_one_of_several_that_fails_can_be_left_out() -> None:
    """Or all fail, and the others are closed again."""
    with raw() as good, raw("stdio", "crashstart", name="bad") as bad:
        with connect_all([good, bad], on_error="skip") as connected:
            assert [each.name for each in connected.servers] == ["raw"]
            assert "API_KEY" in str(connected.skipped[0].error)
        with pytest.raises(MCPConnectionError, match="`bad`"):
            connect_all([good, bad])
        assert not good.is_connected


def test_several_servers_start_at_the_same_time(tmp_path: Path) -> None:
    """Each lets us wait for an answer; the second is started before the first was given up."""
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        with connect_all(
            [
                stack.enter_context(raw("stdio", "hangdiscover", env={"RAWLOG": str(log)}))
                for _ in range(3)
            ],
        ):
            lines = log.read_text().splitlines()
        shakes = next(number for number, line in enumerate(lines) if '"initialize"' in line)
        assert sum(line.startswith("pid") for line in lines[:shakes]) > 1


def test_nothing_is_started_before_it_is_used() -> None:
    """A server is a value."""
    server = MCPServer.stdio("no-such-command-anywhere")
    assert not server.is_connected
    assert server.client.link.starts == 0


def test_a_server_that_crashes_again_and_again_is_left_alone_for_a_while() -> None:
    """Until somebody asks for it in so many words."""
    with raw() as server:
        for _ in range(6):
            with pytest.raises(MCPConnectionError, match="code 1"):
                server.call("die")
        with pytest.raises(MCPConnectionError, match="left alone"):
            server.call("ok")
        assert server.connect().call("ok")["content"]


def test_an_idle_server_is_left_in_peace(tmp_path: Path) -> None:
    """No keepalive; a server that died idle is not started again before it is used."""
    with raw("stdio", env={"RAWLOG": str(tmp_path / "log")}) as server:
        server.connect()
        os.kill(server.client.link._connection._channel.child.pid, signal.SIGKILL)
        for _ in range(3_000):
            if not server.is_connected:
                break
            time.sleep(0.02)
        assert server.client.link.starts == 1
        assert server.call("ok")["content"]  # it was surely not sent to the dead one: no error
        assert server.client.link.starts == 2


def test_the_errors_are_of_one_family() -> None:
    assert all(
        issubclass(each, MCPError)
        for each in (MCPConnectionError, MCPTimeoutError, MCPProtocolError)
    )


DIES_ONCE = """
import json, os, sys
mark, hint = sys.argv[1:]
for line in sys.stdin:
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
        answer["result"] = {"protocolVersion": message["params"]["protocolVersion"], **about}
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": [{"name": "look", "inputSchema": {"type": "object"}, "annotations": {hint: True}}]}
    elif message["method"] == "tools/call":
        with open(mark, "a") as file:
            file.write("x")
        if os.path.getsize(mark) == 1:
            os._exit(1)
        answer["result"] = {"content": [{"type": "text", "text": "seen"}]}
    elif "id" in message:
        answer["error"] = {"code": -32601, "message": "no"}
    if "id" in message:
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("hint", ["readOnlyHint", "idempotentHint", "openWorldHint"])
def test_only_what_reads_or_is_idempotent_is_called_again_after_a_loss(
    hint: str,
    tmp_path: Path,
) -> None:
    server = MCPServer.stdio(
        sys.executable,
        ["-c", DIES_ONCE, str(tmp_path / "mark"), hint],
        name="s",
    )
    try:
        _ = server.tools
        if hint == "openWorldHint":
            with pytest.raises(MCPConnectionError, match="may have been executed"):
                server.call("look")
        else:
            assert server.call("look")["content"][0]["text"] == "seen"
        assert (tmp_path / "mark").read_text() == ("x" if hint == "openWorldHint" else "xx")
    finally:
        server.close()


def test_a_tool_that_changes_after_it_was_approved_for_good_is_asked_about_again(
    tmp_path: Path,
) -> None:
    """`rug` of the pathological server. M62: seen on refresh."""
    rug = MCPServer.stdio(
        sys.executable,
        [SERVER, "rug"],
        name="raw",
        lock=tmp_path / "ferrule.lock",
        confirm=True,
    )
    steps = [{"name": "ok", "args": {"x": x}} for x in ("a", "rug", "b")]
    with context(lm=ScriptedLM(steps)):
        run = ReAct("task -> answer", [rug]).start(task="x")
        run.answer(run.pending[0].approve(always=Grant(args="any")))
        run.resume()
    assert run.status == "waiting", run.error
    assert run.trajectory["observation_1"] == "pulled"  # the grant covered it
    assert run.pending[0].call.args == {"x": "b"}
    assert any("IGNORE ALL" in each.what for each in rug.findings)
    rug.close()
