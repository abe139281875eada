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
from ferrule.schema.inline import Generator
from ferrule.tools.tool import Tool
from ferrule.values.signatures.compiled import given_inputs

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
        given = self.tool.mcp.as_json() if self.tool.mcp is not None else {}
        schema = {"type": "object", **self.tool.parameters}
        own: dict[str, Any] = {
            "name": self.name,
            "description": self.tool.desc,
            "inputSchema": schema,
        }
        if self.output_schema is not None:
            own["outputSchema"] = self.output_schema
        return {"annotations": _annotations(self.tool), **own, **given, "name": self.name}


def served_tools(things: Any) -> dict[str, ServedTool]:
    """The served tools by name, from a list of tools, functions and programs, or a mapping of names to them.

    Raises `ToolDefinitionError` for anything else, and `DuplicateToolError` if two have one name.
    """
    named: Iterable[tuple[str | None, Any]]
    if isinstance(things, Mapping):
        named = cast("Mapping[str, Any]", things).items()
    elif isinstance(things, Iterable) and not isinstance(things, (str, bytes)):
        named = ((None, each) for each in cast("Iterable[Any]", things))
    else:
        raise ToolDefinitionError(
            f"A server takes a list of tools and programs, or a mapping of names to them; found {shown(things)}.",
        )
    found: dict[str, ServedTool] = {}
    for name, thing in named:
        one = serve_one(thing, name)
        if one.name in found:
            msg = f"Two tools would be served as `{one.name}`. Give one of them another name: serve({{'name': tool, ...}})."
            raise DuplicateToolError(msg)
        found[one.name] = one
    return found


def serve_one(thing: Any, name: str | None = None) -> ServedTool:
    """A tool, function or program as a served tool, under its own name or `name`."""
    if isinstance(thing, ServedTool):
        return thing
    output: dict[str, Any] | None
    wraps = False
    program: Any = None
    if _is_program(thing):
        tool, program = program_tool(thing, name), thing
        output, wraps = _outputs_of(thing)
    else:
        tool = Tool.of(thing)
        if tool.is_program:  # `program.as_tool()`: a server returns all its outputs by name
            agent: Any = tool.func
            program = agent.program
            tool = tool.model_copy(update={"func": program_runner(program, agent)})
            output, wraps = _outputs_of(program)
        else:
            output, wraps = (
                (tool.mcp.output_schema, False)
                if tool.mcp is not None
                else _return_schema(tool.func)
            )
    wanted = name if name is not None else tool.name
    on_wire = wanted if _WIRE_NAME.fullmatch(wanted) else tool.wire_name
    if not _WIRE_NAME.fullmatch(on_wire) or (name is not None and on_wire != name):
        raise ToolDefinitionError(
            f"The name of an MCP tool has 1 to 128 letters, digits, `_`, `-` and `.`; found {shown(wanted)}.",
        )
    _ = tool.parameters  # raises now for a bad schema, not on the first request
    return ServedTool(on_wire, tool, output, wraps, program)


def program_tool(program: Any, name: str | None = None) -> Tool:
    """A program as a tool. Its arguments are the inputs of its signature, or the parameters of its `forward`."""
    signature = getattr(program, "signature", None)
    kind = getattr(signature, "__name__", "StringSignature")
    of_class = type(program).__name__
    given = name or (program.name if program.name != of_class else "")  # as `as_tool()`
    own = given or _WORD_STARTS.sub("_", of_class if kind == "StringSignature" else kind).lower()
    if signature is None:
        written = program.aforward if program.is_async else program.forward
        said: str = written.__doc__ or type(program).__doc__ or ""  # not an inherited one
        return Tool(
            functools.wraps(written)(program_runner(program, written)),
            own,
            inspect.cleandoc(said),
        )

    texts = {
        key: field.description for key, field in signature.plan.inputs.items() if field.description
    }
    return Tool(
        program_runner(program, signature.plan.call_signature()),
        own,
        signature.instructions,
        arg_desc=texts,
    )


def program_runner(
    program: Any,
    like: Any,
    *,
    store: Any = None,
    run_id: str | None = None,
) -> Callable[..., Any]:
    """A function that runs the program, with this signature or that of this function. With a `store` the run is kept there."""

    async def run(**arguments: Any) -> Any:
        inputs = given_inputs(arguments)
        if store is None:
            return await program.acall(**inputs)
        return (await program.bind(**inputs).astart(store=store, run_id=run_id)).prediction

    function: Any = run
    signature = like if isinstance(like, inspect.Signature) else inspect.signature(like)
    function.__signature__ = signature
    function.__annotations__ = {
        each.name: each.annotation for each in signature.parameters.values()
    }
    return function


def _is_program(thing: Any) -> bool:
    # Programs cannot be imported here, so they are recognized by their methods.
    return not isinstance(thing, (Tool, type)) and all(
        callable(getattr(thing, each, None)) for each in ("acall", "astart", "named_sub_modules")
    )


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
    schema = (
        signature.plan.written_schema()
    )  # without required ones: a loop that runs out of steps may lack some
    schema.pop("additionalProperties", None)  # a program may add to its outputs (reasoning, say)
    return schema, False


def _return_schema(function: Callable[..., Any] | None) -> tuple[dict[str, Any] | None, bool]:
    """The schema of a function's return annotation, if results of this type can be structured; and whether they must be wrapped."""
    from pydantic import TypeAdapter, create_model
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

    target = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004  its own type hints are wanted
    try:
        kind: Any = (
            typing.get_type_hints(target, include_extras=True).get("return")
            if target is not None
            else None
        )
        wraps = not _has_fields(kind)
        if wraps and (kind is None or kind is NoneType or not _is_plain(kind)):
            return None, False
        adapter = TypeAdapter[Any](create_model("Result", result=(kind, ...)) if wraps else kind)
        schema = adapter.json_schema(mode="serialization", schema_generator=Generator)
    except (NameError, TypeError, AttributeError, PydanticUserError, PydanticInvalidForJsonSchema):
        return None, False
    return (schema, wraps) if schema.get("type") == "object" else (None, False)


_SCALARS = (str, int, float, NoneType, Enum, date, time, timedelta, Decimal, UUID)
_CONTAINERS = (list, tuple, set, frozenset, dict, Sequence, Mapping, Union, UnionType)


def _is_plain(kind: Any) -> bool:
    """Whether values of a type are data: no content for a model, and nothing unknown."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _is_plain(kind.__origin__)
    if origin in _CONTAINERS:
        return all(each is ... or _is_plain(each) for each in typing.get_args(kind))
    return (
        origin is Literal
        or _has_fields(kind)
        or (inspect.isclass(kind) and issubclass(kind, _SCALARS))
    )


def _has_fields(kind: Any) -> bool:
    from pydantic import BaseModel
    from typing_extensions import is_typeddict

    from ferrule.values.content.type import Type

    if not inspect.isclass(kind) or issubclass(kind, Type):
        return False
    return (
        issubclass(kind, BaseModel)
        or dataclasses.is_dataclass(cast("object", kind))
        or is_typeddict(cast("object", kind))
    )
