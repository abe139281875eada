"""Who may reach the server of a model: the same requests as an MCP server of ferrule, with the same
statuses.
"""

from __future__ import annotations

import io
import logging
import socket
from http.client import HTTPConnection

import pytest

from ferrule import Predict, Request
from ferrule.errors import BadRequestError, UnavailableError
from ferrule.testing import ScriptedLM, serve
from ferrule.testing import __main__ as process
from ferrule.testing.server.server import _Connection

BODY = '{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"Host": "localhost"}, 200, id="localhost"),
        pytest.param({"Host": "127.0.0.1:8000"}, 200, id="an address with a port"),
        pytest.param({"Host": "[::1]:8000"}, 200, id="version 6"),
        pytest.param({"Host": "evil.example.com"}, 421, id="another name"),
        pytest.param(
            {"Host": "localhost.evil.example.com"},
            421,
            id="a name that begins like ours",
        ),
        pytest.param(
            {"Host": "localhost", "Origin": "http://localhost:3000"},
            200,
            id="a page from here",
        ),
        pytest.param(
            {"Host": "localhost", "Origin": "https://evil.example.com"},
            403,
            id="a page from elsewhere",
        ),
        pytest.param({"Host": "localhost", "Origin": "null"}, 403, id="a page without an origin"),
        pytest.param({"Host": "localhost:80.evil.example.com"}, 421, id="a port that is a name"),
        pytest.param({"Host": "localhost:80@evil.example.com"}, 421, id="a name behind a password"),
        pytest.param(
            {"Host": "localhost", "Origin": "http://localhost:80.evil.example.com"},
            403,
            id="a page behind a port",
        ),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_only_names_and_pages_of_this_machine_may_reach_it(
    method: str,
    headers: dict[str, str],
    expected: int,
) -> None:
    with serve(ScriptedLM(by=lambda request: "hello")) as served:
        connection = HTTPConnection(served.base_url.split("/")[2], timeout=60)
        path = "/v1/models" if method == "GET" else "/v1/chat/completions"
        connection.request(method, path, BODY if method == "POST" else None, headers)
        response = connection.getresponse()
        response.read()
        assert response.status == expected
        assert len(served.requests) == (method == "POST" and expected == 200)
        assert response.will_close == (expected != 200)
        connection.close()


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        pytest.param(
            f"Content-Length: {len(BODY)}\r\nTransfer-Encoding: chunked",
            BODY,
            b"411",
            id="two kinds of length",
        ),
        pytest.param(
            f"Content-Length: {len(BODY)}\r\nContent-Length: 5",
            BODY,
            b"411",
            id="two lengths",
        ),
        pytest.param(f"Content-Length: {'9' * 30}", BODY, b"413", id="more than fits into memory"),
        pytest.param(f"Content-Length: {'9' * 5_000}", BODY, b"413", id="more than Python counts"),
        pytest.param(f"Content-Length: {len(BODY) + 1}", BODY, b"400", id="more than came"),
    ],
)
def test_a_body_without_one_certain_length_is_refused_and_ends_the_connection(
    head: str,
    body: str,
    expected: bytes,
) -> None:
    with serve(ScriptedLM(by=lambda request: "hello")) as served:
        answers = _sent(
            served.base_url,
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n{body}",
        )
        assert [each[:3] for each in answers] == [expected]
        assert served.requests == []


def test_a_body_of_a_get_is_not_read_as_the_next_request() -> None:
    hidden = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve(ScriptedLM(by=lambda request: "hello")) as served:
        sent = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}"
        assert [each[:3] for each in _sent(served.base_url, sent)] == [b"200"]


def _sent(base_url: str, text: str) -> list[bytes]:
    """What the server answers to this text, after which nothing comes: each answer without its
    version.
    """
    host, _, port = base_url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        read = b"".join(iter(lambda: connection.recv(65_536), b""))
    return read.split(b"HTTP/1.1 ")[1:]


def test_a_script_that_the_server_cannot_play_is_said_at_once() -> None:
    """Its answer was 500: the client tried again, and the last error said that the script had no
    more answers.
    """
    outputs = {"outputs": {"answer": "42"}}
    with serve(ScriptedLM([outputs, outputs])) as served:
        with pytest.raises(
            BadRequestError,
            match=r"cannot write `outputs`.*Write the answer's text instead",
        ):
            Predict("question -> answer")(question="?", lm=served.lm())
        assert len(served.requests) == 1


def test_what_the_model_raised_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client reads only "the model failed ... look at its log", and there was no log: a mistake
    in a script left no trace.
    """

    def wrong(request: Request) -> str:
        raise KeyError(request.messages[-1].text)

    with (
        serve(ScriptedLM(by=wrong)) as served,
        pytest.raises(UnavailableError, match="the model failed"),
    ):
        served.lm(max_retries=0)("Where is the tent?")
    [record] = [each for each in caplog.records if each.name == "ferrule.testing"]
    assert "KeyError: 'Where is the tent?'" in logging.Formatter().format(record)


class _Gone(io.RawIOBase):
    """A connection whose client has left."""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        raise BrokenPipeError


def test_a_client_that_leaves_before_its_answer_leaves_no_socket_behind() -> None:
    """The buffer cannot be flushed then, and the file that reads requests holds the connection,
    too.
    """
    connection = _Connection.__new__(_Connection)
    connection.rfile, connection.wfile = io.BytesIO(), io.BufferedWriter(_Gone())
    connection.wfile.write(b"too late")
    connection.finish()
    assert connection.rfile.closed


def test_the_name_of_this_machine_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name server that knows it, that takes seconds, on macOS and Windows above all."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("looked up"))
    with serve(ScriptedLM(["It is 42."])) as server:
        assert server.lm()("What is 6 x 7?") == "It is 42."


def test_the_process_that_serves_ends_with_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It sleeps: on Windows, Ctrl-C does not end the wait for an event."""

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process.time, "sleep", sleep)
    process.main([])
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")
