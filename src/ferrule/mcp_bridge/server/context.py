"""The context of a tool that an MCP client called; events for that client, and questions to the person at it.

As in a run, the scope holds a call place. So `ferrule.progress` becomes a progress notification,
`ferrule.emit_event` a log message, and the steps of a served program become progress.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from math import isfinite
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from ferrule import events, settings
from ferrule.encoding.encode import jsonable
from ferrule.mcp_bridge.connection.handshake import LEVELS
from ferrule.mcp_bridge.server.result import replace_surrogates
from ferrule.values.calls.context import Context, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.mcp_bridge.server.task import ServedTask
    from ferrule.values.calls.call import CheckedArguments, ToolSpec

log = logging.getLogger("ferrule.mcp")

_LOG_LEVEL = "ferrule_log_level"


class MCPCall:
    """A call of an MCP client, as the tool that it runs sees it."""

    __slots__ = (
        "_key",
        "call_id",
        "caller",
        "frame",
        "outer",
        "over",
        "params",
        "request",
        "run_id",
        "tell",
    )

    def __init__(self, request: Any, params: Any, tell: EventSender) -> None:
        self.request = request
        """The SDK's request context: `session`, `protocol_version`, `meta`, `close_sse_stream`, ..."""
        self.params = params
        """The SDK's parameters of the call: `arguments`, `input_responses`, `request_state`, ..."""
        self.tell = tell
        self.call_id = str(request.request_id)
        self.over = False
        """Whether the call was cancelled, timed out or has ended."""
        self.run_id = ""
        # There is no run here: a served program has its own.
        self.frame = self.outer = self.caller = None
        self._key = token_hex(16)  # a client's ids are not unique: each client counts from 1

    @property
    def cancelled(self) -> bool:
        """Whether the client cancelled the call, its time limit passed, or it has ended."""
        return self.over

    def progress(
        self,
        message: str = "",
        done: float | None = None,
        total: float | None = None,
    ) -> None:
        """Report progress to the client, if it asked for progress."""
        self.tell(events.CallProgress(self.call_id, message, done, total))

    def context(self, tool: ToolSpec, arguments: CheckedArguments) -> Context[Any]:
        """The `Context` for a tool that takes one."""
        key = key_of(self._key, "", tool.name, arguments.shown)
        return Context(
            call_id=self.call_id,
            key=key,
            tell=self.progress,
            stopped=lambda: self.cancelled,
        )


def current_mcp_call() -> MCPCall | None:
    """The MCP client's call that runs the tool, or None outside one. Gives access to what only the SDK offers, such as the session."""
    place = settings.scope().call
    return place if isinstance(place, MCPCall) else None


class EventSender:
    """Sends events from any thread to the client, in order."""

    def __init__(
        self,
        request: Any,
        task: ServedTask | None = None,
        callbacks: tuple[Any, ...] = (),
    ) -> None:
        self.task = task
        """The task that the call may have become: then it gets what the call reports, as the request is over."""
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[events.Event | None] = asyncio.Queue()
        self._last: float = -1
        self._sender: asyncio.Task[None] | None = None
        self._is_over = False
        self.each: tuple[Callable[[events.Event], None], ...] = (self, *callbacks)
        """The observers for a program that the tool calls."""

    def __call__(self, event: events.Event) -> None:
        """Send one event."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._accept, event)

    def _accept(self, event: events.Event) -> None:
        if self._is_over:
            return  # a thread of the tool still reports
        self._waiting.put_nowait(event)
        if self._sender is None:
            self._sender = self._loop.create_task(self._send_all())

    async def finish(self) -> None:
        """Send the waiting events: none may follow the answer to a request."""
        await asyncio.sleep(0)  # events of other threads are still in the loop's queue
        self._is_over = True
        if self._sender is None:
            return
        self._waiting.put_nowait(None)
        await asyncio.wait((self._sender,))
        if not self._sender.cancelled() and (error := self._sender.exception()) is not None:
            log.warning(
                "events of a tool could not be sent",
                exc_info=error,
            )  # its result is sent all the same

    def drop(self) -> None:
        """Drop all further events."""
        self._is_over = True
        if self._sender is not None:
            self._sender.cancel()

    async def _send_all(self) -> None:
        import anyio

        try:
            while (event := await self._waiting.get()) is not None:
                await self._send(event)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            return  # the client is gone, which does not concern the tool

    async def _send(self, event: events.Event) -> None:
        match event:
            case events.CallProgress() if not event.run_id:
                await self._progress(event.message, event.done, event.total)
            case events.CallProgress():  # of a tool inside a program: its numbers are not the call's
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
            self.task.say(message)
            return
        value = done if done is not None and isfinite(done) else max(self._last, 0) + 1
        if value <= self._last:
            return  # it must rise with each notification (specification, "Progress")
        self._last = value
        total = total if total is not None and isfinite(total) else None
        await self._request.session.report_progress(
            value,
            total,
            replace_surrogates(message) or None,
        )

    async def _log(self, event: events.Custom) -> None:
        import mcp_types as types
        from mcp.server.connection import allowed_log_levels

        request = self._request
        if self.task is not None and self.task.is_given:
            return
        level: Any = event.name if event.name in LEVELS else "info"
        least = LEVELS.index(connection_of(request).state.get(_LOG_LEVEL, LEVELS[0]))
        if (
            level not in allowed_log_levels(request.protocol_version, request.meta)
            or LEVELS.index(level) < least
        ):
            return
        name = replace_surrogates(event.name)
        data = replace_surrogates(jsonable(event.payload)) if event.payload is not None else name
        said = types.LoggingMessageNotificationParams(
            level=level,
            logger=None if level == name else name,
            data=data,
        )
        # Not `send_log_message`, which warns that logging is deprecated: all revisions still use
        # it.
        await request.session.send_notification(
            types.LoggingMessageNotification(params=said),
            related_request_id=request.request_id,
        )


def connection_of(request: Any) -> Any:
    """The SDK's connection of a request, which outlives it."""
    return request.session._connection  # noqa: SLF001  a request's session does not outlive it, and has no public link to the connection


def set_log_level(request: Any, level: str) -> None:
    """Send this client no log messages below this level."""
    connection_of(request).state[_LOG_LEVEL] = level


# -- questions to the person at the client

# Until 2025-11-25 the server sends `elicitation/create` and waits. From 2026-07-28 on it answers
# the call with `input_required`, and the client calls again with the answer and a sealed state. The
# state proves that this question was asked about this call; an answer without it is ignored.

APPROVE, ANSWER, FORM = "approve", "answer", "form"
_FIELDS: dict[str, dict[str, Any]] = {
    APPROVE: {
        "type": "boolean",
        "title": "Run it",
        "description": "Whether the call may be run as shown.",
    },
    ANSWER: {"type": "string", "title": "Answer"},
}
_MOST_TICKETS = 10_000


class Tickets:
    """Single-use ids of questions, so that each answer counts once in this process. Thread-safe.

    Only used tickets are kept, as another worker may get the answer. If there are too many, the
    oldest is forgotten, and every ticket up to it counts as used.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._used: list[str] = []
        self._forgotten = ""

    def new(self) -> str:
        """A new ticket. Later tickets sort after earlier ones."""
        return f"{time.time_ns():020}{token_hex(8)}"

    def use(self, ticket: str) -> bool:
        """Use a ticket; False if it was used before."""
        with self._lock:
            at = bisect_left(self._used, ticket)
            if ticket <= self._forgotten or self._used[at : at + 1] == [ticket]:
                return False
            self._used.insert(at, ticket)
            if len(self._used) > _MOST_TICKETS:
                self._forgotten = self._used.pop(0)
            return True


class PersonAnswer(Struct, frozen=True):
    """The outcome of a question."""

    said: Literal["yes", "no", "cannot", "host"]
    """`cannot`: the client cannot ask; `host`: only the host may decide."""
    text: str = ""
    """The person's text, for a question that wants text."""
    content: dict[str, Any] | None = None
    """The filled-in form, for a question with a form."""


async def ask_client(
    place: MCPCall,
    question: str,
    state: str,
    wants: str = APPROVE,
    form: Mapping[str, Any] | None = None,
) -> PersonAnswer | Any:
    """The person's answer; or the SDK's `InputRequiredResult` with the question, to be returned to the client.

    `state` identifies the question. It travels through the client, sealed, and comes back with the
    answer. `wants` is `APPROVE` for yes or no, `ANSWER` for a text, `FORM` for the fields of
    `form`, which another server asks for.
    """
    if not _can_ask(place):
        return PersonAnswer("cannot")
    question = replace_surrogates(question.removesuffix(" (yes/no)"))  # the form says so itself
    fields = (
        {"type": "object", "properties": {wants: _FIELDS[wants]}, "required": [wants]}
        if form is None
        else dict(form)
    )
    if is_modern(place.request):
        return _by_retry(place, question, state, wants, fields)
    from mcp.shared.exceptions import MCPError, NoBackChannelError

    try:
        answer = await place.request.session.elicit_form(
            question,
            fields,
            related_request_id=place.request.request_id,
        )
    except (NoBackChannelError, MCPError):
        return PersonAnswer("cannot")
    return _answer(answer, wants)


def _can_ask(place: MCPCall) -> bool:
    """Whether the client declares that it can show a form to a person."""
    capabilities = place.request.session.client_capabilities
    found = capabilities.elicitation if capabilities is not None else None
    return found is not None and (
        found.form is not None or found.url is None
    )  # `{}` means forms, as before there were other kinds


def is_modern(request: Any) -> bool:
    """Whether the client's revision is 2026-07-28 or later, in which calls are answered with questions."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return request.protocol_version in MODERN_PROTOCOL_VERSIONS


def returned_state(place: MCPCall) -> str | None:
    """The state that came back with this call: a question's, or the tool's own."""
    return place.params.request_state if is_modern(place.request) else None


def _by_retry(
    place: MCPCall,
    question: str,
    state: str,
    wants: str,
    form: dict[str, Any],
) -> PersonAnswer | Any:
    import mcp_types as types

    given: dict[str, Any] = place.params.input_responses or {}
    if wants in given and place.params.request_state == state:
        return _answer(given[wants], wants)
    asking = types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=question, requested_schema=form),
    )
    return types.InputRequiredResult(input_requests={wants: asking}, request_state=state)


def _answer(result: Any, wants: str) -> PersonAnswer:
    found: Any = getattr(result, "content", None)
    content: dict[str, Any] = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if wants == FORM:
        return (
            PersonAnswer("yes", content=content)
            if getattr(result, "action", None) == "accept"
            else PersonAnswer("no")
        )
    value = content.get(wants) if getattr(result, "action", None) == "accept" else None
    if wants == ANSWER:
        return PersonAnswer("yes", value) if isinstance(value, str) else PersonAnswer("no")
    return PersonAnswer("yes" if value is True else "no")
