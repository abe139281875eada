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
from ferrule.record import PartlyCompared
from ferrule.schema.nodes import Schema, is_object
from ferrule.tools.mcp.blocks import Block, read_block
from ferrule.tools.mcp.showing import ResultMode, ShowRules, abridged, shown_content
from ferrule.tools.mcp_definition import as_plain
from ferrule.values.calls.call import ToolResult
from ferrule.values.content.parts import Audio, Content, Image

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.schema.explain import SchemaCheck


class MCPResult(PartlyCompared, Struct, frozen=True):
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
        texts = [each.text for each in self.blocks if each.text is not None]
        return "\n".join(texts) if texts or not self.has_structured else json_text(self.structured)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images, including those of embedded resources."""
        return tuple(each.part for each in self.blocks if isinstance(each.part, Image))

    @property
    def audio(self) -> tuple[Audio, ...]:
        """The audio, including that of embedded resources."""
        return tuple(each.part for each in self.blocks if isinstance(each.part, Audio))

    @property
    def resources(self) -> tuple[Block, ...]:
        """Embedded resources and resource links."""
        return tuple(each for each in self.blocks if each.type in {"resource", "resource_link"})

    @property
    def value(self) -> Any:
        """The return value of a direct call: the text of a single text block, otherwise a list of texts and other blocks.

        Other blocks are content parts, or the server's JSON if there is no such part. Without
        blocks, and with `result_mode="structured"`, it is the structured value, if there is one.
        """
        if self.has_structured and (not self.blocks or self.result_mode == "structured"):
            return self.structured
        found = [_as_value(each) for each in self.blocks]
        return found[0] if len(found) == 1 and isinstance(found[0], str) else found

    @property
    def typed(self) -> Any:
        """The structured value as `result_type` or a model made from the output schema; unchanged if neither fits."""
        from ferrule.schema.python_types import typed_value

        return (
            self.structured
            if self.structured is None
            else typed_value(self.structured, self.output_schema, self.result_type)
        )

    def as_tool_result(
        self,
        name: str,
        content: Content | None = None,
        *,
        server: str | None = None,
        tool: str | None = None,
    ) -> ToolResult:
        """A `ToolResult` with this result as its `value`; `content` is what the model sees instead of the result's own."""
        error = self.error(server=server, tool=tool) if self.is_error else None
        return ToolResult(
            name,
            self.content if content is None else content,
            is_error=self.is_error,
            value=self,
            error=error,
        )

    def error(self, *, server: str | None = None, tool: str | None = None) -> MCPToolError:
        """The error of a result with `is_error`."""
        said = self.text or "it gave no reason"
        where = f" of the MCP server `{server}`" if server else ""
        return MCPToolError(
            f"`{tool or 'the tool'}`{where} failed: {abridged(said)}",
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
    """Read the raw result of a call; `reader` fetches linked resources.

    Raises `MCPProtocolError` if it is not a result and, with `strict_output`, for a structured
    value that does not fit the schema. Without `strict_output` such a value is kept, with a
    `UserWarning` that names server, tool and problem.
    """
    rules = rules if rules is not None else ShowRules()
    found = _fields(raw)
    if found is None:
        msg = f"`{tool or 'A tool'}` of the MCP server `{server}` sent an invalid result: {shown(raw)}."
        raise MCPProtocolError(
            msg,
            server=server,
            tool=tool,
            phase="call",
            may_have_run=True,
            data=raw,
        )
    content: Any = found.get("content")
    blocks = tuple(read_block(each, reader) for each in _listed(content))
    name = next(
        (each for each in ("structuredContent", "structured_content") if each in found),
        None,
    )
    structured: Any = found[name] if name is not None else None
    is_error = found.get("isError", found.get("is_error")) is True
    if is_error or output_schema is None:
        problems: tuple[str, ...] = ()
    elif name is None:
        problems = ("there is none, though the tool has an output schema",)
    else:
        problems = output_problems(structured, output_schema)
    if problems:
        which = f"`{tool}` of the MCP server `{server}`" if tool else "a tool"
        msg = f"the structured result of {which} does not fit its output schema: {'; '.join(problems)}"
        if rules.strict_output:
            raise MCPProtocolError(
                f"T{msg[1:]}.",
                server=server,
                tool=tool,
                phase="call",
                may_have_run=True,
                data=structured,
            )
        warnings.warn(f"{msg}. It is kept as it came.", UserWarning, stacklevel=2)
    meta: Any = found.get("_meta", found.get("meta"))
    return MCPResult(
        blocks=blocks,
        structured=structured,
        has_structured=name is not None,
        is_error=is_error,
        meta=meta if is_object(meta) else None,
        content=shown_content(blocks, structured, rules, is_absent=name is None),
        problems=problems,
        output_schema=output_schema,
        result_type=rules.result_type,
        result_mode=rules.result_mode,
    )


def asks_for_input(raw: Any) -> bool:
    """Whether this contains a server's questions (`InputRequiredResult` of revision 2026-07-28) rather than a result."""
    kind = (
        cast("Mapping[str, Any]", raw).get("resultType")
        if isinstance(raw, Mapping)
        else getattr(raw, "result_type", None)
    )
    return kind == "input_required"


# -- reading
# --------------------------------------------------------------------------------------------------------


def _fields(raw: Any) -> Mapping[str, Any] | None:
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
    found = {name: getattr(raw, name) for name in names if hasattr(raw, name)}
    return found if "content" in found else None


def _listed(content: Any) -> Sequence[Any]:
    if content is None:
        return ()
    # Some servers send one block, or bare text, instead of a list.
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    return cast("Sequence[Any]", content) if isinstance(content, (list, tuple)) else (content,)


def output_problems(structured: Any, schema: Schema) -> tuple[str, ...]:
    """Why a structured result does not fit an output schema; empty if it does."""
    return _check_of(json_text(schema))(structured)


@lru_cache(maxsize=512)
def _check_of(schema: str) -> SchemaCheck:
    """The check of a schema, built once for all calls of a tool."""
    from ferrule.schema.explain import SchemaCheck

    return SchemaCheck(json.loads(schema))


def _as_value(block: Block) -> Any:
    if block.text is not None:
        return block.text
    return block.part if block.part is not None else block.raw
