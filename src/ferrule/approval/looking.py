"""Conditions of rules that look beyond a call: at the run, its `deps`, another service.

Such a rule has a function in `when=`. Its answer may be another one the next time, so it is
called once for a call, and its answer is recorded with the run: see `programs/tool_use/looking.py`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_origin

from msgspec import Struct

from ferrule.errors import ConfigurationError, shown
from ferrule.values.calls.context import Context

if TYPE_CHECKING:
    from collections.abc import Mapping


class ConditionFunction(Struct, frozen=True):
    """A function in `when=`, by what it takes."""

    function: Callable[..., Any]
    context: str = ""
    """The parameter that takes the `Context`; empty if none does."""
    required: frozenset[str] = frozenset()
    """The arguments of a call without which it cannot be called."""
    optional: frozenset[str] = frozenset()
    takes_all: bool = False
    """Whether it takes all arguments, as `**arguments`."""
    is_async: bool = False

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any] | None:
        """What it takes of a call's arguments; None if the call lacks one that it needs."""
        if not self.required <= args.keys():
            return None
        if self.takes_all:
            return {name: value for name, value in args.items() if name != self.context}
        names = self.required | self.optional
        return {name: value for name, value in args.items() if name in names}


_CONTEXT_IN_TEXT = re.compile(r"(\w+\.)*Context(\[.*\])?")
"""An annotation that is not evaluated: `Context`, `ferrule.Context[Shop]`."""


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return _CONTEXT_IN_TEXT.fullmatch(annotation) is not None
    return annotation is Context or get_origin(annotation) is Context


def read_condition(function: Callable[..., Any]) -> ConditionFunction:
    """What a function in `when=` takes.

    A parameter named `ctx`, or annotated as a `Context`, takes the `Context` of the run; every
    other one takes the call's argument of its name. Raises `ConfigurationError` for a parameter
    that has no name to go by.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # a function in C may have no signature
        raise ConfigurationError(
            f"The parameters of {shown(function)} cannot be read, so it cannot be a condition: "
            "wrap it in a function."
        ) from None
    context, takes_all = "", False
    required: set[str] = set()
    optional: set[str] = set()
    for parameter in parameters:
        name = parameter.name
        match parameter.kind:
            case parameter.VAR_KEYWORD:
                takes_all = True
            case parameter.POSITIONAL_ONLY | parameter.VAR_POSITIONAL:
                raise ConfigurationError(
                    "A function in `when=` takes a `Context` as `ctx`, and arguments of the call "
                    f"by their names; `{name}` of {shown(function)} takes none by name."
                )
            case _ if name == "ctx" or _is_context(parameter.annotation):
                context = name
            case _ if parameter.default is parameter.empty:
                required.add(name)
            case _:
                optional.add(name)
    call: Any = getattr(type(function), "__call__", None)  # noqa: B004  of an object
    return ConditionFunction(
        function,
        context,
        frozenset(required),
        frozenset(optional),
        takes_all,
        inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call),
    )
