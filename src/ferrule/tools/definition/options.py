"""The options of `Tool(...)` and `@tool(...)`, under the core's names.

Three libraries document three ways to construct a tool, and all three are accepted here:

- DSPy: `Tool(func, name, desc, args, arg_types, arg_desc)`.
- udspy: `Tool(func, name="adder", description="Adds numbers", require_confirmation=True)`.
- The Proxy Base Agent: `Tool(name, description, callable, schema, mcp_server)`.

The first positional argument decides which order the others have. One table, `ALIASES`, maps the
other spellings to the core's; the rest of ferrule knows only the core's names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ferrule.errors import ToolDefinitionError, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ferrule.tools.mcp_definition import MCPDefinition

Effect = Literal["read", "idempotent", "transactional", "once"]
WhenUnknown = Literal["ask", "tell", "fail"]
WhereFrom = Literal["function", "outside", "page"]


class DecoratorOptions(TypedDict, total=False):
    """The options of `@tool(...)`, without its arguments `name` and `description`."""

    desc: str | None
    """DSPy's name of `description`."""
    args: Mapping[str, Any] | None
    arg_types: Mapping[str, Any] | None
    arg_desc: Mapping[str, str] | None
    schema: Mapping[str, Any] | None
    mcp_server: str | None
    require_confirmation: bool | str | Callable[[dict[str, Any]], object]
    effect: Effect | None
    reconcile: Callable[..., Any] | None
    unknown: WhenUnknown
    timeout_s: float | None
    concurrent: bool
    retries: int | None
    result: WhereFrom
    within_s: float | None
    untrusted: bool | None


class ToolOptions(DecoratorOptions, total=False):
    """Every option of `Tool(...)` by name; the docstring of `Tool` describes them."""

    func: Callable[..., Any] | None
    name: str | None
    description: str | None
    mcp: MCPDefinition | None
    returns: Any
    callable: Callable[..., Any] | None
    """The Proxy Base Agent's name of `func`, with its manner of calling: see `ToolDefinition`."""


ALIASES = {"desc": "description", "callable": "func"}
"""The core's name for each other spelling."""
_FUNCTION_FIRST = ("func", "name", "description", "args", "arg_types", "arg_desc")
_NAME_FIRST = ("name", "description", "callable", "schema", "mcp_server")
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(name for name in ToolOptions.__annotations__ if name not in ALIASES),
    "require_confirmation": False,
    "unknown": "ask",
    "concurrent": True,
    "result": "function",
}


def read_options(
    positional: Sequence[Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """All options under the core's names, with defaults for those that are missing or None.

    Also returns whether the function came as `callable`. Raises `ToolDefinitionError` for unknown
    options, and for an option that has two values.
    """
    unknown = [name for name in options if name not in ToolOptions.__annotations__]
    if unknown:
        raise _unknown_options(unknown)
    by_position = _name_positional(positional)
    for name in by_position:
        if options.get(name) is not None:
            raise ToolDefinitionError(
                f"`Tool` was given `{name}` twice: once by position and once by name."
            )
    values = dict(_DEFAULTS)
    spellings: dict[str, str] = {}
    for spelling, value in {**options, **by_position}.items():
        if value is None:
            continue
        name = ALIASES.get(spelling, spelling)
        if name in spellings and values[name] != value:
            raise ToolDefinitionError(
                f"`Tool` was given two values for `{name}`, {shown(values[name])} as "
                f"`{spellings[name]}` and {shown(value)} as `{spelling}`: give one."
            )
        values[name] = value
        spellings[name] = spelling
    return values, spellings.get("func") == "callable"


def _name_positional(positional: Sequence[Any]) -> dict[str, Any]:
    """The positional arguments by name. The first one, a name or a function, decides the order."""
    is_name_first = bool(positional) and isinstance(positional[0], str)
    if is_name_first:
        order = _NAME_FIRST
    else:
        order = _FUNCTION_FIRST
    if len(positional) > len(order):
        raise ToolDefinitionError(
            f"`Tool` takes at most {len(order)} arguments by position ({', '.join(order)}), "
            f"found {len(positional)}."
        )
    named = zip(order, positional, strict=False)
    return {name: value for name, value in named if value is not None}


def _unknown_options(unknown: Sequence[str]) -> ToolDefinitionError:
    """The error for unknown options, with the nearest known one for each."""
    descriptions: list[str] = []
    for name in unknown:
        similar = nearest(name, ToolOptions.__annotations__)
        hint = ""
        if similar:
            hint = f" (did you mean `{similar}`?)"
        descriptions.append(f"`{name}`{hint}")
    return ToolDefinitionError(f"`Tool` has no option {', '.join(descriptions)}.")
