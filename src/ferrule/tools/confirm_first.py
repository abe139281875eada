"""`@confirm_first`: a function that asks before it runs, under udspy's name."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ferrule.tools.execution.run import is_coroutine_function
from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


def confirm_first(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise `ConfirmationRequired` until a person has agreed to the very call; of a tool, the same tool that asks.

    As a tool of a program it asks as `@tool(require_confirmation=True)` does. The function must be one that can become a tool.
    """
    if isinstance(function, Tool):
        return function.model_copy(update={"require_confirmation": True})
    asking = Tool(function, require_confirmation=True)

    async def aconfirmed(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await asking.acall(*args, **kwargs)

    def confirmed(*args: P.args, **kwargs: P.kwargs) -> Any:
        return asking(*args, **kwargs)

    made = wraps(function)(aconfirmed if is_coroutine_function(function) else confirmed)
    vars(made)["__confirm_first__"] = True  # read by `define_tool`: a tool made of this asks by itself
    return made  # pyright: ignore[reportReturnType]  an async function's result is awaited by its caller, as before
