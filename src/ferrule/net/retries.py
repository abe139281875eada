"""Retries after a failed attempt: when each begins, and how the last error is reported.

A wait doubles with each attempt, and has a random part: clients that failed at the same moment
should not come back at the same moment. If the provider says how long to wait, that holds instead.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, TypeVar

from ferrule.net.errors import add_advice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ferrule.errors import LMError

T = TypeVar("T")

LONGEST_WAIT_S = 60.0
"""If a provider asks for a longer wait, there is no retry.

The error says how long the wait would be.
"""
_FIRST_WAIT_S = 0.5
_LONGEST_OWN_WAIT_S = 20.0
_RANDOM_PART_S = 0.5


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


def retry(attempt: Callable[[], T], max_retries: int) -> T:
    """Attempt it once, and again at most `max_retries` times.

    Raises the `LMError` of the last attempt.
    """
    number = 1
    while True:
        try:
            return attempt()
        except RetryableError as error:
            failed = error
        if number > max_retries:
            raise _last_error(failed, number) from failed.__cause__
        time.sleep(wait_s(failed.error, number))
        number += 1
        _log(failed.error, number, max_retries)


async def aretry(attempt: Callable[[], Awaitable[T]], max_retries: int) -> T:
    """`retry` on an event loop."""
    import asyncio

    number = 1
    while True:
        try:
            return await attempt()
        except RetryableError as error:
            failed = error
        if number > max_retries:
            raise _last_error(failed, number) from failed.__cause__
        await asyncio.sleep(wait_s(failed.error, number))
        number += 1
        _log(failed.error, number, max_retries)


def wait_s(error: LMError, retries: int) -> float:
    """How long to wait before this retry, which counts from 1."""
    if error.retry_after_s is not None:
        return error.retry_after_s * (1 + random.random() / 10)  # noqa: S311  guards nothing
    doubled_s = _FIRST_WAIT_S * 2 ** min(retries - 1, 10)  # the longest wait is reached before
    return min(doubled_s + random.uniform(0, _RANDOM_PART_S), _LONGEST_OWN_WAIT_S)  # noqa: S311


def _log(error: LMError, number: int, max_retries: int) -> None:
    log = logging.getLogger("ferrule.models")
    if not log.hasHandlers():  # where logging is not configured, Python would print it to stderr
        return
    fields = {
        "provider": error.provider,
        "attempt": number,
        "error_type": type(error).__name__,
    }
    log.warning(
        "%s is asked again (attempt %d of %d)",
        error.provider,
        number,
        max_retries + 1,
        extra=fields,
    )


def _last_error(failed: RetryableError, number: int) -> LMError:
    """The error of the last attempt, with the number of attempts in its message."""
    times = "once"
    if number > 1:
        times = f"{number} times"
    return add_advice(failed.error, f"Tried {times} (`max_retries` is {number - 1}).")
