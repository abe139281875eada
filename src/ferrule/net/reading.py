"""One exchange of sync code, and the bounds on reading an answer: a deadline, and its size.

These bounds hold for every answer: of a model, a list of models, a log-in, an MCP server. A server
may be hostile, and a few bytes may expand to gigabytes. So sizes are those after decompression,
pieces are decompressed one at a time (here and in `httpx2`), and a body that was compressed twice
is refused: what lies between the two layers has no bound.

`httpx2` limits the wait for each read, not the number of reads: a server that sends a byte a second
would hold a request forever. Async code puts `asyncio.timeout` around its reads. Sync code cannot
be interrupted from outside, so each read itself must know the deadline: the request that opens a
connection wraps its `read` (the `trace` extension of `httpx2` hands over each new stream), so that
it waits no longer than the deadline of the reading thread. This holds for connections through
proxies too.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule.concurrency.deadline import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    import httpx2

END_S = 1.0
"""How long to read a stream after its last event, so that the connection can be reused.

Some gateways never end the stream.
"""
_MIB = 1 << 20
_LARGEST = 256 * _MIB
"""The most bytes of an answer, decompressed. Images and audio take a few megabytes each."""
_OF_ENCODED_BODY = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_NEW_STREAM = (".connect_tcp.complete", ".start_tls.complete")
"""The events of httpcore2 that carry a new network stream."""
_NOT_STALE = (".connect_tcp.started", ".receive_response_headers.complete")
"""The events of httpcore2 after which a failure is not that of an old connection."""


def send(
    client: httpx2.Client,
    url: httpx2.URL,
    headers: Mapping[str, str],
    body: bytes | None,
    deadline: float,
) -> httpx2.Response:
    """Send a request; return the response, of which the body is still unread.

    It is a POST, or a GET if there is no body. Servers may close idle connections at any time: if
    the request met such a connection, it is sent once more over a new one.
    """
    from httpx2 import NetworkError, RemoteProtocolError, Request

    def request(trace: Trace) -> Request:
        return Request(method, url, headers=headers, content=body, extensions={"trace": trace})

    method = "POST"
    if body is None:
        method = "GET"
    trace = Trace()
    with reading_until(deadline):
        try:
            return client.send(request(trace), stream=True)
        except (NetworkError, RemoteProtocolError):
            if not trace.is_stale:
                raise
        return client.send(request(Trace()), stream=True)


def body_pieces(
    response: httpx2.Response,
    deadline: float,
    is_done: Callable[[], bool] = bool,
    *,
    most_bytes: int | None = None,
) -> Iterator[bytes]:
    """The body piece by piece: until the deadline, and a moment longer once it is done."""
    check_encoding(response.headers)
    pieces = response.iter_bytes()
    until, size, was_done = deadline, 0, False
    while True:
        # Not around the `yield`: the thread may send another request meanwhile.
        with reading_until(until):
            piece = next(pieces, None)
        if piece is None:
            return
        size += len(piece)
        check_bounds(until, size, most_bytes)
        yield piece
        if not was_done and is_done():
            was_done = True
            until = min(deadline, time.monotonic() + END_S)


async def aread_whole(
    response: httpx2.Response, timeout_s: float | None, most_bytes: int
) -> httpx2.Response:
    """A copy of a response of an `httpx2` client, with the whole body. Closes the response.

    Raises `TimeoutError` after `timeout_s` seconds, and `httpx2.RequestError` for a body of more
    than `most_bytes` bytes.
    """
    from asyncio import timeout

    import httpx2

    try:
        check_encoding(response.headers)
        pieces: list[bytes] = []
        size = 0
        async with timeout(timeout_s):
            async for piece in response.aiter_bytes():
                size += len(piece)
                check_bounds(NEVER, size, most_bytes)
                pieces.append(piece)
    finally:
        await response.aclose()
    whole = httpx2.Response(
        response.status_code,
        headers=decoded_headers(response),
        content=b"".join(pieces),
        request=response.request,
    )
    whole.next_request = response.next_request
    return whole


def decoded_headers(response: httpx2.Response) -> list[tuple[str, str]]:
    """The headers of a response that hold for its body after decompression."""
    return [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in _OF_ENCODED_BODY
    ]


def check_encoding(headers: Mapping[str, str]) -> None:
    """Raise `httpx2.DecodingError` for a body that was compressed more than once."""
    names = [name.strip() for name in headers.get("content-encoding", "").lower().split(",")]
    compressions = [name for name in names if name not in {"", "identity"}]
    if len(compressions) > 1:
        from httpx2 import DecodingError

        raise DecodingError(f"the answer was compressed more than once: {', '.join(compressions)}")


def check_bounds(deadline: float, size: int, most_bytes: int | None = None) -> None:
    """Raise `TimeoutError` after the deadline, `httpx2.RequestError` for too large an answer."""
    if time.monotonic() > deadline:
        raise TimeoutError
    if most_bytes is None:
        most_bytes = _LARGEST
    if size > most_bytes:
        from httpx2 import RequestError

        if most_bytes >= _MIB:
            limit = f"{most_bytes // _MIB} MiB"
        else:
            limit = f"{most_bytes} bytes"
        raise RequestError(f"the answer has more than {limit}")


class Staleness:
    """Finds out, from the events of a request, whether it may be sent again if it fails."""

    def __init__(self) -> None:
        self.is_stale = True
        """Whether the request used a connection that was already open, and has no answer yet.

        The server had closed that connection then, and cannot have seen the request.
        """

    def note(self, event: str) -> None:
        """Take the name of an event of the connection, from httpcore2."""
        if event.endswith(_NOT_STALE):
            self.is_stale = False


class Trace(Staleness):
    """The `trace` extension of one sync request, which also gives new connections the deadline.

    Raises `httpx2.RemoteProtocolError` for an answer that came before the request.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reads_before = 0

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Take an event of the connection from httpcore2."""
        if event.endswith(_NEW_STREAM):
            stream = info["return_value"]
            stream.read = partial(_read, stream.read)
        if event.endswith(".send_request_headers.started"):
            self._reads_before = _reading.count
        if event.endswith(".receive_response_headers.complete"):
            self._check_order()
        self.note(event)

    def _check_order(self) -> None:
        if _reading.count == self._reads_before:
            from httpx2 import RemoteProtocolError

            # It was behind the answer before, and may belong to another request.
            raise RemoteProtocolError("the answer came before its request")


class _Reading(threading.local):
    """The reads of this thread: `httpx2` does a sync exchange in the calling thread."""

    deadline = NEVER
    count = 0
    """How often this thread has read from connections."""


_reading = _Reading()


@contextmanager
def reading_until(deadline: float) -> Generator[None]:
    """A block in which all reads of this thread end by the deadline."""
    before = _reading.deadline
    _reading.deadline = deadline
    try:
        yield
    finally:
        _reading.deadline = before


def _read(read: Callable[..., bytes], max_bytes: int, timeout: float | None = None) -> bytes:
    _reading.count += 1
    if _reading.deadline == NEVER:
        return read(max_bytes, timeout=timeout)
    left_s = _reading.deadline - time.monotonic()
    if left_s < 0:
        raise TimeoutError
    left_s = max(left_s, 0.001)  # a timeout of 0 means a socket that never waits, another error
    if timeout is not None:
        left_s = min(timeout, left_s)
    return read(max_bytes, timeout=left_s)
