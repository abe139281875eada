"""`@tool`: the decorator, in a module of its own so that naming it costs nothing; `Tool` is loaded when a tool is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.tools.definition.flags import Flags
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
    **flags: Unpack[Flags],
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(name: Any = None, description: str | None = None, **keywords: Any) -> Any:
    """Make a function a tool: `@tool`, or `@tool(name=..., require_confirmation=True)`. The result is a `Tool` and still callable."""
    from ferrule.tools.tool import Tool

    if name is not None and not isinstance(name, str):
        if description is None and not keywords:
            return Tool(name)
        return Tool(name, None, description, **keywords)

    def decorate(function: Callable[..., Any]) -> Tool:
        return Tool(function, name, description, **keywords)

    return decorate
