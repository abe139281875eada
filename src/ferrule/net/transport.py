"""HTTP requests to one address of a provider, with timeouts, retries and `LMError`s.

One request is one *attempt* or several: `retry` repeats an attempt that raised
`RetryableError`. Reading the answer is a part of the attempt, because gateways send errors with a
success status: of a streamed answer, up to its first piece. An attempt has a deadline, and
translates what `httpx2` raises. A connection that
the server had closed while it was idle is replaced within the attempt, and does not count as a
retry.

Sync and async code differ in how an exchange is carried (`httpx2.Client`, and connections of the
event loop) and in how a deadline ends it (each read knows it, and `asyncio.timeout`); see
`connections.py` and `reading.py`.

`httpx2` is imported with the first request.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import (
    AsyncExitStack,
    ExitStack,
    aclosing,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
)
from copy import copy
from typing import TYPE_CHECKING, Protocol, TypeVar

from ferrule.concurrency.deadline import NEVER, left_until
from ferrule.errors import (
    BadRequestError,
    ConfigurationError,
    LMError,
    UnavailableError,
    shown,
)
from ferrule.net.connections import Clients, Timeouts
from ferrule.net.errors import add_advice, redact_error, redact_key, status_error
from ferrule.net.reading import END_S, body_pieces, check_bounds, check_encoding, send
from ferrule.net.retries import RetryableError, aretry, may_retry, retry
from ferrule.values.display import Concealed

if TYPE_CHECKING:
    from asyncio import Timeout
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Generator,
        Iterator,
    )
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    import httpx2

    from ferrule.net.connections import Connection
    from ferrule.net.loop_connection import HTTPAnswer
    from ferrule.net.pace import Pace

    Headers = Mapping[str, str]
    IsDone = Callable[[], bool]

T = TypeVar("T")


class Receiver(Protocol):
    """Receives a streamed answer. Each attempt has its own."""

    @property
    def is_done(self) -> bool:
        """Whether the server has sent the end of its answer."""
        ...

    def take(self, piece: bytes) -> bool:
        """Take the next bytes of the body, cut anywhere. Returns whether the answer has begun."""
        ...

    def end(self) -> None:
        """End a body in which the answer has not begun. Raises `LMError` if it is an error."""
        ...


R = TypeVar("R", bound=Receiver)

_SIDE_TIMEOUT_S = 5.0
_MOST_SIDE_BYTES = 16 * 1024 * 1024
"""The most bytes of optional information, decompressed. A list of all models takes a few."""
_BETAS = "anthropic-beta"
_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding"})
_DEFAULT_TIMEOUTS = Timeouts()
_NOT_REACHED = (
    "Is the server running, and can this machine reach it? `base_url=` names another address."
)
_BROKE_OFF = (
    "The answer broke off in the middle: ask again. If it happens often, look at the server's log."
)
_TOO_LATE = (
    "Is the server stuck? If it is only slow, allow more time: "
    "`LM(..., read_timeout_s=..., timeout_s=...)`."
)
_NO_HTTP = "Is there a model server at this address? `base_url=` names another one."


class HTTPTransport:
    """Sends requests to one address of a provider.

    Thread-safe; each event loop and each forked process has its own connections.
    """

    def __init__(
        self,
        url: str,
        *,
        provider: str,
        model: str = "",
        stream_url: str | None = None,
        headers: Headers | None = None,
        timeouts: Timeouts = _DEFAULT_TIMEOUTS,
        max_retries: int = 2,
        pace: Pace | None = None,
    ) -> None:
        if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
            raise ConfigurationError(
                f"`max_retries` is a whole number from 0, found {shown(max_retries)}."
            )
        self.url = url
        self.stream_url = stream_url or url
        self.provider = provider
        self.model = model
        self.timeouts = timeouts
        self.max_retries = max_retries
        self._pace = pace
        """The limits on requests; None without limits."""
        self._headers = {
            "content-type": "application/json",
            "accept-encoding": "gzip, deflate",
            "user-agent": "ferrule",
        }
        if headers:
            self._headers |= _checked_headers(headers)
        self._clients = Clients(timeouts)
        self._parsed_urls: dict[str, httpx2.URL] = {}

    def post(
        self, body: bytes, auth: Headers, key: str | None, read: Callable[[bytes, Headers], T]
    ) -> T:
        """Post a body with the headers `auth`; return the answer as `read` reads it.

        Raises `LMError`s, which never show the key.
        """

        def attempt() -> T:
            if self._pace is not None:
                self._pace.wait()
            with self._translated(key):
                deadline = self._deadline()
                headers = self.all_headers(auth)
                response = self._open(self.url, body, headers, key, deadline)
                with closing(response):
                    content = b"".join(body_pieces(response, deadline))
            with _retrying():
                return read(content, response.headers)

        with self._slot():
            return retry(attempt, self.max_retries)

    async def apost(
        self, body: bytes, auth: Headers, key: str | None, read: Callable[[bytes, Headers], T]
    ) -> T:
        """`post` without blocking the loop; cancelling closes the request."""

        async def attempt() -> T:
            if self._pace is not None:
                await self._pace.await_()
            with self._translated(key):
                deadline = self._deadline()
                async with _ends_by(deadline), self._clients.of_loop() as connection:
                    response = await self._aopen(connection, self.url, body, auth, key, deadline)
                    async with aclosing(response):
                        content = await self._aread(response, deadline)
            with _retrying():
                return read(content, response.headers)

        async with self._aslot():
            return await aretry(attempt, self.max_retries)

    @contextmanager
    def stream(
        self, body: bytes, auth: Headers, key: str | None, receive: Callable[[Headers], R]
    ) -> Generator[tuple[R, Iterator[bytes]]]:
        """A streamed answer: its receiver, which has the beginning, and the rest of the body.

        `receive` makes a receiver for the headers of an answer. Only a failure before the answer
        has begun is retried.
        """

        def attempt() -> tuple[httpx2.Response, R, Iterator[bytes]]:
            if self._pace is not None:
                self._pace.wait()
            with self._translated(key), ExitStack() as stack:
                deadline = self._deadline()
                headers = self.all_headers(auth)
                response = self._open(self.stream_url, body, headers, key, deadline)
                stack.enter_context(closing(response))
                receiver = receive(response.headers)
                rest = body_pieces(response, deadline, lambda: receiver.is_done)
                with _retrying():
                    for piece in rest:
                        if receiver.take(piece):
                            break
                    else:
                        receiver.end()
                stack.pop_all()  # the answer has begun, and stays open
                return response, receiver, rest

        def pieces() -> Iterator[bytes]:
            with self._translated(key, may_retry=False):
                yield from rest

        with self._slot():
            response, receiver, rest = retry(attempt, self.max_retries)
            with closing(response):
                yield receiver, pieces()

    @asynccontextmanager
    async def astream(
        self, body: bytes, auth: Headers, key: str | None, receive: Callable[[Headers], R]
    ) -> AsyncGenerator[tuple[R, AsyncIterator[bytes]]]:
        """`stream` without blocking the loop."""
        async with self._aslot(), AsyncExitStack() as stack:
            with self._translated(key, may_retry=False):
                async with _ends_by(self._deadline()):
                    connection = await stack.enter_async_context(self._clients.of_loop())

            async def attempt() -> tuple[HTTPAnswer | httpx2.Response, R, AsyncGenerator[bytes]]:
                if self._pace is not None:
                    await self._pace.await_()
                with self._translated(key):
                    async with AsyncExitStack() as opened:
                        deadline = self._deadline()
                        async with _ends_by(deadline):
                            response = await self._aopen(
                                connection, self.stream_url, body, auth, key, deadline
                            )
                        await opened.enter_async_context(aclosing(response))
                        receiver = receive(response.headers)
                        rest = self._apieces(response, deadline, lambda: receiver.is_done)
                        await opened.enter_async_context(aclosing(rest))
                        with _retrying():
                            async for piece in rest:
                                if receiver.take(piece):
                                    break
                            else:
                                receiver.end()
                        opened.pop_all()  # the answer has begun, and stays open
                        return response, receiver, rest

            async def pieces() -> AsyncIterator[bytes]:
                with self._translated(key, may_retry=False):
                    async for piece in rest:
                        yield piece

            response, receiver, rest = await aretry(attempt, self.max_retries)
            async with aclosing(response), aclosing(rest):
                yield receiver, pieces()

    def beside(self) -> HTTPTransport:
        """The same transport with connections of its own, and without limits on requests."""
        other = copy(self)
        other._clients = Clients(self.timeouts)  # noqa: SLF001  the copy's
        other._pace = None  # noqa: SLF001
        return other

    def exchange(
        self,
        url: str,
        body: bytes | None,
        auth: Headers,
        key: str | None,
        *,
        content_type: str = "application/json",
        may_repeat: bool = True,
    ) -> bytes:
        """Post a body to another address of the server, or get what is there without one.

        Returns the body of the answer. Raises `LMError`s. Without `may_repeat`, the request is sent
        at most once, also over a connection that turns out to be closed.
        """

        def attempt() -> bytes:
            with self._translated(key):
                deadline = self._deadline()
                headers = {**self.all_headers(auth), "content-type": content_type}
                response = self._open(url, body, headers, key, deadline)
                with closing(response):
                    return b"".join(body_pieces(response, deadline))

        if may_repeat:
            return retry(attempt, self.max_retries)
        self._clients.close()  # a request over an idle connection may be sent twice (`send`)
        try:
            return attempt()
        except RetryableError as error:
            raise error.error from error.__cause__

    def fetch(self, url: str, auth: Headers) -> object:
        """The JSON at another address of the server; None if anything fails.

        For optional information only. It has a deadline and a size limit, like every request.
        """
        import httpx2

        client, headers = self._clients.of_threads(), self.all_headers(auth)
        deadline = min(self._deadline(), time.monotonic() + _SIDE_TIMEOUT_S)
        try:
            response = send(client, self._parsed(url), headers, None, deadline)
            with closing(response):
                if not response.is_success:
                    return None
                pieces = body_pieces(response, deadline, most_bytes=_MOST_SIDE_BYTES)
                return json.loads(b"".join(pieces))
        except (
            httpx2.HTTPError,
            httpx2.InvalidURL,
            ConfigurationError,
            TimeoutError,
            ValueError,
            RecursionError,
        ):
            return None

    def asked(self, key: str | None) -> str:
        """A sentence for error messages: the model and address of a request, without secrets."""
        if self.model:
            model = f"`{self.model}` at "
        else:
            model = ""
        address = self.url.partition("?")[0]
        return redact_key(f"Asked {model}{address}.", key)

    def close(self) -> None:
        """Close the connections of sync code; the next request opens new ones."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._clients.aclose()

    # -- one attempt of sync code

    def _open(
        self, url: str, body: bytes | None, headers: Headers, key: str | None, deadline: float
    ) -> httpx2.Response:
        """Send a request; return a response with success, of which the body is still unread."""
        client = self._clients.of_threads()
        response = send(client, self._parsed(url), headers, body, deadline)
        try:
            if not response.is_success:
                raise self._status_error(response, b"".join(body_pieces(response, deadline)), key)
        except BaseException:
            response.close()
            raise
        return response

    # -- one attempt of async code

    async def _aopen(
        self,
        connection: Connection,
        url: str,
        body: bytes,
        auth: Headers,
        key: str | None,
        deadline: float,
    ) -> HTTPAnswer | httpx2.Response:
        """`_open` over a connection of the loop."""
        response = await connection.send(self._parsed(url), self.all_headers(auth), body)
        if response.is_success:
            return response
        async with aclosing(response):
            raise self._status_error(response, await self._aread(response, deadline), key)

    async def _aread(self, response: HTTPAnswer | httpx2.Response, deadline: float) -> bytes:
        """The whole body."""
        pieces = [piece async for piece in self._apieces(response, deadline)]
        return b"".join(pieces)

    async def _apieces(
        self, response: HTTPAnswer | httpx2.Response, deadline: float, is_done: IsDone = bool
    ) -> AsyncGenerator[bytes]:
        """`body_pieces` on an event loop."""
        check_encoding(response.headers)
        pieces = response.aiter_bytes()
        until, size, was_done = deadline, 0, False
        while True:
            async with _ends_by(until):
                piece = await anext(pieces, None)
            if piece is None:
                return
            size += len(piece)
            check_bounds(until, size)
            yield piece
            if not was_done and is_done():
                was_done = True
                until = min(deadline, time.monotonic() + END_S)

    # -- what both have in common

    def all_headers(self, auth: Headers) -> dict[str, str]:
        """All headers of a request."""
        return joined_headers(auth, self._headers)

    def _parsed(self, url: str) -> httpx2.URL:
        from httpx2 import URL

        if url not in self._parsed_urls:
            self._parsed_urls[url] = URL(url)
        return self._parsed_urls[url]

    def _deadline(self) -> float:
        if self.timeouts.total_s is None:
            return NEVER
        return time.monotonic() + self.timeouts.total_s

    def _status_error(
        self, response: HTTPAnswer | httpx2.Response, body: bytes, key: str | None
    ) -> Exception:
        """The error for an answer with an error status."""
        error, _ = status_error(
            response.status_code, response.headers, body, provider=self.provider, secret=key
        )
        add_advice(error, self.asked(key))
        if may_retry(error):
            return RetryableError(error)
        return error

    @contextmanager
    def _translated(self, key: str | None, *, may_retry: bool = True) -> Generator[None]:
        """Raise errors of the connection as `LMError`s."""
        import httpx2

        try:
            yield
        except (
            httpx2.ConnectTimeout,
            httpx2.NetworkError,
            httpx2.RemoteProtocolError,
            httpx2.ProxyError,
        ) as broken:
            redact_error(broken, key)
            if may_retry:
                error = self._connection_error(broken, key, _NOT_REACHED)
                raise RetryableError(error) from broken
            raise self._connection_error(broken, key, _BROKE_OFF) from broken
        except (httpx2.TimeoutException, TimeoutError) as late:
            error = UnavailableError(
                f"no answer in time (`read_timeout_s` is {self.timeouts.read_s}, "
                f"`timeout_s` is {self.timeouts.total_s})",
                provider=self.provider,
            )
            raise add_advice(error, _TOO_LATE, self.asked(key)) from late
        except (httpx2.RequestError, httpx2.InvalidURL) as odd:
            redact_error(odd, key)
            error = BadRequestError(
                f"the exchange failed: {redact_key(str(odd) or type(odd).__name__, key)}",
                provider=self.provider,
            )
            raise add_advice(error, _NO_HTTP, self.asked(key)) from odd

    def _connection_error(
        self, broken: httpx2.RequestError, key: str | None, advice: str
    ) -> UnavailableError:
        import httpx2

        message = f"the connection failed: {redact_key(str(broken) or type(broken).__name__, key)}"
        if isinstance(broken, httpx2.ConnectTimeout):
            message += f" (`connect_timeout_s` is {self.timeouts.connect_s})"
        error = UnavailableError(message, provider=self.provider)
        return add_advice(error, advice, self.asked(key))

    def _slot(self) -> AbstractContextManager[None]:
        if self._pace is None:
            return nullcontext()
        return self._pace.slot()

    def _aslot(self) -> AbstractAsyncContextManager[None]:
        if self._pace is None:
            return nullcontext()
        return self._pace.aslot()


@contextmanager
def _retrying() -> Generator[None]:
    """Retry after an error that was read in an answer with a success status."""
    try:
        yield
    except LMError as error:
        if not may_retry(error):
            raise
        raise RetryableError(error) from error.__cause__


def _ends_by(deadline: float) -> Timeout:
    """A block of async code that raises `TimeoutError` at the deadline."""
    from asyncio import timeout

    return timeout(left_until(deadline))


def joined_headers(ours: Headers, users: Headers) -> dict[str, str]:
    """Headers with those of the user, names in lower case.

    The user's replace ours, except a list of betas: it grows.
    """
    headers = {**ours, **users}
    betas: dict[str, None] = {}
    for fields in (ours, users):
        names = [name.strip() for name in fields.get(_BETAS, "").split(",")]
        betas |= dict.fromkeys(filter(None, names))
    if betas:
        headers[_BETAS] = ",".join(betas)
    return headers


def _checked_headers(headers: Headers) -> dict[str, str]:
    """The headers that the user adds to every request, names in lower case.

    Raises `ConfigurationError` for one that cannot be sent.
    """
    import h11  # late: few programs add headers

    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"`headers` takes a mapping of texts, found {shown(headers)}.")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            kinds = f"{type(name).__name__} and {type(value).__name__}"
            raise ConfigurationError(
                f"`headers` holds names and values as text, found {kinds} ({name!r})."
            )
        if name.lower() in _FRAMING_HEADERS:
            raise ConfigurationError(
                f"`headers` cannot contain {name!r}: ferrule sets it for each request. "
                f"Leave it out."
            )
        fields = {"host": "-", name.lower(): value}
        try:
            h11.Request(method="POST", target="/", headers=list(fields.items()))
        except (h11.LocalProtocolError, UnicodeError):
            raise ConfigurationError(
                f"The header {name!r} contains characters that headers do not allow (line ends, "
                f"spaces around the value, or other than ASCII)."
            ) from None  # h11's error shows the value, which may be secret
    return {name.lower(): Concealed(value) for name, value in headers.items()}
