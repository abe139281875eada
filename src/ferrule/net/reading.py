"""Bounds on reading an answer: a deadline, and its size.

`httpx2` limits the wait for each read, not the number of reads. So in sync code, the request that
opens a connection wraps its `read`, so that it waits no longer than until the deadline of the
reading thread. Async code has the deadlines of `loop_connection.py`.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule.concurrency.deadline import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Mapping

_LARGEST = 256 * 1024 * 1024
"""The most bytes of an answer, decompressed. Images and audio from a model take a few megabytes each."""
_NEW_STREAM = (".connect_tcp.complete", ".start_tls.complete")
"""The events of httpcore2 that carry a new network stream."""
_NOT_STALE = (".connect_tcp.started", ".receive_response_headers.complete")


def check_bounds(deadline: float, size: int) -> None:
    """Raise `TimeoutError` after the deadline, and `httpx2.RequestError` for an answer that is too large."""
    if time.monotonic() > deadline:
        raise TimeoutError
    if size > _LARGEST:
        from httpx2 import RequestError

        raise RequestError(f"the answer has more than {_LARGEST >> 20} MiB")


async def read_whole(pieces: AsyncIterator[bytes], deadline: float) -> bytes:
    """All pieces of an answer, within the bounds."""
    found: list[bytes] = []
    size = 0
    async for piece in pieces:
        size += len(piece)
        check_bounds(deadline, size)
        found.append(piece)
    return b"".join(found)


class Trace:
    """The `trace` extension of one sync request: finds out whether it may be sent again, and gives new connections the deadline.

    Raises `httpx2.RemoteProtocolError` for an answer that came before the request.
    """

    __slots__ = ("_reads", "is_stale")

    def __init__(self) -> None:
        self._reads = 0
        self.is_stale = True
        """If the request fails: whether it used an open connection that the server had closed, so that it got no answer."""

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Take an event of the connection from httpcore2."""
        if event.endswith(_NEW_STREAM):
            stream = info["return_value"]
            stream.read = partial(_read, stream.read)
        elif event.endswith(".send_request_headers.started"):
            self._reads = _reading.reads
        elif event.endswith(".receive_response_headers.complete") and _reading.reads == self._reads:
            from httpx2 import RemoteProtocolError

            raise RemoteProtocolError(
                "the answer came before its request",
            )  # behind the one before, and may belong to another request
        elif event.endswith(_NOT_STALE):
            self.is_stale = False


class _Reading(threading.local):
    """The deadline of this thread: `httpx2` does a sync exchange in the calling thread."""

    deadline = NEVER
    reads = 0
    """How often this thread has read from connections."""


_reading = _Reading()


@contextmanager
def reading_until(deadline: float) -> Generator[None]:
    """A block in which all reads of this thread end by the deadline."""
    before, _reading.deadline = _reading.deadline, deadline
    try:
        yield
    finally:
        _reading.deadline = before


def _read(read: Callable[..., bytes], max_bytes: int, timeout: float | None = None) -> bytes:
    deadline = _reading.deadline
    _reading.reads += 1
    if deadline == NEVER:
        return read(max_bytes, timeout=timeout)
    if time.monotonic() > deadline:
        raise TimeoutError
    left_s = max(
        deadline - time.monotonic(),
        0.001,
    )  # a timeout of 0 would mean non-blocking, which fails differently
    return read(max_bytes, timeout=left_s if timeout is None else min(timeout, left_s))
