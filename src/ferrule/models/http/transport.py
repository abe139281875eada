"""Bytes to one address and back: pooled connections, timeouts, retries, errors of the house.

In: a finished body. Out: the body of the answer, whole or in pieces. What the bytes mean is the wires' business. `httpx2` is imported when
the first request goes out, `stamina` once one has failed: an import of ferrule, and a run that goes well, pay for neither.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.errors import BadRequestError, ConfigurationError, LMError, UnavailableError, shown
from ferrule.models.http import errors as failures
from ferrule.models.http.connections import Clients, Timeouts
from ferrule.models.http.deadline import check_time, deadline_after, reading_until, trace
from ferrule.models.providers import public
from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping

    import httpx2

T = TypeVar("T")

LONGEST_WAIT_S = 60.0
"""A provider that asks for more patience than this is not waited for: the error tells how long it would be."""
_USUAL = Timeouts()
_BACKOFF: Mapping[str, Any] = {"timeout": None, "wait_initial": 0.5, "wait_max": 20.0, "wait_jitter": 0.5}
_NOT_REACHED = "Is the server running, and within reach from here? `base_url=` names another address."
_BROKE_OFF = "The answer broke off in the middle: ask again; where that happens often, look at the server's log."
_TOO_LATE = "Is the server stuck? If it is only slow, make the model with more time: `LM(..., read_timeout_s=..., timeout_s=...)`."
_NO_HTTP = "Does a server for models listen there? `base_url=` names another address."


class Answer(Record):
    """A whole answer."""

    body: bytes
    headers: Mapping[str, str]


class _Again(Exception):  # noqa: N818  not an error: a decision
    """An attempt failed in a way that another may not."""

    def __init__(self, error: LMError) -> None:
        self.error = error
        super().__init__(error)

    def __repr__(self) -> str:
        return repr(self.error)


class Transport:
    """One address of one provider. Safe for threads; each event loop gets connections of its own, and so does a forked process."""

    def __init__(
        self,
        url: str,
        *,
        provider: str,
        model: str = "",
        auth: Callable[[str | None], Mapping[str, str]],
        stream_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts = _USUAL,
        max_retries: int = 2,
    ) -> None:
        if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
            msg = f"`max_retries` is a whole number from 0, found {shown(max_retries)}."
            raise ConfigurationError(msg)
        self.url = url
        self.stream_url = stream_url or url
        self.provider = provider
        self.model = model
        self.timeouts = timeouts
        self.max_retries = max_retries
        self._auth = auth
        given = {name.lower(): value for name, value in (headers or {}).items()}
        self._headers = {"content-type": "application/json", "accept-encoding": "gzip, deflate", "user-agent": "ferrule", **given}
        self._clients = Clients(timeouts)

    def post(self, body: bytes, key: str | None) -> Answer:
        """Send, and wait for the whole answer. Raises `LMError`s."""

        def attempt() -> Answer:
            with self._told(key):
                deadline = deadline_after(self.timeouts.total_s)
                response = self._open(body, key, deadline, stream=False)
                try:
                    return Answer(b"".join(self._pieces(response, deadline)), response.headers)
                finally:
                    response.close()

        return self._retrying(attempt)

    async def apost(self, body: bytes, key: str | None) -> Answer:
        """`post` without blocking the loop; cancelling closes the request."""

        async def attempt() -> Answer:
            with self._told(key):
                async with timeout(self.timeouts.total_s), self._clients.of_loop() as client:
                    response = await client.send(self._request(body, key, stream=False))  # reads the whole body
            self._check(response, response.content, key)
            return Answer(response.content, response.headers)

        from asyncio import timeout

        return await self._aretrying(attempt)

    @contextmanager
    def stream(self, body: bytes, key: str | None) -> Generator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """The headers of an answer and its body as it comes. Only what fails before the first byte is tried again."""

        def attempt() -> tuple[httpx2.Response, float]:
            with self._told(key):
                deadline = deadline_after(self.timeouts.total_s)
                return self._open(body, key, deadline, stream=True), deadline

        response, deadline = self._retrying(attempt)

        def pieces() -> Iterator[bytes]:
            with self._told(key, is_last=True):
                yield from self._pieces(response, deadline)

        try:
            yield response.headers, pieces()
        finally:
            response.close()

    @asynccontextmanager
    async def astream(self, body: bytes, key: str | None) -> AsyncGenerator[tuple[Mapping[str, str], AsyncIterator[bytes]]]:
        """`stream` without blocking the loop."""
        from asyncio import timeout

        async with self._clients.of_loop() as client:

            async def attempt() -> tuple[httpx2.Response, float]:
                with self._told(key):
                    deadline = deadline_after(self.timeouts.total_s)
                    async with timeout(self.timeouts.total_s):
                        response = await client.send(self._request(body, key, stream=True), stream=True)
                        if not response.is_success:
                            try:
                                self._check(response, await response.aread(), key)
                            finally:
                                await response.aclose()
                        return response, deadline

            async def pieces() -> AsyncIterator[bytes]:
                with self._told(key, is_last=True):
                    async for piece in response.aiter_bytes():
                        check_time(deadline)
                        yield piece

            response, deadline = await self._aretrying(attempt)
            try:
                yield response.headers, pieces()
            finally:
                await response.aclose()

    def asked(self, key: str | None) -> str:
        """What was asked, and where, as errors say it: without what may be secret."""
        return failures.without(f"Asked {f'`{self.model}` at ' if self.model else ''}{public(self.url)}.", key)

    def close(self) -> None:
        """Close the connections of sync code; the next request opens new ones."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._clients.aclose()

    # -- one attempt --------------------------------------------------------------------------------------------

    def _open(self, body: bytes, key: str | None, deadline: float, *, stream: bool) -> httpx2.Response:
        request = self._request(body, key, stream=stream)
        request.extensions = {**request.extensions, "trace": trace}
        with reading_until(deadline):
            response = self._clients.of_threads().send(request, stream=True)
        try:
            if not response.is_success:
                self._check(response, b"".join(self._pieces(response, deadline)), key)
        except BaseException:
            response.close()
            raise
        return response

    def _request(self, body: bytes, key: str | None, *, stream: bool) -> httpx2.Request:
        from httpx2 import Request

        url = self.stream_url if stream else self.url
        return Request("POST", url, headers={**self._auth(key), **self._headers}, content=body)

    def _pieces(self, response: httpx2.Response, deadline: float) -> Iterator[bytes]:
        pieces = response.iter_bytes()
        while True:
            with reading_until(deadline):  # not around the `yield`: meanwhile the thread may ask something else
                piece = next(pieces, None)
            if piece is None:
                return
            check_time(deadline)
            yield piece

    def _check(self, response: httpx2.Response, body: bytes, key: str | None) -> None:
        """Raise what an answer without success says."""
        if response.is_success:
            return
        error, may_pass = failures.failure(response.status_code, response.headers, body, provider=self.provider, secret=key)
        failures.advised(error, self.asked(key))
        if may_pass and (error.retry_after_s or 0.0) <= LONGEST_WAIT_S:
            raise _Again(error)
        raise error

    @contextmanager
    def _told(self, key: str | None, *, is_last: bool = False) -> Generator[None]:
        """Turn what the connection says into the errors of the house."""
        import httpx2

        try:
            yield
        except (httpx2.ConnectTimeout, httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ProxyError) as broken:
            failures.hide(broken, key)
            limit = f" (`connect_timeout_s` is {self.timeouts.connect_s})" if isinstance(broken, httpx2.ConnectTimeout) else ""
            error = UnavailableError(f"the connection failed: {_described(broken, key)}{limit}", provider=self.provider)
            failures.advised(error, _BROKE_OFF if is_last else _NOT_REACHED, self.asked(key))
            raise (error if is_last else _Again(error)) from broken
        except (httpx2.TimeoutException, TimeoutError) as late:
            limits = self.timeouts
            msg = f"no answer in time (`read_timeout_s` is {limits.read_s}, `timeout_s` is {limits.total_s})"
            raise failures.advised(UnavailableError(msg, provider=self.provider), _TOO_LATE, self.asked(key)) from late
        except (httpx2.RequestError, httpx2.InvalidURL) as odd:
            failures.hide(odd, key)
            msg = f"the exchange failed: {_described(odd, key)}"
            raise failures.advised(BadRequestError(msg, provider=self.provider), _NO_HTTP, self.asked(key)) from odd

    # -- several attempts ---------------------------------------------------------------------------------------

    def _retrying(self, attempt: Callable[[], T]) -> T:
        try:
            return attempt()
        except _Again as again:
            if self.max_retries < 1:
                raise self._given_up(again, 1) from again.__cause__
            first, tried = again, 1
        import stamina

        _quiet()
        try:
            for number in stamina.retry_context(on=wait_s, attempts=self.max_retries + 1, **_BACKOFF):
                with number:
                    tried = number.num
                    if tried == 1:  # the one above; stamina was not loaded for it
                        raise first
                    return attempt()
        except _Again as last:
            raise self._given_up(last, tried) from last.__cause__
        raise AssertionError  # the last attempt returns or raises

    async def _aretrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            return await attempt()
        except _Again as again:
            if self.max_retries < 1:
                raise self._given_up(again, 1) from again.__cause__
            first, tried = again, 1
        import stamina

        _quiet()
        try:
            async for number in stamina.retry_context(on=wait_s, attempts=self.max_retries + 1, **_BACKOFF):
                with number:
                    tried = number.num
                    if tried == 1:
                        raise first
                    return await attempt()
        except _Again as last:
            raise self._given_up(last, tried) from last.__cause__
        raise AssertionError  # the last attempt returns or raises

    def _given_up(self, again: _Again, tried: int) -> LMError:
        times = "once" if tried == 1 else f"{tried} times"
        return failures.advised(again.error, f"Tried {times} (`max_retries` is {self.max_retries}).")


def _quiet() -> None:
    """Keep stamina's notes of retries off the stderr of who configured no logging; who did still sees them (logger `stamina`)."""
    import logging  # late, like stamina itself

    log = logging.getLogger("stamina")
    if not log.hasHandlers():
        log.addHandler(logging.NullHandler())


def _described(error: Exception, key: str | None) -> str:
    return failures.without(str(error) or type(error).__name__, key)


def wait_s(error: BaseException) -> bool | float:
    """How long to wait before another attempt: what the provider asked for and up to a tenth more; True for stamina's own backoff."""
    if not isinstance(error, _Again):
        return False
    asked = error.error.retry_after_s
    return True if asked is None else asked * (1 + random.random() / 10)  # noqa: S311  spreads clients out, guards nothing
