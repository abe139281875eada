"""One provider's address over HTTP: bytes there and back, with timeouts, retries and `LMError`s.

`httpx2` is imported with the first request, `stamina` with the first retry.
"""

from __future__ import annotations

import random
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ferrule.errors import BadRequestError, ConfigurationError, LMError, UnavailableError, shown
from ferrule.models.http.connections import Clients, Timeouts
from ferrule.models.http.errors import add_advice, redact_error, redact_key, status_error
from ferrule.models.http.exchange import NEVER, Trace, check_time, reading_until
from ferrule.models.providers import Concealed, public

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping

    import httpx2

    from ferrule.models.http.pace import Pace

T = TypeVar("T")

_LONGEST_WAIT_S = 60.0
"""A provider that asks for a longer wait is not tried again; the error says how long the wait would be."""
_SIDE_TIMEOUT_S = 5.0
_DEFAULT_TIMEOUTS = Timeouts()
_BACKOFF: Mapping[str, Any] = {"timeout": None, "wait_initial": 0.5, "wait_max": 20.0, "wait_jitter": 0.5}
_NOT_REACHED = "Is the server running, and can this machine reach it? `base_url=` names another address."
_BROKE_OFF = "The answer broke off in the middle: ask again. If it happens often, look at the server's log."
_TOO_LATE = "Is the server stuck? If it is only slow, allow more time: `LM(..., read_timeout_s=..., timeout_s=...)`."
_NO_HTTP = "Is there a model server at this address? `base_url=` names another one."


class _RetryableError(Exception):
    """An attempt failed, and another may succeed."""

    def __init__(self, error: LMError) -> None:
        self.error = error
        super().__init__(error)

    def __repr__(self) -> str:
        return repr(self.error)


class HTTPTransport:
    """One address of one provider. Safe for threads; each event loop and each forked process has connections of its own."""

    def __init__(
        self,
        url: str,
        *,
        provider: str,
        model: str = "",
        stream_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts = _DEFAULT_TIMEOUTS,
        max_retries: int = 2,
        pace: Pace | None = None,
    ) -> None:
        if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
            raise ConfigurationError(f"`max_retries` is a whole number from 0, found {shown(max_retries)}.")
        self.url = url
        self.stream_url = stream_url or url
        self.provider = provider
        self.model = model
        self.timeouts = timeouts
        self.max_retries = max_retries
        self._pace = pace
        self._slot, self._aslot = (nullcontext, nullcontext) if pace is None else (pace.slot, pace.aslot)
        own = {name.lower(): Concealed(value) for name, value in (headers or {}).items()}
        self._headers = {"content-type": "application/json", "accept-encoding": "gzip, deflate", "user-agent": "ferrule", **own}
        self._clients = Clients(timeouts)

    def post(self, body: bytes, auth: Mapping[str, str], key: str | None) -> tuple[bytes, Mapping[str, str]]:
        """Send with the headers `auth`; returns the body and the headers of the answer. Raises `LMError`s, which never show the key."""

        def attempt() -> tuple[bytes, Mapping[str, str]]:
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

    async def apost(self, body: bytes, auth: Mapping[str, str], key: str | None) -> tuple[bytes, Mapping[str, str]]:
        """`post` without blocking the loop; cancelling closes the request."""
        from asyncio import timeout

        async def attempt() -> tuple[bytes, Mapping[str, str]]:
            if self._pace is not None:
                await self._pace.await_()
            with self._translated(key):
                async with timeout(self.timeouts.total_s), self._clients.of_loop() as client:
                    response = await self._asend(client, body, auth, stream=False)
            self._check(response, response.content, key)
            return response.content, response.headers

        async with self._aslot():
            return await self._with_retries_async(attempt)

    @contextmanager
    def stream(self, body: bytes, auth: Mapping[str, str], key: str | None) -> Generator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """The headers of an answer, and its body piece by piece. A failure before the first byte is retried, a later one is not."""

        def attempt() -> tuple[httpx2.Response, float]:
            if self._pace is not None:
                self._pace.wait()
            with self._translated(key):
                deadline = self._deadline()
                return self._open(body, auth, key, deadline, stream=True), deadline

        def pieces() -> Iterator[bytes]:
            with self._translated(key, may_retry=False):
                yield from self._pieces(response, deadline)

        with self._slot():
            response, deadline = self._with_retries(attempt)
            try:
                yield response.headers, pieces()
            finally:
                response.close()

    @asynccontextmanager
    async def astream(
        self, body: bytes, auth: Mapping[str, str], key: str | None
    ) -> AsyncGenerator[tuple[Mapping[str, str], AsyncIterator[bytes]]]:
        """`stream` without blocking the loop."""
        from asyncio import timeout

        async with self._aslot(), self._clients.of_loop() as client:

            async def attempt() -> tuple[httpx2.Response, float]:
                if self._pace is not None:
                    await self._pace.await_()
                with self._translated(key):
                    deadline = self._deadline()
                    async with timeout(self.timeouts.total_s):
                        response = await self._asend(client, body, auth, stream=True)
                        if not response.is_success:
                            try:
                                self._check(response, await response.aread(), key)
                            finally:
                                await response.aclose()
                        return response, deadline

            async def pieces() -> AsyncIterator[bytes]:
                with self._translated(key, may_retry=False):
                    async for piece in response.aiter_bytes():
                        check_time(deadline)
                        yield piece

            response, deadline = await self._with_retries_async(attempt)
            try:
                yield response.headers, pieces()
            finally:
                await response.aclose()

    def fetch(self, url: str, auth: Mapping[str, str]) -> object:
        """The JSON at another address of the server, or None, whatever fails: for what is only good to know."""
        import httpx2

        try:
            found = self._clients.of_threads().get(url, headers={**auth, **self._headers}, timeout=_SIDE_TIMEOUT_S)
            return found.json() if found.is_success else None
        except (httpx2.HTTPError, httpx2.InvalidURL, ConfigurationError, ValueError, RecursionError):
            return None

    def asked(self, key: str | None) -> str:
        """What was asked where, for error messages: without secrets."""
        return redact_key(f"Asked {f'`{self.model}` at ' if self.model else ''}{public(self.url)}.", key)

    def close(self) -> None:
        """Close the connections of sync code; the next request opens new ones."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._clients.aclose()

    # -- one attempt --------------------------------------------------------------------------------------------

    def _open(self, body: bytes, auth: Mapping[str, str], key: str | None, deadline: float, *, stream: bool) -> httpx2.Response:
        with reading_until(deadline):
            response = self._send(body, auth, stream=stream)
        try:
            if not response.is_success:
                self._check(response, b"".join(self._pieces(response, deadline)), key)
        except BaseException:
            response.close()
            raise
        return response

    def _send(self, body: bytes, auth: Mapping[str, str], *, stream: bool) -> httpx2.Response:
        """An answer, its body to come. The request is sent once more if its connection was closed: servers close idle ones at any time."""
        from httpx2 import NetworkError, RemoteProtocolError

        client, trace = self._clients.of_threads(), Trace()
        try:
            return client.send(self._request(body, auth, trace.of_thread, stream=stream), stream=True)
        except (NetworkError, RemoteProtocolError):
            if not trace.is_stale:
                raise
        return client.send(self._request(body, auth, trace.of_thread, stream=stream), stream=True)

    async def _asend(self, client: httpx2.AsyncClient, body: bytes, auth: Mapping[str, str], *, stream: bool) -> httpx2.Response:
        """`_send` without blocking the loop; the body is to come only if `stream`."""
        from httpx2 import NetworkError, RemoteProtocolError

        trace = Trace()
        try:
            return await client.send(self._request(body, auth, trace.of_loop, stream=stream), stream=stream)
        except (NetworkError, RemoteProtocolError):
            if not trace.is_stale:
                raise
        return await client.send(self._request(body, auth, trace.of_loop, stream=stream), stream=stream)

    def _request(self, body: bytes, auth: Mapping[str, str], trace: Callable[..., Any], *, stream: bool) -> httpx2.Request:
        from httpx2 import Request

        url = self.stream_url if stream else self.url
        return Request("POST", url, headers={**auth, **self._headers}, content=body, extensions={"trace": trace})

    def _deadline(self) -> float:
        return NEVER if self.timeouts.total_s is None else time.monotonic() + self.timeouts.total_s

    def _pieces(self, response: httpx2.Response, deadline: float) -> Iterator[bytes]:
        pieces = response.iter_bytes()
        while True:
            with reading_until(deadline):  # not around the `yield`: meanwhile the thread may send another request
                piece = next(pieces, None)
            if piece is None:
                return
            check_time(deadline)
            yield piece

    def _check(self, response: httpx2.Response, body: bytes, key: str | None) -> None:
        """Raise the error of an answer with an error status."""
        if response.is_success:
            return
        error, may_pass = status_error(response.status_code, response.headers, body, provider=self.provider, secret=key)
        add_advice(error, self.asked(key))
        if may_pass and (error.retry_after_s or 0.0) <= _LONGEST_WAIT_S:
            raise _RetryableError(error)
        raise error

    @contextmanager
    def _translated(self, key: str | None, *, may_retry: bool = True) -> Generator[None]:
        """Raise errors of the connection as `LMError`s."""
        import httpx2

        try:
            yield
        except (httpx2.ConnectTimeout, httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ProxyError) as broken:
            redact_error(broken, key)
            limit = f" (`connect_timeout_s` is {self.timeouts.connect_s})" if isinstance(broken, httpx2.ConnectTimeout) else ""
            words = redact_key(str(broken) or type(broken).__name__, key)
            error = UnavailableError(f"the connection failed: {words}{limit}", provider=self.provider)
            add_advice(error, _NOT_REACHED if may_retry else _BROKE_OFF, self.asked(key))
            raise (_RetryableError(error) if may_retry else error) from broken
        except (httpx2.TimeoutException, TimeoutError) as late:
            limits = self.timeouts
            msg = f"no answer in time (`read_timeout_s` is {limits.read_s}, `timeout_s` is {limits.total_s})"
            raise add_advice(UnavailableError(msg, provider=self.provider), _TOO_LATE, self.asked(key)) from late
        except (httpx2.RequestError, httpx2.InvalidURL) as odd:
            redact_error(odd, key)
            msg = f"the exchange failed: {redact_key(str(odd) or type(odd).__name__, key)}"
            raise add_advice(BadRequestError(msg, provider=self.provider), _NO_HTTP, self.asked(key)) from odd

    # -- retries ------------------------------------------------------------------------------------------------

    def _with_retries(self, attempt: Callable[[], T]) -> T:
        with _Attempts(self.max_retries) as attempts:
            try:
                return attempt()
            except _RetryableError as error:
                backoff = attempts.after(error)
            for number in backoff:
                with number:
                    attempts.begin(number.num)
                    return attempt()
        raise AssertionError  # the last attempt returns or raises

    async def _with_retries_async(self, attempt: Callable[[], Awaitable[T]]) -> T:
        with _Attempts(self.max_retries) as attempts:
            try:
                return await attempt()
            except _RetryableError as error:
                backoff = attempts.after(error)
            async for number in backoff:
                with number:
                    attempts.begin(number.num)
                    return await attempt()
        raise AssertionError  # the last attempt returns or raises


class _Attempts:
    """Counts the attempts of one request; where the last one fails, raises its `LMError` and says how often it was tried."""

    def __init__(self, max_retries: int) -> None:
        self._max_retries = max_retries
        self._made = 1
        self._first: _RetryableError | None = None

    def after(self, first: _RetryableError) -> Any:
        """Stamina's attempts after the first one failed, which was made without it."""
        if self._max_retries < 1:
            raise first
        import logging

        import stamina

        log = logging.getLogger("stamina")
        if not log.hasHandlers():  # without logging configured, Python would print stamina's notes to stderr
            log.addHandler(logging.NullHandler())
        self._first = first
        return stamina.retry_context(on=wait_s, attempts=self._max_retries + 1, **_BACKOFF)

    def begin(self, number: int) -> None:
        """Count an attempt; the first raises its error again, so that stamina waits as after any other."""
        self._made = number
        if number == 1 and self._first is not None:
            raise self._first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _RetryableError):
            times = "once" if self._made == 1 else f"{self._made} times"
            raise add_advice(error.error, f"Tried {times} (`max_retries` is {self._max_retries}).") from error.__cause__


def wait_s(error: BaseException) -> bool | float:
    """How long to wait before the next attempt: what the provider asked for and up to a tenth more; True for stamina's own backoff."""
    if not isinstance(error, _RetryableError):
        return False
    asked = error.error.retry_after_s
    return True if asked is None else asked * (1 + random.random() / 10)  # noqa: S311  spreads clients out, guards nothing
