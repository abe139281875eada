"""Limits on the requests of one model, at once and per minute.

Callers wait in order, in threads and on event loops alike.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ferrule.concurrency.forking import ForkGuard
from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

_MINUTE_S = 60.0


class Slots:
    """A semaphore for threads and tasks: a free slot goes to the caller that waited longest."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.Lock()
        self._fork = ForkGuard()
        self._reset()

    def _reset(self) -> None:
        self._free = self.number
        self._waiting: deque[Future[None]] = deque()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Slots, (self.number,))

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold a slot in this thread."""
        slot = self._request()
        try:
            slot.result()
            yield
        finally:
            self._release(slot)

    @asynccontextmanager
    async def aheld(self) -> AsyncGenerator[None]:
        """Hold a slot in this task."""
        from asyncio import wrap_future

        slot = self._request()
        try:
            if not slot.done():
                await wrap_future(slot)
            yield
        finally:
            self._release(slot)

    def _request(self) -> Future[None]:
        """A future that is done when the caller has a slot."""
        slot: Future[None] = Future()
        with self._lock:
            if self._fork.has_forked():  # slots and waiting callers belong to the parent
                self._reset()
            if self._free:
                self._free -= 1
                slot.set_result(None)
            else:
                self._waiting.append(slot)
        return slot

    def _release(self, slot: Future[None]) -> None:
        """Give the slot to the next caller.

        A caller that was cancelled before it had a slot only leaves the queue.
        """
        with self._lock:
            if slot.cancel() or slot.cancelled():
                return
            while self._waiting:
                following = self._waiting.popleft()
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._free += 1


class Pace:
    """The limits of one model and its copies."""

    def __init__(
        self, max_concurrency: int | None = None, requests_per_minute: float | None = None
    ) -> None:
        _check_limit("max_concurrency", max_concurrency, int)
        _check_limit("requests_per_minute", requests_per_minute, (int, float))
        self._max_concurrency = max_concurrency
        self._slots: Slots | None = None
        if max_concurrency is not None:
            self._slots = Slots(max_concurrency)
        self._gate = Slots(1)
        """Held by the caller whose request goes out next."""
        self._per_minute: int | None = None
        if requests_per_minute is not None:
            self._per_minute = int(requests_per_minute)
        self._sent: deque[float] = deque(maxlen=self._per_minute or 1)
        """When the latest requests went out."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Pace, (self._max_concurrency, self._per_minute))

    def slot(self) -> AbstractContextManager[None]:
        """A block that holds one of the `max_concurrency` slots in this thread."""
        if self._slots is None:
            return nullcontext()
        return self._slots.held()

    def aslot(self) -> AbstractAsyncContextManager[None]:
        """A block that holds one of the slots in this task."""
        if self._slots is None:
            return nullcontext()
        return self._slots.aheld()

    def wait(self) -> None:
        """Wait until this minute allows another request."""
        if self._per_minute is not None:
            with self._gate.held():
                time.sleep(self._left_s())
                self._sent.append(time.monotonic())

    async def await_(self) -> None:
        """`wait` without blocking the loop."""
        if self._per_minute is not None:
            from asyncio import sleep

            async with self._gate.aheld():
                await sleep(self._left_s())
                self._sent.append(time.monotonic())

    def _left_s(self) -> float:
        """How long until a request may go out."""
        if len(self._sent) < (self._per_minute or 0):
            return 0.0
        return max(0.0, self._sent[0] + _MINUTE_S - time.monotonic())


def _check_limit(name: str, limit: object, kinds: type | tuple[type, ...]) -> None:
    if limit is None:
        return
    is_number = isinstance(limit, kinds) and not isinstance(limit, bool)
    if not is_number or not 1 <= limit < float("inf"):  # pyright: ignore[reportOperatorIssue]
        raise ConfigurationError(
            f"`{name}` is a whole number of at least 1, or None for no limit; found {shown(limit)}."
        )
