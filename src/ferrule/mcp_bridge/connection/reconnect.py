"""The connection to one server over time: made when needed, and made again after a loss.

A call that may have run is never sent twice. Everything here runs on the background loop. Nothing
keeps an idle connection alive, and nothing restarts a server before the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from ferrule.concurrency.forking import renew_in_child
from ferrule.concurrency.offload import in_worker_thread
from ferrule.errors import MCPConnectionError, MCPError, MCPProtocolError, MCPTimeoutError
from ferrule.mcp_bridge.connection.handshake import UNSUPPORTED_VERSION, Handshake, KnownEra
from ferrule.mcp_bridge.connection.session import Session
from ferrule.mcp_bridge.connection.silence import ANSWERS_WITHIN_S, Silence
from ferrule.mcp_bridge.errors import (
    Attempt,
    connection_error,
    login_error,
    missing_extra,
    silent_error,
)
from ferrule.mcp_bridge.login.errors import LoginError
from ferrule.mcp_bridge.transport.open_connections import forget_connection, register_connection
from ferrule.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.mcp_bridge.connection.callbacks import Hooks
    from ferrule.mcp_bridge.connection.channel import Endpoint
    from ferrule.mcp_bridge.connection.handshake import ProtocolMode
    from ferrule.mcp_bridge.login.login import Login

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 10.0
_MOST_LOSSES = 6
"""After this many lost or failed connections within `_LOSSES_WITHIN_S`, requests fail at once for a while."""
_LOSSES_WITHIN_S = 60.0
_NOT_FOUND, _BAD_REQUEST = 404, 400
_UNAUTHORIZED = (401, 403)
_NO_STREAMABLE_HTTP = (400, 404, 405)


class Link:
    """The connection to one server."""

    def __init__(
        self,
        name: str,
        find_endpoint: Callable[[], Endpoint],
        hooks: Callable[[], Hooks],
        max_concurrency: int | None,
        mode: ProtocolMode,
    ) -> None:
        self._name = name
        self._find_endpoint = find_endpoint
        self._hooks = hooks
        self._known = KnownEra(mode=mode)
        self._connection: Session | None = None
        self._opening: Session | None = None
        self._login: Login | None = None
        self._lock = asyncio.Lock()
        self._losses: deque[float] = deque(maxlen=_MOST_LOSSES)
        self._closings = 0
        """How often the client closed it. A request from before a close makes no new connection."""
        self._failures = 0
        self._last_failure = 0.0
        self._silence: Silence | None = None
        self._turns = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self.starts = 0
        """How often a connection was made."""

    @property
    def handshake(self) -> Handshake | None:
        """The current handshake; None before the first connection."""
        return self._connection.handshake if self._connection is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether there is a connection that is not known to be lost."""
        return self._connection is not None and self._connection.alive

    async def connected(self, *, anew: bool = False) -> Session:
        """The live connection; makes one if there is none, or if `anew`. Raises an `MCPError`."""
        before, closings = self._connection, self._closings
        if before is not None and before.alive and not anew:
            return before
        async with self._lock:
            self._refuse_after_closing(closings, "connect")
            current = self._connection
            if current is not None and current.alive and (current is not before or not anew):
                return current  # another task made it meanwhile
            if current is not None:
                if not current.alive:
                    self._losses.append(asyncio.get_running_loop().time())
                self._connection = None
                await _close(current)
            return await self._start()

    def _refuse_after_closing(self, closings: int, phase: str, tool: str | None = None) -> None:
        if closings != self._closings:
            raise connection_error(self._unsent(phase, tool), "it was closed meanwhile")

    def _unsent(self, phase: str, tool: str | None = None) -> Attempt:
        return Attempt(server=self._name, phase=phase, tool=tool, was_sent=False)

    async def _start(self) -> Session:
        endpoint = self._find_endpoint()
        loop = asyncio.get_running_loop()
        self._refuse_too_many(loop.time())
        if self._failures:
            wait_s = min(
                _LONGEST_WAIT_S,
                _FIRST_WAIT_S * 2 ** (self._failures - 1),
            ) * random.uniform(0.5, 1.0)  # noqa: S311  jitter
            await asyncio.sleep(max(0.0, wait_s - (loop.time() - self._last_failure)))
        await _load_sdk()
        try:
            self._connection = await self._open_logged_in(endpoint)
        except MCPError:
            self._failures += 1
            self._last_failure = loop.time()
            self._losses.append(self._last_failure)
            raise
        self._failures = 0
        self.starts += 1
        return self._connection

    async def _open_logged_in(self, endpoint: Endpoint) -> Session:
        try:
            return await self._open_first(endpoint)
        except MCPConnectionError as fault:
            if not await self._logged_in(endpoint.login, fault):
                raise
        return await self._open_first(endpoint)

    async def _logged_in(self, login: Login | None, fault: MCPError) -> bool:
        """Have a person log in, if that is why the server refused. Raises `MCPConnectionError` (phase `login`) if there is no log-in."""
        if login is None or fault.status not in _UNAUTHORIZED or not login.is_wanted:
            return False
        self._login = login
        try:
            await login.log_in()
        except LoginError as error:
            raise login_error(
                self._unsent(fault.phase or "connect", fault.tool),
                str(error),
            ) from None
        return True

    async def _open_first(self, endpoint: Endpoint) -> Session:
        """Open a session. A child process that ends when asked for its versions is started again without asking.

        A server that refuses streamable HTTP is asked by the older HTTP+SSE (revision 2025-11-25,
        "Backwards Compatibility").
        """
        first = Session(endpoint, self._hooks(), self._known)
        try:
            return await self._open(first)
        except MCPConnectionError as fault:
            if (
                endpoint.spec.transport == "http"
                and fault.status in _NO_STREAMABLE_HTTP
                and endpoint.http_client is None
            ):
                older = replace(endpoint, spec=replace(endpoint.spec, transport="sse"))
                with contextlib.suppress(MCPError):
                    return await self._open(Session(older, self._hooks(), self._known))
            if (
                endpoint.spec.transport != "stdio"
                or self._known.is_legacy
                or self._known.mode != "auto"
                or not first.died_when_asked
            ):
                raise
        found = await self._open(Session(endpoint, self._hooks(), KnownEra(is_legacy=True)))
        self._known.is_legacy = True
        return found

    async def _open(self, connection: Session) -> Session:
        if not register_connection(connection):
            raise connection_error(
                self._unsent("start"),
                "it is not started: the process is ending",
            )
        self._opening = connection
        try:
            await connection.open()
        except BaseException:
            forget_connection(connection)
            raise
        finally:
            self._opening = None
        return connection

    def _refuse_too_many(self, now: float) -> None:
        if len(self._losses) == _MOST_LOSSES and now - self._losses[0] < _LOSSES_WITHIN_S:
            wait_s = _LOSSES_WITHIN_S - (now - self._losses[0])
            why = f"it died or failed {_MOST_LOSSES} times within a minute, and is left alone for {wait_s:.0f} s; `connect()` tries at once"
            raise connection_error(self._unsent("connect"), why)

    def forgive(self) -> None:
        """Forget earlier failures: the user called `connect()`."""
        self._failures = 0
        self._losses.clear()

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        phase: str,
        may_repeat: bool,
        **options: Any,
    ) -> dict[str, Any]:
        """Send one request; again, over a new connection, only if it surely did not run or `may_repeat`.

        A request that is under way when the client closes fails.
        """
        closings = self._closings
        async with AsyncExitStack() as stack:
            if self._turns is not None:
                await stack.enter_async_context(self._turns)
            self._refuse_after_closing(closings, phase, options.get("tool"))
            connection = await self.connected_for(phase, options.get("tool"))
            try:
                return await self._send(connection, method, params, phase=phase, **options)
            except (MCPConnectionError, MCPProtocolError) as fault:
                if closings != self._closings:
                    raise
                has_logged_in = await self._logged_in(connection.login, fault)
                if not has_logged_in and not await self._should_retry(
                    fault,
                    connection,
                    may_repeat=may_repeat,
                ):
                    raise
            self._refuse_after_closing(closings, phase, options.get("tool"))
            anew = not connection.alive or (connection.is_remote and not has_logged_in)
            connection = await self.connected_for(phase, options.get("tool"), anew=anew)
            return await self._send(connection, method, params, phase=phase, **options)

    async def _send(
        self,
        connection: Session,
        method: str,
        params: dict[str, Any] | None,
        *,
        phase: str,
        **options: Any,
    ) -> dict[str, Any]:
        """Send one request. A call fails at once while the server does not answer at all."""
        if phase != "call":
            return await connection.request(method, params, phase=phase, **options)
        await self._refuse_silent(connection, options.get("tool"))
        heard, loop = connection.heard, asyncio.get_running_loop()
        start = loop.time()
        try:
            return await connection.request(method, params, phase=phase, **options)
        except (MCPTimeoutError, asyncio.CancelledError) as fault:
            was_long = isinstance(fault, MCPTimeoutError) or loop.time() - start > ANSWERS_WITHIN_S
            if was_long and connection.heard == heard and connection.alive:
                self._silence = Silence(connection, start)
            raise

    async def _refuse_silent(self, connection: Session, tool: str | None) -> None:
        silence = self._silence
        if silence is None:
            return
        if silence.connection is connection and not await silence.is_over():
            raise silent_error(self._unsent("call", tool), silence.seconds)
        self._silence = None

    async def connected_for(self, phase: str, tool: str | None, *, anew: bool = False) -> Session:
        """`connected` for a request: the error of a call says that it was not sent."""
        try:
            return await self.connected(anew=anew)
        except MCPError as fault:
            if phase == "call":
                fault.tool, fault.may_have_run = tool, False
            raise

    async def _should_retry(
        self,
        fault: MCPError,
        connection: Session,
        *,
        may_repeat: bool,
    ) -> bool:
        if fault.code == UNSUPPORTED_VERSION and connection.is_remote:
            self._known.forget()  # replaced by a server of other versions, which refused before anything ran
            return True
        if fault.status is None:
            return isinstance(fault, MCPConnectionError) and (
                may_repeat or fault.may_have_run is False
            )
        # A restarted server does not know the session (before 2026-07-28). But it may refuse only
        # this request: if it answers a ping, it knows the session.
        refusals = {_BAD_REQUEST} if connection.handshake.is_modern else {_BAD_REQUEST, _NOT_FOUND}
        if fault.status not in refusals or await self._answers_ping(connection):
            return False
        self._known.forget()  # it lost the session or speaks other versions now; either way the refused request did not run
        return True

    async def _answers_ping(self, connection: Session) -> bool:
        """Whether the server still speaks this version and, before 2026-07-28, knows the session."""
        try:
            await connection.ping(self._find_endpoint().connect_timeout_s)
        except MCPError:
            return False
        return True

    async def close(self) -> None:
        """Close the connection, also one that is being made. Requests under way fail; the next request makes a new connection."""
        self._closings += 1
        if self._login is not None:
            self._login.give_up()
        if self._opening is not None:
            await self._opening.close()
        async with self._lock:
            connection, self._connection = self._connection, None
            self._known.forget()
            if connection is not None:
                await _close(connection)


async def _close(connection: Session) -> None:
    await connection.close()
    forget_connection(connection)  # only now: what a second Ctrl-C leaves open is closed at exit


_loading = threading.Lock()
renew_in_child(globals(), _loading=threading.Lock)
_is_loaded = False


async def _load_sdk() -> None:
    """Import the SDK in a thread: it takes a second, which would block all other connections."""

    def load() -> None:
        global _is_loaded
        with (
            _loading
        ):  # its modules import each other in circles: two threads importing at once can deadlock
            import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]  for its side effect

            _is_loaded = True

    if not _is_loaded:
        try:
            await in_worker_thread(load)
        except ImportError as error:
            raise missing_extra(error) from error
