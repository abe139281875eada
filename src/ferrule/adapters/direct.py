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
        from ferrule.values.run.observers import telling  # late: few direct calls are observed

        parses = name == "parse"
        begin, end = (_parse_started(kind), _parse_finished(kind)) if parses else (_nothing, _formatted(kind))
        told: AbstractContextManager[Callable[[Any], Any]] = telling(scope(), current().callbacks, begin, end)
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


def _nothing(_: str) -> None:
    return None


def _formatted(adapter: type[Any]) -> Callable[[str, Any, BaseException | None], Event | None]:
    from ferrule.values.run.event import Formatted

    def end(_: str, messages: Any, error: BaseException | None) -> Event | None:
        return None if error else Formatted("", 1, adapter.__name__, len(messages), 0)

    return end


def _parse_started(adapter: type[Any]) -> Callable[[str], Event]:
    from ferrule.values.run.event import ParseStarted

    return lambda _: ParseStarted("", 1, adapter.__name__, 0)


def _parse_finished(adapter: type[Any]) -> Callable[[str, Any, BaseException | None], Event]:
    from ferrule.values.run.event import ParseFinished

    def end(_: str, outputs: Any, error: BaseException | None) -> Event:
        return ParseFinished("", 1, adapter.__name__, 0, tuple(outputs or ()), error)

    return end
