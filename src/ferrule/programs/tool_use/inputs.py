"""Inputs that declare tools: `Tool` and `list[Tool]` fields of a signature.

A caller may pass tools, functions, LangChain tools, declarations as dicts (`{"name", "description",
"parameters"}`, bare or in OpenAI's form) and tools of an MCP server. Any other value raises
`ToolCallError` with the code `invalid_tool_spec`, before a model is asked; its `reason` is one of
`single_expected`, `list_expected`, `unsupported_value`, `missing_key`, `invalid_name`,
`invalid_description`, `invalid_parameters`, `duplicate_name`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ferrule.adapters.fields import tool_inputs
from ferrule.encoding.repair import kind_of
from ferrule.errors import ToolCallError, ToolDefinitionError, shown
from ferrule.tools.definition.inspect_function import name_of
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.wire_name import wire_name

if TYPE_CHECKING:
    from ferrule.values.signatures.signature import Signature

_PARAMETERS = ("parameters", "inputSchema", "input_schema")
_OF_SCHEMAS = frozenset({"type", "properties", "$ref", "anyOf", "oneOf", "allOf"})
_NOT_IN_SCHEMA = frozenset({"name", "required", "optional"})


def declare_tools(
    signature: type[Signature], inputs: Mapping[str, Any], toolbox: Toolbox
) -> tuple[Mapping[str, Any], Toolbox]:
    """The inputs with every declaration made into a `Tool`, and the tools of one call.

    These are the program's own, from `toolbox`, then those of the inputs. The values passed are not
    changed. A field that is missing, None or empty declares no tools.
    """
    converted = dict(inputs)
    declared: list[Tool] = []
    names = {name for tool in toolbox for name in (tool.name, tool.wire_name)}
    for field, is_list in tool_inputs(signature).items():
        value = inputs.get(field)
        if value is None:
            continue
        tools = [
            _Spec(field, index if is_list else None, spec).tool()
            for index, spec in enumerate(_specs(field, value, is_list=is_list))
        ]
        for index, tool in enumerate(tools):
            if not names.isdisjoint((tool.name, tool.wire_name)):
                problem = f"there is another tool named `{tool.name}`"
                raise _invalid(field, index, "duplicate_name", problem, tool, tool=tool.name)
            names |= {tool.name, tool.wire_name}
        converted[field] = tools if is_list else tools[0]
        declared += tools
    if declared:
        toolbox = Toolbox((*toolbox, *declared))
    return converted, toolbox


def _specs(field: str, value: Any, *, is_list: bool) -> list[Any]:
    """The values in an input that each declare a tool."""
    if not is_list:
        if isinstance(value, (list, tuple, Toolbox)):
            problem = "one tool is expected, found several"
            raise _invalid(field, None, "single_expected", problem, cast("object", value))
        return [value]
    is_single = isinstance(value, (str, bytes, Mapping, Tool)) or callable(value)
    if is_single or not isinstance(value, Iterable):
        problem = f"a list of tools is expected, found {shown(cast('object', value))}"
        raise _invalid(field, None, "list_expected", problem, cast("object", value))
    return list(cast("Iterable[Any]", value))


def _invalid(
    field: str, index: int | None, reason: str, problem: str, raw: Any, *, tool: str | None = None
) -> ToolCallError:
    if index is None:
        path = f"`{field}`"
    else:
        path = f"`{field}[{index}]`"
    return ToolCallError(
        "invalid_tool_spec",
        f"{path} declares no tool: {problem}.",
        raw=raw,
        index=index,
        tool=tool,
        reason=reason,
    )


class _Spec:
    """One value that declares a tool, with its place in the inputs."""

    def __init__(self, field: str, index: int | None, value: Any) -> None:
        self.field = field
        self.index = index
        self.value = value
        self.name: str | None = None

    def tool(self) -> Tool:
        """Make the tool. Its schema is built here, so that a fault in it is raised here."""
        value = self.value
        try:
            if isinstance(value, Mapping) or _is_of_mcp(value):
                tool = self._from_description(value)
            else:
                tool = Tool.of(value)
            _ = tool.declaration
        except ToolDefinitionError as error:
            raise self._fault(_reason_of_fault(value), str(error).rstrip(".")) from error
        return tool

    def _fault(self, reason: str, problem: str) -> ToolCallError:
        return _invalid(self.field, self.index, reason, problem, self.value, tool=self.name)

    def _from_description(self, value: Any) -> Tool:
        """A tool without a function: it can be declared, but not run."""
        body = _attributes(value)
        if body.get("type") == "function" and isinstance(body.get("function"), Mapping):
            body = cast("Mapping[str, Any]", body["function"])
        key = next((key for key in _PARAMETERS if key in body), _PARAMETERS[0])
        missing = [f"`{name}`" for name in ("name", "description", key) if name not in body]
        if missing:
            problem = f"it has no {', '.join(missing)}; found {shown(value)}"
            raise self._fault("missing_key", problem)
        name, description = body["name"], body["description"]
        if not isinstance(name, str):
            raise self._fault("invalid_name", f"a name is a text, found {kind_of(name)}")
        self.name = name
        try:
            wire_name(name)
        except ToolDefinitionError as error:
            raise self._fault("invalid_name", str(error).rstrip(".")) from error
        if description is not None and not isinstance(description, str):
            problem = f"a description is a text, found {kind_of(description)}"
            raise self._fault("invalid_description", problem)
        schema = self._schema(body[key])
        try:
            json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:  # a cycle raises ValueError
            problem = f"the parameters are not JSON: {error}"
            raise self._fault("invalid_parameters", problem) from error
        return Tool(name, description or "", None, schema)

    def _schema(self, parameters: Any) -> dict[str, Any]:
        """The schema of an object unchanged; or one made from a list or a mapping of arguments."""
        if parameters is None:
            return _object({}, [])
        if isinstance(parameters, Mapping):
            by_name = cast("Mapping[str, Any]", parameters)
            if _is_schema(by_name):
                return dict(by_name)
            return self._schema_of_arguments(list(by_name.items()))
        if isinstance(parameters, Sequence) and not isinstance(parameters, (str, bytes)):
            listed = cast("Sequence[Any]", parameters)
            return self._schema_of_arguments(
                [(_attributes(argument).get("name"), argument) for argument in listed]
            )
        problem = (
            f"parameters are a JSON schema, or a list of arguments, found {kind_of(parameters)}"
        )
        raise self._fault("invalid_parameters", problem)

    def _schema_of_arguments(self, arguments: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        for name, argument in arguments:
            is_named = isinstance(name, str) and bool(name)
            if not is_named or not isinstance(argument, (str, Mapping)):
                problem = f"an argument has a name and a schema, found {shown(argument)}"
                raise self._fault("invalid_parameters", problem)
            if name in properties:
                raise self._fault("invalid_parameters", f"there are two arguments named `{name}`")
            if isinstance(argument, str):
                argument = {"description": argument}  # noqa: PLW2901
            facts = cast("Mapping[str, Any]", argument)
            properties[name] = {
                key: value
                for key, value in facts.items()
                if key not in _NOT_IN_SCHEMA or isinstance(value, list)
            }
            is_optional = bool(facts.get("optional")) or "default" in facts
            if facts.get("required", not is_optional) is not False:
                required.append(name)
        return _object(properties, required)


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _reason_of_fault(value: Any) -> str:
    """The reason in the error for a value of which no tool can be made."""
    if isinstance(value, (Mapping, Tool)):
        return "invalid_parameters"
    if not callable(value):
        return "unsupported_value"
    return "invalid_parameters" if name_of(value) else "invalid_name"  # a lambda has no name


def _is_schema(parameters: Mapping[str, Any]) -> bool:
    """Whether a mapping is a schema, not arguments by name.

    Arguments may be called `type` or `properties`, but then hold schemas.
    """
    if isinstance(parameters.get("type"), str):
        return True
    keywords = parameters.keys() & (_OF_SCHEMAS - {"type"})
    return any(not _has_type(parameters[keyword]) for keyword in keywords)


def _has_type(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(
        cast("Mapping[str, Any]", value).get("type"), str
    )


def _is_of_mcp(value: Any) -> bool:
    """Whether this is a tool as an MCP server lists it.

    It has `name`, `description` and `inputSchema` (MCP 2025-11-25, server/tools).
    """
    if isinstance(value, Tool) or not hasattr(value, "name"):
        return False
    return any(hasattr(value, key) for key in _PARAMETERS[1:])


def _attributes(value: Any) -> Mapping[str, Any]:
    """A description's keys, or an object's attributes with the same names.

    In MCP a missing description is None.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    names = ("name", "description", *_PARAMETERS)
    return {name: getattr(value, name) for name in names if hasattr(value, name)}
