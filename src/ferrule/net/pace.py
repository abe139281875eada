"""Limits on the requests of one model, at once and per minute. Callers wait in order, in threads and on event loops alike."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

_MINUTE_S = 60.0


class Slots:
    """A semaphore for threads and tasks alike: a freed place goes to the caller who has waited longest."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._free = self.number
        self._waiting: deque[Future[None]] = deque()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Slots, (self.number,))

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold a place in this thread."""
        place = self._ask()
        try:
            place.result()
            yield
        finally:
            self._leave(place)

    @asynccontextmanager
    async def aheld(self) -> AsyncGenerator[None]:
        """Hold a place in this task."""
        from asyncio import wrap_future

        place = self._ask()
        try:
            if not place.done():
                await wrap_future(place)
            yield
        finally:
            self._leave(place)

    def _ask(self) -> Future[None]:
        """A future that is done when the caller has a place."""
        place: Future[None] = Future()
        with self._lock:
            if (
                self._process != os.getpid()
            ):  # after a fork: places and waiting callers belong to the parent
                self._reset()
            if self._free:
                self._free -= 1
                place.set_result(None)
            else:
                self._waiting.append(place)
        return place

    def _leave(self, place: Future[None]) -> None:
        """Give the place to the next caller; a caller that was cancelled before it had a place leaves the queue."""
        with self._lock:
            if place.cancel() or place.cancelled():
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
        self,
        max_concurrency: int | None = None,
        requests_per_minute: float | None = None,
    ) -> None:
        for name, limit in (
            ("max_concurrency", max_concurrency),
            ("requests_per_minute", requests_per_minute),
        ):
            kinds = int if name == "max_concurrency" else (int, float)
            if limit is not None and (
                isinstance(limit, bool)
                or not isinstance(limit, kinds)
                or not 1 <= limit < float("inf")
            ):
                raise ConfigurationError(
                    f"`{name}` is a whole number of at least 1, or None for no limit; found {shown(limit)}.",
                )
        self._slots = Slots(max_concurrency) if max_concurrency is not None else None
        self._gate = Slots(1)
        """Held by the caller whose request goes out next."""
        self._per_minute = None if requests_per_minute is None else int(requests_per_minute)
        self._sent: deque[float] = deque(maxlen=self._per_minute or 1)
        """When the latest requests went out."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Pace, (self._slots.number if self._slots is not None else None, self._per_minute))

    def slot(self) -> AbstractContextManager[None]:
        """A block that holds one of the `max_concurrency` places in this thread."""
        return _NO_LIMIT if self._slots is None else self._slots.held()

    def aslot(self) -> AbstractAsyncContextManager[None]:
        """A block that holds one of the places in this task."""
        return _NO_LIMIT if self._slots is None else self._slots.aheld()

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
        if len(self._sent) < (self._per_minute or 0):
            return 0.0
        return max(0.0, self._sent[0] + _MINUTE_S - time.monotonic())


_NO_LIMIT = nullcontext()
