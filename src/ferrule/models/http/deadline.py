"""The time by which a sync exchange must be over, however slowly its bytes come.

`httpx2` bounds the wait for each read, and there is no end to how many reads an answer, or its head alone, may come in. So every new
connection learns through the `trace` of the request that opened it to wait no longer than until the deadline of whoever is reading.
Async code needs none of this: `asyncio.timeout` bounds whole exchanges.
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
_MADE = (".connect_tcp.complete", ".start_tls.complete")
"""The events of httpcore2 that bring a new stream."""


class _Here(threading.local):
    """What holds in this thread: `httpx2` does a sync exchange in the thread that asks."""

    deadline = NEVER


_here = _Here()


def deadline_after(total_s: float | None) -> float:
    """The deadline of an attempt that begins now."""
    return NEVER if total_s is None else time.monotonic() + total_s


def check_time(deadline: float) -> None:
    """Raise `TimeoutError` once the deadline is over."""
    if time.monotonic() > deadline:
        raise TimeoutError


@contextmanager
def reading_until(deadline: float) -> Generator[None]:
    """Let what this thread reads in the block come before the deadline, or end in an error of time."""
    before, _here.deadline = _here.deadline, deadline
    try:
        yield
    finally:
        _here.deadline = before


def trace(event: str, info: Mapping[str, Any]) -> None:
    """For the extension `trace` of a sync request: bounds what is read from a connection that it opens, for later requests too."""
    if event.endswith(_MADE):
        stream = info["return_value"]
        stream.read = partial(_read, stream.read)


def _read(read: Callable[..., bytes], max_bytes: int, timeout: float | None = None) -> bytes:
    deadline = _here.deadline
    if deadline == NEVER:
        return read(max_bytes, timeout=timeout)
    check_time(deadline)
    left = max(deadline - time.monotonic(), 0.001)  # a timeout of 0 would be no wait at all, which is another error
    return read(max_bytes, timeout=left if timeout is None else min(timeout, left))
