"""`@tool` and `@confirm_first`. `Tool` is imported when a decorator runs, so that importing this module costs little."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.tools.definition.constructor import Effect, Flags, WhenUnknown
    from ferrule.tools.tool import Tool

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:

    class FunctionTool(Tool, Generic[P, R]):
        """A decorated function, for type checkers: a `Tool` that is called with the function's own types."""

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
            """Check the arguments and run."""
            ...


@overload
def tool(name: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    name: str | None = None,
    description: str | None = None,
    *,
    desc: str | None = None,
    args: Mapping[str, Any] | None = None,
    arg_types: Mapping[str, Any] | None = None,
    arg_desc: Mapping[str, str] | None = None,
    schema: Mapping[str, Any] | None = None,
    mcp_server: str | None = None,
    **flags: Unpack[Flags],
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    name: Any = None,
    description: str | None = None,
    *,
    desc: str | None = None,
    args: Mapping[str, Any] | None = None,
    arg_types: Mapping[str, Any] | None = None,
    arg_desc: Mapping[str, str] | None = None,
    schema: Mapping[str, Any] | None = None,
    mcp_server: str | None = None,
    require_confirmation: bool | str | Callable[..., Any] = False,
    effect: Effect | None = None,
    reconcile: Callable[..., Any] | None = None,
    unknown: WhenUnknown = "ask",
    timeout_s: float | None = None,
    concurrent: bool = True,
    **keywords: Any,
) -> Any:
    """Make a function a `Tool`: `@tool`, or `@tool(name="add", require_confirmation=True)`. The result is still callable.

    Name and description (`desc` is the same) are by default the function's own. `args`, `arg_types`, `arg_desc`, `schema`, `mcp_server`,
    `require_confirmation`, `effect`, `reconcile`, `unknown`, `timeout_s` and `concurrent` are those of `Tool`; other `keywords` are errors.
    Raises `ToolDefinitionError` if a model could not call the function.
    """
    options = dict(locals())
    for each in ("name", "description", "keywords"):
        del options[each]
    from ferrule.tools.tool import Tool

    if name is not None and not isinstance(name, str):
        return Tool(name, description=description, **options, **keywords)

    def decorate(function: Callable[..., Any]) -> Tool:
        return Tool(function, name, description, **options, **keywords)

    return decorate


def confirm_first(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise `ConfirmationRequired` until a person agrees to the very call (udspy's decorator).

    A tool becomes the same tool with `require_confirmation=True`, and a decorated function given to a program asks as such a tool does.
    The function must be one that can become a tool.
    """
    from ferrule.tools.execution.run import is_coroutine_function
    from ferrule.tools.tool import Tool

    if isinstance(function, Tool):
        return function.model_copy(update={"require_confirmation": True})
    asking = Tool(function, require_confirmation=True)

    async def aconfirmed(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await asking.acall(*args, **kwargs)

    def confirmed(*args: P.args, **kwargs: P.kwargs) -> Any:
        return asking(*args, **kwargs)

    made = wraps(function)(aconfirmed if is_coroutine_function(function) else confirmed)
    vars(made)["__confirm_first__"] = True  # read by `define_tool`: a tool made of this function asks too
    return made  # pyright: ignore[reportReturnType]  an async function's result is awaited by its caller, as before
