"""The streams between the SDK's transport and its session, watched: what was written, and when the other side is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class WatchedReader:
    """A stream that is read, and tells `ended` once when it ends."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        """The context variables that the last message came with."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """The next message."""
        return await self._stream.receive()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._ended()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


class WatchedWriter:
    """A stream that is written, and tells `sent` the id of each request that went out."""

    def __init__(self, stream: Any, sent: Callable[[Any], None]) -> None:
        self._stream = stream
        self._sent = sent

    async def send(self, item: Any, /) -> None:
        """Hand over one message."""
        number = getattr(item.message, "id", None)
        if number is not None and hasattr(item.message, "method"):  # and no answer to the server, whose ids are its own
            self._sent(number)  # before: a write that is given up half way may have gone out
        await self._stream.send(item)

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)
