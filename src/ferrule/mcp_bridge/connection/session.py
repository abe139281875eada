"""One live session with an MCP server, owned by one task of the background loop.

The owner task alone enters and leaves the SDK's transport and session, no matter which task opens
or closes the session. Requests are tasks beside it, so that cancelling one leaves the connection
alone. Results are what stood on the wire, not models of the SDK, which reject a whole list for one
bad tool and a whole result for one unknown block.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from ferrule.mcp_bridge.connection.callbacks import callbacks, listen_for_changes
from ferrule.mcp_bridge.connection.channel import Channel
from ferrule.mcp_bridge.connection.clocks import Clocks
from ferrule.mcp_bridge.connection.handshake import Handshake, negotiate
from ferrule.mcp_bridge.errors import (
    CONNECTION_CLOSED,
    Attempt,
    connection_error,
    error_answer,
    error_of_note,
    timeout_error,
    unsendable_error,
)
from ferrule.mcp_bridge.transport.messages import WatchedReader, WatchedWriter, as_plain_json
from ferrule.mcp_bridge.transport.redact import redact_logs
from ferrule.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.errors import FerruleError
    from ferrule.mcp_bridge.connection.callbacks import Hooks
    from ferrule.mcp_bridge.connection.channel import Endpoint
    from ferrule.mcp_bridge.connection.handshake import KnownEra
    from ferrule.mcp_bridge.transport.http import GuardedClient
    from ferrule.mcp_bridge.transport.messages import Note

_CLOSE_S = 6.0
"""How long a polite close may take before the owner is cancelled."""
_FIRST_ID = 1000  # above the ids that the SDK's session uses while it negotiates


class Session:
    """One session, from start to end."""

    def __init__(self, endpoint: Endpoint, hooks: Hooks, known: KnownEra) -> None:
        self._endpoint = endpoint
        self._clocks = Clocks()
        elicit = self._clocks.stopped_by(hooks.elicit, {"action": "cancel"})
        self._hooks = replace(hooks, elicit=elicit, sample=self._clocks.stopped_by(hooks.sample))
        self._known = known
        self._name, self.login = endpoint.spec.name, endpoint.login
        self._ids = itertools.count(_FIRST_ID)
        self._over = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way: dict[Any, bool] = {}
        """Requests that wait for their answer, and whether they may have gone out."""
        self._notes: dict[Any, Note] = {}
        self._has_written = False
        self._failed: dict[Any, asyncio.Future[None]] = {}
        self._channel = Channel(endpoint)
        self._dispatcher: Any = None
        self._reader: WatchedReader | None = None
        self._owner: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._phase = "start"
        self.alive = False
        self.handshake = Handshake()

    # -- opening and closing
    # ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and agree on a version. Raises an `MCPError` that names the phase."""
        loop = asyncio.get_running_loop()
        self._owner = loop.create_task(self._own())
        self._owner.add_done_callback(self._ended)
        within = self._endpoint.connect_timeout_s
        try:
            await asyncio.wait(
                (self._ready, self._owner),
                timeout=within,
                return_when=asyncio.FIRST_COMPLETED,
            )
        except asyncio.CancelledError:
            await self._abandon()
            raise
        if not self._ready.done() and not self._owner.done():
            attempt = Attempt(server=self._name, phase=self._phase)
            await self._abandon()
            raise timeout_error(attempt, within, self._channel.last_words())
        if self._ready.done() and not self._owner.done():
            return
        await self._channel.settle(self._owner)
        raise self._channel.opening_error(
            Attempt(server=self._name, phase=self._phase),
            self._owner,
        )

    async def close(self) -> None:
        """Close it, politely at first. Never raises for what the server does."""
        self._channel.is_given_up = True
        self._lost()
        if self._owner is not None and not self._owner.done():
            if self._ready.done():
                await asyncio.wait((self._owner,), timeout=_CLOSE_S)
            if not self._owner.done():
                await self._abandon()

    def kill_now(self) -> None:
        """Kill a child process at once, from any thread."""
        if self._channel.child is not None:
            self._channel.child.kill_now()

    async def _abandon(self) -> None:
        if self._owner is not None:
            self._channel.grace_s = 0.0
            self._owner.cancel()
            await asyncio.wait((self._owner,), timeout=_CLOSE_S)

    async def _own(self) -> None:
        """The owner task: leaves everything that it enters."""
        async with AsyncExitStack() as stack:
            redact_logs()
            read, write = await self._channel.open(stack, self._note, self._guard_with)
            self._reader = WatchedReader(read, self._lost)
            session = await self._enter_session(
                stack,
                self._reader,
                WatchedWriter(write, self._writing, trace=self._endpoint.trace),
            )
            self._phase = "handshake"
            hooks, remote = self._hooks, self._channel.guard
            self.handshake = await negotiate(
                session,
                self._known,
                hooks.capabilities(),
                hooks.log_level,
                remote=remote,
            )
            self._phase = "use"
            self.alive = True
            if not self._ready.done():
                self._ready.set_result(None)
            if self.handshake.listens:
                self._listening = asyncio.get_running_loop().create_task(
                    listen_for_changes(session, self.handshake, hooks.changed),
                )
                stack.callback(self._listening.cancel)
            await self._over.wait()

    async def _enter_session(self, stack: AsyncExitStack, read: Any, write: Any) -> Any:
        from mcp.client.session import ClientSession
        from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

        self._dispatcher = JSONRPCDispatcher(read, write)
        within = self._endpoint.connect_timeout_s
        session = ClientSession(
            dispatcher=self._dispatcher,
            read_timeout_seconds=within,
            **callbacks(self._hooks),
        )
        return await stack.enter_async_context(session)

    def _guard_with(self, guard: GuardedClient) -> None:
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
        self._lost()
        if not owner.cancelled():
            owner.exception()  # read it, or asyncio logs that it was never retrieved
        for waiting in self._failed.values():
            if not waiting.done():
                waiting.set_result(None)

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over HTTP."""
        return self._channel.guard is not None

    @property
    def heard(self) -> int:
        """How many messages of the server were read."""
        return self._reader.count if self._reader is not None else 0

    @property
    def died_when_asked(self) -> bool:
        """Whether the server's process started, and ended when it was asked for its versions."""
        return (
            self._phase == "handshake"
            and self._has_written
            and not self.alive
            and not self._channel.is_given_up
        )

    # -- requests
    # -----------------------------------------------------------------------------------------------

    async def ping(self, within_s: float) -> None:
        """One round trip. From 2026-07-28 on there is no ping, so it sends `server/discover`."""
        await self.request(
            "server/discover" if self.handshake.is_modern else "ping",
            phase="ping",
            timeout_s=within_s,
        )

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
        """Send one request; returns the raw result.

        Gives up after `timeout_s` seconds without an answer or progress, and after `total_s` in any
        case. Giving up and being cancelled notify the server. Raises an `MCPError`.
        """
        number = next(self._ids)
        attempt = Attempt(server=self._name, phase=phase, tool=tool, was_sent=False)
        if not self.alive:
            await self._channel.settle(self._owner)
            raise connection_error(attempt, self._channel.why_lost(self._owner))
        loop = asyncio.get_running_loop()
        end = None if total_s is None else loop.time() + total_s
        try:
            params, meta = as_plain_json(params), as_plain_json(meta)
        except (ValueError, TypeError, RecursionError) as error:
            raise unsendable_error(attempt, error) from error
        body, options = self.handshake.prepare_request(method, params, meta, headers)
        self._under_way[number] = False
        try:
            async with self._clocks.request(timeout_s, end, is_call=phase == "call") as prolong:

                async def on_progress(done: float, of: float | None, message: str | None) -> None:
                    prolong()
                    if progress is not None:
                        waiting = progress(done, of, message)
                        if waiting is not None:
                            await waiting

                if phase == "call":
                    options["on_progress"] = on_progress
                return await self._send(number, method, body, {**options, "request_id": number})
        except TimeoutError as late:
            spent = timeout_s if end is None or loop.time() < end else total_s or timeout_s
            raise timeout_error(replace(attempt, was_sent=self._under_way[number]), spent) from late
        except _sdk_error() as error:
            raise await self._request_error(
                replace(attempt, was_sent=self._under_way[number]),
                number,
                error,
            ) from error
        finally:
            del self._under_way[number]
            self._failed.pop(number, None)
            self._notes.pop(number, None)

    async def _send(
        self,
        number: int,
        method: str,
        body: dict[str, Any] | None,
        options: dict[str, Any],
    ) -> dict[str, Any]:
        if self._endpoint.spec.transport != "sse":
            return await self._dispatcher.send_raw_request(method, body, options)
        # Answers come on another stream, so that a failed POST must end the wait for one.
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

    async def _request_error(self, attempt: Attempt, number: int, error: Any) -> FerruleError:
        note = self._notes.get(number)
        if note is not None:
            return error_of_note(attempt, note, error.code, error.message, error.data)
        if error.code == CONNECTION_CLOSED and not self.alive:
            await self._channel.settle(self._owner)
            return connection_error(attempt, self._channel.why_lost(self._owner), error)
        return error_answer(attempt, error.code, error.message, error.data)


def _sdk_error() -> Any:
    from mcp.shared.exceptions import MCPError as SDKError

    return SDKError
