"""Work that must not be left half done: the task that awaits it can be cancelled, but goes on only when the work has ended.

A task that is cancelled cancels the future that it awaits. A future that refuses leaves the cancellation with the task: asyncio raises it
where the task awaits, once the future is done. So one future does what `asyncio.shield` does with two, a task and a second wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import threading

R = TypeVar("R")


class Completion(asyncio.Future[R]):
    """The end of work that was begun, or will be."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  asyncio passes it
        """Refuse."""
        return False


class ClaimedCompletion(asyncio.Future[R]):
    """The end of work that takes the claim when it begins: if its task is cancelled before that, it never begins."""

    def __init__(self, claim: threading.Lock) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._claim = claim

    def cancel(self, msg: object = None) -> bool:
        """Refuse, if the work has begun."""
        return self._claim.acquire(blocking=False) and super().cancel(msg=msg)


async def completed(work: asyncio.Future[R]) -> R:
    """The result of the work. A cancellation is raised from the error of the work, if it failed."""
    try:
        return await work
    except asyncio.CancelledError as cancelled:
        raise cancelled from (None if work.cancelled() else work.exception())
