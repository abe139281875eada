"""The contents of a tool: its state, the attributes computed from it, copies and equality."""

from __future__ import annotations

import copy
import sys
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.tools.definition.deps import deps_type
from ferrule.tools.definition.export import wire_name
from ferrule.tools.definition.inspect_function import (
    FunctionSpec,
    description_in,
    field_of,
    parameter_docs,
)
from ferrule.tools.definition.parameters import type_of
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.calls.context import Context
from ferrule.values.display import Displayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ferrule.tools.definition.constructor import ToolDefinition
    from ferrule.tools.definition.mcp import MCPDefinition
    from ferrule.tools.definition.parameters import Parameters

FLAGS = (
    "mcp_server",
    "require_confirmation",
    "effect",
    "reconcile",
    "unknown",
    "timeout_s",
    "concurrent",
)
READY = ("func", "name", "desc", *FLAGS)
"""Fields that are set from the start; `args`, `arg_types` and `arg_desc` are computed when they are read."""
OF_MCP = ("title", "icons", "annotations", "output_schema", "meta", "execution")
"""Attributes that an MCP server gives its tools; None for other tools."""
_OF_ARGUMENTS = ("args", "arg_types", "arg_desc")


class GivenSchema(property):
    """`tool.schema` is the schema of the arguments; `Tool.schema()` is pydantic's method, for the class."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return instance.parameters if instance is not None else cast("Any", owner).model_json_schema


class Description(property):
    """`tool.description` is the tool's own; `Tool.description()` describes the type, as for every `Type`."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return (
            instance.desc
            if instance is not None
            else lambda: "A tool that can be called, with its name, description and arguments."
        )


class ToolAttributes(Displayed):
    """The attributes of a tool besides its fields. All are read-only; mutable values are copies."""

    description = Description()

    if TYPE_CHECKING:
        name: str
        desc: str
        effect: str
        require_confirmation: Any
        wire_name: str
        schema: dict[str, Any]
        mcp: MCPDefinition | None
        """The definition that its MCP server gave, unchanged; None for a local tool."""
        title: str | None
        icons: list[dict[str, Any]] | None
        annotations: dict[str, Any] | None
        output_schema: dict[str, Any] | None
        meta: dict[str, Any] | None
        execution: dict[str, Any] | None
        says_once: bool
        """Whether `effect="once"` was given, and is not only the default."""
        takes_context: bool
        """Whether the run fills one of its parameters: a `Context`, or the caller."""
        deps_type: Any
        """The type of `deps` that it needs: the `X` of its `Context[X]`, as text if unknown at run time; `Any` if it declares none."""
        is_program: bool
        """Whether it is a program (`program.as_tool()`). Its acts are journalled, so calling it again after a crash repeats nothing."""
        _given: ToolDefinition
        _found: FunctionSpec
    else:
        schema = GivenSchema()

        def __getattr__(self, name: str) -> Any:
            return late_attribute(
                name,
                self._given,
                self._found,
                lambda: self._checked_by().parameters,
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def display_rows(self) -> Iterator[tuple[str, Any]]:
        """Name, description, arguments and rules."""
        yield from (
            ("name", self.name),
            ("description", self.desc),
            ("arguments", self.schema.get("properties", {})),
        )
        yield from (
            ("effect", self.effect),
            ("confirmation", describe_confirmation(self.require_confirmation)),
        )
        yield from (
            (name, value)
            for name in ("timeout_s", "mcp_server")
            if (value := getattr(self, name)) is not None
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ToolAttributes) and self._given == other._given)

    def __hash__(self) -> int:
        return hash((self.name, self.desc))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # a tool is frozen

    def __reduce__(self) -> Any:
        return importable_name(self) or (
            partial(type(self), **constructor_arguments(self._given)),
            (),
        )


def describe_confirmation(needs: Any) -> str:
    """When a call of a tool asks a person, in a few words."""
    if callable(needs):
        return "depends on the arguments"
    return "unless it only reads" if needs == "destructive" else "always" if needs else "never"


def instance_state(made: ToolDefinition, found: FunctionSpec) -> dict[str, Any]:
    """The `__dict__` of a tool, including the attributes that Python expects of functions, such as `__wrapped__`."""
    wire = wire_name(made.name)
    state: dict[str, Any] = {each: getattr(made, each) for each in ("func", "name", *FLAGS)}
    state |= {
        "desc": made.description,
        "wire_name": wire,
        "_given": made,
        "_found": found,
        "_checker": None,
        "_declaration": None,
    }
    state |= {"mcp": made.mcp, "takes_context": bool(found.context) or found.caller}
    state["says_once"] = made.says_effect and made.effect == "once"
    state["is_program"] = getattr(made.func, "is_program", False) is True
    for each in ("__name__", "__qualname__", "__module__", "__doc__"):
        value = getattr(made.func, each, None)
        if isinstance(value, str):
            state[each] = value
    state.setdefault("__name__", made.name)
    if made.func is not None:
        state["__wrapped__"] = made.func
    return state


def late_attribute(
    name: str,
    given: ToolDefinition,
    found: FunctionSpec,
    parameters: Callable[[], Parameters],
) -> Any:
    """An attribute computed each time it is read, so that changing the value cannot change the tool."""
    if name in OF_MCP:
        return copy.deepcopy(getattr(given.mcp, name, None))
    if name in _OF_ARGUMENTS and given.mcp is not None:
        from ferrule.schema.python_types import convert_input_schema_to_tool_args

        return convert_input_schema_to_tool_args(given.mcp.input_schema)[_OF_ARGUMENTS.index(name)]
    if name == "deps_type":
        return deps_type(given.func, found.context_hint)
    if name == "args":
        return copy.deepcopy(parameters().schema.get("properties", {}))
    if name == "arg_types":
        return {each.name: type_of(each) for each in found.parameters}
    if name == "arg_desc":
        docs = parameter_docs(found.doc)
        own = {
            each.name: description_in(field_of(each)) or docs.get(each.name)
            for each in found.parameters
        }
        texts = {each: said for each, said in given.args.items() if isinstance(said, str)}
        return {each: text for each, text in {**own, **texts, **given.arg_desc}.items() if text}
    raise AttributeError(f"`Tool` has no attribute `{name}`.")


def constructor_arguments(
    given: ToolDefinition,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The arguments of `Tool(...)` that make an equal tool, or one with these changes."""
    changed = {
        "desc" if name == "description" else name: value for name, value in (changes or {}).items()
    }
    made = {
        each: getattr(given, each)
        for each in ("name", "schema", "arg_types", "arg_desc", "mcp", *FLAGS)
    }
    made |= {"desc": given.description, "args": given.args or None}
    if not given.says_effect:
        made["effect"] = None
    if changed.keys().isdisjoint({"func", "callable"}):
        made["callable" if given.with_caller else "func"] = given.func
    return {**made, **changed}


def importable_name(tool: Any) -> str | None:
    """The name of a decorated function in its module, for pickling; None for any other tool."""
    place: Any = sys.modules.get(tool.__module__)
    name = getattr(tool, "__qualname__", "")
    for each in name.split("."):
        place = getattr(place, each, None)
    return name if place is tool else None


def bind_positional(
    tool: str,
    order: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """All arguments by name. Raises `TypeError` as a Python call does."""
    if len(args) > len(order):
        raise TypeError(
            f"{tool}() takes {len(order)} positional arguments but {len(args)} were given",
        )
    named = dict(zip(order, args, strict=False))
    twice = [name for name in named if name in kwargs]
    if twice:
        raise TypeError(f"{tool}() got multiple values for argument {twice[0]!r}")
    return {**named, **kwargs}


def fill_context(
    found: FunctionSpec,
    arguments: CheckedArguments,
    context: Context[Any],
    caller: Any,
) -> CheckedArguments:
    """Put the `Context` and the caller into checked arguments, unless they are there already."""
    positional, named = arguments.positional, arguments.named
    if found.context and not any(
        isinstance(each, Context) for each in (*positional, named.get(found.context))
    ):
        if found.context_at is None:
            named = {**named, found.context: context}
        else:
            at = found.context_at + found.caller
            positional = (*positional[:at], context, *positional[at:])
    if found.caller and positional[0] is None:
        positional = (caller, *positional[1:])
    return CheckedArguments(positional, named, arguments.shown, arguments.repairs)


def split_context(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any], Context[Any] | None]:
    """Split the `Context` that a caller may pass among the arguments of a direct call from the other arguments."""
    found: list[Context[Any]] = [
        each for each in (*args, *kwargs.values()) if isinstance(each, Context)
    ]
    if not found:
        return args, kwargs, None
    own = found[0]
    return (
        tuple(each for each in args if each is not own),
        {name: each for name, each in kwargs.items() if each is not own},
        own,
    )


def bound_method(function: Any, instance: object | None, owner: type | None) -> Any:
    """The function of a tool bound as Python binds methods; None if it was not written in the body of the instance's class."""
    if isinstance(function, classmethod):
        return function.__get__(instance, owner)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if instance is None or not isinstance(function, FunctionType):
        return None
    home, _, _ = function.__qualname__.rpartition(".")
    kinds = type(instance).__mro__ + (
        instance.__mro__ if isinstance(instance, type) else ()
    )  # the second: `classmethod(tool)`
    is_method = any(
        each.__qualname__ == home and each.__module__ == function.__module__ for each in kinds
    )
    return function.__get__(instance, owner) if is_method else None
