"""`Clocks`: the timeouts of one session's requests."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ferrule.errors import MCPError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from ferrule.mcp_bridge.connection.callbacks import Hook


class Clocks:
    """The timeouts of the requests under way on one session, which stand still while a question of the server is open.

    Before 2026-07-28 a server asks during a call and does not say in which. So a question stops all
    timeouts, and the last answer restarts them. `total_timeout_s` runs on. If no call is left that
    may have asked, the hook that answers is cancelled.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Timeout, tuple[float, float | None]] = {}
        """The seconds of each, and the time at which it ends at the latest."""
        self._calls = 0
        self._questions = 0
        self._answering: set[asyncio.Future[dict[str, Any]]] = set()
        """Hooks that answer a question of a call under way."""

    @asynccontextmanager
    async def request(
        self,
        timeout_s: float,
        end: float | None,
        *,
        is_call: bool,
    ) -> AsyncGenerator[Callable[[], None]]:
        """Time one request; `TimeoutError` ends it. Yields a function that restarts the time on progress, up to `end`."""
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

    def stopped_by(self, hook: Hook | None, otherwise: dict[str, Any] | None = None) -> Hook | None:
        """A hook that stops the clocks while it works. It answers `otherwise` if its call ends first; None: it raises `MCPError`."""
        if hook is None:
            return None

        async def answer(params: dict[str, Any]) -> dict[str, Any]:
            answering = asyncio.ensure_future(hook(params))
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
            if otherwise is None:
                raise MCPError("The call that asked was abandoned.")
            return otherwise

        return answer
