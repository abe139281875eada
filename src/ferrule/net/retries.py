"""Retries after a failed attempt: when each begins, and how the last error is reported.

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
"""If a provider asks for a longer wait, there is no retry.

The error says how long the wait would be.
"""
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


def may_retry(error: LMError) -> bool:
    """Whether another attempt may succeed, and soon enough."""
    return error.is_retryable and (error.retry_after_s or 0.0) <= LONGEST_WAIT_S


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
    """Counts the attempts of one request.

    If the last one fails, its `LMError` is raised, with the number of attempts in its message.
    """

    def __init__(self, first: RetryableError, max_retries: int) -> None:
        self._first = first
        self._max_retries = max_retries
        self._number = 1

    def backoff(self) -> Any:
        """Stamina's attempts. The first one has already been made."""
        if self._max_retries < 1:
            raise self._first
        import logging

        import stamina

        log = logging.getLogger("stamina")
        # If logging is not configured, Python would print stamina's records to stderr.
        if not log.hasHandlers():
            log.addHandler(logging.NullHandler())
        return stamina.retry_context(on=wait_s, attempts=self._max_retries + 1, **_BACKOFF)

    def begin(self, number: int) -> None:
        """Count an attempt.

        The first raises its error again, so that stamina waits as after any other.
        """
        self._number = number
        if number == 1:
            raise self._first
        import logging

        log = logging.getLogger("ferrule.models")
        provider = self._first.error.provider
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
            times = f"{self._number} times"
            if self._number == 1:
                times = "once"
            advice = f"Tried {times} (`max_retries` is {self._max_retries})."
            raise add_advice(error.error, advice) from error.__cause__


def wait_s(error: BaseException) -> bool | float:
    """How long to wait before the next attempt; True for stamina's own backoff.

    As long as the provider asked, and up to a tenth longer: clients that were refused at the same
    moment should not come back at the same moment.
    """
    if not isinstance(error, RetryableError):
        return False
    requested_s = error.error.retry_after_s
    if requested_s is None:
        return True
    return requested_s * (1 + random.random() / 10)  # noqa: S311  guards nothing
