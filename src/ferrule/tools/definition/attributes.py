"""What an instance of `Tool` holds, and what it answers when asked for more."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any, cast

from ferrule.tools.definition.inspect_function import FunctionSpec, description_in, field_of, parameter_docs
from ferrule.tools.definition.names import wire_name
from ferrule.tools.definition.parameters import type_of
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.calls.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

    from ferrule.tools.definition.constructor import ToolDefinition
    from ferrule.tools.definition.parameters import Parameters

FLAGS = ("mcp_server", "require_confirmation", "effect", "reconcile", "unknown", "timeout_s", "concurrent")
READY = ("func", "name", "desc", *FLAGS)
"""Fields that are there from the start; `args`, `arg_types` and `arg_desc` are made when they are asked for."""
OF_MCP = ("title", "icons", "annotations", "output_schema", "meta", "execution")
"""What an MCP server says of its tools; None for others."""
_OF_ARGUMENTS = ("args", "arg_types", "arg_desc")


class GivenSchema(property):
    """`tool.schema` is the schema of the arguments as it was given; `Tool.schema()` is pydantic's, of the class."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return instance.parameters if instance is not None else cast("Any", owner).model_json_schema


class Description(property):
    """`tool.description` is the tool's own; `Tool.description()` is what `Type` says of its subclasses (seed 002)."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return instance.desc if instance is not None else lambda: "A tool that can be called, with its name, description and arguments."


def instance_state(made: ToolDefinition, found: FunctionSpec) -> dict[str, Any]:
    """All that an instance holds. What Python and its tools look for on a function is found on the tool too."""
    wire = wire_name(made.name)
    state: dict[str, Any] = {each: getattr(made, each) for each in ("func", "name", *FLAGS)}
    state |= {"desc": made.description, "wire_name": wire, "_given": made, "_found": found, "_checker": None, "_declaration": None}
    state |= {"mcp": made.mcp}
    state["takes_context"] = bool(found.context) or found.caller
    state["says_once"] = made.says_effect and made.effect == "once"
    for each in ("__name__", "__qualname__", "__module__", "__doc__"):
        value = getattr(made.func, each, None)
        if isinstance(value, str):
            state[each] = value
    state.setdefault("__name__", made.name)
    if made.func is not None:
        state["__wrapped__"] = made.func
    return state


def late_attribute(name: str, given: ToolDefinition, found: FunctionSpec, parameters: Callable[[], Parameters]) -> Any:
    """A field that is made when it is asked for, and made anew each time, so that nobody can change the tool by it."""
    if name in OF_MCP:
        return copy.deepcopy(getattr(given.mcp, name, None))
    if name in _OF_ARGUMENTS and given.mcp is not None:
        from ferrule.values.schema.python_types import convert_input_schema_to_tool_args

        return convert_input_schema_to_tool_args(given.mcp.input_schema)[_OF_ARGUMENTS.index(name)]
    if name == "args":
        return copy.deepcopy(parameters().schema["properties"])
    if name == "arg_types":
        return {each.name: type_of(each) for each in found.parameters}
    if name == "arg_desc":
        docs = parameter_docs(found.doc)
        own = {each.name: description_in(field_of(each)) or docs.get(each.name) for each in found.parameters}
        texts = {each: said for each, said in given.args.items() if isinstance(said, str)}
        return {each: text for each, text in {**own, **texts, **given.arg_desc}.items() if text}
    msg = f"`Tool` has no attribute `{name}`."
    raise AttributeError(msg)


def constructor_arguments(given: ToolDefinition) -> dict[str, Any]:
    """The arguments of `Tool(...)` that make an equal tool."""
    function = {"callable": given.func} if given.with_caller else {"func": given.func}
    by_hand: dict[str, Any] = {"args": given.args or None, "schema": given.schema}
    same = ("name", "arg_types", "arg_desc", "mcp", *FLAGS)
    made = {**function, "desc": given.description, **by_hand, **{each: getattr(given, each) for each in same}}
    return made if given.says_effect else {**made, "effect": None}


def importable_name(tool: Any) -> str | None:
    """Where a decorated function is found again, for pickling: its name in its module. None for any other tool."""
    place: Any = sys.modules.get(tool.__module__)
    name = getattr(tool, "__qualname__", "")
    for each in name.split("."):
        place = getattr(place, each, None)
    return name if place is tool else None


def bind_positional(tool: str, order: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments given by position, by name; raises `TypeError` as Python does."""
    if len(args) > len(order):
        msg = f"{tool}() takes {len(order)} positional arguments but {len(args)} were given"
        raise TypeError(msg)
    named = dict(zip(order, args, strict=False))
    twice = [name for name in named if name in kwargs]
    if twice:
        msg = f"{tool}() got multiple values for argument {twice[0]!r}"
        raise TypeError(msg)
    return {**named, **kwargs}


def fill_context(found: FunctionSpec, arguments: CheckedArguments, context: Context[Any], caller: Any) -> CheckedArguments:
    """Checked arguments with the `Context`, and in seed 004's form the caller, in their places, unless somebody put them there already."""
    positional, named = arguments.positional, arguments.named
    if found.context and not any(isinstance(each, Context) for each in (*positional, named.get(found.context))):
        if found.context_at is None:
            named = {**named, found.context: context}
        else:
            at = found.context_at + found.caller
            positional = (*positional[:at], context, *positional[at:])
    if found.caller and positional[0] is None:
        positional = (caller, *positional[1:])
    return CheckedArguments(positional, named, arguments.shown, arguments.repairs)


def split_context(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Context[Any] | None]:
    """The arguments of a direct call without the `Context` that a caller may hand over among them, and that."""
    found: list[Context[Any]] = [each for each in (*args, *kwargs.values()) if isinstance(each, Context)]
    if not found:
        return args, kwargs, None
    own = found[0]
    return tuple(each for each in args if each is not own), {name: each for name, each in kwargs.items() if each is not own}, own


def is_method(function: FunctionType, owner: type) -> bool:
    """Whether a function was written in the body of a class, or of one it inherits from."""
    home, _, _ = function.__qualname__.rpartition(".")
    return any(each.__qualname__ == home and each.__module__ == function.__module__ for each in owner.__mro__)
