"""The `deps` that a function needs of a run, as its parameter `Context[X]` declares."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

from msgspec import Struct

from ferrule.errors import ConfigurationError, shown
from ferrule.tools.definition.inspect_function import (
    bound_names,
    find_context,
    is_context_annotation,
    resolve_annotation,
)
from ferrule.values.calls.context import HOW_TO_GIVE_DEPS, Context

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class ContextParameter(Struct, frozen=True):
    """The parameter of a plain function that takes a `Context`."""

    name: str
    position: int | None
    """Its position among the arguments; None if it can only be passed by name."""
    is_named: bool
    """Whether it can be passed by name."""
    deps_type: Any

    def fill(
        self, args: tuple[Any, ...], named: Mapping[str, Any], context: Context[Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Add the context to the arguments of a call, unless they have one.

        Raises `TypeError` for another value in its place.
        """
        if any(isinstance(value, Context) for value in (*args, named.get(self.name))):
            return args, named
        if self.is_named and self.name in named:
            raise TypeError(
                f"`{self.name}` takes the `Context` of the run, found {shown(named[self.name])}."
            )
        if self.position is None or (self.is_named and len(args) <= self.position):
            return args, {**named, self.name: context}
        return (*args[: self.position], context, *args[self.position :]), named

    def check(self, what: str, context: Context[Any], deps: Any) -> None:
        """Raise `ConfigurationError` if `deps` do not have the type that this parameter declares.

        `what` names its owner.
        """
        check_type(what, self.deps_type, deps)
        if self.deps_type is not Any and fits_deps(self.deps_type, None):
            context.without_deps()


def context_parameter(function: Callable[..., Any]) -> ContextParameter | None:
    """The parameter of a function that takes a `Context`; None if there is none."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):  # a function in C may have no signature
        return None
    bound = bound_names(function)
    for position, parameter in enumerate(parameters):
        hint = parameter.annotation
        if parameter.name in bound or not _takes_context(function, hint):
            continue
        is_keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        return ContextParameter(
            parameter.name,
            None if is_keyword_only else position,
            parameter.kind is not parameter.POSITIONAL_ONLY,
            deps_type(function, hint),
        )
    return None


def _takes_context(function: Any, hint: Any) -> bool:
    if is_context_annotation(function, hint):
        return True
    return find_context(resolve_annotation(function, hint)) is not None


def bind_arguments(
    function: Callable[..., Any], args: Iterable[Any], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Bind arguments to a function's parameters, with an empty `Context` if it takes one.

    Raises `TypeError` as a Python call does.
    """
    args = tuple(args)
    context = context_parameter(function)
    if context is not None:
        args, named = context.fill(args, named, Context())
    return inspect.signature(function).bind(*args, **named)


def deps_type(function: Any, annotation: Any) -> Any:
    """The `X` of `Context[X]`.

    It is `Any` if the annotation gives none, and text if a name in it is unknown at run time.
    """
    hint = resolve_annotation(function, annotation)
    context = find_context(hint)
    if context is None:
        inside = str(hint).partition("[")[2].rstrip("]")
        return inside or Any
    return next(iter(typing.get_args(context)), Any)


def check_deps(tool: Any, deps: Any) -> None:
    """Raise `ConfigurationError` if a run's `deps` do not have the type that a tool declares.

    They are None if the run has none.
    """
    check_type(f"The tool `{tool.name}`", tool.deps_type, deps)


def check_type(what: str, kind: Any, deps: Any) -> None:
    """Raise `ConfigurationError` if `deps` do not have the type `kind`, which `what` declares."""
    if fits_deps(kind, deps):
        return
    declared = f"{what} declares `Context[{_name(kind)}]`"
    if deps is None:
        raise ConfigurationError(f"{declared}, and no `deps` were passed. {HOW_TO_GIVE_DEPS}")
    # Not the value itself: it may hold secrets.
    raise ConfigurationError(
        f"{declared}, and the `deps` that were passed are of the type `{_name(type(deps))}`."
    )


def _name(kind: Any) -> str:
    if not isinstance(kind, type):
        return str(kind)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def accept_no_deps(tool: Any, context: Context[Any]) -> None:
    """In a call without `deps`, let them be None if the tool accepts that.

    Raises `ConfigurationError` in a run if the tool needs some.
    """
    kind = tool.deps_type
    if kind is not Any and fits_deps(kind, None):
        context.without_deps()
    elif context.run_id:
        # The tool was loaded, or passed as an input: the run could not check it at its start.
        check_deps(tool, None)


def fits_deps(kind: Any, deps: Any) -> bool:
    """Whether `deps` have a type.

    A type that cannot be checked at run time, such as a protocol, accepts any value except None.
    """
    if kind is Any or isinstance(kind, typing.TypeVar):
        return True
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return fits_deps(inside[0], deps)
    if origin in (typing.Union, types.UnionType):
        return any(fits_deps(member, deps) for member in inside)
    try:
        return isinstance(deps, origin or kind)
    except TypeError:
        return deps is not None
