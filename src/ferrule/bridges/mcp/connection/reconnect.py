"""The way to one server over time: connected when needed, and anew after a loss; no call that may have run is sent twice.

In: requests. Out: raw results. All of it runs on the background loop. A connection that is idle is left alone: nothing keeps it alive, and
nothing starts a server again that nobody asks for.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from ferrule.bridges.mcp.connection.handshake import UNSUPPORTED_VERSION, Remembered, Wire
from ferrule.bridges.mcp.connection.session import Connection, Way
from ferrule.bridges.mcp.errors import Asked, lost, missing_extra
from ferrule.bridges.mcp.transport.shutdown import forget, keep
from ferrule.concurrency.offload import in_worker_thread
from ferrule.errors import MCPConnectionError, MCPError, MCPProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.bridges.mcp.connection.callbacks import Hooks

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 10.0
MOST_LOSSES = 6
"""So many connections within `LOSSES_WITHIN_S` may die, or fail to be made; such a server is broken, and is left alone for a while."""
LOSSES_WITHIN_S = 60.0
_NOT_FOUND, _BAD_REQUEST = 404, 400


class Link:
    """One server's connection, made and remade."""

    def __init__(self, make_way: Callable[[], Way], hooks: Callable[[], Hooks], max_concurrency: int | None) -> None:
        self._make_way = make_way
        self._hooks = hooks
        self._remembered = Remembered()
        self._connection: Connection | None = None
        self._opening: Connection | None = None
        self._lock = asyncio.Lock()
        self._losses: deque[float] = deque(maxlen=MOST_LOSSES)
        self._closings = 0
        """How often it was closed by us: what was begun before that makes no new connection."""
        self._failures = 0
        self._last_failure = 0.0
        self._turns = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self.starts = 0
        """How often a connection was made."""

    @property
    def wire(self) -> Wire | None:
        """What was agreed on; None before the first connection."""
        return self._connection.wire if self._connection is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether there is a connection that is not known to be lost."""
        return self._connection is not None and self._connection.alive

    async def connected(self, *, anew: bool = False) -> Connection:
        """The live connection; made if there is none, or if this one shall not be used any more. Raises an `MCPError`."""
        before, closings = self._connection, self._closings
        if before is not None and before.alive and not anew:
            return before
        async with self._lock:
            self._refuse_after_closing(closings, "connect")
            current = self._connection
            if current is not None and current.alive and (current is not before or not anew):
                return current  # somebody else made it meanwhile
            if current is not None:
                if not current.alive:
                    self._losses.append(asyncio.get_running_loop().time())
                self._connection = None
                forget(current)
                await current.close()
            return await self._start()

    def _refuse_after_closing(self, closings: int, phase: str, tool: str | None = None) -> None:
        if closings != self._closings:
            raise lost(Asked(server=self._make_way().spec.name, phase=phase, tool=tool, was_sent=False), "it was closed meanwhile")

    async def _start(self) -> Connection:
        way = self._make_way()
        loop = asyncio.get_running_loop()
        self._refuse_too_many(way.spec.name, loop.time())
        if self._failures:
            wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (self._failures - 1)) * random.uniform(0.5, 1.0)  # noqa: S311  jitter
            await asyncio.sleep(max(0.0, wait_s - (loop.time() - self._last_failure)))
        await _load_sdk()
        try:
            self._connection = await self._opened(way)
        except MCPError:
            self._failures += 1
            self._last_failure = loop.time()
            self._losses.append(self._last_failure)
            raise
        self._failures = 0
        self.starts += 1
        return self._connection

    async def _opened(self, way: Way) -> Connection:
        """Open one; a child that ends when it is asked for the newer era is started again and not asked."""
        first = Connection(way, self._hooks(), self._remembered)
        try:
            return await self._open(first)
        except MCPConnectionError:
            if way.spec.transport != "stdio" or self._remembered.is_legacy or not first.was_asked:
                raise
        found = await self._open(Connection(way, self._hooks(), Remembered(is_legacy=True)))
        self._remembered.is_legacy = True
        return found

    async def _open(self, connection: Connection) -> Connection:
        if not keep(connection):
            raise lost(Asked(server=self._make_way().spec.name, phase="start", was_sent=False), "it is not started: the process is ending")
        self._opening = connection
        try:
            await connection.open()
        except BaseException:
            forget(connection)
            raise
        finally:
            self._opening = None
        return connection

    def _refuse_too_many(self, name: str, now: float) -> None:
        if len(self._losses) == MOST_LOSSES and now - self._losses[0] < LOSSES_WITHIN_S:
            wait_s = LOSSES_WITHIN_S - (now - self._losses[0])
            why = f"it died or failed {MOST_LOSSES} times within a minute, and is left alone for {wait_s:.0f} s; `connect()` tries at once"
            raise lost(Asked(server=name, phase="connect", was_sent=False), why)

    def forgive(self) -> None:
        """Forget earlier failures: somebody asks for a connection in so many words."""
        self._failures = 0
        self._losses.clear()

    async def request(self, method: str, params: dict[str, Any] | None, *, phase: str, may_repeat: bool, **options: Any) -> dict[str, Any]:
        """One request; sent a second time, over a new connection, only where it surely did not run or `may_repeat`.

        Never after it was closed meanwhile: what was under way then fails.
        """
        closings = self._closings
        async with AsyncExitStack() as stack:
            if self._turns is not None:
                await stack.enter_async_context(self._turns)
            self._refuse_after_closing(closings, phase, options.get("tool"))
            connection = await self.connected_for(phase, options.get("tool"))
            try:
                return await connection.request(method, params, phase=phase, **options)
            except (MCPConnectionError, MCPProtocolError) as fault:
                if closings != self._closings or not await self._is_worth_another(fault, connection, may_repeat=may_repeat):
                    raise
            self._refuse_after_closing(closings, phase, options.get("tool"))
            connection = await self.connected_for(phase, options.get("tool"), anew=not connection.alive or connection.is_remote)
            return await connection.request(method, params, phase=phase, **options)

    async def connected_for(self, phase: str, tool: str | None, *, anew: bool = False) -> Connection:
        """`connected` for a request: a call that could not even be sent says so."""
        try:
            return await self.connected(anew=anew)
        except MCPError as fault:
            if phase == "call":  # it was not even sent
                fault.tool, fault.may_have_run = tool, False
            raise

    async def _is_worth_another(self, fault: MCPError, connection: Connection, *, may_repeat: bool) -> bool:
        if fault.code == UNSUPPORTED_VERSION and connection.is_remote:
            self._remembered.forget()  # it was replaced by one of another era, and refused before anything ran
            return True
        if fault.status is None:
            return isinstance(fault, MCPConnectionError) and (may_repeat or fault.may_have_run is False)
        # A server of the older era that was started again does not know our session. But it may be just this request that it refuses: where
        # a ping is answered, the session is there.
        refusals = {_BAD_REQUEST} if connection.wire.is_modern else {_BAD_REQUEST, _NOT_FOUND}
        if fault.status not in refusals or await connection.answers_ping():
            return False
        self._remembered.forget()  # whether it lost our session, or is none of this era any more: what it refused did not run
        return True

    async def close(self) -> None:
        """End the connection, also one that is being made, and with it what is under way. The next request makes a new one."""
        self._closings += 1
        if self._opening is not None:
            await self._opening.close()
        async with self._lock:
            connection, self._connection = self._connection, None
            self._remembered.forget()
            if connection is not None:
                forget(connection)
                await connection.close()


_loading = threading.Lock()
_is_loaded = False


async def _load_sdk() -> None:
    """Import the SDK away from the loop: it takes a second, in which all other connections would stand still."""

    def load() -> None:
        global _is_loaded  # noqa: PLW0603  loaded once for the process
        with _loading:  # its modules import one another in circles: two threads that begin at once can wait for each other
            import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]  to have it loaded

            _is_loaded = True

    if not _is_loaded:
        try:
            await in_worker_thread(load)
        except ImportError as error:
            raise missing_extra(error) from error
