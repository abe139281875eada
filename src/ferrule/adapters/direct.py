"""Events of direct calls of `format` and `parse`, by code outside the core. A run sends the events of its own work itself."""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.settings import current, is_observed, scope

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ferrule.values.run.event import Event

F = TypeVar("F", bound="Callable[..., Any]")


def observed(method: F) -> F:
    """The method `format` or `parse` of an adapter, with events if there are observers. An override's call of `super()` sends none."""
    name: str = getattr(method, "__name__")  # noqa: B009  a callable need not have one

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        kind: Any = self.__class__
        if not is_observed() or getattr(kind, name) is not call:
            return method(self, *given, **named)
        from ferrule.values.run.event import Formatted, ParseFinished, ParseStarted  # late: few direct calls are observed
        from ferrule.values.run.observers import events_around

        def begin(_: str) -> Event | None:
            return ParseStarted("", 1, kind.__name__, 0) if name == "parse" else None

        def end(_: str, found: Any, error: BaseException | None) -> Event | None:
            if name == "parse":
                return ParseFinished("", 1, kind.__name__, 0, tuple(found or ()), error)
            return None if error else Formatted("", 1, kind.__name__, len(found), 0)

        told: AbstractContextManager[Callable[[Any], Any]] = events_around(scope(), current().callbacks, begin, end)
        with told as pass_on:
            return pass_on(method(self, *given, **named))

    made: Any = call
    made.unobserved = method
    return made


def unobserved(adapter: Any, name: str) -> Callable[..., Any]:
    """The adapter's method without events, for work of a run."""
    method = getattr(adapter, name)
    bare = getattr(method, "unobserved", None)
    return method if bare is None else MethodType(bare, adapter)
