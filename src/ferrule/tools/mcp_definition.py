"""The definition of a tool by its MCP server: an entry of `tools/list`, checked and kept unchanged.

An entry is the SDK's object (1.x or 2.x) or plain data. The SDK is not imported: entries are read
by the names of their attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from ferrule.encoding.copied import copy_json
from ferrule.errors import ToolDefinitionError, shown
from ferrule.record import CheckedStruct
from ferrule.schema.nodes import Schema, is_list, is_object, map_children
from ferrule.schema.validator import schema_problem

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_PINNED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_NULLABLE = ("const", "default")
"""Keywords that may be null in JSON Schema."""


class MCPDefinition(Struct, metaclass=CheckedStruct, frozen=True):
    """One tool as its server declares it.

    The server may lie, so its hints protect against nothing.
    """

    name: str
    """The name in the protocol; the tool's own name may have a prefix."""
    input_schema: Schema
    """The schema of the arguments as the server gave it; without nulls if they made it invalid."""
    description: str = ""
    title: str | None = None
    """A name for people; by default `annotations["title"]`."""
    output_schema: Schema | None = None
    annotations: dict[str, Any] | None = None
    """`readOnlyHint`, `destructiveHint`, `idempotentHint`, `openWorldHint`, and others."""
    icons: list[dict[str, Any]] | None = None
    meta: dict[str, Any] | None = None
    """The protocol's `_meta`."""
    execution: dict[str, Any] | None = None
    """`{"taskSupport": ...}`, in revision 2025-11-25 only."""

    def hint(self, name: str) -> bool | None:
        """The value of a hint in the annotations; None if it is not given."""
        hint: Any = (self.annotations or {}).get(name)
        return hint if isinstance(hint, bool) else None

    @property
    def needs_task(self) -> bool:
        """Whether it can only be called as a task."""
        return (self.execution or {}).get("taskSupport") == "required"

    @property
    def pinned(self) -> dict[str, Any]:
        """The fields that a person agrees to: a change in one of them is another tool."""
        entry = self.as_json()
        return {key: entry[key] for key in _PINNED if key in entry}

    def as_json(self) -> dict[str, Any]:
        """The entry of `tools/list`: a copy, without fields that were not given."""
        return copy_json(self.entry)

    @property
    def entry(self) -> dict[str, Any]:
        """`as_json`, but its values are shared: do not change them."""
        fields = {
            "name": self.name,
            "title": self.title,
            "description": self.description or None,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": self.annotations,
            "icons": self.icons,
            "execution": self.execution,
            "_meta": self.meta,
        }
        return {key: value for key, value in fields.items() if value is not None}


def read_definition(entry: Any) -> MCPDefinition:
    """Read an entry of `tools/list`. Raises `ToolDefinitionError` for one that cannot be called."""
    if isinstance(entry, MCPDefinition):
        return entry
    name = _field(entry, "name")
    if not isinstance(name, str) or not name.strip():
        raise ToolDefinitionError(
            f"An MCP tool has a name and an `inputSchema`, found {shown(entry)}."
        )
    tool = f"The MCP tool {shown(name)} cannot be used:"
    annotations = _mapping(tool, "annotations", _field(entry, "annotations"))
    known = annotations or {}
    for hint in _HINTS:
        value = known.get(hint)
        if value not in (None, True, False):
            raise ToolDefinitionError(
                f"{tool} its annotation `{hint}` must be true or false, found {shown(value)}."
            )
    title = _text(tool, "title", _field(entry, "title"))
    if title is None and isinstance(known.get("title"), str):
        title = known["title"]
    schema = _field(entry, "inputSchema", "input_schema", "parameters")
    return MCPDefinition(
        name=name,
        input_schema=_input_schema(tool, schema),
        description=_text(tool, "description", _field(entry, "description")) or "",
        title=title,
        output_schema=_output_schema(tool, _field(entry, "outputSchema", "output_schema")),
        annotations=annotations,
        icons=_icons(_field(entry, "icons")),
        meta=_mapping(tool, "_meta", _field(entry, "_meta", "meta")),
        execution=_mapping(tool, "execution", _field(entry, "execution")),
    )


def as_plain(value: Any) -> Any:
    """An object of the SDK as plain data, with the protocol's names; other values unchanged."""
    dump = getattr(cast("object", type(value)), "model_dump", None)
    if callable(dump):
        plain = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        # A null is a value there, and differs from a missing field.
        names_of_structured = {"structuredContent", "structured_content"}
        if "structuredContent" not in plain and value.model_fields_set & names_of_structured:
            plain["structuredContent"] = None
        return plain
    if isinstance(value, (list, tuple)):
        return [as_plain(item) for item in cast("list[Any]", value)]
    return value


# -- its fields


def _field(entry: Any, *names: str) -> Any:
    """The value of the first name that the entry has, or None."""
    if isinstance(entry, Mapping):
        fields = cast("Mapping[str, Any]", entry)
        return next((fields[name] for name in names if name in fields), None)
    return next((getattr(entry, name) for name in names if hasattr(entry, name)), None)


def _text(tool: str, what: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ToolDefinitionError(f"{tool} its {what} must be text, found {shown(value)}.")
    return value


def _mapping(tool: str, what: str, value: Any) -> dict[str, Any] | None:
    plain = as_plain(value)
    if plain is None:
        return None
    if not isinstance(plain, Mapping):
        raise ToolDefinitionError(f"{tool} its `{what}` must be an object, found {shown(value)}.")
    return _copied(tool, dict(cast("Mapping[str, Any]", plain)))


def _icons(value: Any) -> list[dict[str, Any]] | None:
    plain = as_plain(value)
    if not is_list(plain):
        return None
    # Icons are for people: a broken one does not make the tool unusable.
    return [copy_json(icon) for icon in plain if is_object(icon)]


def _input_schema(tool: str, schema: Any) -> Schema:
    if not is_object(schema) or schema.get("type") != "object":
        raise ToolDefinitionError(
            f'{tool} its `inputSchema` must be a JSON schema with `"type": "object"`, '
            f"found {shown(schema)}."
        )
    problem = _problem(schema)
    if problem:  # perhaps only the nulls of a server that writes all keywords
        schema = _copied(tool, schema, _without_nulls)
        problem = _problem(schema)
    if problem:
        raise ToolDefinitionError(f"{tool} its `inputSchema` cannot be used: {problem}.")
    return _copied(tool, schema)


def _problem(schema: Schema) -> str | None:
    properties = schema.get("properties", {})
    if not is_object(properties):
        return f"`properties` must be an object, found {shown(properties)}"
    return schema_problem(schema)


def _without_nulls(schema: Any) -> Any:
    """The schema without the keywords that are null, except where JSON Schema allows null."""
    node = map_children(schema, _without_nulls)
    if not is_object(node):
        return node
    return {key: value for key, value in node.items() if value is not None or key in _NULLABLE}


def _output_schema(tool: str, schema: Any) -> Schema | None:
    if schema is None:
        return None
    problem = f"found {shown(schema)}"
    if is_object(schema):
        problem = schema_problem(schema)
    if problem:
        raise ToolDefinitionError(f"{tool} its `outputSchema` cannot be used: {problem}.")
    return _copied(tool, schema)


def _copied(tool: str, value: Any, copied: Callable[[Any], Any] = copy_json) -> Any:
    """A copy of its own: the server's object may change later."""
    try:
        return copied(value)
    except RecursionError:
        raise ToolDefinitionError(f"{tool} it is nested too deeply.") from None
