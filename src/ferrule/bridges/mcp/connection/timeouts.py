"""The clocks of the requests under way on one connection: they stand while a question to us is open.

A server of the older era asks in the middle of a call and does not say in which: so one stops all of them, and the last answer starts
them anew. `total_timeout_s` holds all the same. Where no call is left that may have asked, nobody waits for the answer any more.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ferrule.errors import MCPError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Clocks:
    """Those of one connection; used from its loop."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Timeout, tuple[float, float | None]] = {}
        """How much each gives, and the time at which it ends at the latest."""
        self._calls = 0
        self._questions = 0
        self._answering: set[asyncio.Future[dict[str, Any]]] = set()
        """Hooks at work for a call that is under way."""

    @asynccontextmanager
    async def request(self, timeout_s: float, end: float | None, *, is_call: bool) -> AsyncGenerator[Callable[[], None]]:
        """The time of one request; `TimeoutError` ends it. What it gives is to be called on progress, which prolongs it up to `end`."""
        clock = asyncio.timeout(timeout_s)
        try:
            async with clock:
                self._running[clock] = timeout_s, end
                self._calls += is_call
                yield lambda: self._restart(clock) if end is not None else None
        finally:
            del self._running[clock]
            self._calls -= is_call
            if is_call and not self._calls:
                for each in self._answering:
                    each.cancel()

    def _restart(self, clock: asyncio.Timeout) -> None:
        if clock.expired() or clock not in self._running:
            return
        seconds, end = self._running[clock]
        until = None if self._questions else asyncio.get_running_loop().time() + seconds
        clock.reschedule(min((each for each in (until, end) if each is not None), default=None))

    def _count(self, more: int) -> None:
        before, self._questions = self._questions, self._questions + more
        if more > 0 or before == 1:
            for each in self._running:
                self._restart(each)

    def patient(self, ask: Ask | None, given_up: dict[str, Any] | None = None) -> Ask | None:
        """A hook that stops the clocks while it works. `given_up` is its answer where its call ends first; None: an error."""
        if ask is None:
            return None

        async def asked(params: dict[str, Any]) -> dict[str, Any]:
            answering = asyncio.ensure_future(ask(params))
            if self._calls:
                self._answering.add(answering)
            self._count(1)
            try:
                await asyncio.wait((answering,))
            finally:
                self._count(-1)
                self._answering.discard(answering)
                answering.cancel()
            if not answering.cancelled():
                return answering.result()
            if given_up is None:
                msg = "The call that asked was given up."
                raise MCPError(msg)
            return given_up

        return asked
