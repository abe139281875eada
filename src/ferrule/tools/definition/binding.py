"""How the arguments of a direct call, a `Context` and a caller reach the function of a tool."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from ferrule.values.calls.call import CheckedArguments
from ferrule.values.calls.context import Context

if TYPE_CHECKING:
    from ferrule.tools.definition.inspect_function import FunctionSpec


def bind_positional(
    tool_name: str, order: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """All arguments by name. Raises `TypeError` as a Python call does."""
    if len(args) > len(order):
        raise TypeError(
            f"{tool_name}() takes {len(order)} positional arguments but {len(args)} were given"
        )
    named = dict(zip(order, args, strict=False))
    for name in named:
        if name in kwargs:
            raise TypeError(f"{tool_name}() got multiple values for argument {name!r}")
    return {**named, **kwargs}


def split_context(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Context[Any] | None]:
    """Split the `Context` that a caller may pass to a direct call from the other arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Context):
            context = cast("Context[Any]", value)
            other_args = tuple(arg for arg in args if arg is not context)
            other_kwargs = {name: arg for name, arg in kwargs.items() if arg is not context}
            return other_args, other_kwargs, context
    return args, kwargs, None


def fill_context(
    function_spec: FunctionSpec, arguments: CheckedArguments, context: Context[Any], caller: Any
) -> CheckedArguments:
    """Put the `Context` and the caller into checked arguments, unless they are there already."""
    positional, named = arguments.positional, arguments.named
    name = function_spec.context
    if name and not any(isinstance(value, Context) for value in (*positional, named.get(name))):
        if function_spec.context_at is None:
            named = {**named, name: context}
        else:
            # The caller, if there is one, comes before the function's other arguments.
            position = function_spec.context_at + function_spec.caller
            positional = (*positional[:position], context, *positional[position:])
    if function_spec.caller and positional[0] is None:
        positional = (caller, *positional[1:])
    return CheckedArguments(positional, named, arguments.shown, arguments.repairs)


def bound_method(function: Any, instance: object | None, owner: type | None) -> Any:
    """The function of a tool, bound as Python binds methods.

    None if it was not written in the body of the instance's class: a tool that is only assigned to
    an attribute of a class is not a method.
    """
    if isinstance(function, classmethod):
        return cast("Any", function).__get__(instance, owner)
    if instance is None or not isinstance(function, FunctionType):
        return None
    classes = type(instance).__mro__
    if isinstance(instance, type):  # `classmethod(tool)` binds to the class
        classes += instance.__mro__
    home, _, _ = function.__qualname__.rpartition(".")
    for kind in classes:
        if kind.__qualname__ == home and kind.__module__ == function.__module__:
            return function.__get__(instance, owner)
    return None
