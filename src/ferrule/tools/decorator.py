"""`@tool` and `@confirm_first`. `Tool` is imported when a decorator runs, so that importing this module costs little."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from ferrule.tools.definition.constructor import Effect, Flags, WhenUnknown
    from ferrule.tools.tool import Tool

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

if TYPE_CHECKING:

    class FunctionTool(Tool, Generic[P, R_co]):
        """A decorated function, for type checkers: a `Tool` that is called with the function's own types."""

        func: Callable[P, R_co]  # pyright: ignore[reportIncompatibleVariableOverride]  a decorated function is there, and tools are frozen

        @overload
        async def acall(
            self: FunctionTool[P, Coroutine[Any, Any, T]],
            /,
            *args: P.args,
            **kwargs: P.kwargs,
        ) -> T: ...
        @overload
        async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
        async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
            """`__call__` without blocking the loop: the function's value, awaited if it is async."""
            ...

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
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
    require_confirmation: bool | str | Callable[[dict[str, Any]], object] = False,
    effect: Effect | None = None,
    reconcile: Callable[..., Any] | None = None,
    unknown: WhenUnknown = "ask",
    timeout_s: float | None = None,
    concurrent: bool = True,
    **keywords: Any,
) -> Any:
    """Turn a function into a `Tool`: `@tool`, or `@tool(name="add", require_confirmation=True)`. The result is still callable.

    Args:
        name: The tool's name; the function's by default. description: What the tool does, for the
        model; the docstring by default. desc: The same as `description`. args: By parameter, a
        description or a JSON schema that replaces the one read from the function. arg_types: By
        parameter, a type that replaces the annotation. arg_desc: By parameter, a description.
        schema: A JSON schema of all arguments. mcp_server: The name of the MCP server that has the
        tool. require_confirmation: True, `"destructive"`, `ask(...)` or a function of the
        arguments: whether a person must agree to a call. effect: What a call changes: `"read"`,
        `"idempotent"`, `"transactional"` or `"once"` (the default). reconcile: Called with the
        call's key and arguments before a repetition. Returns the call's result, `NotDone` or
        `Unknown`. unknown: What to do if it is unknown whether a crashed call ran: `"ask"` a
        person, `"tell"` the model, or `"fail"`. timeout_s: The time limit of a call in seconds.
        concurrent: Whether calls of one step may run at the same time. `Toolbox(concurrent=False)`
        turns it off for all its tools. keywords: No other option is accepted; a misspelled one
        raises.

    Raises:
        ToolDefinitionError: A model could not call the function.

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
    """Make a function raise `ConfirmationRequired` until a person agrees to exactly this call (udspy's decorator).

    A tool becomes the same tool with `require_confirmation=True`. A decorated function that is
    given to a program asks as that tool does. The function must be one that can become a tool.
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
    vars(made)["__confirm_first__"] = (
        True  # read by `define_tool`: a tool made of this function asks too
    )
    return made  # pyright: ignore[reportReturnType]  an async function's result is awaited by its caller, as before
