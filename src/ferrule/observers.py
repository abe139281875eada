"""Send events to observers, and keep the observers' errors out of the run.

This is one of the two places that catch any exception: a failing observer causes a warning, and the
run continues unaffected.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import copy
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

from ferrule import events
from ferrule.concurrency.cancellation import is_interrupt

Observer = Callable[[events.Event], None]
V = TypeVar("V")


class Observers:
    """Sends events to every observer of a run, one at a time.

    Each frame and each call has its own `Observers`, which adds the place in the run to the event.
    """

    __slots__ = (
        "depth",
        "has_details",
        "lock",
        "numbers",
        "observers",
        "parent_id",
        "path",
        "prefix",
        "root_id",
        "run_id",
        "wanted",
    )

    def __init__(
        self,
        callbacks: Iterable[Any],
        *,
        run_id: str,
        name: str = "",
        outer: Any = None,
        earlier: Observers | None = None,
    ) -> None:
        """Make the observers of a run.

        `outer` is the tool call that started the run of the program `name`: the run's places are
        below the call's. `earlier` are the observers of the previous execution: the numbers of
        events continue.
        """
        self.observers = tuple(_as_observer(callback) for callback in callbacks)
        self.has_details = any(
            getattr(observer, "wants_details", True) for observer in self.observers
        )
        """Whether any observer takes detailed events.

        All do, except those with `wants_details = False`.
        """
        self.wanted: Collection[type[events.Event]] | None = None
        """The types of events that are sent; None for all."""
        self.run_id = run_id
        self.parent_id: str = "" if outer is None else outer.call_id
        enclosing = None if outer is None else outer.tell
        if isinstance(enclosing, Observers):
            self.lock = enclosing.lock
            self.numbers = enclosing.numbers
            self.prefix = f"{enclosing.path}/{name}/"
            self.depth = enclosing.depth + 1
            self.root_id = enclosing.root_id
        else:
            # Tools of one turn report from several threads. An observer may call a program, so the
            # lock may be taken again.
            self.lock = threading.RLock()
            if earlier is None:
                self.numbers = count()
            else:
                self.numbers = earlier.numbers
            self.prefix = ""
            self.depth = 0
            self.root_id = run_id
        self.path = self.prefix.removesuffix("/")

    def inside(self, path: str, *, depth: int = 0, call_id: str | None = None) -> Observers:
        """The same observers for another place in the run: a frame or a tool call.

        The place is `depth` programs deeper.
        """
        inner = copy(self)
        inner.path = (self.prefix + path).removesuffix("/")
        inner.depth = self.depth + depth
        if call_id is not None:
            inner.parent_id = call_id
        return inner

    def enter(self, slot: str) -> None:
        """The events that follow belong to the act at this slot."""
        self.path = self.prefix + slot

    def __call__(self, event: events.Event) -> None:
        """Send one event to all observers, or to none if no observer wants events of its type."""
        if self.wanted is not None and type(event) not in self.wanted:
            return
        self._add_place(event)
        with self.lock:
            event.at = time.time()
            event.number = next(self.numbers)
            for observer in self.observers:
                try:
                    observer(event)
                except BaseException as error:  # an observer may raise anything
                    if is_interrupt(error, in_task=False):
                        raise
                    warnings.warn(
                        f"an observer failed on {type(event).__name__} and was skipped: {error!r}",
                        RuntimeWarning,
                        stacklevel=2,
                    )

    def _add_place(self, event: events.Event) -> None:
        event.run_id = self.run_id
        event.root_id = self.root_id
        event.parent_id = self.parent_id
        event.path = self.path
        event.depth = self.depth

    def open_run(self, event: events.RunStarted, notes: Mapping[str, str]) -> dict[str, str]:
        """Prepare observers for a run that is about to execute, for the first time or again.

        Returns the notes to store with the run. An observer with a method `open_run(event, notes)`
        reads and changes the `notes`; the event is not sent to the others. It may return the types
        of the events that it needs from this run: if every observer does, no other events are sent.
        """
        self._add_place(event)
        event.at = time.time()
        notes = dict(notes)
        wanted: set[type[events.Event]] = set()
        wants_all = False
        for observer in self.observers:
            with _skipping_failures("at the start of a run"):
                open_run = getattr(observer, "open_run", None)
                if open_run is None:
                    needed = None
                else:
                    needed = open_run(event, notes)
                if needed is not None:
                    wanted.update(needed)
                    continue
            # Also for an observer that failed: it gets its events.
            wants_all = True
        self.wanted = None if wants_all else wanted
        return notes


def observing(callbacks: Iterable[Any]) -> list[Any]:
    """The observers that are not idle."""
    return [callback for callback in callbacks if not _is_idle(callback)]


def note_caller(callbacks: Iterable[Any]) -> dict[str, str]:
    """The notes that observers store with a run about its caller.

    The caller is the one who submits the run, or who decides one of its questions.
    """
    notes: dict[str, str] = {}
    for callback in callbacks:
        with _skipping_failures("when a run was submitted, or a question decided,"):
            note = getattr(callback, "note_caller", None)
            if note is not None:
                note(notes)
    return notes


def _is_idle(callback: Any) -> bool:
    with _skipping_failures("when it was asked whether it is idle"):
        return bool(getattr(callback, "is_idle", False))
    return False  # the attribute is a property, and raised


@contextmanager
def _skipping_failures(when: str) -> Generator[None]:
    """Turn an error of an observer into a warning."""
    try:
        yield
    except BaseException as error:  # an observer may raise anything
        if is_interrupt(error, in_task=False):
            raise
        warnings.warn(
            f"an observer failed {when} and was skipped: {error!r}", RuntimeWarning, stacklevel=4
        )


@contextmanager
def events_around(
    here: Any,
    callbacks: Iterable[Any],
    begin: Callable[[str], events.Event | None],
    end: Callable[[str, Any, BaseException | None], events.Event | None],
) -> Generator[Callable[[V], V]]:
    """Send an event at the start and at the end of a direct call of a tool, a model or an adapter.

    The block passes its value to the function that it gets, which returns the value. `here` is the
    scope: inside a run, its observers receive the events; outside one, the `callbacks` do, and the
    call counts as a run. `begin` and `end` make the events for the call's id, or return None for no
    event. Used only if `settings.is_observed()`.
    """
    call_id = uuid4().hex
    values: list[Any] = []
    observers = _observers_of_call(here, callbacks, call_id)

    def send(event: events.Event | None) -> None:
        if event is not None:
            observers(event)

    send(begin(call_id))

    def pass_on(value: V) -> V:
        values.append(value)
        return value

    try:
        yield pass_on
    except BaseException as error:
        send(end(call_id, None, error))
        raise
    send(end(call_id, values[0], None))


def _observers_of_call(here: Any, callbacks: Iterable[Any], call_id: str) -> Observers:
    if here.call is None and here.frame is None:
        return Observers(observing(callbacks), run_id=call_id)
    enclosing: Observers = here.tell
    if here.call is None:
        return enclosing.inside(f"{here.frame.path}{call_id}")
    observers = enclosing.inside("", call_id=here.call.call_id)
    # Below the tool call, whose own path already begins with the prefix.
    observers.path = f"{enclosing.path}/{call_id}"
    return observers


def _as_observer(callback: Any) -> Observer:
    """The callback itself, a function of an event; or an adapter for an object with hooks."""
    if any(name.startswith("on_") for name in dir(callback)):
        return _Hooks(callback)
    return callback


class _Hooks:
    """Adapts a callback object of DSPy's form to an observer.

    Such an object has methods like `on_module_start(call_id, instance, inputs)`.
    """

    __slots__ = ("_callback",)

    def __init__(self, callback: Any) -> None:
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        # Such as `open_run` and `wants_details`. Not `self._callback`, because it may not be set
        # yet (while the object is copied), and would then be looked up here again.
        return getattr(object.__getattribute__(self, "_callback"), name)

    def __call__(self, event: events.Event) -> None:
        self._call("on_event", event)
        match event:
            case events.RunStarted():
                self._call("on_module_start", event.span_id, event.program, dict(event.inputs))
            case events.RunFinished():
                self._call("on_module_end", event.span_id, event.prediction, event.error)
            case events.ModelCalled():
                self._call("on_lm_start", event.span_id, event.lm, {"request": event.request})
            case events.ModelAnswered():
                self._call("on_lm_end", event.span_id, event.response, event.error)
            case events.Formatted():
                # Both hooks at once: only the end of the work is an event.
                self._call(
                    "on_adapter_format_start",
                    event.span_id,
                    event.adapter,
                    {"attempt": event.attempt},
                )
                self._call(
                    "on_adapter_format_end",
                    event.span_id,
                    {"messages": event.messages, "tools": event.tools},
                    None,
                )
            case events.ParseStarted():
                self._call(
                    "on_adapter_parse_start",
                    event.span_id,
                    event.adapter,
                    {"attempt": event.attempt, "calls": event.calls},
                )
            case events.ParseFinished():
                self._call(
                    "on_adapter_parse_end",
                    event.span_id,
                    {"outputs": event.outputs, "calls": event.calls},
                    event.error,
                )
            case events.CallStarted():
                self._call("on_tool_start", event.span_id, event.call.name, event.call.args)
            case events.CallFinished():
                self._call("on_tool_end", event.span_id, event.result, event.result.error)
            case events.QuestionAsked():
                self._call("on_question", event.question)
            case _:
                pass

    def _call(self, name: str, *arguments: Any) -> None:
        hook = getattr(self._callback, name, None)
        if hook is not None:
            hook(*arguments)
