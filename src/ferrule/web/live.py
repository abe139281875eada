"""Live pages by server-sent events.

One thread polls the store for all of them. The streams themselves use no threads, and their number
is bounded.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from ferrule.errors import StoreError
from ferrule.web.guard import Refused
from ferrule.web.reading import is_missing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable

    from ferrule.runs.protocols import Store
    from ferrule.web.work import Work

_MOST_STREAMS = 64
_PING_S = 10.0
"""A closed page is noticed at the next ping of its stream."""

PageEvent = tuple[str, str]
"""An id that the page sends when it reconnects, and HTML."""


class Watch:
    """Tells all streams of a process when the store changed.

    One thread polls, while there are streams.

    A thread of its own: the event loop must not wait for a store, and a call in its pool wakes
    three threads for each poll.
    """

    def __init__(self, store: Store, work: Work | None = None, poll_s: float = 0.1) -> None:
        self.poll_s = poll_s
        self.streams = 0
        self.version = 0
        self.is_closed = False
        self._store = store
        self._work = work
        self._seen: Any = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._end_of_polling = threading.Event()

    @contextmanager
    def stream(self) -> Generator[None]:
        """One stream; raises `Refused` if there are too many."""
        if self.streams >= _MOST_STREAMS:
            raise Refused(503, "Too many live pages are open.", (b"retry-after", b"20"))
        self.streams += 1
        if self.streams == 1:
            self._end_of_polling = threading.Event()
            poll = threading.Thread(
                target=self._poll,
                args=(asyncio.get_running_loop(), self._end_of_polling),
                name="ferrule-ui-poll",
                daemon=True,
            )
            poll.start()
        try:
            yield
        finally:
            self.streams -= 1
            if not self.streams:
                self._end_of_polling.set()

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        self._end_of_polling.set()
        self._wake()

    async def changed(self, version: int, timeout_s: float) -> None:
        """Wait until there is another version, or for so long."""
        if self.version != version:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self._waiting.discard(waiter)
            waiter.cancel()

    def _poll(self, loop: asyncio.AbstractEventLoop, end: threading.Event) -> None:
        pause_s = 0.0
        while not end.wait(pause_s):
            state: Any = None
            try:
                state = self._store.changes(), self._work.version if self._work else 0
                pause_s = self.poll_s
            except StoreError:  # each stream gets this error too, and shows it
                pause_s = 1.0
            if state is not None and state == self._seen:
                continue
            self._seen = state
            try:
                loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop is closed
                return

    def _wake(self) -> None:
        self.version += 1
        for waiter in tuple(self._waiting):
            if not waiter.done():
                waiter.set_result(None)


def live(watch: Watch, read: Callable[[], Iterable[PageEvent]]) -> Any:
    """The stream of one page.

    `read` returns what is new for the page. It is called in a thread, after each change of the
    store.
    """
    stream = watch.stream()
    stream.__enter__()
    return _Stream(_events(watch, read), stream)


class _Stream(StreamingResponse):
    """Frees its place among the streams when its connection ends, even if no event was read."""

    def __init__(self, events: AsyncIterator[bytes], stream: Any) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            if scope["method"] == "HEAD":  # otherwise the answer would never end
                await Response(media_type=self.media_type)(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._stream.__exit__(None, None, None)


async def _events(watch: Watch, read: Callable[[], Iterable[PageEvent]]) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    shown_trouble = ""
    while not watch.is_closed:
        version = watch.version
        trouble = ""
        news: list[PageEvent] = []
        try:
            news = await asyncio.to_thread(_all, read)
        except Refused as refused:
            yield _encoded("", refused.text, "gone")
            return
        except StoreError as error:
            trouble = str(error)
            if is_missing(error):  # a run that was deleted never comes back
                yield _encoded("", trouble, "gone")
                return
        if trouble != shown_trouble:  # the page shows it until the store answers again
            shown_trouble = trouble
            yield _encoded("", trouble, "trouble")
        for event_id, html in news:
            yield _encoded(event_id, html)
        # All streams ping at the same times: each ping wakes the processor.
        until_ping_s = _PING_S - asyncio.get_running_loop().time() % _PING_S
        await watch.changed(version, until_ping_s)
        if watch.version == version:
            yield b": here\n\n"


def _all(read: Callable[[], Iterable[PageEvent]]) -> list[PageEvent]:
    return list(read())


def _encoded(event_id: str, html: str, kind: str = "message") -> bytes:
    lines = "".join(f"data: {line}\n" for line in html.replace("\r", "\n").split("\n"))
    id_line = ""
    if event_id:
        id_line = f"id: {event_id}\n"
    return f"{id_line}event: {kind}\n{lines}\n".encode("utf-8", "replace")
