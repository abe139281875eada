from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import threading
import zlib
from contextlib import nullcontext

import pytest
from raw_server import OK, Pieces, begin, end, raw_server, reply, say_nothing, whole

from ferrule import LM
from ferrule.errors import UnavailableError
from ferrule.net import loop_connection
from ferrule.net import transport as http
from ferrule.net.connections import Timeouts
from ferrule.net.transport import HTTPTransport
from ferrule.values.conversation.exchange import Request
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "hi")]))


def test_deflate_without_its_header_is_read():
    """As some servers send it."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    with raw_server(
        reply(packer.compress(OK) + packer.flush(), content_encoding="deflate"),
    ) as server:
        assert (
            asyncio.run(LM(server.base_url, model="m", max_retries=0).acomplete(ASKED)).text
            == "hello"
        )


@pytest.mark.parametrize("encoding", ["identity, deflate", "GZIP , identity", "identity"])
def test_an_answer_that_is_compressed_by_a_list_of_encodings_is_read(encoding):
    """As `httpx2` reads it for sync code."""
    body = gzip.compress(OK) if "gzip" in encoding.lower() else OK
    body = zlib.compress(body) if "deflate" in encoding else body
    with raw_server(reply(body, content_encoding=encoding)) as server:
        lm = LM(server.base_url, model="m", max_retries=0)
        assert asyncio.run(lm.acomplete(ASKED)).text == lm.complete(ASKED).text == "hello"


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_answer_without_a_length_whose_connection_breaks_is_cut_off(way):
    """It was a whole answer."""
    half_came = threading.Event()

    def act(connection):
        connection.send(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        assert half_came.wait(60)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise ConnectionError  # closes the connection, which that option makes a break

    def read(transport: HTTPTransport) -> None:
        with transport.stream(b"{}", {}, None, Pieces) as (_, pieces):
            half_came.set()
            for _ in pieces:
                pass

    async def read_async(transport: HTTPTransport) -> None:
        async with transport.astream(b"{}", {}, None, Pieces) as (_, pieces):
            half_came.set()
            async for _ in pieces:
                pass

    with raw_server(act) as server:
        transport = HTTPTransport(f"{server.base_url}/x", provider="p", max_retries=0)
        with pytest.raises(UnavailableError, match="the connection failed"):
            read(transport) if way == "sync" else asyncio.run(read_async(transport))


def test_a_long_body_is_written_in_parts_so_that_none_waits_for_all_of_it(monkeypatch):
    """The write timeout was for the whole body: images over a slow line came too late, in async
    code alone.
    """
    unwritten = []
    pause = loop_connection._Wire.pause_writing

    def noted(wire):
        unwritten.append(wire._transport.get_write_buffer_size())
        pause(wire)

    monkeypatch.setattr(loop_connection._Wire, "pause_writing", noted)
    body = bytes(range(256)) * (32 * 1024 * 1024 // 256)  # more than the buffers of two sockets
    with raw_server(reply()) as server:
        answer, _ = asyncio.run(
            HTTPTransport(f"{server.base_url}/x", provider="p").apost(body, {}, None, whole),
        )
        assert (answer, server.requests[0][1]) == (OK, body)
    assert unwritten
    assert max(unwritten) < len(body) / 32


def test_a_stream_that_nobody_reads_makes_its_server_wait_and_loses_nothing():
    size = 16 * 1024 * 1024  # more than the buffers of two sockets
    with raw_server(begin(b"a" * size, end)) as server:

        async def main() -> int:
            transport = HTTPTransport(f"{server.base_url}/x", provider="p")
            async with transport.astream(b"{}", {}, None, Pieces) as (beginning, pieces):
                read = len(beginning.first)
                async for piece in pieces:
                    read += len(piece)
                    assert len(piece) < size / 4
                    await asyncio.sleep(0)
            await transport.aclose()
            return read

        assert asyncio.run(main()) == size


def test_a_shorter_limit_holds_on_a_connection_that_had_a_longer_one():
    may_answer = threading.Event()

    def late_answer(connection):
        may_answer.wait(60)
        reply()(connection)

    async def main(transport: HTTPTransport) -> None:
        first = asyncio.ensure_future(transport.apost(b"{}", {}, None, whole))
        while not server.requests:
            await asyncio.sleep(0.01)
        may_answer.set()
        await first
        transport.timeouts = Timeouts(total_s=0.3)
        with pytest.raises(UnavailableError, match="no answer in time"):
            await transport.apost(b"{}", {}, None, whole)
        transport.timeouts = Timeouts()
        assert (await transport.apost(b"{}", {}, None, whole))[0] == OK
        await transport.aclose()

    with raw_server(late_answer, say_nothing, reply()) as server:
        asyncio.run(main(HTTPTransport(f"{server.base_url}/x", provider="p", max_retries=0)))


def test_a_stream_that_falls_silent_ends_with_the_total(monkeypatch):
    """All of its waits have the same deadline: the limit of a read does not begin again."""
    deadlines = set()
    ends_by = http._ends_by

    def noted(deadline):
        deadlines.add(deadline)
        return ends_by(deadline)

    async def main(transport: HTTPTransport) -> None:
        async with transport.astream(b"{}", {}, None, Pieces) as (_, pieces):
            deadlines.clear()  # that of the wait for a connection
            with pytest.raises(UnavailableError, match="no answer in time"):
                await anext(pieces)

    monkeypatch.setattr(http, "_ends_by", noted)
    with raw_server(begin(b"a", say_nothing)) as server:
        transport = HTTPTransport(
            f"{server.base_url}/x",
            provider="p",
            timeouts=Timeouts(total_s=0.6),
            max_retries=0,
        )
        asyncio.run(main(transport))
    assert len(deadlines) == 1


def test_a_server_that_sends_without_end_does_not_outlast_the_total(monkeypatch):
    """Nor if bytes are always there, so that no wait ever takes long enough to be ended."""
    monkeypatch.setattr(http, "_ends_by", lambda _: nullcontext())

    def flood(connection):
        for _ in range(2000):
            connection.send(b"1\r\n \r\n")
            if server.client_left.wait(0.002):
                return
        end(connection)

    with raw_server(begin(b" ", flood)) as server:
        transport = HTTPTransport(
            f"{server.base_url}/x",
            provider="p",
            timeouts=Timeouts(total_s=0.3),
            max_retries=0,
        )
        with pytest.raises(UnavailableError, match="no answer in time"):
            asyncio.run(transport.apost(b"{}", {}, None, whole))


def post(act) -> tuple[bytes, dict[str, str]]:
    """What a transport reads from a server that acts like this."""
    with raw_server(act) as server:
        transport = HTTPTransport(f"{server.base_url}/x", provider="p", max_retries=0)
        return asyncio.run(transport.apost(b"{}", {}, None, whole))


def send(answer: bytes):
    return lambda connection: connection.send(answer)


def test_headers_have_names_in_lower_case_and_are_joined_after_any_early_hints():
    answer = (
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 2\r\n\r\nok"
    )
    assert post(send(answer)) == (b"ok", {"x-a": "1, 2", "content-length": "2"})


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 200_000,
    ],
)
def test_an_answer_that_is_not_http_is_a_broken_connection(answer):
    with pytest.raises(UnavailableError, match="the connection failed"):
        post(send(answer))


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"zz\r\n"], ids=["whole", "malformed"])
def test_parts_of_a_body_that_came_together_are_read_together(end):
    """Also those that came before the answer went wrong."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    pieces: list[bytes] = []

    class Kept(Pieces):
        def take(self, piece: bytes) -> bool:
            pieces.append(piece)
            return True

    async def read(transport: HTTPTransport) -> None:
        async with transport.astream(b"{}", {}, None, Kept) as (_, rest):
            pieces.extend([piece async for piece in rest])

    answer = head + b"1\r\na\r\n" + b"2\r\nbc\r\n" * 99 + end
    with raw_server(send(answer)) as server:
        transport = HTTPTransport(f"{server.base_url}/x", provider="p", max_retries=0)
        if end.startswith(b"zz"):
            with pytest.raises(UnavailableError, match="illegal chunk header"):
                asyncio.run(read(transport))
        else:
            asyncio.run(read(transport))
    assert b"".join(pieces) == b"a" + b"bc" * 99
    assert len(pieces) < 99


def test_a_body_without_a_length_lasts_until_the_connection_closes():
    def act(connection):
        connection.send(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        connection.close()

    assert post(act)[0] == b"half of"


@pytest.mark.parametrize(
    "limits",
    [Timeouts(connect_s=None, total_s=0.3), Timeouts(connect_s=60, total_s=0.3)],
)
def test_a_connection_that_is_not_made_in_time_ends_with_the_total(limits, monkeypatch):
    async def open_never(host, port):
        await asyncio.sleep(60)

    monkeypatch.setattr(loop_connection, "open_socket", open_never)
    transport = HTTPTransport("http://127.0.0.1:1/x", provider="p", timeouts=limits, max_retries=0)
    with pytest.raises(UnavailableError, match="no answer in time"):
        asyncio.run(transport.apost(b"{}", {}, None, whole))
