"""The contents of a tool: its state, the attributes computed from it, copies and equality."""

from __future__ import annotations

import copy
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.schema.python_types import convert_input_schema_to_tool_args
from ferrule.tools.definition.deps import deps_type
from ferrule.tools.definition.inspect_function import (
    FunctionSpec,
    description_in,
    field_of,
    parameter_docs,
)
from ferrule.tools.definition.options import ALIASES
from ferrule.tools.definition.parameters import type_of
from ferrule.values.calls.wire_name import wire_name
from ferrule.values.display import Displayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ferrule.tools.definition.constructor import ToolDefinition
    from ferrule.tools.definition.parameters import Parameters
    from ferrule.tools.mcp_definition import MCPDefinition

OPTION_ATTRIBUTES = (
    "mcp_server",
    "require_confirmation",
    "effect",
    "reconcile",
    "unknown",
    "timeout_s",
    "concurrent",
    "retries",
    "result",
    "within_s",
    "returns",
    "untrusted",
)
"""Options that are attributes of the tool, unchanged."""
STORED_FIELDS = ("func", "name", "desc", *OPTION_ATTRIBUTES)
"""The fields that are set from the start. The other ones, `args`, `arg_types` and `arg_desc`, are
computed when they are read, because they need the schema."""
_SERVER_ATTRIBUTES = ("title", "icons", "annotations", "output_schema", "meta", "execution")
"""Attributes that an MCP server gives its tools; None for other tools."""
_FUNCTION_ATTRIBUTES = ("__name__", "__qualname__", "__module__", "__doc__")


class _SchemaAttribute(property):
    """`tool.schema` is the schema of the arguments; `Tool.schema()` is pydantic's method."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return cast("Any", owner).model_json_schema
        return instance.parameters


class _DescriptionAttribute(property):
    """`tool.description` is the tool's; `Tool.description()` describes the type of a field."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return _describe_type
        return instance.desc


def _describe_type() -> str:
    return "A tool that can be called, with its name, description and arguments."


class ToolAttributes(Displayed):
    """The attributes of a tool besides its fields. All are read-only; mutable values are copies."""

    description = _DescriptionAttribute()

    if TYPE_CHECKING:
        name: str
        desc: str
        effect: str
        require_confirmation: Any
        result: str
        untrusted: bool
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
        """The type of `deps` that it needs: the `X` of its `Context[X]`. Text if it is unknown at
        run time; `Any` if it declares none."""
        is_program: bool
        """Whether it is a program (`program.as_tool()`). Its acts are journalled, so calling it
        again after a crash repeats nothing."""
        _definition: ToolDefinition
        _function_spec: FunctionSpec
    else:
        schema = _SchemaAttribute()

        def __getattr__(self, name: str) -> Any:
            return _compute_attribute(name, self._definition, self._function_spec, self._parameters)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def display_rows(self) -> Iterator[tuple[str, Any]]:
        """Name, description, arguments and rules."""
        yield "name", self.name
        yield "description", self.desc
        yield "arguments", self.schema.get("properties", {})
        yield "effect", self.effect
        if self.result != "function":
            yield "result", f"from the {self.result}"
        if self.untrusted:
            yield "results", "untrusted: others may have written them"
        yield "confirmation", describe_confirmation(self.require_confirmation)
        for name in ("timeout_s", "within_s", "retries", "mcp_server"):
            value = getattr(self, name)
            if value is not None:
                yield name, value

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, ToolAttributes) and self._definition == other._definition

    def __hash__(self) -> int:
        return hash((self.name, self.desc))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # a tool is frozen

    def __reduce__(self) -> Any:
        # The function of `@tool` cannot be pickled: its name in the module is the tool's. Pickle
        # reads a text returned from here as the name of a global, which is then the tool itself.
        name = _importable_name(self)
        if name is not None:
            return name
        return partial(type(self), **constructor_arguments(self._definition)), ()


def describe_confirmation(requirement: Any) -> str:
    """When a call of a tool asks a person, in a few words."""
    if callable(requirement):
        return "depends on the arguments"
    if requirement == "destructive":
        return "unless it only reads"
    return "always" if requirement else "never"


def instance_state(definition: ToolDefinition, function_spec: FunctionSpec) -> dict[str, Any]:
    """The `__dict__` of a tool.

    It includes the attributes that Python expects of functions, such as `__wrapped__`, so that
    `inspect.signature` and `help` show a decorated function as itself.
    """
    function = definition.func
    state: dict[str, Any] = {
        "func": function,
        "name": definition.name,
        "desc": definition.description,
        "wire_name": wire_name(definition.name),
        "mcp": definition.mcp,
        "takes_context": bool(function_spec.context) or function_spec.caller,
        "says_once": definition.says_effect and definition.effect == "once",
        "is_program": getattr(function, "is_program", False) is True,
        "__name__": definition.name,
        "_definition": definition,
        "_function_spec": function_spec,
        "_checker": None,
        "_declaration": None,
    }
    for name in OPTION_ATTRIBUTES:
        state[name] = getattr(definition, name)
    if function is not None:
        for name in _FUNCTION_ATTRIBUTES:
            value = getattr(function, name, None)
            if isinstance(value, str):
                state[name] = value
        state["__wrapped__"] = function
    return state


def constructor_arguments(
    definition: ToolDefinition, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `Tool(...)` that make an equal tool, or one with these changes."""
    arguments: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "args": definition.args or None,
        "schema": definition.schema,
        "arg_types": definition.arg_types,
        "arg_desc": definition.arg_desc,
        "mcp": definition.mcp,
    }
    for name in OPTION_ATTRIBUTES:
        arguments[name] = getattr(definition, name)
    if not definition.says_effect:
        arguments["effect"] = None
    changes = dict(changes or {})
    if "func" not in changes and "callable" not in changes:
        # The spelling decides whether a first parameter `self` is filled by the caller.
        spelling = "callable" if definition.with_caller else "func"
        arguments[spelling] = definition.func
    for name, value in changes.items():
        if name not in {"func", "callable"}:
            name = ALIASES.get(name, name)  # noqa: PLW2901
        arguments[name] = value
    return arguments


def _compute_attribute(
    name: str,
    definition: ToolDefinition,
    function_spec: FunctionSpec,
    parameters: Callable[[], Parameters],
) -> Any:
    """An attribute computed each time it is read: changing the value cannot change the tool."""
    if name in _SERVER_ATTRIBUTES:
        return copy.deepcopy(getattr(definition.mcp, name, None))
    if name == "deps_type":
        return deps_type(definition.func, function_spec.context_hint)
    if name not in {"args", "arg_types", "arg_desc"}:
        raise AttributeError(f"`Tool` has no attribute `{name}`.")
    if definition.mcp is not None:
        # The function of such a tool takes anything: only the schema says more.
        args, arg_types, arg_desc = convert_input_schema_to_tool_args(definition.mcp.input_schema)
    else:
        args = copy.deepcopy(parameters().schema.get("properties", {}))
        arg_types = {parameter.name: type_of(parameter) for parameter in function_spec.parameters}
        arg_desc = _argument_descriptions(definition, function_spec)
    match name:
        case "args":
            return args
        case "arg_types":
            return arg_types
        case _:
            return arg_desc


def _argument_descriptions(
    definition: ToolDefinition, function_spec: FunctionSpec
) -> dict[str, str]:
    """The description of each parameter that has one. Options win over what the function says."""
    docs = parameter_docs(function_spec.doc)
    descriptions: dict[str, str | None] = {}
    for parameter in function_spec.parameters:
        name = parameter.name
        descriptions[name] = description_in(field_of(parameter)) or docs.get(name)
    args = definition.args.items()
    options = {name: text for name, text in args if isinstance(text, str)} | definition.arg_desc
    for name, text in options.items():
        # A parameter that `args` hides has no description.
        if name in descriptions or name in definition.args or function_spec.extra is not None:
            descriptions[name] = text
    return {name: description for name, description in descriptions.items() if description}


def _importable_name(tool: Any) -> str | None:
    """The name of a decorated function in its module, for pickling; None for any other tool."""
    name = getattr(tool, "__qualname__", "")
    value: Any = sys.modules.get(tool.__module__)
    for part in name.split("."):
        value = getattr(value, part, None)
    if value is not tool:
        return None
    return name
