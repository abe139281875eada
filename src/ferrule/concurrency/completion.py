"""Futures for work that must not be left half done.

A task that awaits such a future can be cancelled, but it continues only when the work has ended.

Cancelling a task cancels the future that it awaits. If the future refuses, asyncio keeps the
cancellation and raises it where the task awaits, once the future is done. So one future does what
`asyncio.shield` needs two futures, a task and a second wait for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import threading

R = TypeVar("R")


class Completion(asyncio.Future[R]):
    """A future for work that has begun or certainly will. It cannot be cancelled."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  asyncio passes it
        """Refuse to be cancelled."""
        return False


class ClaimedCompletion(asyncio.Future[R]):
    """A future for work that acquires the claim when it begins.

    If the future is cancelled before that, the work never begins.
    """

    def __init__(self, claim: threading.Lock) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._claim = claim

    def cancel(self, msg: object = None) -> bool:
        """Cancel, or refuse if the work has begun."""
        return self._claim.acquire(blocking=False) and super().cancel(msg=msg)


async def completed(work: asyncio.Future[R]) -> R:
    """Await the result of the work.

    If the work failed and its task was cancelled, the cancellation has the error as its cause.
    """
    try:
        return await work
    except asyncio.CancelledError as cancelled:
        cause = None
        if not work.cancelled():  # a cancelled future has no exception to ask for
            cause = work.exception()
        raise cancelled from cause
