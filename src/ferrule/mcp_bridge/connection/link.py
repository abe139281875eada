"""The connection to one server over time: made when needed, and made again after a loss.

The policy, which `Link.request` carries out:

- A request that may have run is never sent twice, unless it may be repeated (`may_repeat`: it only
  lists or reads, or the tool declares that it reads or is idempotent). A request that surely did
  not run is sent once more, over a new connection.
- A server may refuse a request because it was restarted and does not know the session, or because
  it was replaced by one of another version. Then it is asked again which versions it speaks.
- A request that is under way when the client closes fails. It makes no new connection.
- A server that left a call without an answer, and answers no ping either, gets no further calls
  until it is heard again (`Silence`).
- After a failure the next attempt waits a moment, longer each time; after several within a minute,
  requests fail at once for a while. `connect()` forgets both.

Nothing keeps an idle connection alive, and nothing restarts a server before the next request.
Everything here runs on the background loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.concurrency.forking import ForkLock
from ferrule.concurrency.offload import in_worker_thread
from ferrule.errors import MCPConnectionError, MCPError, MCPProtocolError, MCPTimeoutError
from ferrule.mcp_bridge.connection.handshake import UNSUPPORTED_VERSION, Handshake, KnownEra
from ferrule.mcp_bridge.connection.session import Session
from ferrule.mcp_bridge.errors import (
    Attempt,
    connection_error,
    login_error,
    missing_extra,
    silent_error,
)
from ferrule.mcp_bridge.login.authorization import LoginError
from ferrule.mcp_bridge.transport.open_connections import forget_connection, register_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.mcp_bridge.connection.callbacks import Hooks
    from ferrule.mcp_bridge.connection.channel import Endpoint
    from ferrule.mcp_bridge.connection.handshake import ProtocolMode
    from ferrule.mcp_bridge.login.login import Login

ANSWERS_WITHIN_S = 2.0
"""How long a ping may take before calls of a server that left one without an answer fail."""
_PING_S = 30.0
"""After how long without an answer a ping is sent again, with the next call."""
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 10.0
_MOST_LOSSES = 6
"""After this many lost or failed connections within `_LOSSES_WITHIN_S`, requests fail at once."""
_LOSSES_WITHIN_S = 60.0
_BAD_REQUEST, _NOT_FOUND, _UNAVAILABLE = 400, 404, 503
_METHOD_NOT_FOUND = -32601
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
        self._turns = None
        if max_concurrency:
            self._turns = asyncio.Semaphore(max_concurrency)

        self._connection: Session | None = None
        self._opening: Session | None = None
        self._lock = asyncio.Lock()
        self._login: Login | None = None
        self.starts = 0
        """How often a connection was made."""
        self._closings = 0
        """How often the client closed it. A request from before a close makes no new connection."""

        self._losses: deque[float] = deque(maxlen=_MOST_LOSSES)
        self._failures = 0
        self._last_failure = 0.0
        self._silence: Silence | None = None

    @property
    def handshake(self) -> Handshake | None:
        """The current handshake; None before the first connection."""
        if self._connection is not None:
            return self._connection.handshake
        return None

    @property
    def is_alive(self) -> bool:
        """Whether there is a connection that is not known to be lost."""
        return self._connection is not None and self._connection.alive

    # -- requests

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        phase: str,
        may_repeat: bool,
        **options: Any,
    ) -> dict[str, Any]:
        """Send one request; at most once more, by the policy above. `options` are the session's."""
        tool = options.get("tool")
        closings = self._closings
        async with AsyncExitStack() as stack:
            if self._turns is not None:
                await stack.enter_async_context(self._turns)
            self._refuse_after_closing(closings, phase, tool)
            connection = await self.connected_for(phase, tool)
            try:
                return await self._send(connection, method, params, phase=phase, **options)
            except (MCPConnectionError, MCPProtocolError) as fault:
                if closings != self._closings:
                    raise
                has_logged_in = await self._logged_in(connection.login, fault)
                if not has_logged_in and not await self._should_retry(
                    fault, connection, may_repeat=may_repeat
                ):
                    raise
            self._refuse_after_closing(closings, phase, tool)
            # A log-in changes the headers only, and the session over HTTP goes on.
            must_reopen = not connection.alive or (connection.is_remote and not has_logged_in)
            connection = await self.connected_for(phase, tool, reopen=must_reopen)
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
        if self._silence is not None:
            await self._refuse_silent(self._silence, connection, options.get("tool"))
        heard = connection.heard
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            return await connection.request(method, params, phase=phase, **options)
        except (MCPTimeoutError, asyncio.CancelledError) as fault:
            was_long = isinstance(fault, MCPTimeoutError) or loop.time() - start > ANSWERS_WITHIN_S
            if was_long and connection.heard == heard and connection.alive:
                self._silence = Silence(connection, start)
            raise

    async def _refuse_silent(self, silence: Silence, connection: Session, tool: str | None) -> None:
        if silence.connection is connection and not await silence.is_over():
            raise silent_error(self._unsent("call", tool), silence.seconds)
        self._silence = None

    async def _should_retry(
        self, fault: MCPError, connection: Session, *, may_repeat: bool
    ) -> bool:
        if fault.code == UNSUPPORTED_VERSION and connection.is_remote:
            # A server of other versions took its place, and refused before anything ran.
            self._known.forget()
            return True
        if fault.status is None:
            is_lost = isinstance(fault, MCPConnectionError)
            return is_lost and (may_repeat or fault.may_have_run is False)
        # A restarted server does not know the session (before 2026-07-28). But it may refuse only
        # this request: if it answers a ping, it knows the session.
        if connection.handshake.is_modern:
            refusals = {_BAD_REQUEST}
        else:
            refusals = {_BAD_REQUEST, _NOT_FOUND}
        is_refused = fault.status in refusals or _names_lost_session(fault, connection)
        if not is_refused or await self._answers_ping(connection):
            return False
        # It lost the session, or speaks other versions now. Either way the request did not run.
        self._known.forget()
        return True

    async def _answers_ping(self, connection: Session) -> bool:
        """Whether the server still speaks this version and, before 2026-07-28, has the session."""
        try:
            await connection.ping(self._find_endpoint().connect_timeout_s)
        except MCPError as fault:
            # A server without `ping` says so itself, in an answer like any other.
            return fault.code == _METHOD_NOT_FOUND and fault.status is None
        return True

    # -- connecting

    async def connected_for(self, phase: str, tool: str | None, *, reopen: bool = False) -> Session:
        """`connected` for a request: the error of a call says that it was not sent."""
        try:
            return await self.connected(reopen=reopen)
        except MCPError as fault:
            if phase == "call":
                fault.tool = tool
                fault.may_have_run = False
            raise

    async def connected(self, *, reopen: bool = False) -> Session:
        """The live connection; makes one if there is none, or if `reopen`. Raises an `MCPError`."""
        before = self._connection
        if before is not None and before.alive and not reopen:
            return before
        closings = self._closings
        async with self._lock:
            self._refuse_after_closing(closings, "connect")
            current = self._connection
            if current is not None and current.alive and (current is not before or not reopen):
                return current  # another task made it meanwhile
            if current is not None:
                if not current.alive:
                    self._losses.append(asyncio.get_running_loop().time())
                self._connection = None
                await _close(current)
            return await self._start()

    async def _start(self) -> Session:
        endpoint = self._find_endpoint()
        loop = asyncio.get_running_loop()
        self._refuse_too_many(loop.time())
        if self._failures:
            wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (self._failures - 1))
            wait_s *= random.uniform(0.5, 1.0)  # noqa: S311  jitter
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
            return await self._open_somehow(endpoint)
        except MCPConnectionError as fault:
            if not await self._logged_in(endpoint.login, fault):
                raise
        return await self._open_somehow(endpoint)

    async def _logged_in(self, login: Login | None, fault: MCPError) -> bool:
        """Have a person log in, if that is why the server refused.

        Raises `MCPConnectionError` (phase `login`) if there is no log-in.
        """
        if login is None or fault.status not in _UNAUTHORIZED or not login.is_wanted:
            return False
        self._login = login
        try:
            await login.log_in()
        except LoginError as error:
            attempt = self._unsent(fault.phase or "connect", fault.tool)
            raise login_error(attempt, str(error)) from None
        return True

    async def _open_somehow(self, endpoint: Endpoint) -> Session:
        """Open a session, if need be in an older way.

        A server that refuses streamable HTTP is tried by the older HTTP+SSE (revision 2025-11-25,
        "Backwards Compatibility"). A child process that ends when it is asked for its versions is
        started again, and gets the older handshake without being asked.
        """
        first = Session(endpoint, self._hooks(), self._known)
        try:
            return await self._open(first)
        except MCPConnectionError as fault:
            if self._may_be_older_http(endpoint, fault):
                older = replace(endpoint, spec=replace(endpoint.spec, transport="sse"))
                with contextlib.suppress(MCPError):
                    return await self._open(Session(older, self._hooks(), self._known))
            if not self._may_be_legacy_child(endpoint, first):
                raise
        session = await self._open(Session(endpoint, self._hooks(), KnownEra(is_legacy=True)))
        self._known.is_legacy = True
        return session

    def _may_be_older_http(self, endpoint: Endpoint, fault: MCPConnectionError) -> bool:
        is_refused = fault.status in _NO_STREAMABLE_HTTP
        # A client of the user has headers and auth of its own, which HTTP+SSE could not use.
        return is_refused and endpoint.spec.transport == "http" and endpoint.http_client is None

    def _may_be_legacy_child(self, endpoint: Endpoint, first: Session) -> bool:
        is_undecided = self._known.mode == "auto" and not self._known.is_legacy
        return is_undecided and endpoint.spec.transport == "stdio" and first.died_when_asked

    async def _open(self, connection: Session) -> Session:
        if not register_connection(connection):
            why = "it is not started: the process is ending"
            raise connection_error(self._unsent("start"), why)
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
        if len(self._losses) < _MOST_LOSSES:
            return
        wait_s = _LOSSES_WITHIN_S - (now - self._losses[0])
        if wait_s > 0:
            why = (
                f"it died or failed {_MOST_LOSSES} times within a minute, and is left alone for "
                f"{wait_s:.0f} s; `connect()` tries at once"
            )
            raise connection_error(self._unsent("connect"), why)

    def _refuse_after_closing(self, closings: int, phase: str, tool: str | None = None) -> None:
        if closings != self._closings:
            raise connection_error(self._unsent(phase, tool), "it was closed meanwhile")

    def _unsent(self, phase: str, tool: str | None = None) -> Attempt:
        return Attempt(server=self._name, phase=phase, tool=tool, was_sent=False)

    def forgive(self) -> None:
        """Forget earlier failures: the user called `connect()`."""
        self._failures = 0
        self._losses.clear()

    async def close(self) -> None:
        """Close the connection, also one that is being made.

        Requests under way fail; the next request makes a new connection.
        """
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


def _names_lost_session(fault: MCPError, connection: Session) -> bool:
    """Whether a proxy says with a 503 that no server behind it has the session."""
    if fault.status != _UNAVAILABLE or connection.handshake.is_modern:
        return False
    return "session" in str(fault).lower()


class Silence:
    """The time since a server left a call without an answer and sent nothing else.

    A slow tool is not a reason to stop calling its server, and a server that hangs would take the
    whole time limit of each call. So the server gets a ping meanwhile, which tells them apart.
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
        left_s = self._pinged_at + ANSWERS_WITHIN_S - asyncio.get_running_loop().time()
        await asyncio.wait((self._answered,), timeout=max(0.0, left_s))
        if self.connection.heard != self._heard:
            return True
        return self._answered.done() and self._answered.result()

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


_loading = ForkLock()
_is_loaded = False


async def _load_sdk() -> None:
    """Import the SDK in a thread: it takes a second, which would block all other connections."""

    def load() -> None:
        global _is_loaded
        # Its modules import each other in circles: two threads that import at once can deadlock.
        with _loading.lock:
            import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]  for its side effect

            _is_loaded = True

    if not _is_loaded:
        try:
            await in_worker_thread(load)
        except ImportError as error:
            raise missing_extra(error) from error
