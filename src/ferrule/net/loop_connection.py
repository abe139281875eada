"""One connection of an event loop to a model's server. Imported with the first request.

Why not `httpx2.AsyncClient`? It costs five times as much processor time a request as what follows,
and the client is most of what an agent over HTTP costs (docs/decisions, "h11 reads and writes
HTTP"). A request to a model needs none of what the client adds: redirects, cookies, log-ins, hooks,
a pool that walks over all its connections. So async code speaks HTTP/1.1 here with `h11`, the
reader and writer that `httpx2` itself uses, over a transport of asyncio.

Two things are done here that `httpx2` and `httpcore2` do not do:

- A connection carries another request only if nothing at all arrived after the last answer.
  `httpcore2` asks the socket whether it is readable, which misses bytes that TLS or anyio already
  took from it.
- `httpcore2` writes a request with one time limit for its whole body. Here the limit is for each
  part, so that images over a slow line arrive.

Where the environment names a proxy, `ClientConnection` sends requests through a client of `httpx2`,
which alone knows what `NO_PROXY` excepts.
"""

from __future__ import annotations

import zlib
from asyncio import Event, Protocol, get_running_loop, sleep, timeout
from time import monotonic
from typing import TYPE_CHECKING, Any

import h11
import httpx2

from ferrule.net.reading import Staleness
from ferrule.net.sockets import open_socket

if TYPE_CHECKING:
    import ssl
    from asyncio import Future
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping

_KEEPALIVE_S = 5.0
"""How long an idle connection can be reused. The default of httpx2."""
_LONGEST_HEAD = 100 * 1024
"""The most bytes of a head of an answer. The limit of httpcore2."""
_MOST_UNREAD = 256 * 1024
"""How many bytes of an answer may be unread before reading is paused, so that the server waits."""
_MOST_UNWRITTEN = 256 * 1024
"""How many bytes of a request are written at once: the write timeout is for each such part."""
_MOST_DECOMPRESSED = 1024 * 1024
"""How many bytes are decompressed at once: a piece may expand a thousandfold."""


class DirectConnection:
    """A connection straight to the server, without a proxy. It opens with its first request."""

    def __init__(self, tls: ssl.SSLContext, timeouts: httpx2.Timeout) -> None:
        self._tls = tls
        self._timeouts = timeouts
        self._wire: _Wire | None = None

    async def send(self, url: httpx2.URL, headers: Mapping[str, str], body: bytes) -> HTTPAnswer:
        """Post a body; return the answer, of which the body is still unread.

        If an idle connection was closed, which servers may do at any time, the request is sent once
        more over a new one.
        """
        wire = self._wire
        if wire is not None and wire.can_carry_request_to(url):
            try:
                return await wire.post(url, headers, body)
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                pass  # only a connection that was already open gets a second chance
        await self.aclose()
        self._wire = wire = await self._connect(url)
        return await wire.post(url, headers, body)

    async def aclose(self) -> None:
        """Close the connection; the next request opens another."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
            await wire.is_closed.wait()  # otherwise the loop could end before its socket is closed

    async def _connect(self, url: httpx2.URL) -> _Wire:
        try:
            async with timeout(self._timeouts.connect):
                return await self._open(url)
        except TimeoutError as late:
            raise httpx2.ConnectTimeout(str(late)) from late
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error)) from error

    async def _open(self, url: httpx2.URL) -> _Wire:
        loop = get_running_loop()
        host = url.raw_host.decode("ascii")
        is_encrypted = url.scheme == "https"
        default_port = 443 if is_encrypted else 80
        socket = await open_socket(host, url.port or default_port)
        try:
            transport, wire = await loop.create_connection(
                lambda: _Wire(url, self._timeouts), sock=socket
            )
            if is_encrypted:
                # Not `create_connection(ssl=...)`: it keeps the socket if it is cancelled just as
                # the handshake ends.
                self._tls.set_alpn_protocols(["http/1.1"])
                encrypted = await loop.start_tls(transport, wire, self._tls, server_hostname=host)
                wire.connection_made(encrypted)
        except BaseException:
            socket.close()
            raise
        return wire


class _Wire(Protocol):
    """The protocol of an asyncio transport: sends one request at a time and reads its answer."""

    def __init__(self, url: httpx2.URL, timeouts: httpx2.Timeout) -> None:
        self._url = url
        self._timeouts = timeouts
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_HEAD)
        self._transport: Any = None
        self._has_ended = False
        self._error: Exception | None = None
        """Why the connection broke; None if it is open, or was closed in order."""
        self.is_closed = Event()
        self._unread = 0
        self._has_read_all = False
        """Whether the end of the answer was read."""
        self._malformed: h11.RemoteProtocolError | None = None
        """What h11 said of an answer that it cannot read. It says so once."""
        self._is_full = False
        """Whether the transport's buffer is full, so that writing has to wait."""
        self._waiter: Future[None] | None = None
        self._idle_since: float | None = None

    # -- what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._unread += len(data)
        if self._unread > _MOST_UNREAD:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._has_ended:  # else the server had ended its answer in order before
            self._error = exc
        self.is_closed.set()
        self._end()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    def _end(self) -> None:
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- a request and its answer

    def can_carry_request_to(self, url: httpx2.URL) -> bool:
        """Whether the connection leads to this URL's server, and is idle, but not for too long."""
        if self._idle_since is None or monotonic() - self._idle_since >= _KEEPALIVE_S:
            return False
        if not self._is_reusable():
            return False
        ours = self._url
        return (url.scheme, url.host, url.port) == (ours.scheme, ours.host, ours.port)

    def _is_reusable(self) -> bool:
        """Whether the last answer was read to its end, and nothing came after it."""
        # What comes unasked would be taken for the beginning of the next answer (RFC 9112, 9.3).
        return (
            not self._has_ended
            and self._http.our_state is h11.DONE
            and self._http.their_state is h11.DONE
            and self._http.trailing_data == (b"", False)
        )

    async def post(self, url: httpx2.URL, headers: Mapping[str, str], body: bytes) -> HTTPAnswer:
        """Send a request, and wait for the head of its answer."""
        try:
            if self._idle_since is not None:
                self._idle_since = None
                self._has_read_all = False
                self._http.start_next_cycle()
            await self._write(self._request(url, headers, body))
            return await self._read_head()
        except BaseException:
            self.close()
            raise

    def _request(self, url: httpx2.URL, headers: Mapping[str, str], body: bytes) -> bytes:
        """The bytes of a request. Raises `httpx2.LocalProtocolError` for a malformed header."""
        fields = {"host": url.netloc.decode("ascii"), **headers, "content-length": str(len(body))}
        try:
            request = h11.Request(
                method="POST",
                target=url.raw_path,
                headers=[
                    (name.encode("ascii"), value.encode("latin-1"))
                    for name, value in fields.items()
                ],
            )
            events = (request, h11.Data(data=body), h11.EndOfMessage())
            return b"".join(self._http.send(event) or b"" for event in events)
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise httpx2.LocalProtocolError(str(error)) from error

    async def _write(self, message: bytes) -> None:
        for start in range(0, len(message), _MOST_UNWRITTEN):
            self._transport.write(message[start : start + _MOST_UNWRITTEN])
            while self._is_full and not self._has_ended:
                await self._wait(self._timeouts.write, httpx2.WriteTimeout)
            if self._has_ended:
                return  # the server may have answered before it read everything

    async def _read_head(self) -> HTTPAnswer:
        event = await self._next_event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next_event()
        headers: dict[str, str] = {}
        for raw_name, raw_value in event.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return HTTPAnswer(self, event.status_code, headers)

    async def read_body(self) -> bytes:
        """What has come of the body, at least one byte; empty at its end.

        All of it: a model's tokens that came together are read together.
        """
        parts: list[bytes] = []
        while not parts and not self._has_read_all:
            event = await self._next_event()
            while isinstance(event, h11.Data):
                if event.data:
                    parts.append(bytes(event.data))
                try:
                    event = self._event_at_hand()
                except httpx2.RemoteProtocolError:
                    if not parts:
                        raise
                    break  # the next call raises it
            self._has_read_all = isinstance(event, h11.EndOfMessage)
        return b"".join(parts)

    async def _next_event(self) -> Any:
        """The next event of the answer: its head, a part of its body, its end."""
        while True:
            event = self._event_at_hand()
            if event is not h11.NEED_DATA:
                return event
            if self._has_ended:
                self._tell_end()
                continue
            if self._unread > _MOST_UNREAD:
                self._transport.resume_reading()
            self._unread = 0
            await self._wait(self._timeouts.read, httpx2.ReadTimeout)

    def _event_at_hand(self) -> Any:
        """The next event, if enough bytes have come for it; otherwise `h11.NEED_DATA`."""
        try:
            if self._malformed is None:
                return self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._malformed = error
        raise httpx2.RemoteProtocolError(str(self._malformed)) from self._malformed

    def _tell_end(self) -> None:
        """Tell h11 that the connection was closed, which may be how the body ends."""
        if self._error is not None:  # a connection that broke ends no body
            raise httpx2.ReadError(str(self._error)) from self._error
        if self._http.their_state is h11.SEND_RESPONSE:
            # h11 would say "can't handle event type ConnectionClosed".
            raise httpx2.RemoteProtocolError("the server closed the connection without an answer")
        self._http.receive_data(b"")

    async def _wait(self, limit_s: float | None, late: type[httpx2.TimeoutException]) -> None:
        """Wait until something happens on the connection. Raises `late` after the limit."""
        self._waiter = get_running_loop().create_future()
        try:
            async with timeout(limit_s):
                await self._waiter
        except TimeoutError as error:
            raise late("") from error
        finally:
            self._waiter = None

    def finish(self) -> None:
        """End an answer, read or abandoned: keep a connection that can carry another request."""
        if self._is_reusable():
            self._idle_since = monotonic()
        else:
            self.close()

    def close(self) -> None:
        """Close the connection at once."""
        self._idle_since = None
        self._transport.abort()


class HTTPAnswer:
    """An answer whose body is unread: the part of `httpx2.Response` that the transport uses.

    Not a `httpx2.Response`, which would double the cost of reading a short answer.
    """

    def __init__(self, wire: _Wire, status_code: int, headers: dict[str, str]) -> None:
        self._wire = wire
        self._is_finished = False
        self.status_code = status_code
        self.is_success = httpx2.codes.is_success(status_code)
        self.headers = headers
        """Names are in lower case; values of the same name are joined by commas."""

    async def aiter_bytes(self) -> AsyncGenerator[bytes]:
        """The body, decompressed, as it arrives."""
        decompress = _decompressor(self.headers.get("content-encoding", ""))
        while compressed := await self._wire.read_body():
            for number, piece in enumerate(decompress(compressed)):
                if number > 0:
                    await sleep(0)  # a piece may expand for long: other tasks run meanwhile
                yield piece

    async def aclose(self) -> None:
        """Stop reading. A second call does nothing: the connection may carry another answer."""
        if not self._is_finished:
            self._is_finished = True
            self._wire.finish()


def _decompressor(encodings: str) -> Callable[[bytes], Iterable[bytes]]:
    """What undoes the encoding of a body: `gzip` or `deflate`, which a request accepts, or none.

    Of several encodings only one compresses (`check_encoding`).
    """
    names = {name.strip() for name in encodings.lower().split(",")}
    if not names & {"gzip", "deflate"}:
        return lambda piece: (piece,)
    decompressor: Any = None

    def decompress(compressed: bytes) -> Iterator[bytes]:
        nonlocal decompressor
        if decompressor is None:
            # Some servers send `deflate` without the zlib header, whose first byte names the method
            # in 4 of its 8 bits.
            is_bare = "deflate" in names and compressed[0] & 15 != zlib.DEFLATED
            if is_bare:
                wbits = -zlib.MAX_WBITS
            else:
                wbits = zlib.MAX_WBITS | 32
            decompressor = zlib.decompressobj(wbits=wbits)
        try:
            while piece := decompressor.decompress(compressed, _MOST_DECOMPRESSED):
                yield piece
                compressed = decompressor.unconsumed_tail
        except zlib.error as error:
            raise httpx2.DecodingError(str(error)) from error

    return decompress


class ClientConnection:
    """A connection through an httpx2 client, which knows the proxy for each address."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def send(
        self, url: httpx2.URL, headers: Mapping[str, str], body: bytes
    ) -> httpx2.Response:
        """See `DirectConnection.send`."""
        staleness = Staleness()

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            staleness.note(event)

        request = httpx2.Request(
            "POST", url, headers=headers, content=body, extensions={"trace": trace}
        )
        try:
            return await self._client.send(request, stream=True)
        except (httpx2.NetworkError, httpx2.RemoteProtocolError):
            if not staleness.is_stale:
                raise
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()
