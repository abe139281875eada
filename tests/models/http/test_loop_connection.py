from __future__ import annotations

import asyncio
import zlib

from raw_server import OK, begin, end, raw_server, reply

from ferrule import LM
from ferrule.models.http.transport import HTTPTransport
from ferrule.values.conversation.exchange import Request
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "hi")]))


def test_deflate_without_its_header_is_read():
    """As some servers send it."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    with raw_server(reply(packer.compress(OK) + packer.flush(), content_encoding="deflate")) as server:
        assert asyncio.run(LM(server.base_url, model="m", max_retries=0).acomplete(ASKED)).text == "hello"


def test_a_stream_that_nobody_reads_makes_its_server_wait_and_loses_nothing():
    size = 16 * 1024 * 1024  # more than the buffers of two sockets
    with raw_server(begin(b"a" * size, end)) as server:

        async def main() -> int:
            transport = HTTPTransport(f"{server.base_url}/x", provider="p")
            read = 0
            async with transport.astream(b"{}", {}, None) as (_, pieces):
                async for piece in pieces:
                    read += len(piece)
                    assert len(piece) < size / 4
                    await asyncio.sleep(0)
            await transport.aclose()
            return read

        assert asyncio.run(main()) == size
