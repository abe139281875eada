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
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar, cast
from uuid import uuid4

from ferrule import events

Observer = Callable[[events.Event], None]
V = TypeVar("V")


class Observers:
    """Sends events to every observer of a run, one at a time. Each frame and each call has its own, which adds its place to the event."""

    __slots__ = (
        "depth",
        "each",
        "has_details",
        "lock",
        "numbers",
        "parent_id",
        "path",
        "prefix",
        "root_id",
        "run_id",
        "wanted",
    )

    def __init__(
        self,
        each: Iterable[Any],
        *,
        run_id: str,
        name: str = "",
        outer: Any = None,
        earlier: Observers | None = None,
    ) -> None:
        """`outer` is the tool call that started the run of the program `name`: the run's places are below the call's.

        `earlier` are the observers of the previous execution: the numbers of events continue.
        """
        around: Observers | None = (
            outer.tell if outer is not None and isinstance(outer.tell, Observers) else None
        )
        self.each = tuple(_observer(one) for one in each)
        self.has_details = any(getattr(one, "wants_details", True) for one in self.each)
        """Whether any observer takes detailed events. All do, except those with `wants_details = False`."""
        self.wanted: Collection[type[events.Event]] | None = None
        """The types of events that are sent; None for all."""
        self.lock = (
            around.lock if around is not None else threading.RLock()
        )  # tools of one turn report from several threads
        known = around or earlier
        self.numbers = known.numbers if known is not None else count()
        self.prefix = f"{around.path}/{name}/" if around is not None else ""
        self.path = self.prefix.removesuffix("/")
        self.depth = around.depth + 1 if around is not None else 0
        self.run_id = run_id
        self.root_id = around.root_id if around is not None else run_id
        self.parent_id: str = outer.call_id if outer is not None else ""

    def inside(self, path: str, *, depth: int = 0, call_id: str | None = None) -> Observers:
        """The same observers for another place in the run, a frame or a tool call, `depth` programs deeper."""
        inner = object.__new__(Observers)
        inner.each, inner.lock, inner.numbers, inner.prefix, inner.wanted = (
            self.each,
            self.lock,
            self.numbers,
            self.prefix,
            self.wanted,
        )
        inner.path, inner.depth = (self.prefix + path).removesuffix("/"), self.depth + depth
        inner.run_id, inner.root_id = self.run_id, self.root_id
        inner.parent_id = self.parent_id if call_id is None else call_id
        return inner

    def enter(self, slot: str) -> None:
        """The events that follow belong to the act at this slot."""
        self.path = self.prefix + slot

    def __call__(self, event: events.Event) -> None:
        """Send one event to all observers, or to none if no observer wants events of its type."""
        wanted = self.wanted
        if wanted is not None and type(event) not in wanted:
            return
        event.run_id, event.root_id, event.parent_id = self.run_id, self.root_id, self.parent_id
        event.path, event.depth = self.path, self.depth
        with self.lock:
            event.at, event.number = time.time(), next(self.numbers)
            for observer in self.each:
                try:
                    observer(event)
                except Exception as error:  # noqa: BLE001  an observer may raise anything, and never changes the run
                    message = (
                        f"an observer failed on {type(event).__name__} and was skipped: {error!r}"
                    )
                    warnings.warn(message, RuntimeWarning, stacklevel=2)

    def open_run(self, event: events.RunStarted, notes: Mapping[str, str]) -> dict[str, str]:
        """Prepare observers for a run that is about to execute, for the first time or again. Returns the notes to store with the run.

        An observer with a method `open_run(event, notes)` reads and changes the `notes`; the event
        is not sent to the others. It may return the types of the events that it needs from this
        run: if every observer does, no other events are sent.
        """
        event.run_id, event.root_id, event.parent_id = self.run_id, self.root_id, self.parent_id
        event.path, event.depth, event.at = self.path, self.depth, time.time()
        kept, wanted, wants_all = dict(notes), set[type[events.Event]](), False
        for observer in self.each:
            needed = _asked(
                observer,
                "open_run",
                "at the start of a run",
                event,
                kept,
                read=frozenset,
            )
            wants_all = wants_all or needed is None
            wanted.update(needed or ())
        self.wanted = None if wants_all else wanted
        return kept


def observing(callbacks: Iterable[Any]) -> list[Any]:
    """The observers that are not idle."""
    return [
        each
        for each in callbacks
        if not _asked(each, "is_idle", "when it was asked whether it is idle")
    ]


def note_caller(callbacks: Iterable[Any]) -> dict[str, str]:
    """The notes that observers store with a run about the caller who submits it, or who decides one of its questions."""
    notes: dict[str, str] = {}
    for each in callbacks:
        _asked(each, "note_caller", "when a run was submitted, or a question decided,", notes)
    return notes


def _asked(
    observer: Any,
    name: str,
    when: str,
    *given: Any,
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """An attribute of an observer, or the result of its method, passed through `read`; None if it is missing or raises."""
    try:
        found = getattr(observer, name, None)
        found = found(*given) if given and found is not None else found
        return read(found) if read is not None and found is not None else found
    except Exception as error:  # noqa: BLE001  as above
        warnings.warn(
            f"an observer failed {when} and was skipped: {error!r}",
            RuntimeWarning,
            stacklevel=3,
        )
        return None


@contextmanager
def events_around(
    here: Any,
    callbacks: Iterable[Any],
    begin: Callable[[str], events.Event | None],
    end: Callable[[str, Any, BaseException | None], events.Event | None],
) -> Generator[Callable[[V], V]]:
    """Send an event at the start and at the end of a block that calls a tool, a model or an adapter directly, and passes on its value.

    `here` is the scope: inside a run, its observers receive the events; outside one, the
    `callbacks` do, and the call counts as a run. `begin` and `end` make the events for the call's
    id, or return None for no event. Used only if `settings.is_observed()`.
    """
    own, values = uuid4().hex, list[Any]()
    observers = _observers(here, callbacks, own)

    def tell(event: events.Event | None) -> None:
        if event is not None:
            observers(event)

    tell(begin(own))

    def pass_on(value: V) -> V:
        values.append(value)
        return value

    try:
        yield pass_on
    except BaseException as error:
        tell(end(own, None, error))
        raise
    tell(end(own, values[0], None))


def _observers(here: Any, callbacks: Iterable[Any], own: str) -> Observers:
    if here.call is None and here.frame is None:
        return Observers(observing(callbacks), run_id=own)
    around: Observers = here.tell
    if here.call is None:
        return around.inside(f"{here.frame.path}{own}")
    made = around.inside("", call_id=here.call.call_id)
    made.path = f"{around.path}/{own}"
    return made


def _observer(one: Any) -> Observer:
    kind = cast("type[Any]", type(one))
    own = (
        getattr(one, "__dict__", ()) if kind.__dir__ is object.__dir__ else dir(one)
    )  # `dir(object)` takes as long as half a step
    return _Hooks(one) if _has_hooks(kind) or any(name.startswith("on_") for name in own) else one


@lru_cache(maxsize=100)
def _has_hooks(kind: type[Any]) -> bool:
    return any(name.startswith("on_") for name in dir(kind))


class _Hooks:
    """Adapts a callback object with `on_module_start(call_id, instance, inputs)` and similar methods (DSPy's form) to an observer."""

    __slots__ = ("_one",)

    def __init__(self, one: Any) -> None:
        self._one = one

    def __getattr__(self, name: str) -> Any:
        return getattr(
            object.__getattribute__(self, "_one"),
            name,
        )  # such as `open_run` and `wants_details`

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
            case events.Formatted():  # both at once: only the end is an event
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

    def _call(self, name: str, *given: Any) -> None:
        hook = getattr(self._one, name, None)
        if hook is not None:
            hook(*given)
