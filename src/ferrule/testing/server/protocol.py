"""What `serve` needs of a protocol: functions that read its requests and write its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ferrule.errors import FerruleError
    from ferrule.models.wires.payload import Json
    from ferrule.values.conversation.exchange import Delta, Request, Response


class Received(Record):
    """A request as it reached the server."""

    request: Request
    model: str | None = None
    stream: bool = False
    with_usage: bool = True
    """Whether the client wants a stream to end with its token counts, where the protocol lets it choose."""


class ServerProtocol(Protocol):
    """The server's side of one protocol. A module satisfies it."""

    def receive(self, body: Json, path: str) -> Received:
        """The request in a body; raises `InputError` that says where it is wrong."""
        ...

    def answer(self, response: Response, *, model: str) -> Json:
        """A whole answer."""
        ...

    def events(self, items: Iterable[Delta | Response], *, model: str, with_usage: bool = False) -> Iterator[bytes]:
        """A stream as server-sent events; calls come in pieces, as providers send them."""
        ...

    def error_body(self, error: FerruleError) -> tuple[int, Json]:
        """Status and body for a model error or a bad request."""
        ...

    def error_event(self, body: Json) -> bytes:
        """An error body as an event of a stream."""
        ...
