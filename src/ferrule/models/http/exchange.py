"""What one exchange tells while it goes on: whether it may be sent again, and until when sync code reads.

`httpx2` bounds the wait for each read, not the number of reads. So each new connection learns, through the `trace` of the request that
opened it, to wait no longer than until the deadline of the thread that reads. Async code has `asyncio.timeout`.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

NEVER = float("inf")
_NEW_STREAM = (".connect_tcp.complete", ".start_tls.complete")
"""The events of httpcore2 that bring a new stream."""
_NOT_STALE = (".connect_tcp.started", ".receive_response_headers.complete")


class Trace:
    """The `trace` of one request: bounds the reads of a connection that it opens, for later requests too."""

    __slots__ = ("is_stale",)

    def __init__(self) -> None:
        self.is_stale = True
        """Whether a request that failed used an open connection and got no answer: the server had closed that connection."""

    def of_thread(self, event: str, info: Mapping[str, Any]) -> None:
        """For sync code."""
        if event.endswith(_NEW_STREAM):
            stream = info["return_value"]
            stream.read = partial(_read, stream.read)
        elif event.endswith(_NOT_STALE):
            self.is_stale = False

    async def of_loop(self, event: str, info: Mapping[str, Any]) -> None:
        """For async code."""
        del info
        if event.endswith(_NOT_STALE):
            self.is_stale = False


class _Reading(threading.local):
    """The deadline of this thread: `httpx2` does a sync exchange in the thread that asks."""

    deadline = NEVER


_reading = _Reading()


def check_time(deadline: float) -> None:
    """Raise `TimeoutError` after the deadline."""
    if time.monotonic() > deadline:
        raise TimeoutError


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
    check_time(deadline)
    left_s = max(deadline - time.monotonic(), 0.001)  # a timeout of 0 means no wait at all, which is another error
    return read(max_bytes, timeout=left_s if timeout is None else min(timeout, left_s))
