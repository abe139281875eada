"""One exchange of sync code, and the bounds on reading an answer: a deadline, and its size.

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
_LARGEST = 256 * 1024 * 1024
"""The most bytes of an answer, decompressed. Images and audio take a few megabytes each."""
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


def check_bounds(deadline: float, size: int, most_bytes: int | None = None) -> None:
    """Raise `TimeoutError` after the deadline, `httpx2.RequestError` for too large an answer."""
    if time.monotonic() > deadline:
        raise TimeoutError
    if most_bytes is None:
        most_bytes = _LARGEST
    if size > most_bytes:
        from httpx2 import RequestError

        raise RequestError(f"the answer has more than {most_bytes >> 20} MiB")


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
