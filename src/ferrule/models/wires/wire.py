"""The protocols that providers speak.

Each protocol is a package of pure functions (`Wire`), imported when first used: `encode` makes the
body of a request, `decode` reads an answer, `stream` a streamed one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ferrule.models.providers import Dialect
    from ferrule.models.wires.payload import Json
    from ferrule.values.conversation.exchange import Delta, Request, Response

WIRES: Mapping[str, str] = {
    name: f"ferrule.models.wires.{name}"
    for name in ("openai_chat", "openai_responses", "anthropic", "gemini")
}
"""The package of each wire."""


class Assembly(Protocol):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    @property
    def is_done(self) -> bool:
        """Whether the server has sent the end of its answer."""
        ...

    @property
    def so_far(self) -> Response | None:
        """The model and the tokens, as far as the server has sent them."""
        ...

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """Take the next bytes of the body, cut anywhere; yield the pieces in them."""
        ...

    def end(self) -> Iterator[Delta]:
        """End the body; yield the remaining pieces."""
        ...

    def response(self) -> Response:
        """The whole answer, equal to that of the unstreamed body.

        Raises `UnavailableError` if the stream broke off.
        """
        ...


class Wire(Protocol):
    """The client's side of one protocol. A package satisfies it."""

    Assembly: type[Assembly]
    """Reads one streamed answer."""

    def path(self, model: str, *, stream: bool = False) -> str:
        """The path after the base URL, with a query if the protocol needs one."""
        ...

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers that carry the key, and others that the protocol requires."""
        ...

    def render(
        self,
        request: Request,
        *,
        model: str,
        settings: Mapping[str, Any],
        stream: bool = False,
        dialect: Dialect = ...,
    ) -> bytes:
        """The body of a request.

        Settings of the request override the model's `settings`; None omits a setting. The same
        messages give the same bytes in every request, so that providers can cache the beginning of
        a conversation.
        """
        ...

    def request_headers(self, request: Request, dialect: Dialect) -> dict[str, str]:
        """The headers that the form of a request needs, besides those of `headers`."""
        ...

    def read(self, payload: Json | bytes) -> Response:
        """The answer in a body.

        Raises `BadRequestError` if there is none, `MissingContentError` if it is empty,
        `RefusalError` if it was withheld.
        """
        ...


class Rendered(NamedTuple):
    """A request as it is sent, but for the key."""

    body: bytes
    headers: dict[str, str]
    """What the body needs in headers, such as the names of unreleased features."""


def rendered(
    wire: Wire,
    request: Request,
    *,
    model: str,
    settings: Mapping[str, Any],
    stream: bool = False,
    dialect: Dialect,
) -> Rendered:
    """The body of a request and the headers that it needs.

    Every way to a provider takes both from here: HTTP, the user's client, a batch. So no way can
    send a body without the headers that the provider requires with it.
    """
    body = wire.render(request, model=model, settings=settings, stream=stream, dialect=dialect)
    return Rendered(body, wire.request_headers(request, dialect))


def no_headers(request: Request, dialect: Dialect) -> dict[str, str]:
    """The `request_headers` of a wire whose requests need none."""
    del request, dialect
    return {}


def wire(name: str) -> Wire:
    """The wire with this name."""
    if name not in WIRES:
        raise ConfigurationError(f"`wire` is one of {', '.join(WIRES)}, found {shown(name)}.")
    return cast("Wire", import_module(WIRES[name]))
