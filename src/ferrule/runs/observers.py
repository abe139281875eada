"""Observing a run: the event of its start, and the log of its events.

Also the functions that a tool or a program calls about its own run (`progress`, `is_cancelled`,
`emit_event`), and `inspect_history`.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import Struct

from ferrule import events, settings
from ferrule.encoding.encode import escape_surrogates, json_text
from ferrule.errors import checks_keywords
from ferrule.observers import Observers
from ferrule.runs.about import NOTHING, About
from ferrule.tools.definition.deps import bind_arguments
from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.context import Context
from ferrule.values.conversation.exchange import exchanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ferrule.observers import Observer
    from ferrule.values.conversation.exchange import Request, Response


def started(
    program: Any,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    about: About = NOTHING,
    *,
    forked_from: str = "",
) -> events.RunStarted:
    """The event of a program's start. Positional inputs get the names of their parameters."""
    if args:
        with suppress(TypeError, ValueError):  # they do not fit, which the program itself reports
            inputs = named_inputs(program, args, inputs)
    return events.RunStarted(program, inputs, about.metadata, about.title, forked_from)


def named_inputs(program: Any, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a program; positional ones get the names of their parameters."""
    if program.is_only_async:
        function = program.aforward
    else:
        function = program.forward
    bound = bind_arguments(function, args, inputs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return {name: value for name, value in named.items() if not isinstance(value, Context)}


class OpenCall(Struct, frozen=True):
    """A tool call that observers saw start."""

    tell: Observers
    """The observers at the place of the call."""
    call: ToolCall
    """The call as they saw it."""


class EventLog:
    """An observer that keeps the events of a run for all its readers."""

    def __init__(self, take: Observer, earlier: Iterable[events.Event]) -> None:
        self._take = take
        self.events: list[events.Event] = list(earlier)
        self.changed = asyncio.Event()
        """Set when there are new events, and replaced by a new `asyncio.Event`."""
        self.is_over = False
        self.error: BaseException | None = None
        self._wake = from_any_thread(self._change)

    def __call__(self, event: events.Event) -> None:
        """Keep an event at once, in the thread that sent it, in the order of the numbers."""
        self._take(event)
        self.events.append(event)
        self._wake(event)

    def _change(self, _: object = None) -> None:
        before, self.changed = self.changed, asyncio.Event()
        before.set()

    def end(self, task: asyncio.Task[None]) -> None:
        """Close the log when the task of the run has ended."""
        if task.cancelled():
            self.error = None
        else:
            self.error = task.exception()
        self.is_over = True
        self._change()


def from_any_thread(put: Callable[[events.Event], None]) -> Callable[[events.Event], None]:
    """Make `put` thread-safe.

    Sync tools report progress from worker threads, but only the loop's thread may use an asyncio
    queue. The loop is woken once for all events that come before it runs.
    """
    loop, home = asyncio.get_running_loop(), threading.get_ident()
    waiting: list[events.Event] = []
    waiting_changes = threading.Lock()

    def put_waiting() -> None:
        with waiting_changes:
            batch = waiting.copy()
            waiting.clear()
        for event in batch:
            put(event)

    def tell(event: events.Event) -> None:
        if threading.get_ident() == home:
            put(event)
            return
        with waiting_changes:
            waiting.append(event)
            is_first = len(waiting) == 1
        if not is_first:
            return  # the loop is woken already
        try:
            loop.call_soon_threadsafe(put_waiting)
        except RuntimeError:  # the loop is closed: no listener is left
            waiting.clear()

    return tell


@checks_keywords
def progress(message: str = "", *, done: float | None = None, total: float | None = None) -> None:
    """Report the progress of a tool call to the run's observers: call it inside the tool.

    Does nothing outside a run.
    """
    call = settings.scope().call
    if call is not None:
        call.progress(message, done, total)


def is_cancelled() -> bool:
    """Whether the result of this tool call is no longer needed.

    Sync tools should check it: a thread cannot be stopped from outside.
    """
    call = settings.scope().call
    return call is not None and call.cancelled


@checks_keywords
def emit_event(name: str, payload: Any = None) -> None:
    """Send a custom event to the run's observers, from inside a tool or a program.

    Does nothing outside a run.
    """
    tell = settings.scope().tell
    if tell is not None:
        tell(events.Custom(name, payload))


@checks_keywords
def inspect_history(n: int = 1, *, file: TextIO | None = None) -> None:
    """Print the last `n` of up to 100 model calls of this process, oldest first.

    Each with its messages, the names of its tools, and its answer or error.
    """
    out = file or sys.stdout
    for lm, request, answer in list(exchanges)[-n:] if n > 0 else []:
        print(f"=== {getattr(lm, 'name', type(lm).__name__)}", file=out)
        _print_request(request, out)
        if isinstance(answer, str):
            print("--- failed", file=out)
            print(escape_surrogates(answer), file=out)
        else:
            _print_response(answer, out)


def _print_request(request: Request, out: TextIO) -> None:
    for message in request.messages:
        print(f"--- {message.role}", file=out)
        # A terminal cannot show half a surrogate pair.
        print(escape_surrogates(message.text), file=out)
        for call in message.tool_calls:
            print(f"  call {call.id}: {call.name} {json_text(call.args)}", file=out)
    if len(request.tools):
        names = ", ".join(tool["function"]["name"] for tool in request.tools)
        print(f"--- tools: {names}", file=out)


def _print_response(response: Response, out: TextIO) -> None:
    print("--- answer", file=out)
    if response.reasoning:
        print(f"(reasoning) {escape_surrogates(response.reasoning)}", file=out)
    if response.text:
        print(escape_surrogates(response.text), file=out)
    for call in response.tool_calls:
        print(f"  call {call.id}: {call.name} {json_text(call.args)}", file=out)
    print(
        f"--- {response.usage.input_tokens} tokens in, {response.usage.output_tokens} out", file=out
    )
