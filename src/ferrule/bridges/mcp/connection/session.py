"""One live session with an MCP server, owned by one task of the background loop.

In: how the server is reached. Out: `request(...)` -> the server's raw result. The owner task alone enters and leaves the SDK's transport
and session, whoever asks for that and from wherever; requests are tasks beside it, so that giving one up leaves the connection as it is.
Results are what stood on the wire, not the SDK's models: those refuse a whole list for one bad tool, a whole result for one unknown block.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

from ferrule.bridges.mcp.connection.callbacks import callbacks
from ferrule.bridges.mcp.connection.handshake import Wire, negotiate
from ferrule.bridges.mcp.connection.subscription import listen_for_changes
from ferrule.bridges.mcp.connection.timeouts import Clocks
from ferrule.bridges.mcp.connection.watch import WatchedReader, WatchedWriter
from ferrule.bridges.mcp.errors import CONNECTION_CLOSED, Asked, answered, lost, of_note, root_of, sendable, timed_out, unopened
from ferrule.bridges.mcp.transport.http import http_streams, sse_streams
from ferrule.bridges.mcp.transport.redact import hide_in_logs, shown
from ferrule.bridges.mcp.transport.stdio import Child, stdio_streams
from ferrule.errors import FerruleError, MCPError
from ferrule.values.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.bridges.mcp.connection.callbacks import Hooks
    from ferrule.bridges.mcp.connection.handshake import Remembered
    from ferrule.bridges.mcp.spec import ServerSpec
    from ferrule.bridges.mcp.transport.http import GuardedClient
    from ferrule.bridges.mcp.transport.messages import Note

CLOSE_S = 6.0
"""How long a polite close may take before the owner is cancelled."""
_AUTOPSY_S = 0.5
_FIRST_ID = 1000  # above what the session itself counts while it negotiates


class Way(Record, kw_only=True):
    """How to get there: the spec with its variables read, and what cannot be written down in one."""

    spec: ServerSpec
    connect_timeout_s: float
    auth: Any = None
    http_client: Any = None
    server: Any = None
    """For `memory`: a server of the SDK in this process."""
    grace_s: float = 2.0


class Connection:
    """One session, from start to end."""

    def __init__(self, way: Way, hooks: Hooks, remembered: Remembered) -> None:
        self._way = way
        self._clocks = Clocks()
        elicit = self._clocks.patient(hooks.elicit, {"action": "cancel"})
        self._hooks = replace(hooks, elicit=elicit, sample=self._clocks.patient(hooks.sample))
        self._remembered = remembered
        self._name = way.spec.name
        self._ids = itertools.count(_FIRST_ID)
        self._over = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way: dict[Any, bool] = {}
        """Requests that wait for their answer, and whether they may have gone out."""
        self._notes: dict[Any, Note] = {}
        self._has_written = False
        self._failed: dict[Any, asyncio.Future[None]] = {}
        self._guard: GuardedClient | None = None
        self._child: Child | None = None
        self._dispatcher: Any = None
        self._owner: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._phase = "start"
        self._is_given_up = False
        self._grace_s = way.grace_s
        self.alive = False
        self.wire = Wire()

    # -- from start to end --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start it and agree on a version. Raises an `MCPError` that names the phase."""
        loop = asyncio.get_running_loop()
        self._owner = loop.create_task(self._own())
        self._owner.add_done_callback(self._ended)
        within = self._way.connect_timeout_s
        try:
            await asyncio.wait((self._ready, self._owner), timeout=within, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._abandon()
            raise
        if not self._ready.done() and not self._owner.done():
            asked = Asked(server=self._name, phase=self._phase)
            await self._abandon()
            raise timed_out(asked, within, self._last_words())
        if self._ready.done() and not self._owner.done():
            return
        await self._autopsy()
        raise self._failure()

    async def close(self) -> None:
        """End it, politely for a while; never raises for what the server does."""
        self._is_given_up = True
        self._over.set()
        self.alive = False
        if self._owner is not None and not self._owner.done():
            if self._ready.done():
                await asyncio.wait((self._owner,), timeout=CLOSE_S)
            if not self._owner.done():
                await self._abandon()

    def kill_now(self) -> None:
        """End a child at once, from any thread."""
        if self._child is not None:
            self._child.kill_now()

    async def _abandon(self) -> None:
        if self._owner is not None:
            self._grace_s = 0.0
            self._owner.cancel()
            await asyncio.wait((self._owner,), timeout=CLOSE_S)

    async def _own(self) -> None:
        """The owner: everything that is entered here is left here."""
        async with AsyncExitStack() as stack:
            hide_in_logs()
            read, write = await self._streams(stack)
            session = await self._session(stack, WatchedReader(read, self._lost), WatchedWriter(write, self._writing))
            self._phase = "handshake"
            self.wire = await negotiate(session, self._remembered, self._hooks, remote=self._guard)
            self._phase = "use"
            self.alive = True
            if not self._ready.done():
                self._ready.set_result(None)
            if self.wire.listens:
                self._listening = asyncio.get_running_loop().create_task(listen_for_changes(session, self.wire, self._hooks.changed))
                stack.callback(self._listening.cancel)
            await self._over.wait()

    async def _streams(self, stack: AsyncExitStack) -> tuple[Any, Any]:
        way, spec = self._way, self._way.spec
        match spec.transport:
            case "stdio":
                self._child = await Child.start(spec.name, spec.command, spec.args, spec.env, spec.cwd)
                stack.push_async_callback(self._end_child)
                return await stack.enter_async_context(stdio_streams(self._child, self._note))
            case "http":
                return await stack.enter_async_context(http_streams(spec.url, spec.headers, way.auth, way.http_client, self._guarded_by))
            case "sse":
                return await stack.enter_async_context(sse_streams(spec.url, spec.headers, way.auth, self._guarded_by))
            case "memory":
                from mcp.client._memory import InMemoryTransport

                return await stack.enter_async_context(InMemoryTransport(way.server))

    async def _session(self, stack: AsyncExitStack, read: Any, write: Any) -> Any:
        from mcp.client.session import ClientSession
        from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

        self._dispatcher = JSONRPCDispatcher(read, write)
        session = ClientSession(dispatcher=self._dispatcher, read_timeout_seconds=self._way.connect_timeout_s, **callbacks(self._hooks))
        return await stack.enter_async_context(session)

    async def _end_child(self) -> None:
        if self._child is not None:
            await self._child.close(self._grace_s)

    def _guarded_by(self, guard: GuardedClient) -> None:
        self._guard = guard
        self._notes = guard.notes
        guard.failed = self._post_failed
        guard.waits_for = self._under_way.__contains__

    def _note(self, number: Any, note: Note) -> None:
        if number in self._under_way:
            self._notes[number] = note

    def _writing(self, number: Any) -> None:
        self._has_written = True
        if number in self._under_way:
            self._under_way[number] = True

    def _post_failed(self, asked: Any) -> None:
        waiting = self._failed.pop(asked, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _lost(self) -> None:
        self.alive = False
        self._over.set()

    def _ended(self, owner: asyncio.Task[None]) -> None:
        self.alive = False
        self._over.set()
        if not owner.cancelled():
            owner.exception()  # asked for, so that asyncio does not complain of an error that nobody read
        for waiting in self._failed.values():
            if not waiting.done():
                waiting.set_result(None)

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over HTTP."""
        return self._guard is not None

    @property
    def was_asked(self) -> bool:
        """Whether the server's process lived long enough to be asked for the newer era, and ended during that."""
        return self._phase == "handshake" and self._has_written and not self.alive and not self._is_given_up

    async def answers_ping(self) -> bool:
        """Whether the server still speaks our version, and knows the session (older era)."""
        try:
            await self.request("server/discover" if self.wire.is_modern else "ping", phase="ping", timeout_s=self._way.connect_timeout_s)
        except MCPError:
            return False
        return True

    # -- requests -----------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        phase: str,
        timeout_s: float,
        total_s: float | None = None,
        tool: str | None = None,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        progress: Callable[[float, float | None, str | None], Any] | None = None,
    ) -> dict[str, Any]:
        """One request and its raw result.

        Without an answer or progress for `timeout_s` seconds, or without an answer for `total_s`, it is given up, which the server is told.
        Raises an `MCPError`; being cancelled tells the server, too.
        """
        number = next(self._ids)
        asked = Asked(server=self._name, phase=phase, tool=tool, was_sent=False)
        if not self.alive:
            await self._autopsy()
            raise lost(asked, self._why_lost())
        loop = asyncio.get_running_loop()
        end = None if total_s is None else loop.time() + total_s
        body, options = self.wire.stamped(method, sendable(asked, params), sendable(asked, meta), headers)
        self._under_way[number] = False
        try:
            async with self._clocks.request(timeout_s, end, is_call=phase == "call") as prolong:

                async def on_progress(done: float, of: float | None, message: str | None) -> None:
                    prolong()
                    if progress is not None:
                        told = progress(done, of, message)
                        if told is not None:
                            await told

                if phase == "call":
                    options["on_progress"] = on_progress
                return await self._sent(number, method, body, {**options, "request_id": number})
        except TimeoutError as late:
            asked = Asked(server=self._name, phase=phase, tool=tool, was_sent=self._under_way[number])
            spent = timeout_s if end is None or loop.time() < end else total_s or timeout_s
            raise timed_out(asked, spent) from late
        except _sdk_error() as error:
            asked = Asked(server=self._name, phase=phase, tool=tool, was_sent=self._under_way[number])
            raise await self._fault(asked, number, error) from error
        finally:
            del self._under_way[number]
            self._failed.pop(number, None)
            self._notes.pop(number, None)

    async def _sent(self, number: int, method: str, body: dict[str, Any] | None, options: dict[str, Any]) -> dict[str, Any]:
        if self._way.spec.transport != "sse":
            return await self._dispatcher.send_raw_request(method, body, options)
        # Its answers come on another stream: that a request could not be posted is told apart.
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failed[number] = failed
        sending = asyncio.ensure_future(self._dispatcher.send_raw_request(method, body, options))
        try:
            await asyncio.wait((sending, failed), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise _sdk_error()(code=CONNECTION_CLOSED, message="")
            return await sending
        finally:
            if not sending.done():
                sending.cancel()
                await asyncio.wait((sending,))

    async def _fault(self, asked: Asked, number: int, error: Any) -> FerruleError:
        note = self._notes.get(number)
        if note is not None:
            return of_note(asked, note, error.code, error.message, error.data)
        if error.code == CONNECTION_CLOSED and not self.alive:
            await self._autopsy()
            return lost(asked, self._why_lost(), error)
        return answered(asked, error.code, error.message, error.data)

    # -- what went wrong ----------------------------------------------------------------------------------------

    async def _autopsy(self) -> None:
        if self._child is not None:
            await self._child.settled(_AUTOPSY_S)
        elif self._owner is not None:
            await asyncio.wait((self._owner,), timeout=_AUTOPSY_S)

    def _last_words(self) -> str:
        return self._child.last_words() if self._child is not None else ""

    def _why_lost(self) -> str:
        if self._is_given_up:
            return "it was closed while this was under way"
        child, owner = self._child, self._owner
        if child is not None:
            how = f"it exited with code {child.exit_code}" if child.exit_code is not None else "it closed the connection"
            said = child.last_words()
            return f"{how}{f'; its last words were: {said}' if said else ''}"
        raised = owner.exception() if owner is not None and owner.done() and not owner.cancelled() else None
        cause = None if raised is None else root_of(raised)
        return "the connection was closed" if cause is None else f"the connection broke ({type(cause).__name__}: {shown(str(cause))})"

    def _failure(self) -> FerruleError:
        """Why it could not be opened."""
        owner = cast("asyncio.Task[None]", self._owner)
        raised = None if owner.cancelled() else owner.exception()
        cause = None if raised is None else root_of(raised)
        asked = Asked(server=self._name, phase=self._phase)
        if self._is_given_up or owner.cancelled():
            return lost(asked, "it was closed before it was connected")
        note = self._guard.last if self._guard is not None else None
        return unopened(asked, cause, note, self._why_lost() if self._child is not None else None)


def _sdk_error() -> Any:
    from mcp.shared.exceptions import MCPError as SDKError

    return SDKError
