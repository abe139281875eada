from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest
from raw_server import raw_server, reply

from ferrule import LM
from ferrule.errors import ConfigurationError, UnavailableError
from ferrule.net import sockets
from ferrule.values.conversation.exchange import Request
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "hi")]))


def closed_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def resolve_to(*ports: int) -> None:
    """Every name of the running loop has these addresses."""

    async def found(*_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

    asyncio.get_running_loop().getaddrinfo = found


def ask(lm: LM, *ports: int, silent: int | None = None) -> str:
    """Ask a server whose name has these addresses. One of them may say nothing."""

    async def main() -> str:
        loop = asyncio.get_running_loop()
        connect = loop.sock_connect

        async def connected(sock, address):
            if address[1] == silent:
                await loop.create_future()
            await connect(sock, address)

        resolve_to(*ports)
        loop.sock_connect = connected
        try:
            return (await lm.acomplete(ASKED)).text
        finally:
            await lm.aclose()

    return asyncio.run(main())


def test_the_next_address_is_tried_where_one_refuses_or_is_silent():
    """RFC 8305: a broken route over IPv6 costs a moment, not the whole time limit."""
    with raw_server(reply()) as server:
        port = int(server.base_url.rsplit(":", 1)[1].removesuffix("/v1"))
        lm = LM("http://model.example/v1", model="m", max_retries=0)
        assert ask(lm, closed_port(), port) == "hello"
        silent = closed_port()
        assert ask(lm, silent, port, silent=silent) == "hello"


def test_a_server_that_refuses_on_all_its_addresses_is_unavailable():
    with pytest.raises(UnavailableError, match="Connect call failed"):
        ask(LM("http://model.example/v1", model="m", max_retries=0), closed_port(), closed_port())


def test_what_opens_after_its_asker_went_is_closed(monkeypatch):
    opened: list[socket.socket] = []

    async def main() -> None:
        may_open, has_opened = asyncio.Event(), asyncio.Event()

        async def late(family, address):
            opened.append(socket.socket(family))
            with suppress(asyncio.CancelledError):  # it was connected in the same moment
                await may_open.wait()
            has_opened.set()
            return opened[-1]

        monkeypatch.setattr(sockets, "_open", late)
        resolve_to(8, 9)
        asking = asyncio.create_task(
            LM("http://model.example/v1", model="m", max_retries=0).acomplete(ASKED),
        )
        while not opened:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await has_opened.wait()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [each.fileno() for each in opened] == [-1]


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_no_server_can_have_is_refused_before_a_socket_is_opened(
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`create_server` would leave its socket open."""
    monkeypatch.delattr(socket, "create_server")
    with pytest.raises(ConfigurationError, match="ports go from 0 to 65535"):
        sockets.listening_socket("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("[::1]", "[::1]")],
)
def test_an_address_of_version_6_stands_in_brackets(host: str, shown: str) -> None:
    """The link of a server is opened in a browser."""
    assert sockets.url_host(host) == shown


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", "8000"), (None, 8000), ("::1", True)])
def test_a_server_listens_on_a_text_and_a_number(host, port):
    with (
        pytest.raises(ConfigurationError, match="whole number"),
        sockets.listening_socket(host, port),
    ):
        pass
