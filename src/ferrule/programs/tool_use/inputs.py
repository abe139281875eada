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
from ferrule.tools.definition.export import wire_name
from ferrule.tools.definition.inspect_function import name_of
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from ferrule.values.signatures.signature import Signature

_PARAMETERS = ("parameters", "inputSchema", "input_schema")
_OF_SCHEMAS = frozenset({"type", "properties", "$ref", "anyOf", "oneOf", "allOf"})
_NOT_IN_SCHEMA = frozenset({"name", "required", "optional"})


def declare_tools(
    signature: type[Signature],
    inputs: Mapping[str, Any],
    own: Toolbox,
) -> tuple[Mapping[str, Any], Toolbox]:
    """The inputs with every declaration made into a `Tool`; and the tools of one call: the program's own, then those of the inputs.

    The values passed are not changed. A field that is missing, None or empty declares no tools.
    """
    fields = tool_inputs(signature)
    made = dict(inputs)
    found: list[Tool] = []
    names = {name for tool in own for name in (tool.name, tool.wire_name)}
    for field, is_list in fields.items():
        given = inputs.get(field)
        if given is None:
            continue
        tools = [
            _Spec(field, index if is_list else None, each).tool()
            for index, each in enumerate(_each(field, given, is_list=is_list))
        ]
        for index, tool in enumerate(tools):
            if not names.isdisjoint((tool.name, tool.wire_name)):
                raise _invalid(
                    field,
                    index,
                    "duplicate_name",
                    f"there is another tool named `{tool.name}`",
                    tool,
                    tool=tool.name,
                )
            names |= {tool.name, tool.wire_name}
        made[field] = tools if is_list else tools[0]
        found += tools
    return made, Toolbox((*own, *found)) if found else own


def _each(field: str, given: Any, *, is_list: bool) -> list[Any]:
    if not is_list:
        if isinstance(given, (list, tuple, Toolbox)):
            raise _invalid(
                field,
                None,
                "single_expected",
                "one tool is expected, found several",
                given,
            )  # pyright: ignore[reportUnknownArgumentType]
        return [given]
    if (
        isinstance(given, (str, bytes, Mapping, Tool))
        or callable(given)
        or not isinstance(given, Iterable)
    ):
        raise _invalid(
            field,
            None,
            "list_expected",
            f"a list of tools is expected, found {shown(cast('object', given))}",
            given,
        )
    return list(cast("Iterable[Any]", given))


def _invalid(
    field: str,
    index: int | None,
    reason: str,
    problem: str,
    raw: Any,
    *,
    tool: str | None = None,
) -> ToolCallError:
    at = f"`{field}`" if index is None else f"`{field}[{index}]`"
    return ToolCallError(
        "invalid_tool_spec",
        f"{at} declares no tool: {problem}.",
        raw=raw,
        index=index,
        tool=tool,
        reason=reason,
    )


class _Spec:
    """One value that declares a tool, with its place in the inputs."""

    def __init__(self, field: str, index: int | None, given: Any) -> None:
        self.field = field
        self.index = index
        self.given = given
        self.name: str | None = None

    def tool(self) -> Tool:
        """Make the tool. Its schema is built here, so that a fault in it is raised here."""
        given = self.given
        try:
            made = (
                self._from_description(given)
                if isinstance(given, Mapping) or _is_of_mcp(given)
                else Tool.of(given)
            )
            _ = made.declaration
        except ToolDefinitionError as error:
            reason = (
                "invalid_parameters"
                if isinstance(given, (Mapping, Tool)) or callable(given)
                else "unsupported_value"
            )
            if (
                reason == "invalid_parameters"
                and not isinstance(given, (Mapping, Tool))
                and not name_of(given)
            ):
                reason = "invalid_name"  # a lambda
            raise self._fault(reason, str(error).rstrip(".")) from error
        return made

    def _fault(self, reason: str, problem: str) -> ToolCallError:
        return _invalid(self.field, self.index, reason, problem, self.given, tool=self.name)

    def _from_description(self, given: Any) -> Tool:
        """A tool without a function: it can be declared, but not run."""
        body = _attributes(given)
        if body.get("type") == "function" and isinstance(body.get("function"), Mapping):
            body = cast("Mapping[str, Any]", body["function"])
        key = next((each for each in _PARAMETERS if each in body), _PARAMETERS[0])
        missing = [each for each in ("name", "description", key) if each not in body]
        if missing:
            raise self._fault(
                "missing_key",
                f"it has no {', '.join(f'`{each}`' for each in missing)}; found {shown(given)}",
            )
        name, description = body["name"], body["description"]
        if not isinstance(name, str):
            raise self._fault("invalid_name", f"a name is a text, found {kind_of(name)}")
        self.name = name
        try:
            wire_name(name)
        except ToolDefinitionError as error:
            raise self._fault("invalid_name", str(error).rstrip(".")) from error
        if description is not None and not isinstance(description, str):
            raise self._fault(
                "invalid_description",
                f"a description is a text, found {kind_of(description)}",
            )
        schema = self._schema(body[key])
        try:
            json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:  # a cycle raises ValueError
            raise self._fault(
                "invalid_parameters",
                f"the parameters are not JSON: {error}",
            ) from error
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
            pairs = [
                (_attributes(each).get("name"), each) for each in cast("Sequence[Any]", parameters)
            ]
            return self._schema_of_arguments(pairs)
        raise self._fault(
            "invalid_parameters",
            f"parameters are a JSON schema, or a list of arguments, found {kind_of(parameters)}",
        )

    def _schema_of_arguments(self, arguments: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        for name, said in arguments:
            if not isinstance(name, str) or not name or not isinstance(said, (str, Mapping)):
                raise self._fault(
                    "invalid_parameters",
                    f"an argument has a name and a schema, found {shown(said)}",
                )
            if name in properties:
                raise self._fault("invalid_parameters", f"there are two arguments named `{name}`")
            about: Mapping[str, Any] = (
                {"description": said} if isinstance(said, str) else cast("Mapping[str, Any]", said)
            )
            properties[name] = {
                key: value
                for key, value in about.items()
                if key not in _NOT_IN_SCHEMA or isinstance(value, list)
            }
            if (
                about.get("required", not about.get("optional") and "default" not in about)
                is not False
            ):
                required.append(name)
        return _object(properties, required)


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _is_schema(said: Mapping[str, Any]) -> bool:
    """Whether a mapping is a schema, not arguments by name. Arguments may be called `type` or `properties`, but then hold schemas."""
    return isinstance(said.get("type"), str) or any(
        key in said
        and not (isinstance(said[key], Mapping) and isinstance(said[key].get("type"), str))
        for key in _OF_SCHEMAS - {"type"}
    )


def _is_of_mcp(given: Any) -> bool:
    """Whether this is a tool as an MCP server lists it: `name`, `description`, `inputSchema` (MCP 2025-11-25, server/tools)."""
    return (
        not isinstance(given, Tool)
        and any(hasattr(given, each) for each in _PARAMETERS[1:])
        and hasattr(given, "name")
    )


def _attributes(given: Any) -> Mapping[str, Any]:
    """A description's keys, or an object's attributes with the same names. In MCP a missing description is None."""
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given)
    return {
        key: getattr(given, key)
        for key in ("name", "description", *_PARAMETERS)
        if hasattr(given, key)
    }
