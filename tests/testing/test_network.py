from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading

import pytest

import ferrule.testing
from ferrule.errors import ContextOverflowError, RateLimitError, UnavailableError
from ferrule.models.hosted import LM
from ferrule.models.model import BaseLM
from ferrule.testing import AutoLM, NetworkBlockedError, ScriptedLM, block_network, serve
from ferrule.values.conversation.exchange import (
    Capabilities,
    Declarations,
    Delta,
    Request,
    Response,
    Usage,
)
from ferrule.values.conversation.message import Message, Messages

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
ASKED = Request(Messages([Message("user", "add 3 and 4")]), Declarations([ADD]))
EVERYTHING = Response(
    "thinking aloud",
    ScriptedLM([[{"name": "add", "args": {"a": 1, "b": "ü"}}, {"name": "add"}]])
    .complete(ASKED)
    .tool_calls,
    "hm hm",
    "tool_calls",
    None,
    Usage(3, 4, 2, 1),
)


async def collected(stream) -> list:
    return [item async for item in stream]


WAYS = {
    "complete": lambda lm: lm.complete(ASKED),
    "acomplete": lambda lm: asyncio.run(lm.acomplete(ASKED)),
    "stream": lambda lm: list(lm.stream(ASKED))[-1],
    "astream": lambda lm: asyncio.run(collected(lm.astream(ASKED)))[-1],
}
ways = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS.keys())


def posted(
    served,
    body: bytes | None,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    **headers: str,
) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(served.base_url.split("/")[2], timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@ways
def test_a_served_model_answers_as_it_does_itself(ask):
    """Over a real wire."""
    with serve(ScriptedLM(by=lambda request: EVERYTHING)) as served:
        found = ask(served.lm())
        assert found == Response(
            **{
                name: getattr(EVERYTHING, name)
                for name in ("text", "tool_calls", "reasoning", "finish_reason", "usage")
            },
            model="served",
            extra=found.extra,  # who wrote it
        )
        [body] = served.requests
    assert body["tools"] == [ADD]
    assert body["messages"] == [{"role": "user", "content": "add 3 and 4"}]


def test_a_stream_comes_in_pieces():
    with serve(ScriptedLM(["one two three"])) as served:
        *deltas, last = served.lm().stream(ASKED)
    assert deltas == [Delta("one "), Delta("two "), Delta("three")]
    assert last.text == "one two three"


def test_a_stream_comes_while_it_is_made():
    goes_on = threading.Event()

    class Slow(BaseLM):
        def stream(self, request):
            yield Delta("first")
            assert goes_on.wait(60)
            yield Response("first")

    with serve(Slow()) as served:
        stream = served.lm().stream(ASKED)
        assert next(stream) == Delta("first")
        goes_on.set()
        assert next(stream).text == "first"
        stream.close()


def test_a_client_that_leaves_ends_the_stream():
    closed = threading.Event()

    class Endless(BaseLM):
        def stream(self, request):
            try:
                while True:
                    yield Delta("x" * 10_000)
            finally:
                closed.set()

    with serve(Endless()) as served:
        stream = served.lm().stream(ASKED)
        next(stream)
        stream.close()
        assert closed.wait(60)


def test_connections_are_kept():
    with serve(ScriptedLM(by=lambda request: "x")) as served:
        lm = served.lm()
        for _ in range(3):
            lm.complete(ASKED)
            list(lm.stream(ASKED))
        assert (served.connections, len(served.requests)) == (1, 6)


def test_many_clients_at_once():
    with serve(ScriptedLM(by=lambda request: request.messages[-1].text)) as served:
        lm = served.lm()

        async def main():
            return await asyncio.gather(*(lm.acall(str(i)) for i in range(60)))

        assert asyncio.run(main()) == [str(i) for i in range(60)]


def test_it_lists_its_model():
    with serve(AutoLM()) as served:
        assert posted(served, None, "/v1/models", "GET") == (
            200,
            {
                "object": "list",
                "data": [{"id": "auto", "object": "model", "created": 0, "owned_by": "ferrule"}],
            },
        )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"{}",
        b'{"messages": []}',
        b'{"messages": [{"role": "x"}]}',
        b'{"messages": [{"role": "user"}], "tools": 3}',
        b"[" * 50_000,
    ],
    ids=range(10),
)
def test_junk_is_answered_with_400(body):
    with serve(ScriptedLM([])) as served:
        status, answer = posted(served, body)
        assert status == 400
        assert answer["error"]["type"] == "invalid_request_error"
        assert served.requests == []


def test_other_places_are_404():
    with serve(ScriptedLM([])) as served:
        assert posted(served, b"{}", "/v1/embeddings")[0] == 404
        assert posted(served, None, "/", "GET")[0] == 404


def test_a_body_of_unknown_length_is_411():
    with serve(ScriptedLM([])) as served:
        connection = http.client.HTTPConnection(served.base_url.split("/")[2], timeout=20)
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        assert connection.getresponse().status == 411
        connection.close()


@ways
@pytest.mark.parametrize(
    "error",
    [RateLimitError("slow"), ContextOverflowError("long"), UnavailableError("gone")],
    ids=["rate", "overflow", "gone"],
)
def test_errors_of_the_model_reach_the_client(ask, error):
    with serve(ScriptedLM([error] * 2)) as served, pytest.raises(type(error), match=str(error)):
        ask(served.lm(max_retries=0))


@ways
def test_a_model_that_breaks_is_500_and_the_server_lives_on(ask):
    with serve(ScriptedLM([KeyError("secret"), "fine"])) as served:
        with pytest.raises(UnavailableError, match="the model failed") as caught:
            ask(served.lm(max_retries=0))
        assert "secret" not in str(caught.value)
        assert ask(served.lm()).text == "fine"


@pytest.mark.parametrize("error", [RateLimitError("slow"), KeyError("x")], ids=["ours", "theirs"])
def test_an_error_in_the_middle_of_a_stream_is_told_in_the_stream(error):
    class Breaking(BaseLM):
        def stream(self, request):
            yield Delta("half")
            raise error

    with serve(Breaking()) as served:
        stream = served.lm().stream(ASKED)
        assert next(stream) == Delta("half")
        with pytest.raises(UnavailableError):
            next(stream)


def test_serving_ends_while_a_client_keeps_its_connection():
    with serve(ScriptedLM(["x"])) as served:
        lm = served.lm(max_retries=0)
        lm.complete(ASKED)
    with pytest.raises(UnavailableError):
        lm.complete(ASKED)


def test_a_port_may_be_chosen():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serve(ScriptedLM(["x"]), port=port) as served:
        assert served.base_url == f"http://127.0.0.1:{port}/v1"


def test_settings_of_the_client_are_its_own():
    with serve(ScriptedLM(["x"])) as served:
        lm = served.lm(model="other", temperature=0, capabilities=Capabilities(native_tools=False))
        lm("hi")
        assert served.requests[0]["model"] == "other"
        assert not lm.capabilities.native_tools


def test_any_object_with_complete_is_served():
    class Duck:
        def complete(self, request):
            return "quack"

    with serve(Duck()) as served:
        assert served.lm()("hi") == "quack"


# -- block_network

OUTSIDE = {
    "address": lambda: socket.create_connection(("192.0.2.1", 80), timeout=5),
    "address6": lambda: socket.create_connection(("2001:db8::1", 80), timeout=5),
    "name": lambda: socket.create_connection(("example.com", 80), timeout=5),
    "lookup": lambda: socket.getaddrinfo("example.com", 80),
    "lookup_bytes": lambda: socket.getaddrinfo(b"example.com", 80),
    "connect_ex": lambda: unconnected(lambda each: each.connect_ex(("192.0.2.1", 80))),
    "datagram": lambda: unconnected(
        lambda each: each.sendto(b"x", ("192.0.2.1", 53)),
        socket.SOCK_DGRAM,
    ),
    "datagram_flags": lambda: unconnected(
        lambda each: each.sendto(b"x", 0, ("192.0.2.1", 53)),
        socket.SOCK_DGRAM,
    ),
    "lm": lambda: LM("http://192.0.2.1/v1", model="m")("hi"),
    "lm_by_name": lambda: LM("openai/gpt-5-mini", api_key="x")("hi"),
    "async_lm_by_name": lambda: asyncio.run(LM("openai/gpt-5-mini", api_key="x").acall("hi")),
}


def unconnected(act, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as each:
        act(each)


@pytest.mark.parametrize("reach", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_nothing_leaves_this_machine(reach):
    with (
        block_network(),
        pytest.raises(
            NetworkBlockedError,
            match=r"192\.0\.2\.1|2001:db8::1|example\.com|api\.openai\.com",
        ),
    ):
        reach()


def test_nothing_leaves_through_an_event_loop_either():
    with block_network(), pytest.raises(NetworkBlockedError):
        asyncio.run(LM("http://192.0.2.1/v1", model="m").acall("hi"))


def test_loopback_and_unix_sockets_stay_open(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with block_network(), serve(ScriptedLM(by=lambda request: "x")) as served:
        assert served.lm()("hi") == "x"
        assert asyncio.run(served.lm().acall("hi")) == "x"
        assert LM(served.base_url.replace("127.0.0.1", "localhost"), model="m")("hi") == "x"
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.bind("s")
            listener.listen()
            client.connect("s")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"x", ("127.0.0.1", 9))


def test_the_door_opens_again_also_when_nested():
    before = (
        {name: socket.socket.__dict__.get(name) for name in ("connect", "connect_ex", "sendto")},
        socket.getaddrinfo,
    )
    with block_network():
        with pytest.raises(KeyError), block_network():
            raise KeyError
        with pytest.raises(NetworkBlockedError):
            socket.getaddrinfo("example.com", 80)
    assert (
        {name: socket.socket.__dict__.get(name) for name in ("connect", "connect_ex", "sendto")},
        socket.getaddrinfo,
    ) == before


# -- the module


@pytest.mark.parametrize("name", ferrule.testing.__all__)
def test_every_promised_name_is_there(name):
    assert getattr(ferrule.testing, name).__name__ == name


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="NoLM"):
        _ = ferrule.testing.NoLM


@pytest.mark.integration
def test_it_runs_as_a_process():
    process = subprocess.Popen(
        [sys.executable, "-m", "ferrule.testing"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lm = LM(process.stdout.readline().strip(), model="m")
        assert [call.name for call in lm.complete(ASKED).tool_calls] == ["add"]
        with pytest.raises(Exception, match="messages"):
            lm.complete(Request(Messages()))
        lm.close()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
