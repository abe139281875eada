"""Retries after a failed attempt: when each is made, and an error that says how often the request was tried.

The first attempt does not need this module. `stamina` is imported with the first retry.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ferrule.net.errors import add_advice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ferrule.errors import LMError

T = TypeVar("T")

LONGEST_WAIT_S = 60.0
"""If a provider asks for a longer wait, there is no retry; the error says how long the wait would be."""
_BACKOFF: Mapping[str, Any] = {
    "timeout": None,
    "wait_initial": 0.5,
    "wait_max": 20.0,
    "wait_jitter": 0.5,
}


class RetryableError(Exception):
    """An attempt failed, and another one may succeed."""

    def __init__(self, error: LMError) -> None:
        self.error = error
        super().__init__(error)

    def __repr__(self) -> str:
        return repr(self.error)


def retry(attempt: Callable[[], T], first: RetryableError, max_retries: int) -> T:
    """Retry, at most `max_retries` times. Raises the `LMError` of the last attempt."""
    with _Attempts(first, max_retries) as attempts:
        for number in attempts.backoff():
            with number:
                attempts.begin(number.num)
                return attempt()
    raise AssertionError  # the last attempt returns or raises


async def aretry(attempt: Callable[[], Awaitable[T]], first: RetryableError, max_retries: int) -> T:
    """`retry` on an event loop."""
    with _Attempts(first, max_retries) as attempts:
        async for number in attempts.backoff():
            with number:
                attempts.begin(number.num)
                return await attempt()
    raise AssertionError  # the last attempt returns or raises


class _Attempts:
    """Counts the attempts of one request; if the last one fails, raises its `LMError` with the number of attempts."""

    def __init__(self, first: RetryableError, max_retries: int) -> None:
        self._first = first
        self._max_retries = max_retries
        self._made = 1

    def backoff(self) -> Any:
        """Stamina's attempts. The first one has already been made."""
        if self._max_retries < 1:
            raise self._first
        import logging

        import stamina

        log = logging.getLogger("stamina")
        if (
            not log.hasHandlers()
        ):  # if logging is not configured, Python would print stamina's records to stderr
            log.addHandler(logging.NullHandler())
        return stamina.retry_context(on=wait_s, attempts=self._max_retries + 1, **_BACKOFF)

    def begin(self, number: int) -> None:
        """Count an attempt. The first raises its error again, so that stamina waits as after any other."""
        self._made = number
        if number == 1:
            raise self._first
        import logging

        log, provider = logging.getLogger("ferrule.models"), self._first.error.provider
        if log.hasHandlers():  # as above: a retry alone should not be printed to stderr
            fields = {
                "provider": provider,
                "attempt": number,
                "error_type": type(self._first.error).__name__,
            }
            log.warning(
                "%s is asked again (attempt %d of %d)",
                provider,
                number,
                self._max_retries + 1,
                extra=fields,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RetryableError):
            times = "once" if self._made == 1 else f"{self._made} times"
            raise add_advice(
                error.error,
                f"Tried {times} (`max_retries` is {self._max_retries}).",
            ) from error.__cause__


def wait_s(error: BaseException) -> bool | float:
    """How long to wait before the next attempt: as the provider asked, and up to a tenth longer; True for stamina's own backoff."""
    if not isinstance(error, RetryableError):
        return False
    asked = error.error.retry_after_s
    return True if asked is None else asked * (1 + random.random() / 10)  # noqa: S311  spreads clients out, guards nothing
