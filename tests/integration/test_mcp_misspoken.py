"""Servers that break the protocol itself: whose word an error is, what may have run, and who hears
of it. (M19, M20, M21, M24)
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mcp_leaks import nothing_left

from ferrule import MCPServer
from ferrule.errors import MCPConnectionError, MCPError, MCPProtocolError

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures(nothing_left.__name__)]

MODERN = "2026-07-28"
RESULT = {"resultType": "complete", "content": [{"type": "text", "text": "ok"}]}


class Talk:
    """What the server over HTTP is to say; changed by a test while it runs."""

    def __init__(self) -> None:
        self.is_modern = False
        self.calls = 0
        self.body: bytes | None = None
        self.status = 200
        self.kind = "application/json"
        self.moved = False
        self.lost = False
        """Whether a proxy answers 503 until there is a new session."""
        self.endpoint = ""
        self.has_ping = True


def handler(talk: Talk) -> type[BaseHTTPRequestHandler]:  # noqa: C901  one server, in one piece
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def out(
            self,
            status: int,
            body: bytes = b"",
            kind: str = "application/json",
            **headers: str,
        ) -> None:
            self.send_response(status)
            for name, value in {
                "content-type": kind,
                "content-length": str(len(body)),
                **headers,
            }.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if not talk.endpoint:
                return self.out(405)
            return self.out(
                200,
                f"event: endpoint\ndata: {talk.endpoint}\n\n".encode(),
                "text/event-stream",
            )

        def do_DELETE(self) -> None:
            self.out(200)

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if talk.moved and self.path == "/mcp":
                self.out(307, location="/moved")
            elif "id" not in message:
                self.out(202)
            elif talk.lost and "mcp-session-id" in self.headers:
                self.out(503, b"No worker has this session", "text/plain")
            else:
                talk.lost = talk.lost and message["method"] != "initialize"
                self.out(*self.answer(message["method"], message["id"]), mcp_session_id="s")

        def answer(self, method: str, number: int) -> tuple[int, bytes, str] | tuple[int, bytes]:
            is_modern = self.headers.get("mcp-protocol-version") == MODERN
            if talk.is_modern and not is_modern:
                refused = {
                    "code": -32022,
                    "message": "unsupported",
                    "data": {"supported": [MODERN]},
                }
                return 400, json.dumps({"jsonrpc": "2.0", "id": number, "error": refused}).encode()
            if (
                not talk.is_modern
                and method != "initialize"
                and (is_modern or "mcp-session-id" not in self.headers)
            ):
                return (
                    400,
                    b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "Missing session"}}',
                )
            if method == "ping" and not talk.has_ping:
                unknown = {"code": -32601, "message": "Method not found"}
                return 200, json.dumps({"jsonrpc": "2.0", "id": number, "error": unknown}).encode()
            if method == "tools/call":
                talk.calls += 1
                if talk.body is not None:
                    return talk.status, talk.body.replace(b"ID", str(number).encode()), talk.kind
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
            tools = [
                {
                    "name": "look",
                    "inputSchema": {"type": "object"},
                    "annotations": {"readOnlyHint": True},
                },
            ]
            cached = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            results = {
                "server/discover": {"supportedVersions": [MODERN], **cached, **about},
                "initialize": {"protocolVersion": "2025-11-25", **about},
                "tools/list": {"tools": tools, **cached},
                "tools/call": RESULT,
            }
            return 200, json.dumps(
                {"jsonrpc": "2.0", "id": number, "result": results.get(method, {})},
            ).encode()

    return Handler


@contextlib.contextmanager
def talking(make=MCPServer.http):
    talk = Talk()
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler(talk))
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server = make(
        f"http://127.0.0.1:{listening.server_port}/mcp",
        timeout_s=20,
        connect_timeout_s=20,
        name="s",
    )
    try:
        yield talk, server
    finally:
        server.close()
        listening.shutdown()
        thread.join()
        listening.server_close()


NO_ANSWERS = {
    "empty": (200, b"", "application/json"),
    "garbled": (200, b'{"jsonrpc', "application/json"),
    "list": (200, b'{"jsonrpc":"2.0","id":ID,"result":[1]}', "application/json"),
    "accepted": (202, b"", "application/json"),
    "no_content": (204, b"", "application/json"),
    "event": (200, b'data: {"jso\n\n', "text/event-stream"),
    "broken_event": (200, b'data: {"jsonrpc":"2.0","id":ID,"result":0}\n\n', "text/event-stream"),
}


@pytest.mark.parametrize(("status", "body", "kind"), NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_call_with_what_is_no_answer_may_have_run(status: int, body: bytes, kind: str) -> None:
    """The SDK gives these the codes of what surely did not run."""
    with talking() as (talk, server):
        talk.status, talk.body, talk.kind = status, body, kind
        with pytest.raises(MCPProtocolError, match="sent an invalid response") as error:
            server.call("look")
        assert (error.value.may_have_run, error.value.code, talk.calls) == (True, "mcp_protocol", 1)
        talk.body = None
        assert server.call("look") == RESULT


ODD_ANSWERS = {
    "plain text": (b'{"jsonrpc":"2.0","id":ID,"result":RESULT}', "text/plain"),
    "no type": (b'{"jsonrpc":"2.0","id":ID,"result":RESULT}', ""),
    "a mark": (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":ID,"result":RESULT}', "application/json"),
    "an array": (
        (
            b'[{"jsonrpc":"2.0","method":"notifications/progress","params":{}},'
            b'{"jsonrpc":"2.0","id":ID,"result":RESULT}]'
        ),
        "application/json",
    ),
}


@pytest.mark.parametrize(("body", "kind"), ODD_ANSWERS.values(), ids=ODD_ANSWERS)
def test_json_is_read_whatever_is_around_it(body: bytes, kind: str) -> None:
    with talking() as (talk, server):
        talk.body, talk.kind = body.replace(b"RESULT", json.dumps(RESULT).encode()), kind
        assert server.call("look") == RESULT
        assert talk.calls == 1


def test_a_session_that_is_lost_behind_a_503_is_opened_again() -> None:
    with talking() as (talk, server):
        assert server.call("look") == RESULT
        talk.lost = True
        assert server.call("look") == RESULT
        assert server.client.link.starts == 2


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_half_a_character_costs_no_answer(kind: str) -> None:
    with talking() as (talk, server):
        line = (
            rb'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a \ud83d"}]}}'
        )
        talk.kind, talk.body = kind, line if kind.endswith("json") else b"data: " + line + b"\n\n"
        assert server.call("look")["content"][0]["text"] == "a �"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_an_error_of_the_server_is_its_own_word_whatever_the_code(kind: str) -> None:
    """-32000 is what the SDK says of a lost connection, too; a tool that only reads is not asked
    twice for it.
    """
    with talking() as (talk, server):
        _ = server.tools
        line = b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"Rate limited","data":{"x":1}}}'
        talk.kind, talk.body = kind, line if kind.endswith("json") else b"data: " + line + b"\n\n"
        with pytest.raises(MCPProtocolError, match="Rate limited") as error:
            server.call("look")
        assert (error.value.code, error.value.data, talk.calls) == (-32000, {"x": 1}, 1)


@pytest.mark.parametrize("status", [200, 500, 404])
def test_what_nobody_can_see_in_an_error_reaches_no_model(status: int) -> None:
    """A result is without such characters, and so is an error: its text becomes the observation."""
    hidden = "a\u200b\u202e\U000e0041\x1b[31mz"
    error = {"jsonrpc": "2.0", "id": "ID", "error": {"code": -32000, "message": hidden}}
    body = json.dumps(error).replace('"ID"', "ID") if status == 200 else hidden
    with talking() as (talk, server):
        look = server.tools["look"]
        talk.status, talk.body, talk.kind = (
            status,
            body.encode(),
            "application/json" if status == 200 else "text/plain",
        )
        with pytest.raises(MCPError) as raised:
            look()
    assert str(raised.value).isprintable()
    assert "az" in str(raised.value)


def test_a_redirect_within_the_origin_is_followed() -> None:
    with talking() as (talk, server):
        talk.moved = True
        assert server.call("look") == RESULT


@pytest.mark.parametrize("is_modern", [True, False], ids=["to_legacy", "to_modern"])
def test_a_server_that_changes_its_era_is_asked_anew(is_modern: bool) -> None:
    with talking() as (talk, server):
        talk.is_modern = is_modern
        assert server.call("look") == RESULT
        talk.is_modern = not is_modern
        assert server.call("look") == RESULT
        assert (server.info.protocol_version == MODERN, talk.calls, server.client.link.starts) == (
            not is_modern,
            2,
            2,
        )
        server.close()
        assert server.client.link._known.discovered is None
        assert not server.client.link._known.is_legacy


def test_what_a_server_refuses_for_itself_is_not_asked_twice() -> None:
    """400 with -32600 of a server that speaks our version, and knows us."""
    with talking() as (talk, server):
        talk.is_modern = True
        talk.status, talk.body = (
            400,
            b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"not so"}}',
        )
        with pytest.raises(MCPProtocolError, match="not so"):
            server.call("look")
        assert (talk.calls, server.client.link.starts) == (1, 1)


def test_a_call_that_failed_with_400_is_not_repeated_at_a_server_without_ping() -> None:
    """The tool ran, said so with a 400, and ran again: the server seemed to have lost the session."""
    with talking() as (talk, server):
        talk.has_ping = False
        talk.status, talk.body = (
            400,
            b'{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"half of it is done"}}',
        )
        with pytest.raises(MCPProtocolError, match="half of it is done") as raised:
            server.call("look")
        assert (talk.calls, server.client.link.starts) == (1, 1)
        assert raised.value.may_have_run


def test_an_endpoint_of_another_origin_is_told_at_once() -> None:
    with talking(MCPServer.sse) as (talk, server):
        talk.endpoint = "http://evil.example/messages"
        with pytest.raises(MCPConnectionError, match=r"another origin, http://evil\.example"):
            server.connect()


STDIO = r"""
import json, sys
LINES = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    result = {}
    if method == "server/discover":
        print(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
        result = {"protocolVersion": message["params"]["protocolVersion"], **about}
    if method == "tools/call":
        name = message["params"]["name"]
        if name == "ask":
            form = {"type": "object", "properties": {}}
            asked = {"message": "?", "requestedSchema": form}
            print(json.dumps({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": asked}), flush=True)
            message = json.loads(sys.stdin.readline())
            result = {"content": [], "heard": message.get("result") or message.get("error")}
        elif name == "endless":
            part = "x" * (1 << 20)
            sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":{"content":"' % number)
            for _ in range(65):
                sys.stdout.write(part)
            sys.stdout.flush()
            continue
        elif name in LINES:
            print(LINES[name].replace("ID", str(number)), flush=True)
            continue
        else:
            result = {"content": [], "arguments": message["params"]["arguments"]}
    if method and number is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
"""
LINES = {
    "null": '{"jsonrpc":"2.0","id":ID,"result":null}',
    "error_text": '{"jsonrpc":"2.0","id":ID,"error":"boom"}',
    "float_id": '{"jsonrpc":"2.0","id":ID.0,"result":{}}',
    "text_id": '{"jsonrpc":"2.0","id":"ID","result":[1]}',
    "deep": f'{{"jsonrpc":"2.0","id":ID,"result":{"[" * 500 + "]" * 500}}}',
}


@contextlib.contextmanager
def child(**options):
    server = MCPServer.stdio(
        sys.executable,
        ["-c", STDIO, json.dumps(LINES)],
        name="s",
        timeout_s=20,
        **options,
    )
    try:
        yield server
    finally:
        server.close()


def test_a_broken_answer_of_a_child_is_not_waited_for() -> None:
    with child() as server:
        for name in LINES:
            with pytest.raises(MCPProtocolError, match="cannot be read") as error:
                server.call(name)
            assert (error.value.may_have_run, error.value.tool, error.value.code) == (
                True,
                name,
                "mcp_protocol",
            )
        connection = server.client.link._connection
        assert (connection._notes, connection._may_be_sent, server.client.link.starts) == (
            {},
            {},
            1,
        )


def test_a_line_without_end_is_cut_and_told() -> None:
    with child() as server, pytest.raises(MCPProtocolError, match="cannot be read"):
        server.call("endless")


@pytest.mark.parametrize(
    "value",
    ["\ud800", float("nan"), b"\xff", object()],
    ids=["half", "nan", "bytes", "object"],
)
def test_arguments_that_json_cannot_say_are_refused_before_they_are_sent(value: object) -> None:
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    with child() as server:
        for each in (value, deep):
            with pytest.raises(MCPError, match="cannot be written as JSON") as error:
                server.call("echo", {"x": each})
            assert error.value.may_have_run is False
        assert server.call("echo", {"x": (1, 2)})["arguments"] == {"x": [1, 2]}


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("SECRET"), None, {"action": "accept", "content": {"a": "\ud800"}}],
    ids=["raises", "none", "half"],
)
def test_a_hook_that_breaks_tells_the_server_nothing(answer: object, caplog) -> None:
    async def hook(_: dict) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with child(elicit=hook) as server:
        assert server.call("ask")["heard"] == {"action": "cancel"}
    assert "`elicit`" in caplog.text
