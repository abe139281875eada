"""`Silence`: whether a server that left a call without an answer is heard again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ferrule.errors import MCPError, MCPTimeoutError

if TYPE_CHECKING:
    from ferrule.mcp_bridge.connection.session import Session

ANSWERS_WITHIN_S = 2.0
"""How long a ping may take before calls of a server that left one without an answer fail."""
_PING_S = 30.0
"""After how long without an answer it is sent again, with the next call."""


class Silence:
    """The time since a server left a call without an answer and sent nothing else. Meanwhile it gets a ping.

    A slow tool is no reason to stop calling its server, and a server that hangs would take the
    whole time limit of each call.
    """

    def __init__(self, connection: Session, since: float) -> None:
        self.connection = connection
        self._since = since
        self._heard = connection.heard
        self._ping()

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return asyncio.get_running_loop().time() - self._since

    async def is_over(self) -> bool:
        """Whether the server is heard again. Waits a moment for the answer to the ping."""
        if self.connection.heard != self._heard:
            return True
        if self._answered.done() and not self._answered.result():
            self._ping()
        await asyncio.wait(
            (self._answered,),
            timeout=max(
                0.0,
                self._pinged_at + ANSWERS_WITHIN_S - asyncio.get_running_loop().time(),
            ),
        )
        return self.connection.heard != self._heard or (
            self._answered.done() and self._answered.result()
        )

    def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        self._pinged_at = loop.time()
        self._answered = loop.create_task(self._is_answered())

    async def _is_answered(self) -> bool:
        try:
            await self.connection.ping(_PING_S)
        except MCPTimeoutError:
            return False
        except MCPError:
            return True  # an error is an answer, and the next call sees a connection that is lost
        return True
