"""The thread of a store's file: it commits the writes of many runs together, renews leases, and gives back those no longer held.

It starts with the first lease and ends half a second after the last: waiting runs use no thread. It
is a daemon, because every confirmed write is on disk, so the process may end at any time. Between
tasks it refers to the file weakly, so that an unused store is closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import ref

from ferrule.concurrency.completion import Completion
from ferrule.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ferrule.runs.store.sqlite_file import SQLiteFile

    Answer = Any | BaseException
    Waiting = tuple[
        SQLiteFile,
        Any,
        asyncio.AbstractEventLoop | None,
        asyncio.Future[Any] | SimpleQueue[Answer],
    ]
    """A file, an item to write to it, and where its answer goes: a future and its loop, or a queue where a thread waits."""

_LINGERS_S = 0.5
"""How often the thread checks whether its leases and its file are still in use."""


class StoreThread:
    """Passes submitted items to `write`, all waiting ones at once; calls `tend` with the leases to renew and to give back."""

    def __init__(
        self,
        file: SQLiteFile,
        write: Callable[[SQLiteFile, list[Any]], Sequence[Answer]],
        tend: Callable[[SQLiteFile, list[tuple[str, int, float]], list[tuple[str, int]]], None],
    ) -> None:
        self._file = ref(file)
        self._write = write
        self._tend = tend
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._answered: deque[tuple[SimpleQueue[Answer], Answer]] = deque()
        """Answers whose threads still sleep."""
        self._is_waking = False
        self._answering = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def has_work(self) -> bool:
        """Whether items wait for their turn."""
        return not self._queue.empty()

    def look(self) -> None:
        """Let the thread check the leases now. Call it after taking a lease, so that the thread cannot end in between."""
        self._queue.put(None)
        self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="ferrule-store", daemon=True)
                thread.start()
                self._thread = thread  # last: Ctrl-C before leaves a thread that ends by itself, and the next caller starts another

    async def submit(self, item: Any) -> Any:
        """Write one item through the thread; returns or raises the answer of `write`. A cancellation is raised only when that is known."""
        loop = asyncio.get_running_loop()
        written: Completion[Any] = Completion(loop=loop)
        self._put(item, loop, written)
        try:  # `completed`, without its coroutine
            return await written
        except asyncio.CancelledError as cancelled:
            raise cancelled from written.exception()

    def wait(self, item: Any) -> Any:
        """`submit` for a thread without a loop. Not for the main thread: Ctrl-C there could keep it from waking the next thread."""
        answers: SimpleQueue[Answer] = SimpleQueue()
        self._put(item, None, answers)
        try:
            answer = answers.get()
        finally:
            with self._answering:
                self._is_waking = False
                self._wake_next()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _wake_next(self) -> None:
        """Wake the next thread whose answer is ready, unless one is waking: that one wakes the next. Call it with the lock.

        Two hundred threads that wake at once compete for Python's GIL, and take twice the time.
        """
        if self._answered and not self._is_waking:
            self._is_waking = True
            answers, answer = self._answered.popleft()
            answers.put(answer)

    def _put(
        self,
        item: Any,
        loop: asyncio.AbstractEventLoop | None,
        answers: asyncio.Future[Any] | SimpleQueue[Answer],
    ) -> None:
        file = self._file()
        assert file is not None  # noqa: S101  the caller has it
        self._queue.put((file, item, loop, answers))
        self._start()  # after `put`: a thread about to end either sees the queued item, or has ended and a new one starts

    def _work(self) -> None:
        try:
            self._serve_until_idle()
        finally:
            if self._thread is threading.current_thread():
                self._thread = None

    def _serve_until_idle(self) -> None:
        kept = self._file()
        due = self._care(kept, 0.0) if kept is not None else 0.0
        while True:
            found: list[Waiting | None] = []
            with suppress(Empty):
                found.append(
                    self._queue.get(
                        timeout=max(0.0, min(due - monotonic(), _LINGERS_S)) if due else _LINGERS_S,
                    ),
                )
                while True:
                    found.append(self._queue.get_nowait())
            batch = [each for each in found if each is not None]
            file = self._file()
            if file is not None:
                self._serve(file, batch)
                due = self._care(file, due)
            # While there are leases, keep the file: they are renewed even if the store was closed,
            # or nothing else refers to it.
            kept = file if file is not None and file.leases else None
            with self._starting:  # checked under the lock: a caller of `_start` then finds no thread, or one that continues
                if self._thread is not threading.current_thread():
                    return
                if not found and kept is None and self._queue.empty():
                    self._thread = None
                    return
            del file, batch, found

    def _care(self, file: SQLiteFile, due: float) -> float:
        """Give back leases that are not held, and renew the others when due. Returns when the next renewal is due; 0 without leases."""
        left, is_due = file.leases.left(), monotonic() >= due > 0
        held = (
            file.leases.held() if is_due or left else []
        )  # renewing all after each write would cost as much as the write
        if left or held:
            with suppress(
                StoreError,
            ):  # a lease whose renewal fails is found lost at the next write
                self._tend(file, held, left)
        if not file.leases:
            return 0.0
        return monotonic() + file.leases.every_s() if is_due or not due else due

    def _serve(self, file: SQLiteFile, batch: list[Waiting]) -> None:
        if not batch:
            return
        try:
            found: Sequence[Answer] = self._write(file, [item for _, item, _, _ in batch])
        except BaseException as error:  # noqa: BLE001  handed to the waiting callers: without an answer each would wait for ever
            found = [error] * len(batch)
        of_loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Answer]]] = {}
        for (_, _, loop, answers), answer in zip(batch, found, strict=True):
            if isinstance(answers, SimpleQueue):
                self._answered.append((answers, answer))
            elif loop is not None:
                of_loops.setdefault(loop, []).append((answers, answer))
        with self._answering:
            self._wake_next()
        for loop, settled in of_loops.items():  # one call per loop: waking a loop is a system call
            with suppress(RuntimeError):  # the loop is closed: no caller is waiting
                loop.call_soon_threadsafe(_settle, loop, settled)


def _settle(
    loop: asyncio.AbstractEventLoop,
    settled: list[tuple[asyncio.Future[Any], Answer]],
) -> None:
    try:
        while settled:
            future, answer = settled[
                -1
            ]  # left in the list until it is set: Ctrl-C may come at any point
            if future.done():
                settled.pop()
            elif isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
    finally:
        if settled:  # Ctrl-C came: the others must not wait for ever
            loop.call_soon(_settle, loop, settled)
