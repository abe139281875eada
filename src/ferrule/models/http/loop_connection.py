"""One connection of an event loop to a model's server. Imported with the first connection: it imports `httpx2`.

A client of httpx2 prepares each request for redirects, cookies, hooks and log-ins, none of which a model's server gets, and its pool looks
for a connection. That was a fifth of all that a request of an agent costs. `DirectConnection` uses the connection below them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpcore2
import httpx2

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Generator, Mapping

_NOT_STALE = (".connect_tcp.started", ".receive_response_headers.complete")
_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)
_KEEPALIVE_S = 5.0
"""The default of httpx2."""


class DirectConnection:
    """A connection to the server itself."""

    def __init__(self, tls: ssl.SSLContext, timeout: httpx2.Timeout) -> None:
        self._tls = tls
        self._extensions = {"timeout": timeout.as_dict()}
        self._connection: httpcore2.AsyncHTTPConnection | None = None

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """An answer, its body to come. The request is sent once more if its connection was closed: servers close idle ones at any time."""
        asked = _lowered(request, self._extensions)
        connection, origin = self._connection, asked.url.origin
        if connection is not None and connection.is_idle() and not connection.has_expired() and connection.can_handle_request(origin):
            try:
                return await _answer(connection, asked)
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                pass  # on a connection that was open already
        await self.aclose()
        self._connection = httpcore2.AsyncHTTPConnection(origin, ssl_context=self._tls, keepalive_expiry=_KEEPALIVE_S)
        return await _answer(self._connection, asked)

    async def aclose(self) -> None:
        """Close the connection; the next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()


class ProxiedConnection:
    """A connection by way of the proxies of the environment: a client of httpx2 knows which addresses go through which."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self.aclose = client.aclose

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """As above."""
        is_stale = True

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal is_stale
            if event.endswith(_NOT_STALE):
                is_stale = False

        request.extensions = {**request.extensions, "trace": trace}
        try:
            return await self._client.send(request, stream=True)
        except (httpx2.NetworkError, httpx2.RemoteProtocolError):
            if not is_stale:
                raise
        return await self._client.send(request, stream=True)


def _lowered(request: httpx2.Request, extensions: dict[str, Any]) -> httpcore2.Request:
    """The request as httpcore2 has it."""
    url = request.url
    place = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    return httpcore2.Request(request.method, place, headers=request.headers.raw, content=request.stream, extensions=extensions)


async def _answer(connection: httpcore2.AsyncHTTPConnection, asked: httpcore2.Request) -> httpx2.Response:
    with _errors_of_httpx2():
        found = await connection.handle_async_request(asked)
    return httpx2.Response(found.status, headers=found.headers, stream=_Body(found))


class _Body(httpx2.AsyncByteStream):
    def __init__(self, found: httpcore2.Response) -> None:
        self._found = found

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        with _errors_of_httpx2():
            async for piece in self._found.aiter_stream():
                yield piece

    async def aclose(self) -> None:
        await self._found.aclose()


@contextmanager
def _errors_of_httpx2() -> Generator[None]:
    """Raise errors of httpcore2 as those of the same name in httpx2."""
    try:
        yield
    except _ERRORS as error:
        raise getattr(httpx2, type(error).__name__)(str(error)) from error
