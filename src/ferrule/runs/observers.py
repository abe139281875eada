"""Observers: receive a run's events, behind a wall that keeps their errors out of the run.

In: events. Out: calls of callbacks. One of the two places that catch any exception: a failing observer causes a warning, and the run
continues unaffected.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from ferrule import settings
from ferrule.values.calls.context import Context, key_of
from ferrule.values.encoding.encode import json_text
from ferrule.values.record import Changing, field
from ferrule.values.run import event as events

if TYPE_CHECKING:
    import asyncio

    from ferrule.values.calls.call import CheckedArguments, CheckedCall, ToolSpec
    from ferrule.values.conversation.exchange import Request, Response

Observer = Callable[[events.Event], None]
R = TypeVar("R")

exchanges: deque[tuple[Any, Request, Response | str]] = deque(maxlen=100)
"""The latest model calls of the process, for `inspect_history`: `(model, request, response)`; for a failed call, its error as text."""


class Observers:
    """Sends events to every observer of a run, one at a time. Each frame and each call has its own, which puts its place into the event."""

    __slots__ = ("depth", "each", "lock", "numbers", "parent_id", "path", "prefix", "run_id")

    def __init__(self, each: Iterable[Any], *, run_id: str, name: str = "", outer: Any = None, earlier: Observers | None = None) -> None:
        """`outer` is the tool call that started the run of the program `name`: the run's places are below the call's.

        `earlier` are those of the execution before this one: the numbers go on.
        """
        around: Observers | None = outer.tell if outer is not None and isinstance(outer.tell, Observers) else None
        self.each = tuple(_observer(one) for one in each)
        self.lock = around.lock if around is not None else threading.RLock()  # tools of one turn report from several threads
        known = around or earlier
        self.numbers = known.numbers if known is not None else count()
        self.prefix = f"{around.path}/{name}/" if around is not None else ""
        self.path = self.prefix.removesuffix("/")
        self.depth = around.depth + 1 if around is not None else 0
        self.run_id = run_id
        self.parent_id: str = outer.call_id if outer is not None else ""

    def inside(self, path: str, *, depth: int = 0, call_id: str | None = None) -> Observers:
        """The same observers for another place in the run: a frame, or a tool call. `depth` more programs are around it."""
        inner = object.__new__(Observers)
        inner.each, inner.lock, inner.numbers, inner.prefix = self.each, self.lock, self.numbers, self.prefix
        inner.path, inner.depth, inner.run_id = (self.prefix + path).removesuffix("/"), self.depth + depth, self.run_id
        inner.parent_id = self.parent_id if call_id is None else call_id
        return inner

    def enter(self, slot: str) -> None:
        """The events that follow belong to the act at this slot."""
        self.path = self.prefix + slot

    def __call__(self, event: events.Event) -> None:
        """Send one event to all observers."""
        event.run_id, event.parent_id, event.path, event.depth = self.run_id, self.parent_id, self.path, self.depth
        with self.lock:
            event.at, event.number = time.time(), next(self.numbers)
            for observer in self.each:
                try:
                    observer(event)
                except Exception as error:  # noqa: BLE001  the wall: an observer never changes the run
                    message = f"an observer failed on {type(event).__name__} and was passed over: {error!r}"
                    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _observer(one: Any) -> Observer:
    return _Hooks(one) if any(name.startswith("on_") for name in dir(one)) else one


class _Hooks:
    """Adapts a callback object with `on_module_start(call_id, instance, inputs)` and similar methods (DSPy's form) to an observer."""

    __slots__ = ("_one",)

    def __init__(self, one: Any) -> None:
        self._one = one

    def __call__(self, event: events.Event) -> None:
        self._call("on_event", event)
        match event:
            case events.RunStarted():
                self._call("on_module_start", _program_id(event), event.program, dict(event.inputs))
            case events.RunFinished():
                self._call("on_module_end", _program_id(event), event.prediction, event.error)
            case events.ModelCalled():
                self._call("on_lm_start", event.call_id, event.lm, {"request": event.request})
            case events.ModelAnswered():
                self._call("on_lm_end", event.call_id, event.response, event.error)
            case events.Formatted():
                self._call("on_adapter_format_end", event.request_id, {"messages": event.messages, "tools": event.tools}, None)
            case events.ParseStarted():
                self._call("on_adapter_parse_start", event.request_id, event.adapter, {"attempt": event.attempt, "calls": event.calls})
            case events.ParseFinished():
                self._call("on_adapter_parse_end", event.request_id, {"outputs": event.outputs, "calls": event.calls}, event.error)
            case events.CallStarted():
                self._call("on_tool_start", event.call.id, event.call.name, event.call.args)
            case events.CallFinished():
                self._call("on_tool_end", event.call.id, event.result, event.result.error)
            case events.QuestionAsked():
                self._call("on_question", event.question)
            case _:
                pass

    def _call(self, name: str, *given: Any) -> None:
        hook = getattr(self._one, name, None)
        if hook is not None:
            hook(*given)


def _program_id(event: events.Event) -> str:
    """The id of a run, or of a program inside one: the same at its start and at its end."""
    return f"{event.run_id}/{event.path}" if event.path else event.run_id


class EventLog:
    """An observer that keeps the events of a run, for all who follow it."""

    def __init__(self, take: Observer, earlier: Iterable[events.Event]) -> None:
        import asyncio

        self._take = take
        self.events: list[events.Event] = list(earlier)
        self.changed = asyncio.Event()
        """Set, and replaced by another one, when there are new events."""
        self.is_over = False
        self.error: BaseException | None = None
        self._wake = from_any_thread(self._change)

    def __call__(self, event: events.Event) -> None:
        """Keep an event, at once and in its own thread: so the order is that of the numbers."""
        self._take(event)
        self.events.append(event)
        self._wake(event)

    def _change(self, _: object = None) -> None:
        import asyncio

        before, self.changed = self.changed, asyncio.Event()
        before.set()

    def end(self, task: asyncio.Task[None]) -> None:
        """The task of the run has ended."""
        self.error = None if task.cancelled() else task.exception()
        self.is_over = True
        self._change()


def from_any_thread(put: Callable[[events.Event], None]) -> Callable[[events.Event], None]:
    """Make `put` thread-safe: sync tools report progress from worker threads, but only the loop's thread may use an asyncio queue."""
    import asyncio

    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def tell(event: events.Event) -> None:
        if threading.get_ident() == home:
            put(event)
        else:
            with suppress(RuntimeError):  # the loop is closed: no listener is left
                loop.call_soon_threadsafe(put, event)

    return tell


class Execution(Changing):
    """One execution of a run. Abandoned work, such as a thread, checks here whether the execution is over."""

    outer: Any = None
    """The tool call inside which this run was started; None for an outermost one."""
    over: bool = False
    left: bool = False
    """Whether its stream was left: then awaitables that sync code waits for are cancelled, and that counts as cancelling the run."""
    awaited: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])
    """Tasks on the background loop that sync code waits for."""


async def cancellable(life: Any, value: Awaitable[R]) -> R:
    """Await a value for sync code; leaving the stream of this run, or of a run around it, cancels the waiting."""
    import asyncio  # imported late: sync tools do not need it

    around: list[Execution] = []
    while life is not None:
        if type(life) is Execution:
            around.append(life)
        life = life.outer
    task: Any = asyncio.current_task()
    for each in around:
        each.awaited.add(task)
    try:
        if any(each.left for each in around):  # left just now: do not begin
            if inspect.iscoroutine(value):
                value.close()
            raise asyncio.CancelledError
        return await value
    finally:
        for each in around:
            each.awaited.discard(task)


class CallPlace(Changing):
    """The tool call that is executing; the scope carries it into the tool."""

    tell: Observers | None
    call_id: str
    run_id: str
    frame: Any = None
    """The `Frame` that made the call (untyped: `state.py` imports this module): programs inside the tool share its budget and its end."""
    over: bool = False
    """Whether the call ended, even if its thread still runs after a timeout."""
    slot: str = ""
    checked: CheckedCall | None = None
    db: Any = None
    """The database of a transactional tool, inside a transaction of the store."""
    inputs: Any = None
    """Questions of the tool's server to a person during the call (`elicitation.py`); None for local tools."""
    direct_calls: int = 0
    """How many tools that take a `Context` the tool's function has called directly."""

    @property
    def outer(self) -> Any:
        """The execution or program call that made this call."""
        return self.frame.life if self.frame is not None else None

    @property
    def caller(self) -> Any:
        """The calling program; None for a direct call."""
        return self.frame.run.program if self.frame is not None else None

    def cancellable(self, value: Awaitable[R]) -> Awaitable[R]:
        """See `cancellable`."""
        return cancellable(self, value)

    def context(self, tool: ToolSpec, arguments: CheckedArguments) -> Context[Any]:
        """The tool's `Context`: for this call, or for a call that its function makes directly to another tool."""
        slot, db = self.slot, self.db
        if self.checked is None or self.checked.arguments is not arguments:
            slot, db = f"{slot}>{self.direct_calls}", None
            self.direct_calls += 1
        return Context(
            run_id=self.run_id,
            call_id=self.call_id,
            key=key_of(self.run_id, slot, tool.name, arguments.shown),
            deps=self.frame.deps if self.frame is not None else None,
            db=db,
            tell=self.progress if self.tell is not None else None,
            stopped=lambda: self.cancelled,
        )

    @property
    def cancelled(self) -> bool:
        """Whether the run was cancelled, the call's time limit passed, or the call has ended."""
        return self.over or (self.frame is not None and self.frame.run.cancelled)

    def progress(self, message: str, done: float | None, total: float | None) -> None:
        """Report the call's progress to the run's observers."""
        if self.tell is not None:
            self.tell(events.CallProgress(self.call_id, message, done, total))


def without_traces(error: BaseException) -> None:
    """Remove the tracebacks of an error and its causes: each traceback keeps all callers' frames and their objects alive."""
    seen = {id(sys.exception())}  # an error that the caller handles, in an `except` around the run, keeps its traceback
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        todo += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            todo += cast("tuple[BaseException, ...]", each.exceptions)


def progress(message: str = "", *, done: float | None = None, total: float | None = None) -> None:
    """From inside a tool: report the call's progress to the run's observers. Does nothing outside a run."""
    place = settings.scope().call
    if place is not None:
        place.progress(message, done, total)


def is_cancelled() -> bool:
    """From inside a tool: whether its result is no longer wanted. Sync tools check it, since a thread cannot be stopped from outside."""
    place = settings.scope().call
    return place is not None and place.cancelled


def emit_event(name: str, payload: Any = None) -> None:
    """From inside a tool or a program: send a custom event to the run's observers. Does nothing outside a run."""
    here = settings.scope()
    tell = here.call.tell if here.call is not None else here.frame.tell if here.frame is not None else None
    if tell is not None:
        tell(events.Custom(name, payload))


def inspect_history(n: int = 1, *, file: TextIO | None = None) -> None:
    """Print the last `n` model calls of this process, oldest first: messages, the tools' names, the answer or the error. 100 are kept."""
    out = file or sys.stdout
    for lm, request, answer in list(exchanges)[-n:] if n > 0 else []:
        print(f"=== {getattr(lm, 'name', type(lm).__name__)}", file=out)
        _print_request(request, out)
        if isinstance(answer, str):
            print("--- failed", file=out)
            print(answer, file=out)
        else:
            _print_response(answer, out)


def _print_request(request: Request, out: TextIO) -> None:
    for message in request.messages:
        print(f"--- {message.role}", file=out)
        print(message.text, file=out)
        for call in message.tool_calls:
            print(f"  call {call.id}: {call.name} {json_text(call.args)}", file=out)
    if len(request.tools):
        print(f"--- tools: {', '.join(tool['function']['name'] for tool in request.tools)}", file=out)


def _print_response(response: Response, out: TextIO) -> None:
    print("--- answer", file=out)
    if response.reasoning:
        print(f"(reasoning) {response.reasoning}", file=out)
    if response.text:
        print(response.text, file=out)
    for call in response.tool_calls:
        print(f"  call {call.id}: {call.name} {json_text(call.args)}", file=out)
    print(f"--- {response.usage.input_tokens} tokens in, {response.usage.output_tokens} out", file=out)
