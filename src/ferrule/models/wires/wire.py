"""The protocols that providers speak, behind one seam.

A wire is a module of pure functions (`Wire`), imported when first used: most programs speak one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ferrule.models.providers import Dialect
    from ferrule.values.conversation.exchange import Delta, Request, Response

Json = dict[str, Any]

WIRES: Mapping[str, tuple[str, str]] = {
    "openai_chat": ("ferrule.models.wires.openai_chat.codec", "ferrule.models.wires.openai_chat.stream"),
    "openai_responses": ("ferrule.models.wires.openai_responses.codec", "ferrule.models.wires.openai_responses.stream"),
    "anthropic": ("ferrule.models.wires.anthropic.codec", "ferrule.models.wires.anthropic.stream"),
    "gemini": ("ferrule.models.wires.gemini.codec", "ferrule.models.wires.gemini.stream"),
}
"""The module that is the `Wire`, and the one whose class `Assembly` puts its streams together."""


class Assembly(Protocol):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """The next bytes of the body, cut anywhere."""
        ...

    def end(self) -> Iterator[Delta]:
        """The body has ended."""
        ...

    def response(self) -> Response:
        """The whole answer, equal to that of the unstreamed body; raises `UnavailableError` where the stream broke off before its end."""
        ...


class Wire(Protocol):
    """One protocol, the asking side. A module satisfies it."""

    def path(self, model: str, *, stream: bool = False) -> str:
        """What comes behind the base URL, with a query if there must be one."""
        ...

    def headers(self, key: str | None) -> dict[str, str]:
        """How a request shows its key, and what else the protocol wants said."""
        ...

    def render(self, request: Request, *, model: str, settings: Mapping[str, Any], stream: bool = False, dialect: Dialect = ...) -> bytes:
        """The body. `settings` are the model's own; those of the request go first, None leaves a setting out.

        The same messages give the same bytes in every request, so that providers can cache what they have seen (L7).
        """
        ...

    def read(self, payload: Json | bytes) -> Response:
        """The answer in a body.

        Raises `BadRequestError` if it is none, `MissingContentError` if nothing is in it, `RefusalError` if it was withheld.
        """
        ...


def wire(name: str) -> Wire:
    """The wire of that name."""
    if name not in WIRES:
        msg = f"`wire` is one of {', '.join(WIRES)}, found {shown(name)}."
        raise ConfigurationError(msg)
    return cast("Wire", import_module(WIRES[name][0]))


def assembly(name: str) -> Assembly:
    """What puts one streamed answer of that wire together."""
    return import_module(WIRES[name][1]).Assembly()
