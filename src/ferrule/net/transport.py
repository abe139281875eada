"""HTTP requests to one address of a provider, with timeouts, retries and `LMError`s.

`httpx2` is imported with the first request, `stamina` with the first retry.
"""

from __future__ import annotations

import time
from contextlib import (
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
)
from typing import TYPE_CHECKING, TypeVar

from ferrule.concurrency.deadline import NEVER
from ferrule.errors import BadRequestError, ConfigurationError, UnavailableError, shown
from ferrule.net.connections import Clients, Timeouts
from ferrule.net.errors import add_advice, redact_error, redact_key, status_error
from ferrule.net.reading import Trace, check_bounds, read_whole, reading_until
from ferrule.net.retries import LONGEST_WAIT_S, RetryableError, aretry, retry

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Generator,
        Iterator,
        Mapping,
    )

    import httpx2

    from ferrule.net.loop_connection import HTTPAnswer
    from ferrule.net.pace import Pace

    Headers = Mapping[str, str]
    IsDone = Callable[[], bool]

T = TypeVar("T")

_SIDE_TIMEOUT_S = 5.0
_END_S = 1.0
"""How long to read a stream after its last event, so that the connection can be reused. Some gateways never end the stream."""
_DEFAULT_TIMEOUTS = Timeouts()
_NOT_REACHED = (
    "Is the server running, and can this machine reach it? `base_url=` names another address."
)
_BROKE_OFF = (
    "The answer broke off in the middle: ask again. If it happens often, look at the server's log."
)
_TOO_LATE = "Is the server stuck? If it is only slow, allow more time: `LM(..., read_timeout_s=..., timeout_s=...)`."
_NO_HTTP = "Is there a model server at this address? `base_url=` names another one."


class HTTPTransport:
    """Sends requests to one address of a provider. Thread-safe; each event loop and each forked process has its own connections."""

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
                f"`max_retries` is a whole number from 0, found {shown(max_retries)}.",
            )
        self.url = url
        self.stream_url = stream_url or url
        self.provider = provider
        self.model = model
        self.timeouts = timeouts
        self.max_retries = max_retries
        self._pace = pace
        self._slot, self._aslot = (
            (nullcontext, nullcontext) if pace is None else (pace.slot, pace.aslot)
        )
        self._headers = {
            "content-type": "application/json",
            "accept-encoding": "gzip, deflate",
            "user-agent": "ferrule",
        }
        if headers:
            from ferrule.net.http1 import own_headers  # late: few programs need it

            self._headers |= own_headers(headers)
        self._clients = Clients(timeouts)
        self._urls: dict[str, httpx2.URL] = {}

    def post(self, body: bytes, auth: Headers, key: str | None) -> tuple[bytes, Headers]:
        """Send a body with the headers `auth`; return the answer's body and headers. Raises `LMError`s, which never show the key."""

        def attempt() -> tuple[bytes, Headers]:
            if self._pace is not None:
                self._pace.wait()
            with self._translated(key):
                deadline = self._deadline()
                response = self._open(body, auth, key, deadline, stream=False)
                try:
                    return b"".join(self._pieces(response, deadline)), response.headers
                finally:
                    response.close()

        with self._slot():
            return self._with_retries(attempt)

    async def apost(self, body: bytes, auth: Headers, key: str | None) -> tuple[bytes, Headers]:
        """`post` without blocking the loop; cancelling closes the request."""

        async def attempt() -> tuple[bytes, Headers]:
            if self._pace is not None:
                await self._pace.await_()
            with self._translated(key):
                deadline = self._deadline()
                async with (
                    self._clients.of_loop(deadline) as connection,
                    connection.until(deadline),
                ):
                    response = await connection.send(
                        self._address(self.url),
                        {**auth, **self._headers},
                        body,
                    )
                    async with aclosing(response):
                        found = await read_whole(response.aiter_bytes(), deadline)
            self._check(response, found, key)
            return found, response.headers

        async with self._aslot():
            return await self._with_retries_async(attempt)

    @contextmanager
    def stream(
        self,
        body: bytes,
        auth: Headers,
        key: str | None,
        is_done: IsDone = bool,
    ) -> Generator[tuple[Headers, Iterator[bytes]]]:
        """The headers of an answer, and its body piece by piece, until `is_done()`. Only a failure before the first byte is retried."""

        def attempt() -> tuple[httpx2.Response, float]:
            if self._pace is not None:
                self._pace.wait()
            with self._translated(key):
                deadline = self._deadline()
                return self._open(body, auth, key, deadline, stream=True), deadline

        def pieces() -> Iterator[bytes]:
            with self._translated(key, may_retry=False):
                yield from self._pieces(response, deadline, is_done)

        with self._slot():
            response, deadline = self._with_retries(attempt)
            with closing(response):
                yield response.headers, pieces()

    @asynccontextmanager
    async def astream(
        self,
        body: bytes,
        auth: Headers,
        key: str | None,
        is_done: IsDone = bool,
    ) -> AsyncGenerator[tuple[Headers, AsyncIterator[bytes]]]:
        """`stream` without blocking the loop."""
        from asyncio import timeout as asyncio_timeout

        async with self._aslot(), AsyncExitStack() as stack:
            with self._translated(key, may_retry=False):
                connection = await stack.enter_async_context(
                    self._clients.of_loop(self._deadline()),
                )

            async def attempt() -> tuple[HTTPAnswer | httpx2.Response, float]:
                if self._pace is not None:
                    await self._pace.await_()
                with self._translated(key):
                    deadline = self._deadline()
                    async with connection.until(deadline):
                        response = await connection.send(
                            self._address(self.stream_url),
                            {**auth, **self._headers},
                            body,
                        )
                        if not response.is_success:
                            async with aclosing(response):
                                self._check(
                                    response,
                                    await read_whole(response.aiter_bytes(), deadline),
                                    key,
                                )
                        return response, deadline

            async def pieces() -> AsyncIterator[bytes]:
                with self._translated(key, may_retry=False):
                    rest, size = response.aiter_bytes(), 0
                    async for piece in rest:
                        size += len(piece)
                        check_bounds(deadline, size)
                        yield piece
                        if is_done():
                            async with asyncio_timeout(_END_S):
                                _ = [_ async for _ in rest]

            response, deadline = await self._with_retries_async(attempt)
            async with aclosing(response):
                yield response.headers, pieces()

    def fetch(self, url: str, auth: Headers) -> object:
        """The JSON at another address of the server, or None if anything fails: for optional information."""
        import httpx2

        try:
            found = self._clients.of_threads().get(
                url,
                headers={**auth, **self._headers},
                timeout=_SIDE_TIMEOUT_S,
            )
            return found.json() if found.is_success else None
        except (
            httpx2.HTTPError,
            httpx2.InvalidURL,
            ConfigurationError,
            ValueError,
            RecursionError,
        ):
            return None

    def asked(self, key: str | None) -> str:
        """A sentence for error messages about the model and address of a request, without secrets."""
        return redact_key(
            f"Asked {f'`{self.model}` at ' if self.model else ''}{self.url.partition('?')[0]}.",
            key,
        )

    def close(self) -> None:
        """Close the connections of sync code; the next request opens new ones."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._clients.aclose()

    # -- one attempt
    # --------------------------------------------------------------------------------------------

    def _open(
        self,
        body: bytes,
        auth: Headers,
        key: str | None,
        deadline: float,
        *,
        stream: bool,
    ) -> httpx2.Response:
        with reading_until(deadline):
            response = self._send(body, auth, stream=stream)
        try:
            if not response.is_success:
                self._check(response, b"".join(self._pieces(response, deadline)), key)
        except BaseException:
            response.close()
            raise
        return response

    def _send(self, body: bytes, auth: Headers, *, stream: bool) -> httpx2.Response:
        """Send a request; return the response, of which the body is still unread.

        If an idle connection was closed, which servers may do at any time, the request is sent once
        more over a new one.
        """
        from httpx2 import NetworkError, RemoteProtocolError

        client, trace = self._clients.of_threads(), Trace()
        try:
            return client.send(self._request(body, auth, trace, stream=stream), stream=True)
        except (NetworkError, RemoteProtocolError):
            if not trace.is_stale:
                raise
        return client.send(self._request(body, auth, trace, stream=stream), stream=True)

    def _request(self, body: bytes, auth: Headers, trace: Trace, *, stream: bool) -> httpx2.Request:
        from httpx2 import Request

        url = self._address(self.stream_url if stream else self.url)
        return Request(
            "POST",
            url,
            headers={**auth, **self._headers},
            content=body,
            extensions={"trace": trace},
        )

    def _address(self, address: str) -> httpx2.URL:
        from httpx2 import URL

        return self._urls.get(address) or self._urls.setdefault(address, URL(address))

    def _deadline(self) -> float:
        return NEVER if self.timeouts.total_s is None else time.monotonic() + self.timeouts.total_s

    def _pieces(
        self,
        response: httpx2.Response,
        deadline: float,
        is_done: IsDone = bool,
    ) -> Iterator[bytes]:
        pieces, until, size = response.iter_bytes(), deadline, 0
        while True:
            with reading_until(
                until,
            ):  # not around the `yield`: the thread may send another request meanwhile
                piece = next(pieces, None)
            if piece is None:
                return
            size += len(piece)
            check_bounds(until, size)
            yield piece
            if until == deadline and is_done():
                until = min(deadline, time.monotonic() + _END_S)

    def _check(self, response: HTTPAnswer | httpx2.Response, body: bytes, key: str | None) -> None:
        """Raise the error for an answer with an error status."""
        if response.is_success:
            return
        error, may_pass = status_error(
            response.status_code,
            response.headers,
            body,
            provider=self.provider,
            secret=key,
        )
        add_advice(error, self.asked(key))
        if may_pass and (error.retry_after_s or 0.0) <= LONGEST_WAIT_S:
            raise RetryableError(error)
        raise error

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
            limit = (
                f" (`connect_timeout_s` is {self.timeouts.connect_s})"
                if isinstance(broken, httpx2.ConnectTimeout)
                else ""
            )
            words = redact_key(str(broken) or type(broken).__name__, key)
            error = UnavailableError(
                f"the connection failed: {words}{limit}",
                provider=self.provider,
            )
            add_advice(error, _NOT_REACHED if may_retry else _BROKE_OFF, self.asked(key))
            raise (RetryableError(error) if may_retry else error) from broken
        except (httpx2.TimeoutException, TimeoutError) as late:
            limits = self.timeouts
            msg = f"no answer in time (`read_timeout_s` is {limits.read_s}, `timeout_s` is {limits.total_s})"
            raise add_advice(
                UnavailableError(msg, provider=self.provider),
                _TOO_LATE,
                self.asked(key),
            ) from late
        except (httpx2.RequestError, httpx2.InvalidURL) as odd:
            redact_error(odd, key)
            msg = f"the exchange failed: {redact_key(str(odd) or type(odd).__name__, key)}"
            raise add_advice(
                BadRequestError(msg, provider=self.provider),
                _NO_HTTP,
                self.asked(key),
            ) from odd

    # -- retries
    # ------------------------------------------------------------------------------------------------

    def _with_retries(self, attempt: Callable[[], T]) -> T:
        try:
            return attempt()
        except RetryableError as error:
            first = error
        return retry(attempt, first, self.max_retries)

    async def _with_retries_async(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            return await attempt()
        except RetryableError as error:
            first = error
        return await aretry(attempt, first, self.max_retries)
