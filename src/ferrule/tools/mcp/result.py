"""The result of a call to an MCP server.

An `MCPResult` contains every block in order, the structured value (checked and typed), and the
content for a model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.errors import MCPProtocolError, MCPToolError, shown
from ferrule.record import CheckedStruct, PartlyCompared
from ferrule.schema.explain import SchemaCheck
from ferrule.schema.nodes import Schema, is_object
from ferrule.schema.python_types import typed_value
from ferrule.tools.mcp.blocks import Block, read_block
from ferrule.tools.mcp.showing import ResultMode, ShowRules, abridged, shown_content
from ferrule.tools.mcp_definition import as_plain
from ferrule.values.calls.call import ToolResult
from ferrule.values.content.parts import Audio, Content, Image

if TYPE_CHECKING:
    from collections.abc import Callable


class MCPResult(PartlyCompared, Struct, metaclass=CheckedStruct, frozen=True):
    """The whole result of one call."""

    _not_compared = frozenset({"output_schema", "result_type", "result_mode"})
    _not_shown = _not_compared | {"content"}

    blocks: tuple[Block, ...]
    """Every content block, in the server's order."""
    structured: Any = None
    """`structuredContent`, unchanged; None if there is none, or if it is null."""
    has_structured: bool = False
    """Whether there is a structured value, perhaps null."""
    is_error: bool = False
    """Whether the tool reported an error."""
    meta: dict[str, Any] | None = None
    content: Content = ""
    """The content for a model."""
    problems: tuple[str, ...] = ()
    """Why the structured value does not fit the output schema."""
    output_schema: Schema | None = None
    result_type: Any = None
    result_mode: ResultMode = "auto"

    @property
    def text(self) -> str:
        """All text blocks, joined by line breaks; without any, the structured value as JSON."""
        texts = [block.text for block in self.blocks if block.text is not None]
        if not texts and self.has_structured:
            return json_text(self.structured)
        return "\n".join(texts)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images, including those of embedded resources."""
        return tuple(block.part for block in self.blocks if isinstance(block.part, Image))

    @property
    def audio(self) -> tuple[Audio, ...]:
        """The audio, including that of embedded resources."""
        return tuple(block.part for block in self.blocks if isinstance(block.part, Audio))

    @property
    def resources(self) -> tuple[Block, ...]:
        """Embedded resources and resource links."""
        return tuple(block for block in self.blocks if block.type in {"resource", "resource_link"})

    @property
    def value(self) -> Any:
        """The return value of a direct call.

        If there is a structured value, and no block or `result_mode="structured"`, it is that
        value. Otherwise it is the text of a single text block, or a list with an item for each
        block: its text, its content part, or the server's JSON if it has neither.
        """
        if self.has_structured and (not self.blocks or self.result_mode == "structured"):
            return self.structured
        values = [_as_value(block) for block in self.blocks]
        if len(values) == 1 and isinstance(values[0], str):
            return values[0]
        return values

    @property
    def typed(self) -> Any:
        """The structured value as `result_type`, or as a model made from the output schema.

        It is unchanged if neither fits.
        """
        if self.structured is None:
            return None
        return typed_value(self.structured, self.output_schema, self.result_type)

    def as_tool_result(
        self,
        name: str,
        content: Content | None = None,
        *,
        server: str | None = None,
        tool: str | None = None,
    ) -> ToolResult:
        """A `ToolResult` with this result as its `value`.

        `content` is what the model sees instead of the result's own.
        """
        error: MCPToolError | None = None
        if self.is_error:
            error = self.error(server=server, tool=tool)
        if content is None:
            content = self.content
        return ToolResult(name, content, is_error=self.is_error, value=self, error=error)

    def error(self, *, server: str | None = None, tool: str | None = None) -> MCPToolError:
        """The error of a result with `is_error`."""
        reason = self.text or "it gave no reason"
        origin = ""
        if server:
            origin = f" of the MCP server `{server}`"
        return MCPToolError(
            f"`{tool or 'the tool'}`{origin} failed: {abridged(reason)}",
            server=server,
            tool=tool,
            phase="call",
            may_have_run=True,
        )


def read_result(
    raw: Any,
    *,
    output_schema: Schema | None = None,
    rules: ShowRules | None = None,
    server: str | None = None,
    tool: str | None = None,
    reader: Callable[[str], Any] | None = None,
) -> MCPResult:
    """Read the raw result of a call; `reader` fetches linked resources, by their addresses.

    Raises `MCPProtocolError` if it is not a result and, with `strict_output`, if its structured
    value does not fit the schema. Without `strict_output`, such a value is kept, with a
    `UserWarning` that names server, tool and problem.
    """
    if rules is None:
        rules = ShowRules()
    fields = _fields(raw)
    if fields is None:
        raise MCPProtocolError(
            f"`{tool or 'A tool'}` of the MCP server `{server}` sent an invalid result: "
            f"{shown(raw)}.",
            server=server,
            tool=tool,
            phase="call",
            may_have_run=True,
            data=raw,
        )
    blocks = tuple(read_block(block, reader) for block in _blocks_of(fields.get("content")))
    has_structured, structured = _read_structured(fields)
    # If in doubt, as with the text "true" or the number 1, the call failed.
    is_error = fields.get("isError", fields.get("is_error")) not in (None, False)
    problems: tuple[str, ...] = ()
    if not is_error and output_schema is not None:
        if has_structured:
            problems = output_problems(structured, output_schema)
        else:
            problems = ("there is none, though the tool has an output schema",)
    if problems:
        origin = "a tool"
        if tool:
            origin = f"`{tool}` of the MCP server `{server}`"
        text = (
            f"structured result of {origin} does not fit its output schema: {'; '.join(problems)}."
        )
        if rules.strict_output:
            raise MCPProtocolError(
                f"The {text}",
                server=server,
                tool=tool,
                phase="call",
                may_have_run=True,
                data=structured,
            )
        warnings.warn(f"the {text} It is kept unchanged.", UserWarning, stacklevel=2)
    meta: Any = fields.get("_meta", fields.get("meta"))
    return MCPResult(
        blocks=blocks,
        structured=structured,
        has_structured=has_structured,
        is_error=is_error,
        meta=meta if is_object(meta) else None,
        content=shown_content(blocks, structured, rules, is_absent=not has_structured),
        problems=problems,
        output_schema=output_schema,
        result_type=rules.result_type,
        result_mode=rules.result_mode,
    )


def asks_for_input(raw: Any) -> bool:
    """Whether a server answered a call with questions (`InputRequiredResult`, 2026-07-28)."""
    if isinstance(raw, Mapping):
        return cast("Mapping[str, Any]", raw).get("resultType") == "input_required"
    return getattr(raw, "result_type", None) == "input_required"


# -- reading


def _fields(raw: Any) -> Mapping[str, Any] | None:
    """The fields of a result: JSON, an object of the SDK, or one with its attributes."""
    plain = as_plain(raw)
    if isinstance(plain, Mapping):
        return cast("Mapping[str, Any]", plain)
    names = (
        "content",
        "structuredContent",
        "structured_content",
        "isError",
        "is_error",
        "_meta",
        "meta",
    )
    fields = {name: getattr(raw, name) for name in names if hasattr(raw, name)}
    if "content" not in fields:
        return None
    return fields


def _read_structured(fields: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether there is a structured value, and that value, which may be None all the same."""
    for name in ("structuredContent", "structured_content"):
        if name in fields:
            return True, fields[name]
    return False, None


def _blocks_of(content: Any) -> Sequence[Any]:
    if content is None:
        return ()
    if isinstance(content, (list, tuple)):
        return cast("Sequence[Any]", content)
    # Some servers send bare text, or one block, instead of a list.
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    return (content,)


def output_problems(structured: Any, schema: Schema) -> tuple[str, ...]:
    """Why a structured result does not fit an output schema; empty if it does."""
    return _check_of(json_text(schema))(structured)


@lru_cache(maxsize=512)
def _check_of(schema: str) -> SchemaCheck:
    """The check of a schema, built once for all calls of a tool."""
    return SchemaCheck(json.loads(schema))


def _as_value(block: Block) -> Any:
    if block.text is not None:
        return block.text
    if block.part is not None:
        return block.part
    return block.raw
