"""What bounds the reading of an answer: a deadline, and its size.

`httpx2` bounds the wait for each read, not the number of reads. So in sync code each new connection learns from the request that opened it
to wait no longer than until the deadline of the thread that reads. Async code has the deadlines of `loop_connection.py`.
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
"""The most bytes of an answer, decompressed. Pictures and sounds that a model makes take a few megabytes each."""
_NEW_STREAM = (".connect_tcp.complete", ".start_tls.complete")
"""The events of httpcore2 that bring a new stream."""
_NOT_STALE = (".connect_tcp.started", ".receive_response_headers.complete")


def check_bounds(deadline: float, size: int) -> None:
    """Raise `TimeoutError` after the deadline, and `httpx2.RequestError` for an answer of too many bytes."""
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
    """The `trace` of one request of sync code: whether it may be sent again, and until when it reads."""

    __slots__ = ("is_stale",)

    def __init__(self) -> None:
        self.is_stale = True
        """Whether a request that failed used an open connection and got no answer: the server had closed that connection."""

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Note what httpcore2 reports of the connection."""
        if event.endswith(_NEW_STREAM):
            stream = info["return_value"]
            stream.read = partial(_read, stream.read)
        elif event.endswith(_NOT_STALE):
            self.is_stale = False


class _Reading(threading.local):
    """The deadline of this thread: `httpx2` does a sync exchange in the thread that asks."""

    deadline = NEVER


_reading = _Reading()


@contextmanager
def reading_until(deadline: float) -> Generator[None]:
    """Bound all reads of this thread in the block by the deadline."""
    before, _reading.deadline = _reading.deadline, deadline
    try:
        yield
    finally:
        _reading.deadline = before


def _read(read: Callable[..., bytes], max_bytes: int, timeout: float | None = None) -> bytes:
    deadline = _reading.deadline
    if deadline == NEVER:
        return read(max_bytes, timeout=timeout)
    if time.monotonic() > deadline:
        raise TimeoutError
    left_s = max(deadline - time.monotonic(), 0.001)  # a timeout of 0 means no wait at all, which is another error
    return read(max_bytes, timeout=left_s if timeout is None else min(timeout, left_s))
