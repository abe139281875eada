"""Objects passed as a function whose signature does not show the tool's arguments: programs, and tools of other libraries."""

from __future__ import annotations

import inspect
from typing import Any, cast

from ferrule.errors import ToolDefinitionError


def refuse_tool_object(thing: Any) -> None:
    """Raise `ToolDefinitionError` for a program or another library's tool: an object that has a name and takes any arguments.

    Its class and its `__call__` do not describe the tool, so a model would see another name and no
    arguments.
    """
    named = getattr(thing, "metadata", thing)  # LlamaIndex's tools have their name there
    if (
        isinstance(thing, type)
        or not isinstance(getattr(named, "name", None), str)
        or not _takes_any_arguments(thing)
    ):
        return
    kind = cast("type[Any]", type(thing))
    if hasattr(kind, "as_tool"):
        raise ToolDefinitionError(
            f"`{named.name}` is a program, not a function. Pass `program.as_tool()`.",
        )
    raise ToolDefinitionError(
        f"The arguments of `{named.name}` cannot be read: it is an object of the class `{kind.__module__}.{kind.__qualname__}`, not a "
        "function. Pass the function that it was made of, or a function that calls it.",
    )


def _takes_any_arguments(thing: Any) -> bool:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (ValueError, TypeError, NameError):
        return False
    return any(each.kind is each.VAR_KEYWORD for each in parameters)
