"""Server-sent events: reads them from bytes cut anywhere, and writes them.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html (parsing). Not
`httpx2.EventSource`: it reads only its own client's responses, drops a last event without an empty
line after it, and refuses other content types, which some servers send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_bytes
from ferrule.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ferrule.values.conversation.exchange import Delta, Response


def event(body: Any, name: str | None = None) -> bytes:
    """The bytes of one event that carries JSON; with its name, for protocols that name events."""
    data = b"data: " + json_bytes(body) + b"\n\n"
    if not name:
        return data
    return b"event: " + name.encode() + b"\n" + data


class Events:
    """Reads server-sent events from pieces of bytes, cut anywhere."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """The pieces of the unfinished line: joined once, as there may be many."""
        self._ends_with_cr = False
        self._data: list[bytes] = []
        """The `data` fields of the unfinished event."""
        self._is_first_line = True

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of each event that is now complete."""
        if self._ends_with_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # the line feed of a `\r\n` that was cut in two
        if not piece:
            return
        self._ends_with_cr = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        line, *more = piece.split(b"\n")
        self._rest.append(line)
        for line in more:
            yield from self._line(b"".join(self._rest))
            self._rest = [line]

    def end(self) -> Iterator[bytes]:
        """The last event, if the stream ended without an empty line after it."""
        yield from self._line(b"".join(self._rest))
        yield from self._line(b"")
        self._rest = []

    def _line(self, line: bytes) -> Iterator[bytes]:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        if not line:
            if self._data:
                data = b"\n".join(self._data)
                self._data = []
                yield data
        elif line.startswith(b"data:"):
            # One space after the colon belongs to the format, others to the data.
            self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif line.startswith(b"{"):
            # Not a field: JSON that a gateway sent outside an event, usually an error.
            yield line


class EventAssembly:
    """Base class of `Assembly` classes: reads events from bytes, and passes each to `_event`."""

    def __init__(self) -> None:
        self._events = Events()
        self.is_done = False
        """Whether the server has sent the end of its answer."""
        self.so_far: Response | None = None
        """The model and the tokens, as far as the server has sent them."""

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """Take the next bytes of the body, cut anywhere; yield the pieces in them."""
        return self._deltas(self._events.feed(piece))

    def end(self) -> Iterator[Delta]:
        """End the body; yield the remaining pieces."""
        return self._deltas(self._events.end())

    def _deltas(self, events: Iterator[bytes]) -> Iterator[Delta]:
        for data in events:
            text = data.strip()
            if self.is_done or not text:
                continue
            # OpenAI's end of chat completions. Gateways send it in all protocols, after the last
            # event or instead of it.
            if text == b"[DONE]":
                self._done()
            else:
                yield from self._event(data)

    def _event(self, data: bytes) -> Iterator[Delta]:
        raise NotImplementedError

    def _done(self) -> None:
        self.is_done = True

    def _check_ended(self, ended: object, begun: object) -> None:
        """Raise `UnavailableError` unless the answer is complete."""
        if not ended:
            moment = "before any answer"
            if begun:
                moment = "after a part of the answer"
            raise UnavailableError(
                f"the stream ended {moment}: the connection broke or the server gave up. Ask again."
            )


class WholeAnswer:
    """An `Assembly` for an answer that came whole though a stream was requested.

    Some servers do not stream.
    """

    is_done = False
    so_far = None

    def __init__(self, read: Callable[[bytes], Response]) -> None:
        self._read = read
        self._pieces: list[bytes] = []
        self._response: Response | None = None

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """Take the next bytes of the body; yields nothing yet."""
        self._pieces.append(piece)
        yield from ()

    def end(self) -> Iterator[Delta]:
        """End the body; yield the answer's pieces."""
        yield from self.response().deltas()

    def response(self) -> Response:
        """The whole answer."""
        if self._response is None:
            self._response = self._read(b"".join(self._pieces))
        return self._response
