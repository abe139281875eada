"""What a tool needs of a run's `deps`: its parameter `Context[X]` says it."""

from __future__ import annotations

import types
import typing
from typing import Any

from ferrule.errors import ConfigurationError
from ferrule.tools.definition.inspect_function import find_context, resolve_annotation
from ferrule.values.calls.context import HOW_TO_GIVE_DEPS

if typing.TYPE_CHECKING:
    from ferrule.values.calls.context import Context


def deps_type(function: Any, annotation: Any) -> Any:
    """The `X` of `Context[X]`: `Any` if the annotation says nothing, and text if a name in it is not known at run time."""
    hint = resolve_annotation(function, annotation)
    context = find_context(hint)
    if context is None:
        inside = str(hint).partition("[")[2].rstrip("]")
        return inside or Any
    return next(iter(typing.get_args(context)), Any)


def check_deps(tool: Any, deps: Any) -> None:
    """Raise `ConfigurationError` if a run's `deps` (None: it has none) are not what a tool declares."""
    kind = tool.deps_type
    if fits_deps(kind, deps):
        return
    declared = f"The tool `{tool.name}` declares `Context[{_name(kind)}]`"
    if deps is None:
        raise ConfigurationError(f"{declared}, and no `deps` were passed. {HOW_TO_GIVE_DEPS}")
    # Not the value itself: it may hold secrets.
    raise ConfigurationError(f"{declared}, and the `deps` that were passed are of the type `{_name(type(deps))}`.")


def _name(kind: Any) -> str:
    if not isinstance(kind, type):
        return str(kind)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def accept_no_deps(tool: Any, context: Context[Any]) -> None:
    """For a call without `deps`: None if the tool accepts it. Raises `ConfigurationError` in a run if the tool needs some."""
    kind = tool.deps_type
    if kind is not Any and fits_deps(kind, None):
        context.without_deps()
    elif context.run_id:  # a tool that was loaded or passed as an input: the run could not check it at its start
        check_deps(tool, None)


def fits_deps(kind: Any, deps: Any) -> bool:
    """Whether `deps` are of a type. Of a type that cannot be checked at run time, such as a protocol, any value is but None."""
    if kind is Any or isinstance(kind, typing.TypeVar):
        return True
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return fits_deps(inside[0], deps)
    if origin in (typing.Union, types.UnionType):
        return any(fits_deps(each, deps) for each in inside)
    try:
        return isinstance(deps, origin or kind)
    except TypeError:
        return deps is not None
