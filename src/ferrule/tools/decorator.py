"""`@tool` and `@confirm_first`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from ferrule.tools.execution.run import is_coroutine_function
from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ferrule.tools.definition.options import DecoratorOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

if TYPE_CHECKING:

    class FunctionTool(Tool, Generic[P, R_co]):
        """A decorated function, for type checkers: a `Tool` called with the function's types."""

        # A decorated function is there, and tools are frozen.
        func: Callable[P, R_co]  # pyright: ignore[reportIncompatibleVariableOverride]

        @overload
        async def acall(
            self: FunctionTool[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
        ) -> T: ...
        @overload
        async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
        async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
            """`__call__` without blocking the loop: the function's value, awaited if async."""
            ...

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
            """Check the arguments and run."""
            ...


@overload
def tool(name: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Unpack[DecoratorOptions],
) -> FunctionTool[P, R]: ...
@overload
def tool(
    name: str | None = None,
    /,
    description: str | None = None,
    **options: Unpack[DecoratorOptions],
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
@overload
def tool(
    *, name: str | None, description: str | None = None, **options: Unpack[DecoratorOptions]
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Any = None,
    /,
    description: str | None = None,
    *,
    name: str | None = None,
    **options: Unpack[DecoratorOptions],
) -> Any:
    """Turn a function into a `Tool`, which can still be called like the function.

    Use it bare, `@tool`, or with options, `@tool(name="add", require_confirmation=True)`; or as a
    function, `tool(add, name="plus")`.

    Args:
        function: The function; or the tool's name, for a decorator.
        name: The tool's name; the function's by default.
        description: What the tool does, for the model; the docstring by default.
        desc: Another spelling of `description`.
        args: By parameter, a description or a JSON schema that replaces the one read from the
            function.
        arg_types: By parameter, a type that replaces the annotation.
        arg_desc: By parameter, a description.
        schema: A JSON schema of all arguments.
        mcp_server: The name of the MCP server that has the tool.
        require_confirmation: True, `"destructive"`, `ask(...)` or a function of the arguments:
            whether a person must agree to a call.
        effect: What a call changes: `"read"`, `"idempotent"`, `"transactional"` or `"once"` (the
            default).
        reconcile: Called with the call's key and arguments before a repetition. Returns the call's
            result, `NotDone` or `Unknown`.
        unknown: What to do if it is unknown whether a crashed call ran: `"ask"` a person, `"tell"`
            the model, or `"fail"`.
        timeout_s: The time limit of a call in seconds.
        concurrent: Whether calls of one step may run at the same time. `Toolbox(concurrent=False)`
            turns it off for all its tools.
        retries: How often in a row the model may try again after a call that it made wrong
            (arguments that do not fit, `ToolRetry`). After that, the tool no longer runs. None: no
            bound. It does not repeat calls by itself.
        result: `"outside"` if the result comes later, by `deliver`: the function is not called, and
            its body is `...`. `"page"` if the page of a chat gives it.
        within_s: Seconds after which the model reads that no result from outside came.
        untrusted: Whether others may have written what it returns, such as a mail or a page. Rules
            with `call(after="untrusted")` and `call(tainted=True)` look at it. True by default for
            tools of MCP servers.

    Raises:
        ToolDefinitionError: A model could not call the function, or an option is unknown.

    """
    if function is not None and not isinstance(function, str):
        return Tool(function, name, description, **options)
    tool_name = name
    if function is not None:
        tool_name = function

    def decorate(function: Callable[..., Any]) -> Tool:
        return Tool(function, tool_name, description, **options)

    # Read by `define_tool`: as a tool, it would have the name `decorate`.
    vars(decorate)["__makes_tool__"] = True
    return decorate


def confirm_first(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise `ConfirmationRequired` until a person agrees to exactly this call.

    This is udspy's decorator. A tool becomes the same tool with `require_confirmation=True`. A
    decorated function that is given to a program asks as that tool does. The function must be one
    that can become a tool.
    """
    if isinstance(function, Tool):
        return function.model_copy(update={"require_confirmation": True})
    asking_tool = Tool(function, require_confirmation=True)

    async def aconfirmed(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await asking_tool.acall(*args, **kwargs)

    def confirmed(*args: P.args, **kwargs: P.kwargs) -> Any:
        return asking_tool(*args, **kwargs)

    confirming = confirmed
    if is_coroutine_function(function):
        confirming = aconfirmed
    wrapper = wraps(function)(confirming)
    # Read by `define_tool`: a tool made of this function asks too.
    vars(wrapper)["__confirm_first__"] = True
    # An async function's result is awaited by its caller, as before.
    return wrapper  # pyright: ignore[reportReturnType]
