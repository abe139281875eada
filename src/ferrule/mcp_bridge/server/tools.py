"""The tools that ferrule serves over MCP: tools, functions and programs as entries of `tools/list`.

A tool that came from another MCP server keeps that server's entry.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast
from uuid import UUID

from msgspec import Struct

from ferrule.errors import DuplicateToolError, ToolDefinitionError, shown
from ferrule.schema.inline import SchemaGenerator
from ferrule.tools.tool import Tool
from ferrule.values.content.type import Type
from ferrule.values.signatures.compiled import without_generated

if TYPE_CHECKING:
    from collections.abc import Callable

_WIRE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # revision 2025-11-25, "Tool names"
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class ServedTool(Struct, frozen=True):
    """One served tool."""

    name: str
    """The name on the wire."""
    tool: Tool
    output_schema: dict[str, Any] | None = None
    """The schema of `structuredContent`, or None."""
    wraps_result: bool = False
    """Whether `structuredContent` is `{"result": value}`, as the value is not an object."""
    program: Any = None
    """The program behind the tool, or None."""

    @property
    def entry(self) -> dict[str, Any]:
        """A new entry of `tools/list`, under the protocol's names."""
        entry: dict[str, Any] = {
            "annotations": _annotations(self.tool),
            "name": self.name,
            "description": self.tool.desc,
            "inputSchema": {"type": "object", **self.tool.parameters},
        }
        if self.output_schema is not None:
            entry["outputSchema"] = self.output_schema
        if self.tool.mcp is not None:  # from another server, whose words stay
            entry.update(self.tool.mcp.as_json())
        entry["name"] = self.name
        return entry


def served_tools(things: Any) -> dict[str, ServedTool]:
    """The served tools by name, from a list of tools and programs, or a mapping of names to them.

    Raises `ToolDefinitionError` for anything else, and `DuplicateToolError` if two have one name.
    """
    named: Iterable[tuple[str | None, Any]]
    if isinstance(things, Mapping):
        named = cast("Mapping[str, Any]", things).items()
    elif isinstance(things, Iterable) and not isinstance(things, (str, bytes)):
        named = ((None, thing) for thing in cast("Iterable[Any]", things))
    else:
        raise ToolDefinitionError(
            "A server takes a list of tools and programs, or a mapping of names to them; "
            f"found {shown(things)}."
        )
    by_name: dict[str, ServedTool] = {}
    for name, thing in named:
        served = serve_one(thing, name)
        if served.name in by_name:
            raise DuplicateToolError(
                f"Two tools would be served as `{served.name}`. "
                "Give one of them another name: serve({'name': tool, ...})."
            )
        by_name[served.name] = served
    return by_name


def serve_one(thing: Any, name: str | None = None) -> ServedTool:
    """A tool, function or program as a served tool, under its own name or `name`."""
    if isinstance(thing, ServedTool):
        return thing
    program: Any = None
    if _is_program(thing):
        program = thing
        tool = program_tool(program, name)
    else:
        tool = Tool.of(thing)
        if tool.is_program:  # `program.as_tool()`: a server returns all its outputs by name
            agent: Any = tool.func
            program = agent.program
            tool = tool.model_copy(update={"func": program_runner(program, agent)})
    if program is not None:
        output, wraps = _outputs_of(program)
    elif tool.mcp is not None:
        output, wraps = tool.mcp.output_schema, False
    else:
        output, wraps = _return_schema(tool.func)
    wire_name = _wire_name(tool, name)
    _ = tool.parameters  # raises now for a bad schema, not on the first request
    return ServedTool(wire_name, tool, output, wraps, program)


def _wire_name(tool: Tool, name: str | None) -> str:
    """The name on the wire.

    A name that the user chose is sent as it is, or refused; a tool's own name is made to fit.
    """
    wanted = name if name is not None else tool.name
    if _WIRE_NAME.fullmatch(wanted):
        return wanted
    if name is not None or not _WIRE_NAME.fullmatch(tool.wire_name):
        raise ToolDefinitionError(
            "The name of an MCP tool has 1 to 128 letters, digits, `_`, `-` and `.`; "
            f"found {shown(wanted)}."
        )
    return tool.wire_name


def program_tool(program: Any, name: str | None = None) -> Tool:
    """A program as a tool.

    Its arguments are the inputs of its signature, or the parameters of its `forward`.
    """
    signature = getattr(program, "signature", None)
    name = _program_name(program, signature, name)
    if signature is None:
        if program.is_async:
            forward = program.aforward
        else:
            forward = program.forward
        # Not `inspect.getdoc`, which takes an inherited docstring.
        description: str = forward.__doc__ or type(program).__doc__ or ""
        function = functools.wraps(forward)(program_runner(program, forward))
        return Tool(function, name, inspect.cleandoc(description))
    descriptions = {
        input_name: field.description
        for input_name, field in signature.plan.inputs.items()
        if field.description
    }
    function = program_runner(program, signature.plan.call_signature())
    return Tool(function, name, signature.instructions, arg_desc=descriptions)


def _program_name(program: Any, signature: Any, name: str | None) -> str:
    """The chosen name, the program's, or that of its signature or class; as `as_tool()`."""
    class_name = type(program).__name__
    if name:
        return name
    if program.name and program.name != class_name:
        return program.name
    signature_name = getattr(signature, "__name__", "StringSignature")
    is_unnamed = signature_name == "StringSignature"
    return _WORD_STARTS.sub("_", class_name if is_unnamed else signature_name).lower()


def program_runner(
    program: Any, like: Any, *, store: Any = None, run_id: str | None = None
) -> Callable[..., Any]:
    """A function that runs the program, with this signature or that of this function.

    With a `store` the run is kept there.
    """

    async def run(**arguments: Any) -> Any:
        inputs = without_generated(arguments)
        if store is None:
            return await program.acall(**inputs)
        return (await program.bind(**inputs).astart(store=store, run_id=run_id)).prediction

    function: Any = run
    if isinstance(like, inspect.Signature):
        signature = like
    else:
        signature = inspect.signature(like)
    function.__signature__ = signature
    function.__annotations__ = {
        parameter.name: parameter.annotation for parameter in signature.parameters.values()
    }
    return function


def _is_program(thing: Any) -> bool:
    # Programs cannot be imported here, so they are recognized by their methods.
    if isinstance(thing, (Tool, type)):
        return False
    methods = ("acall", "astart", "named_sub_modules")
    return all(callable(getattr(thing, method, None)) for method in methods)


def _annotations(tool: Tool) -> dict[str, Any] | None:
    """A tool's flags as hints. For missing hints clients assume the worst."""
    hints: dict[str, Any] = {}
    if tool.effect == "read":
        hints["readOnlyHint"] = True
    elif tool.require_confirmation:
        hints["destructiveHint"] = True
    if tool.effect == "idempotent":
        hints["idempotentHint"] = True
    return hints or None


def _outputs_of(program: Any) -> tuple[dict[str, Any] | None, bool]:
    signature = getattr(program, "signature", None)
    if signature is None:
        return _return_schema(program.aforward if program.is_async else program.forward)
    # Without required ones: a loop that runs out of steps may lack some. And a program may add to
    # its outputs (reasoning, say).
    schema = signature.plan.written_schema()
    schema.pop("additionalProperties", None)
    return schema, False


def _return_schema(function: Callable[..., Any] | None) -> tuple[dict[str, Any] | None, bool]:
    """The schema of a function's return annotation, and whether results must be wrapped.

    The schema is None if results of this type cannot be structured.
    """
    from pydantic import TypeAdapter, create_model
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

    target: Any = function
    if not inspect.isroutine(function):
        target = getattr(function, "__call__", None)  # noqa: B004  its own type hints are wanted
    if target is None:
        return None, False
    try:
        kind: Any = typing.get_type_hints(target, include_extras=True).get("return")
        wraps = not _has_fields(kind)
        if wraps and (kind is None or kind is NoneType or not _is_plain(kind)):
            return None, False
        if wraps:
            served_kind = create_model("Result", result=(kind, ...))
        else:
            served_kind = kind
        adapter = TypeAdapter[Any](served_kind)
        schema = adapter.json_schema(mode="serialization", schema_generator=SchemaGenerator)
    except (NameError, TypeError, AttributeError, PydanticUserError, PydanticInvalidForJsonSchema):
        return None, False
    if schema.get("type") == "object":
        return (schema, wraps)
    return (None, False)


_SCALARS = (str, int, float, NoneType, Enum, date, time, timedelta, Decimal, UUID)
_CONTAINERS = (list, tuple, set, frozenset, dict, Sequence, Mapping, Union, UnionType)


def _is_plain(kind: Any) -> bool:
    """Whether values of a type are data: no content for a model, and nothing unknown."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _is_plain(kind.__origin__)
    if origin in _CONTAINERS:
        return all(part is ... or _is_plain(part) for part in typing.get_args(kind))
    if origin is Literal or _has_fields(kind):
        return True
    return inspect.isclass(kind) and issubclass(kind, _SCALARS)


def _has_fields(kind: Any) -> bool:
    from pydantic import BaseModel
    from typing_extensions import is_typeddict

    if not inspect.isclass(kind) or issubclass(kind, Type):
        return False
    if issubclass(kind, BaseModel):
        return True
    return dataclasses.is_dataclass(cast("object", kind)) or is_typeddict(cast("object", kind))
