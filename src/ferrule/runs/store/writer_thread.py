"""The thread of a store: writes for event loops, many at once, and renews leases.

It starts with the first lease and ends with the last: waiting runs use no thread. It is a daemon, because every confirmed write is on
disk, and the process may end at any time.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from ferrule.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

Waiting = tuple[Any, asyncio.AbstractEventLoop, "asyncio.Future[bool]"]


class StoreThread:
    """Passes submitted items to `write`, all waiting ones at a time; calls `renew` periodically while it `has_leases`."""

    def __init__(
        self,
        write: Callable[[list[Any]], list[bool | StoreError]],
        renew: Callable[[], None],
        has_leases: Callable[[], bool],
        *,
        every_s: float,
    ) -> None:
        self._write = write
        self._renew = renew
        self._has_leases = has_leases
        self._every_s = every_s
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it if it is not running. Call it after taking a lease or submitting an item, so that the thread cannot end in between."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ferrule-store", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Let it end once all submitted items are written."""
        with self._starting:
            if self._thread is not None:
                self._queue.put(None)
                self._thread = None

    async def submit(self, item: Any) -> bool:
        """Write one item through the thread; returns or raises the result of `write`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._queue.put((item, loop, future))
        self.start()  # after `put`: a thread about to end either sees the queued item, or has ended and a new one starts
        return await future

    def _work(self) -> None:
        due = monotonic() + self._every_s
        while True:
            batch: list[Waiting] = []
            with suppress(Empty):
                found = self._queue.get(timeout=max(0.0, due - monotonic()))
                while found is not None:
                    batch.append(found)
                    found = self._queue.get_nowait()
                if not batch or found is None:
                    self._serve(batch)
                    return
            self._serve(batch)
            if monotonic() >= due:
                due = monotonic() + self._every_s
                if not self._wanted():
                    return

    def _wanted(self) -> bool:
        """Renew leases; returns False, which ends the thread, if there is no work left."""
        with suppress(StoreError):  # a lease whose renewal fails is found lost at the next write
            self._renew()
        with self._starting:  # checked under the lock: a caller of `start` then finds no thread, or one that continues
            if self._queue.empty() and not self._has_leases():
                self._thread = None
            return self._thread is not None

    def _serve(self, batch: list[Waiting]) -> None:
        if not batch:
            return
        try:
            answers = self._write([item for item, _, _ in batch])
        except StoreError as error:
            answers = [error] * len(batch)
        for (_, loop, future), answer in zip(batch, answers, strict=True):
            with suppress(RuntimeError):  # its loop is closed: no caller is waiting
                loop.call_soon_threadsafe(_settle, future, answer)


def _settle(future: asyncio.Future[bool], answer: bool | StoreError) -> None:
    if future.done():  # cancelled meanwhile
        return
    if isinstance(answer, StoreError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
