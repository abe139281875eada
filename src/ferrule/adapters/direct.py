"""Events for direct calls of `format` and `parse` by user code. A run sends its own events."""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.settings import current, is_observed, scope

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ferrule.events import Event

F = TypeVar("F", bound="Callable[..., Any]")


def observed(method: F) -> F:
    """Wrap an adapter's `format` or `parse` so that observers get events. A call through `super()` in an override sends none."""
    name: str = getattr(method, "__name__")  # noqa: B009  a callable need not have one

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        kind: Any = self.__class__
        if not is_observed() or getattr(kind, name) is not call:
            return method(self, *given, **named)
        from ferrule.events import (
            Formatted,
            ParseFinished,
            ParseStarted,
        )  # late: few direct calls are observed
        from ferrule.observers import events_around

        def begin(_: str) -> Event | None:
            return ParseStarted("", 1, kind.__name__, 0) if name == "parse" else None

        def end(_: str, found: Any, error: BaseException | None) -> Event | None:
            if name == "parse":
                return ParseFinished("", 1, kind.__name__, 0, tuple(found or ()), error)
            return None if error else Formatted("", 1, kind.__name__, len(found), 0)

        events: AbstractContextManager[Callable[[Any], Any]] = events_around(
            scope(),
            current().callbacks,
            begin,
            end,
        )
        with events as pass_on:
            return pass_on(method(self, *given, **named))

    made: Any = call
    made.unobserved = method
    return made


def unobserved(adapter: Any, name: str) -> Callable[..., Any]:
    """The adapter's method without events, for use inside a run."""
    method = getattr(adapter, name)
    bare = getattr(method, "unobserved", None)
    return method if bare is None else MethodType(bare, adapter)
