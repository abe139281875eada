"""The call of an MCP client, as the tool that it runs sees it, and events for that client.

The settings' scope holds it while the tool runs, as it holds a run's call. So `ferrule.progress`
becomes a progress notification, `ferrule.emit_event` a log message, and the steps of a served
program become progress.
"""

from __future__ import annotations

import asyncio
import logging
from math import isfinite
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule import events, settings
from ferrule.concurrency.halting import Halt
from ferrule.encoding.encode import jsonable
from ferrule.mcp_bridge.connection.handshake import LEVELS
from ferrule.mcp_bridge.server.result import replace_surrogates
from ferrule.values.calls.context import Context, key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ferrule.mcp_bridge.server.task import ServedTask
    from ferrule.values.calls.call import CheckedArguments, ToolSpec

R = TypeVar("R")

log = logging.getLogger("ferrule.mcp")

_LOG_LEVEL = "ferrule_log_level"


class MCPCall:
    """A call of an MCP client, as the tool that it runs sees it."""

    __slots__ = (
        "_key",
        "call_id",
        "caller",
        "frame",
        "halt",
        "outer",
        "over",
        "params",
        "request",
        "run_id",
        "tell",
    )

    def __init__(self, request: Any, params: Any, tell: EventSender) -> None:
        self.request = request
        """The SDK's request context: `session`, `protocol_version`, `meta`, ..."""
        self.params = params
        """The SDK's parameters of the call: `arguments`, `input_responses`, `request_state`, ..."""
        self.tell = tell
        self.call_id = str(request.request_id)
        self.over = False
        """Whether the call was cancelled, timed out or has ended."""
        self.halt = Halt()
        """Ends what a run waits for that the tool's function has started."""
        self.run_id = ""
        # The call is not part of a run: a served program has its own.
        self.frame = self.outer = self.caller = None
        self._key = token_hex(16)  # a client's ids are not unique: each client counts from 1

    @property
    def cancelled(self) -> bool:
        """Whether the client cancelled the call, its time limit passed, or it has ended."""
        return self.over

    async def cancellable(self, value: Awaitable[R]) -> R:
        """Await what the tool returned. The task of the call is cancelled with it."""
        return await value

    def progress(
        self, message: str = "", done: float | None = None, total: float | None = None
    ) -> None:
        """Report progress to the client, if it asked for progress."""
        self.tell(events.CallProgress(self.call_id, message, done, total))

    def context(self, tool: ToolSpec, arguments: CheckedArguments) -> Context[Any]:
        """The `Context` for a tool that takes one."""
        key = key_of(self._key, "", tool.name, arguments.shown)
        return Context(
            call_id=self.call_id, key=key, tell=self.progress, stopped=lambda: self.cancelled
        )


def current_mcp_call() -> MCPCall | None:
    """The MCP client's call that runs the tool, or None outside one.

    It gives access to what only the SDK offers, such as the session.
    """
    call = settings.scope().call
    return call if isinstance(call, MCPCall) else None


class EventSender:
    """Sends events from any thread to the client, in order."""

    def __init__(
        self, request: Any, task: ServedTask | None = None, callbacks: tuple[Any, ...] = ()
    ) -> None:
        self.task = task
        """The task that the call may have become.

        Such a task gets the progress of the call, because the request is over.
        """
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[events.Event | None] = asyncio.Queue()
        self._last_done: float = -1
        """The latest progress that was sent; -1 before the first."""
        self._sender: asyncio.Task[None] | None = None
        self._is_over = False
        self.observers: tuple[Callable[[events.Event], None], ...] = (self, *callbacks)
        """The observers for a program that the tool calls."""

    def __call__(self, event: events.Event) -> None:
        """Send one event."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._accept, event)

    def _accept(self, event: events.Event) -> None:
        if self._is_over:
            return  # from a thread of the tool that still runs
        self._queue.put_nowait(event)
        if self._sender is None:
            self._sender = self._loop.create_task(self._send_all())

    async def finish(self) -> None:
        """Send the events in the queue: none may follow the answer to a request."""
        await asyncio.sleep(0)  # lets the loop accept the events of other threads
        self._is_over = True
        if self._sender is None:
            return
        self._queue.put_nowait(None)
        await asyncio.wait((self._sender,))
        if self._sender.cancelled():
            return
        error = self._sender.exception()
        if error is not None:  # the tool's result is sent all the same
            log.warning("events of a tool could not be sent", exc_info=error)

    def drop(self) -> None:
        """Drop all further events."""
        self._is_over = True
        if self._sender is not None:
            self._sender.cancel()

    async def _send_all(self) -> None:
        import anyio

        try:
            while (event := await self._queue.get()) is not None:
                await self._send(event)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            return  # the client is gone, which does not concern the tool

    async def _send(self, event: events.Event) -> None:
        match event:
            case events.CallProgress() if not event.run_id:
                await self._progress(event.message, event.done, event.total)
            case events.CallProgress():
                # It comes from a tool inside a program: its numbers are not the call's.
                await self._progress(event.message, None, None)
            case events.StepFinished():
                names = ", ".join(call.name for call in event.step.calls)
                await self._progress(f"step {event.index + 1}: {names or 'no call'}", None, None)
            case events.Custom():
                await self._log(event)
            case _:
                pass

    async def _progress(self, message: str, done: float | None, total: float | None) -> None:
        if self.task is not None and self.task.is_given:
            self.task.report(message)
            return
        if done is None or not isfinite(done):
            done = max(self._last_done, 0) + 1
        if done <= self._last_done:
            return  # it must rise with each notification (specification, "Progress")
        self._last_done = done
        if total is not None and not isfinite(total):
            total = None
        text = replace_surrogates(message) or None
        await self._request.session.report_progress(done, total, text)

    async def _log(self, event: events.Custom) -> None:
        import mcp_types as types
        from mcp.server.connection import allowed_log_levels

        request = self._request
        if self.task is not None and self.task.is_given:
            return
        level: Any = event.name if event.name in LEVELS else "info"
        least_level = connection_of(request).state.get(_LOG_LEVEL, LEVELS[0])
        if level not in allowed_log_levels(request.protocol_version, request.meta):
            return
        if LEVELS.index(level) < LEVELS.index(least_level):
            return
        name = replace_surrogates(event.name)
        data = name
        if event.payload is not None:
            data = replace_surrogates(jsonable(event.payload))
        params = types.LoggingMessageNotificationParams(
            level=level, logger=None if level == name else name, data=data
        )
        # Not `send_log_message`, which warns that logging is deprecated: all revisions have it.
        await request.session.send_notification(
            types.LoggingMessageNotification(params=params), related_request_id=request.request_id
        )


def connection_of(request: Any) -> Any:
    """The SDK's connection of a request, which outlives it."""
    # A request's session ends with it, and has no public link to the connection.
    return request.session._connection  # noqa: SLF001


def set_log_level(request: Any, level: str) -> None:
    """Send this client no log messages below this level."""
    connection_of(request).state[_LOG_LEVEL] = level
