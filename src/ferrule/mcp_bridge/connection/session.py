"""One live session with an MCP server, owned by one task of the background loop.

The owner task alone enters and leaves the SDK's transport and session, no matter which task opens
or closes the session: their task groups must be left by the task that entered them. Requests are
other tasks, so that cancelling one leaves the connection alone.

Results are what came over the wire, not models of the SDK, which reject a whole list for one bad
tool and a whole result for one unknown block.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from ferrule.errors import MCPError
from ferrule.mcp_bridge.connection.callbacks import (
    ProgressReports,
    callbacks,
    listen_for_changes,
)
from ferrule.mcp_bridge.connection.channel import Channel
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
from ferrule.mcp_bridge.redact import redact_logs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from ferrule.errors import FerruleError
    from ferrule.mcp_bridge.connection.callbacks import Hook, Hooks, Progress
    from ferrule.mcp_bridge.connection.channel import Endpoint
    from ferrule.mcp_bridge.connection.handshake import KnownEra
    from ferrule.mcp_bridge.transport.http import GuardedClient
    from ferrule.mcp_bridge.transport.messages import Note

_CLOSE_S = 6.0
"""How long a polite close may take before the owner is cancelled."""
_FIRST_ID = 1000
"""The first id of our requests: above those that the SDK's session uses while it negotiates."""


class Session:
    """One session, from start to end."""

    def __init__(self, endpoint: Endpoint, hooks: Hooks, known: KnownEra) -> None:
        self._endpoint = endpoint
        self._name = endpoint.spec.name
        self.login = endpoint.login
        self._clocks = Clocks()
        self._hooks = replace(
            hooks,
            elicit=self._clocks.stopped_by(hooks.elicit, {"action": "cancel"}),
            sample=self._clocks.stopped_by(hooks.sample),
        )
        self._known = known
        self.handshake = Handshake()
        self.alive = False
        self._phase = "start"

        # What the owner task holds.
        self._channel = Channel(endpoint)
        self._owner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._reader: WatchedReader | None = None
        self._dispatcher: Any = None
        self._listening: asyncio.Task[None] | None = None

        # What requests leave and find, by their id.
        self._ids = itertools.count(_FIRST_ID)
        self._may_be_sent: dict[Any, bool] = {}
        """Requests that wait for their answer, and whether they may have gone out."""
        self._has_written = False
        self._progress = ProgressReports()
        self._notes: dict[Any, Note] = {}
        self._failed_posts: dict[Any, asyncio.Future[None]] = {}

    # -- opening and closing

    async def open(self) -> None:
        """Connect and agree on a version. Raises an `MCPError` that names the phase."""
        self._owner = asyncio.get_running_loop().create_task(self._own())
        self._owner.add_done_callback(self._ended)
        within_s = self._endpoint.connect_timeout_s
        try:
            await asyncio.wait(
                (self._ready, self._owner), timeout=within_s, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            await self._abandon()
            raise
        attempt = Attempt(server=self._name, phase=self._phase)
        if self._owner.done():
            await self._channel.settle(self._owner)
            raise self._channel.opening_error(attempt, self._owner)
        if not self._ready.done():
            await self._abandon()
            raise timeout_error(attempt, within_s, self._channel.last_words())

    async def close(self) -> None:
        """Close it, politely at first. Never raises for what the server does."""
        self._channel.is_given_up = True
        self._lost()
        if self._owner is None or self._owner.done():
            return
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
            self._reader = WatchedReader(read, self._lost, self._progress.take)
            stack.callback(self._progress.end)
            writer = WatchedWriter(write, self._writing)
            session = await self._enter_session(stack, self._reader, writer)
            self._phase = "handshake"
            self.handshake = await negotiate(
                session,
                self._dispatcher,
                self._known,
                self._hooks.capabilities(),
                self._hooks.log_level,
                remote=self._channel.guard,
                within_s=self._endpoint.connect_timeout_s,
            )
            self._phase = "use"
            self.alive = True
            if not self._ready.done():
                self._ready.set_result(None)
            if self.handshake.listens:
                self._listening = asyncio.get_running_loop().create_task(
                    listen_for_changes(session, self.handshake, self._hooks.changed)
                )
                stack.callback(self._listening.cancel)
            await self._over.wait()

    async def _enter_session(self, stack: AsyncExitStack, read: Any, write: Any) -> Any:
        from mcp.client.session import ClientSession
        from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

        # Our own requests go to the dispatcher, which returns raw results. The SDK's session
        # negotiates, and answers the server's requests.
        self._dispatcher = JSONRPCDispatcher(read, write)
        session = ClientSession(
            dispatcher=self._dispatcher,
            read_timeout_seconds=self._endpoint.connect_timeout_s,
            **callbacks(self._hooks),
        )
        return await stack.enter_async_context(session)

    def _guard_with(self, guard: GuardedClient) -> None:
        self._notes = guard.notes
        guard.failed = self._post_failed
        guard.waits_for = self._may_be_sent.__contains__

    def _note(self, request_id: Any, note: Note) -> None:
        if request_id in self._may_be_sent:
            self._notes[request_id] = note

    def _writing(self, request_id: Any) -> None:
        self._has_written = True
        if request_id in self._may_be_sent:
            self._may_be_sent[request_id] = True

    def _post_failed(self, request_id: Any) -> None:
        waiting = self._failed_posts.pop(request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _lost(self) -> None:
        self.alive = False
        self._over.set()

    def _ended(self, owner: asyncio.Task[None]) -> None:
        self._lost()
        if not owner.cancelled():
            owner.exception()  # read it, or asyncio logs that it was never retrieved
        for waiting in self._failed_posts.values():
            if not waiting.done():
                waiting.set_result(None)

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over HTTP."""
        return self._channel.guard is not None

    @property
    def heard(self) -> int:
        """How many messages of the server were read."""
        if self._reader is not None:
            return self._reader.count
        return 0

    @property
    def died_when_asked(self) -> bool:
        """Whether the server's process started, and ended when it was asked for its versions."""
        is_lost = not self.alive and not self._channel.is_given_up
        return is_lost and self._phase == "handshake" and self._has_written

    # -- requests

    async def ping(self, within_s: float) -> None:
        """One round trip. From 2026-07-28 on there is no ping, so it sends `server/discover`."""
        if self.handshake.is_modern:
            method = "server/discover"
        else:
            method = "ping"
        await self.request(method, phase="ping", timeout_s=within_s)

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
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Send one request; returns the raw result.

        Gives up after `timeout_s` seconds without an answer or progress, and after `total_s` in any
        case. Giving up and being cancelled notify the server. Raises an `MCPError`.
        """
        from mcp.shared.exceptions import MCPError as SDKError

        attempt = Attempt(server=self._name, phase=phase, tool=tool, was_sent=False)
        if not self.alive:
            await self._channel.settle(self._owner)
            raise connection_error(attempt, self._channel.why_lost(self._owner))
        try:
            params, meta = _as_plain_json(params), _as_plain_json(meta)
        except (ValueError, TypeError, RecursionError) as error:
            raise unsendable_error(attempt, error) from error
        request_id = next(self._ids)
        is_call = phase == "call"
        if is_call:
            meta = {**(meta or {}), "progressToken": request_id}
        body, options = self.handshake.prepare_request(method, params, meta, headers)
        options["request_id"] = request_id
        loop = asyncio.get_running_loop()
        if total_s is None:
            end = None
        else:
            end = loop.time() + total_s

        self._may_be_sent[request_id] = False
        try:
            async with self._clocks.request(timeout_s, end, is_call=is_call) as prolong:

                def report(
                    done: float, total: float | None, message: str | None
                ) -> Awaitable[None] | None:
                    prolong()
                    if progress is not None:
                        return progress(done, total, message)
                    return None

                if is_call:
                    self._progress.by_call[request_id] = report
                return await self._send(request_id, method, body, options)
        except TimeoutError as late:
            attempt = replace(attempt, was_sent=self._may_be_sent[request_id])
            spent_s = timeout_s
            if total_s is not None and end is not None and loop.time() >= end:
                spent_s = total_s
            raise timeout_error(attempt, spent_s) from late
        except SDKError as error:
            attempt = replace(attempt, was_sent=self._may_be_sent[request_id])
            raise await self._request_error(attempt, request_id, error) from error
        finally:
            del self._may_be_sent[request_id]
            self._progress.by_call.pop(request_id, None)
            self._failed_posts.pop(request_id, None)
            self._notes.pop(request_id, None)

    async def _send(
        self, request_id: int, method: str, body: dict[str, Any] | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        if self._endpoint.spec.transport != "sse":
            return await self._dispatcher.send_raw_request(method, body, options)
        from mcp.shared.exceptions import MCPError as SDKError

        # Answers come on another stream, so that a failed POST must end the wait for one.
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failed_posts[request_id] = failed
        sending = asyncio.ensure_future(self._dispatcher.send_raw_request(method, body, options))
        try:
            await asyncio.wait((sending, failed), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise SDKError(code=CONNECTION_CLOSED, message="")
            return await sending
        finally:
            if not sending.done():
                sending.cancel()
                await asyncio.wait((sending,))

    async def _request_error(self, attempt: Attempt, request_id: int, error: Any) -> FerruleError:
        note = self._notes.get(request_id)
        if note is not None:
            return error_of_note(attempt, note, error.code, error.message, error.data)
        if error.code == CONNECTION_CLOSED and not self.alive:
            await self._channel.settle(self._owner)
            return connection_error(attempt, self._channel.why_lost(self._owner), error)
        return error_answer(attempt, error.code, error.message, error.data)


def _as_plain_json(value: Any) -> Any:
    """A value as plain JSON.

    Raises `ValueError`, `TypeError` or `RecursionError` for NaN, a lone surrogate, an object, or
    deep nesting.
    """
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(value)
    json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
    return plain


# -- time limits


class Clocks:
    """The time limits of the requests under way, which stop while a question of the server is open.

    Before 2026-07-28 a server asks during a call and does not say in which. So a question stops all
    time limits, and the last answer restarts them. `total_timeout_s` runs on. If no call is left
    that may have asked, the hook that answers is cancelled.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Timeout, tuple[float, float | None]] = {}
        """The seconds of each, and the time at which it ends at the latest."""
        self._open_calls = 0
        self._open_questions = 0
        self._answering: set[asyncio.Future[dict[str, Any]]] = set()
        """Hooks that answer a question of a call under way."""

    @asynccontextmanager
    async def request(
        self, timeout_s: float, end: float | None, *, is_call: bool
    ) -> AsyncGenerator[Callable[[], None]]:
        """Time one request; `TimeoutError` ends it.

        Yields a function that restarts the time on progress, up to `end`.
        """
        clock = asyncio.timeout(timeout_s)

        def prolong() -> None:
            if end is not None:
                self._restart(clock)

        if is_call:
            self._open_calls += 1
        try:
            async with clock:
                self._running[clock] = timeout_s, end
                yield prolong
        finally:
            self._running.pop(clock, None)
            if is_call:
                self._end_call()

    def _end_call(self) -> None:
        self._open_calls -= 1
        if not self._open_calls:
            for answering in self._answering:
                answering.cancel()

    def _restart(self, clock: asyncio.Timeout) -> None:
        if clock.expired() or clock not in self._running:
            return
        seconds, end = self._running[clock]
        limits: list[float] = []
        if not self._open_questions:
            limits.append(asyncio.get_running_loop().time() + seconds)
        if end is not None:
            limits.append(end)
        clock.reschedule(min(limits, default=None))

    def _begin_question(self) -> None:
        self._open_questions += 1
        self._restart_all()

    def _end_question(self) -> None:
        self._open_questions -= 1
        if not self._open_questions:
            self._restart_all()

    def _restart_all(self) -> None:
        for clock in self._running:
            self._restart(clock)

    def stopped_by(self, hook: Hook | None, otherwise: dict[str, Any] | None = None) -> Hook | None:
        """A hook that stops the clocks while it works.

        If its call ends first, it answers `otherwise`; if that is None, it raises `MCPError`.
        """
        if hook is None:
            return None

        async def answer(params: dict[str, Any]) -> dict[str, Any]:
            answering = asyncio.ensure_future(hook(params))
            if self._open_calls:
                self._answering.add(answering)
            self._begin_question()
            try:
                await asyncio.wait((answering,))
            finally:
                self._end_question()
                self._answering.discard(answering)
                answering.cancel()
            if not answering.cancelled():
                return answering.result()
            if otherwise is None:
                raise MCPError("The call that asked was abandoned.")
            return otherwise

        return answer


# -- the streams, watched


class _Watched:
    """A stream of the SDK. Attributes of the protocol are passed through one by one."""

    def __init__(self, stream: Any, watch: Callable[..., None]) -> None:
        self._stream = stream
        self._watch = watch

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


class WatchedReader(_Watched):
    """A stream to read from, which counts its messages and calls `watch()` once when it ends.

    Messages that `take` takes are not passed on.
    """

    count = 0

    def __init__(self, stream: Any, watch: Callable[[], None], take: Callable[[Any], bool]) -> None:
        super().__init__(stream, watch)
        self._take = take

    @property
    def last_context(self) -> Any:
        """The context variables of the last message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """The next message."""
        while True:
            item = await self._stream.receive()
            self.count += 1
            if not self._take(getattr(item, "message", None)):
                return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while True:
            try:
                item = await self._stream.__anext__()
            except StopAsyncIteration:
                self._watch()
                raise
            self.count += 1
            if not self._take(getattr(item, "message", None)):
                return item


class WatchedWriter(_Watched):
    """A stream to write to, which calls `watch` with the id of each request."""

    async def send(self, item: Any, /) -> None:
        """Send one message."""
        request_id = getattr(item.message, "id", None)
        is_request = hasattr(item.message, "method")  # an answer has an id of the server's
        if is_request and request_id is not None:
            # Before the write: a write that is cancelled half way may have gone out.
            self._watch(request_id)
        await self._stream.send(item)
