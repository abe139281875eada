"""The thread of a store's file: it commits the writes of many runs together and renews leases.

It starts with the first lease and ends half a second after the last: waiting runs use no thread. It
is a daemon, because every confirmed write is on disk, so the process may end at any time. Between
tasks it refers to the file weakly, so that an unused store is closed.

The thread may end at the moment when another thread needs it. Two rules prevent a lost write: a
caller first queues its item and then starts the thread; and the thread decides to end under the
lock `_starting`, with an empty queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from ferrule.concurrency.completion import Completion
from ferrule.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ferrule.runs.store.sqlite.file import SQLiteFile

    Answer = Any | BaseException

_LINGERS_S = 0.5
"""How often the thread checks whether its leases and its file are still in use."""


class _Item(NamedTuple):
    """A piece of work, and where its answer goes."""

    file: SQLiteFile
    work: Any
    loop: asyncio.AbstractEventLoop | None
    """The event loop of the future `answer`; None for a queue."""
    answer: asyncio.Future[Any] | SimpleQueue[Answer]
    """A future, or a queue where a thread waits."""


class WriterThread:
    """Passes submitted work to `write`, all that waits at once.

    Calls `tend` with the leases to renew and the leases to give back.
    """

    def __init__(
        self,
        file: SQLiteFile,
        write: Callable[[SQLiteFile, list[Any]], Sequence[Answer]],
        tend: Callable[[SQLiteFile, list[tuple[str, int, float]], list[tuple[str, int]]], None],
    ) -> None:
        self._file = ref(file)
        self._write = write
        self._tend = tend
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        """None wakes the thread without work."""
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
        """Let the thread check the leases now.

        Call it after taking a lease, so that the thread cannot end in between.
        """
        self._queue.put(None)
        self._start()

    async def submit(self, work: Any) -> Any:
        """Do the work on the thread; returns or raises the answer of `write`.

        A cancellation is raised only when that is known.
        """
        loop = asyncio.get_running_loop()
        written: Completion[Any] = Completion(loop=loop)
        self._put(work, loop, written)
        try:
            return await written
        except asyncio.CancelledError as cancelled:
            raise cancelled from written.exception()

    def wait(self, work: Any) -> Any:
        """`submit` for a thread without a loop.

        Not for the main thread: Ctrl-C there could keep it from waking the next thread.
        """
        answers: SimpleQueue[Answer] = SimpleQueue()
        self._put(work, None, answers)
        try:
            answer = answers.get()
        finally:
            with self._answering:
                self._is_waking = False
                self._wake_next()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _put(
        self,
        work: Any,
        loop: asyncio.AbstractEventLoop | None,
        answer: asyncio.Future[Any] | SimpleQueue[Answer],
    ) -> None:
        file = self._file()
        assert file is not None  # noqa: S101  the caller has it
        self._queue.put(_Item(file, work, loop, answer))
        self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ferrule-store", daemon=True)
                thread.start()
                # Last: if Ctrl-C comes before, the started thread ends by itself, and the next
                # caller starts another one.
                self._thread = thread

    # -- on the thread

    def _run(self) -> None:
        try:
            self._serve_until_idle()
        finally:
            if self._thread is threading.current_thread():
                self._thread = None

    def _serve_until_idle(self) -> None:
        # A strong reference while there are leases: they are renewed even if the store was closed,
        # or nothing else refers to it.
        leased_file = self._file()
        renew_at = 0.0
        if leased_file is not None:
            renew_at = self._tend_leases(leased_file, renew_at)
        while True:
            received = self._receive(renew_at)
            file = self._file()
            if file is not None:
                self._serve(file, [item for item in received if item is not None])
                renew_at = self._tend_leases(file, renew_at)
            leased_file = None
            if file is not None and file.leases:
                leased_file = file
            with self._starting:
                if self._thread is not threading.current_thread():
                    return
                if not received and leased_file is None and self._queue.empty():
                    self._thread = None
                    return
            # While the thread sleeps, its variables must not keep the file open.
            del file, received

    def _receive(self, renew_at: float) -> list[_Item | None]:
        """All items that wait. Without one, waits for the next, or until leases are due."""
        timeout = _LINGERS_S
        if renew_at:
            timeout = max(0.0, min(renew_at - monotonic(), _LINGERS_S))
        received: list[_Item | None] = []
        with suppress(Empty):
            received.append(self._queue.get(timeout=timeout))
            while True:
                received.append(self._queue.get_nowait())
        return received

    def _tend_leases(self, file: SQLiteFile, renew_at: float) -> float:
        """Give back the leases that are no longer held, and renew the others when that is due.

        Returns:
            When the next renewal is due; 0 without leases.

        """
        left = file.leases.left()
        is_due = monotonic() >= renew_at > 0
        held: list[tuple[str, int, float]] = []
        # Not after each write: renewing all leases would cost as much as the write.
        if is_due or left:
            held = file.leases.held()
        if left or held:
            # If a renewal fails, the next write finds that the lease is lost.
            with suppress(StoreError):
                self._tend(file, held, left)
        if not file.leases:
            return 0.0
        if is_due or not renew_at:
            return monotonic() + file.leases.every_s()
        return renew_at

    def _serve(self, file: SQLiteFile, batch: list[_Item]) -> None:
        if not batch:
            return
        answers: Sequence[Answer]
        try:
            answers = self._write(file, [item.work for item in batch])
        except BaseException as error:  # noqa: BLE001
            # Handed to the callers: without an answer, each would wait for ever.
            answers = [error] * len(batch)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Answer]]] = {}
        for item, answer in zip(batch, answers, strict=True):
            if isinstance(item.answer, SimpleQueue):
                self._answered.append((item.answer, answer))
            elif item.loop is not None:
                by_loop.setdefault(item.loop, []).append((item.answer, answer))
        with self._answering:
            self._wake_next()
        # One call per loop, because waking a loop is a system call.
        for loop, settled in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed: no caller is waiting
                loop.call_soon_threadsafe(_settle, loop, settled[::-1])

    def _wake_next(self) -> None:
        """Wake the next thread whose answer is ready, unless one is waking. Call it with the lock.

        A thread that woke wakes the next. Two hundred threads that wake at once compete for
        Python's GIL, and take twice the time.
        """
        if self._answered and not self._is_waking:
            self._is_waking = True
            answers, answer = self._answered.popleft()
            answers.put(answer)


def _settle(
    loop: asyncio.AbstractEventLoop, settled: list[tuple[asyncio.Future[Any], Answer]]
) -> None:
    """Set the futures, the last first: the list is in the reverse order of the writes."""
    try:
        while settled:
            # Left in the list until it is set: Ctrl-C may come at any point.
            future, answer = settled[-1]
            if future.done():
                settled.pop()
            elif isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
    finally:
        if settled:  # Ctrl-C came: the others must not wait for ever
            loop.call_soon(_settle, loop, settled)
