"""One connection of an event loop to a model's server. Imported with the first connection: it imports `httpx2`.

Most of the cost of a request is the HTTP client. So async code speaks HTTP/1.1 over an asyncio
transport, without layers that requests to a model never need: redirects, cookies, log-ins, a pool.
`ClientConnection` has those layers, and serves proxies from the environment.
"""

from __future__ import annotations

import zlib
from asyncio import Event, Protocol, get_running_loop, timeout
from contextlib import nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2

from ferrule.concurrency.deadline import NEVER, left_until
from ferrule.net.http1 import AnswerReader, HTTPSyntaxError, request_head
from ferrule.net.sockets import open_socket

if TYPE_CHECKING:
    import ssl
    from asyncio import Future, TimerHandle
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from ferrule.net.http1 import Head

T = TypeVar("T")

_NOT_STALE = (".connect_tcp.started", ".receive_response_headers.complete")
_KEEPALIVE_S = 5.0
"""How long an idle connection can be reused. The default of httpx2."""
_MOST_UNREAD = 256 * 1024
"""How many bytes of an answer may be unread before reading is paused, so that the server waits."""
_MOST_UNWRITTEN = 256 * 1024
"""How many bytes of a request are written at once: the write timeout is for each such part, not for the whole body."""
_NO_LIMIT = nullcontext()


class DirectConnection:
    """A connection straight to the server, without a proxy."""

    def __init__(self, tls: ssl.SSLContext, timeouts: httpx2.Timeout) -> None:
        self._tls = tls
        self._timeouts = timeouts
        self._wire: _Wire | None = None
        self._deadline = NEVER

    def until(self, deadline: float) -> AbstractAsyncContextManager[None]:
        """Set a deadline, in the time of `time.monotonic()`, for a block's requests and for reading their answers, even after the block.

        Each wait checks the deadline: a timer for each request would cost more.
        """
        self._deadline = deadline
        return _NO_LIMIT

    async def send(self, url: httpx2.URL, headers: Mapping[str, str], body: bytes) -> HTTPAnswer:
        """Send a request; return its answer, of which the body is still unread.

        If an idle connection was closed, which servers may do at any time, the request is sent once
        more over a new one.
        """
        wire = self._wire
        if wire is not None and wire.is_open_to(url):
            try:
                return await wire.ask(url, headers, body, self._deadline)
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                pass  # only on a connection that was already open
        await self.aclose()
        self._wire = wire = await self._connect(url)
        return await wire.ask(url, headers, body, self._deadline)

    async def aclose(self) -> None:
        """Close the connection; the next request opens another."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
            await wire.is_closed.wait()  # otherwise the loop could end before its socket is closed

    async def _connect(self, url: httpx2.URL) -> _Wire:
        host, tls = url.raw_host.decode("ascii"), None
        if url.scheme == "https":
            tls = self._tls
            tls.set_alpn_protocols(["http/1.1"])
        loop, limit_s = get_running_loop(), self._timeouts.connect
        until = min(self._deadline, NEVER if limit_s is None else monotonic() + limit_s)
        try:
            async with timeout(left_until(until)):
                opened = await open_socket(host, url.port or (80 if tls is None else 443))
                try:
                    transport, wire = await loop.create_connection(
                        lambda: _Wire(url, self._timeouts),
                        sock=opened,
                    )
                    if (
                        tls is not None
                    ):  # `create_connection(ssl=...)` keeps the socket if it is cancelled just as the handshake ends
                        wire.connection_made(
                            await loop.start_tls(transport, wire, tls, server_hostname=host),
                        )
                except BaseException:
                    opened.close()
                    raise
        except TimeoutError as late:
            if monotonic() >= self._deadline:
                raise
            raise httpx2.ConnectTimeout(str(late)) from late
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(str(error)) from error
        return wire


class _Wire(Protocol):
    """The protocol of an asyncio transport: sends one request at a time and reads its answer."""

    def __init__(self, url: httpx2.URL, timeouts: httpx2.Timeout) -> None:
        self._url = url
        self._begun: tuple[httpx2.URL, Mapping[str, str], bytes] | None = None
        """The URL and headers of the last request, and its head up to the length of the body, for reuse."""
        self._limit_s = timeouts.read
        """How long to wait for the next bytes, in either direction."""
        self._deadline = NEVER
        """When the whole answer must have arrived."""
        self._loop = get_running_loop()
        self._reader = AnswerReader()
        self._transport: Any = None
        self._lost: Exception | None = None
        self._has_ended = False
        self.is_closed = Event()
        self._unread = 0
        self._is_full = False
        """Whether the transport's buffer is full, so that writing has to wait."""
        self._waiter: Future[None] | None = None
        self._waits_since = 0.0
        self._late: type[httpx2.TimeoutException] = httpx2.ReadTimeout
        self._timer: TimerHandle | None = None
        self._looks_at = 0.0
        """When the timer fires."""
        self._idle_since: float | None = None

    # -- what asyncio calls
    # -------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._unread += len(data)
        if self._unread > _MOST_UNREAD:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc
        self.is_closed.set()
        self._end()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    def _end(self) -> None:
        self._has_ended = True
        self._reader.feed(b"", is_broken=self._lost is not None)
        self._wake()

    # -- a request and its answer
    # -------------------------------------------------------------------------------

    def is_open_to(self, url: httpx2.URL) -> bool:
        """Whether the connection leads to this URL's server, and is idle, but not for too long."""
        mine, since = self._url, self._idle_since
        if since is None or not self._reader.is_reusable or monotonic() - since >= _KEEPALIVE_S:
            return False
        return url is mine or (url.scheme, url.host, url.port) == (
            mine.scheme,
            mine.host,
            mine.port,
        )

    async def ask(
        self,
        url: httpx2.URL,
        headers: Mapping[str, str],
        body: bytes,
        deadline: float,
    ) -> HTTPAnswer:
        """Send a request, and wait for the head of its answer."""
        self._idle_since, self._deadline = None, deadline
        try:
            begun = self._begun
            if begun is None or begun[0] is not url or begun[1] != headers:
                try:
                    head = request_head(
                        url.netloc.decode("ascii"),
                        url.raw_path.decode("ascii"),
                        headers,
                    )
                except HTTPSyntaxError as error:
                    raise httpx2.LocalProtocolError(str(error)) from error
                self._begun = begun = url, headers, head
            await self._write(b"%b%d\r\n\r\n%b" % (begun[2], len(body), body))
            return HTTPAnswer(self, await self._read(self._reader.head))
        except BaseException:
            self.close()
            raise

    async def piece(self) -> bytes:
        """The next piece of the body; empty at its end."""
        return await self._read(self._reader.piece)

    async def _write(self, message: bytes) -> None:
        for start in range(0, len(message), _MOST_UNWRITTEN):
            self._transport.write(message[start : start + _MOST_UNWRITTEN])
            while self._is_full and not self._has_ended:
                await self._wait(httpx2.WriteTimeout)
            if self._has_ended:
                return  # the answer may have come before the end

    async def _read(self, read: Callable[[], T | None]) -> T:
        while True:
            try:
                found = read()
            except HTTPSyntaxError as error:
                if self._lost is not None:
                    raise httpx2.ReadError(str(self._lost)) from self._lost
                raise httpx2.RemoteProtocolError(str(error)) from error
            if found is not None:
                return found
            if self._unread > _MOST_UNREAD:
                self._transport.resume_reading()
            self._unread = 0
            await self._wait(httpx2.ReadTimeout)

    def finish(self) -> None:
        """End an answer, read or abandoned: keep the connection if it can carry another request, else close it."""
        if self._reader.is_reusable:
            self._idle_since = monotonic()
        else:
            self.close()

    def close(self) -> None:
        """Close the connection at once."""
        self._idle_since = None
        self._stop_timer()
        self._transport.abort()

    # -- waiting
    # ------------------------------------------------------------------------------------------------

    async def _wait(self, late: type[httpx2.TimeoutException]) -> None:
        """Wait until something happens on the connection. Raises `late` after the time limit, or at the deadline."""
        self._waits_since, self._late = monotonic(), late
        if self._waits_since >= self._deadline:
            raise late("")
        self._waiter = waiter = self._loop.create_future()
        if self._timer is None or self._looks_at > self._deadline:
            self._look_later()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look_later(self) -> None:
        """Set the timer to when this wait becomes too long. One timer serves many waits: one for each wait would cost more."""
        self._stop_timer()
        if self._limit_s is not None:
            self._looks_at = min(self._waits_since + self._limit_s, self._deadline)
            self._timer = self._loop.call_later(
                self._looks_at - monotonic(),
                self._look_at_the_clock,
            )

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._look_later()
            if self._looks_at <= monotonic():
                self._waiter.set_exception(self._late(""))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HTTPAnswer:
    """The head of an answer, and its unread body: the part of `httpx2.Response` that the transport uses."""

    def __init__(self, wire: _Wire, head: Head) -> None:
        self._wire = wire
        self._is_left = False
        self.status_code = head.status
        self.is_success = httpx2.codes.is_success(head.status)
        self.headers = head.headers

    async def aiter_bytes(self) -> AsyncGenerator[bytes]:
        """The body, decompressed, as it arrives."""
        encodings = self.headers.get("content-encoding", "").lower().split(",")
        decompressors = [
            _decompressor(each)
            for name in reversed(encodings)
            if (each := name.strip()) in {"gzip", "deflate"}
        ]
        while piece := await self._wire.piece():
            for decompress in decompressors:
                piece = piece and decompress(piece)
            if piece:
                yield piece

    async def aclose(self) -> None:
        """Stop reading the answer. A second call does nothing: the connection may already carry another answer."""
        if not self._is_left:
            self._is_left = True
            self._wire.finish()


def _decompressor(encoding: str) -> Callable[[bytes], bytes]:
    """A function that decompresses `gzip` or `deflate`, the encodings that a request accepts."""
    of: Any = None

    def decompress(piece: bytes) -> bytes:
        nonlocal of
        if of is None:
            # Some servers send `deflate` without the zlib header, whose first byte names the method
            # in 4 of its 8 bits.
            is_bare = encoding == "deflate" and piece[0] & 15 != zlib.DEFLATED
            of = zlib.decompressobj(wbits=-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32)
        try:
            return of.decompress(piece)
        except zlib.error as error:
            raise httpx2.DecodingError(str(error)) from error

    return decompress


class ClientConnection:
    """A connection through an httpx2 client, which knows the environment's proxy for each address."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self.aclose = client.aclose

    def until(self, deadline: float) -> AbstractAsyncContextManager[Any]:
        """A block that ends by the deadline; later reads have no deadline."""
        return timeout(left_until(deadline))

    async def send(
        self,
        url: httpx2.URL,
        headers: Mapping[str, str],
        body: bytes,
    ) -> httpx2.Response:
        """See `DirectConnection.send`."""
        is_stale = True

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal is_stale
            if event.endswith(_NOT_STALE):
                is_stale = False

        request = httpx2.Request(
            "POST",
            url,
            headers=headers,
            content=body,
            extensions={"trace": trace},
        )
        try:
            return await self._client.send(request, stream=True)
        except (httpx2.NetworkError, httpx2.RemoteProtocolError):
            if not is_stale:
                raise
        return await self._client.send(request, stream=True)
