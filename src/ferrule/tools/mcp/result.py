"""The result of a call to an MCP server.

An `MCPResult` holds every block in order, the structured value (checked and typed), and the content for a model: each fact once, never
bytes as text, and shortened in the middle if it is too long.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, assert_never, cast, get_args

from ferrule.errors import MCPProtocolError, MCPToolError, shown
from ferrule.tools.definition.mcp import as_plain
from ferrule.tools.mcp.blocks import Block, read_block
from ferrule.tools.mcp.safety import scrub
from ferrule.values.calls.call import ToolResult
from ferrule.values.content.convert import content_of
from ferrule.values.content.parts import Audio, Content, Image, Part, Text
from ferrule.values.encoding.encode import json_text
from ferrule.values.record import Record, field
from ferrule.values.schema.nodes import Schema, is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.tools.mcp.schema_check import SchemaCheck

ResultMode = Literal["auto", "content", "structured", "both"]
RESULT_MODES: tuple[ResultMode, ...] = get_args(ResultMode)
_MOST = 100_000
_SHORTEST_BYTES = 200
"""Characters. A shorter text does not count as bytes."""
_DEEPEST = 100
_BASE64 = re.compile(r"[A-Za-z0-9+/_\r\n-]+={0,2}\s*")
_UNREADABLE: Any = object()


class ShowRules(Record, kw_only=True):
    """How to check results and show them to a model."""

    result_mode: ResultMode = "auto"
    """What the model sees of a result with blocks and a structured value, and what a direct call returns. `auto` and `both` show both,
    `auto` equal content once; `structured` makes `MCPResult.value` the structured value, too. Images and audio are always shown."""
    most_characters: int | None = _MOST
    """The longest text shown; the middle of a longer one is cut out. None for no limit."""
    user_blocks: bool = False
    """Whether to show the model blocks that are for the user only."""
    fence: bool = False
    """Whether to show text between two lines that name the server and call it data."""
    strict_output: bool = False
    """Whether a structured value that does not fit the output schema is an error rather than a warning."""
    result_type: Any = None
    """The type of `MCPResult.typed`; None for a model made from the output schema."""


class MCPResult(Record):
    """The whole result of one call."""

    blocks: tuple[Block, ...]
    """Every content block, in the server's order."""
    structured: Any = None
    """`structuredContent`, unchanged; None if there is none, or if it is null."""
    has_structured: bool = False
    """Whether there is a structured value, perhaps null."""
    is_error: bool = False
    """Whether the tool reported an error."""
    meta: dict[str, Any] | None = None
    content: Content = field(default="", repr=False)
    """The content for a model."""
    problems: tuple[str, ...] = ()
    """Why the structured value does not fit the output schema."""
    output_schema: Schema | None = field(default=None, compare=False, repr=False)
    result_type: Any = field(default=None, compare=False, repr=False)
    result_mode: ResultMode = field(default="auto", compare=False, repr=False)

    @property
    def text(self) -> str:
        """All text blocks, joined by line breaks; without any, the structured value as JSON."""
        texts = [each.text for each in self.blocks if each.text is not None]
        return "\n".join(texts) if texts or not self.has_structured else json_text(self.structured)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images, also of embedded resources."""
        return tuple(each.part for each in self.blocks if isinstance(each.part, Image))

    @property
    def audio(self) -> tuple[Audio, ...]:
        """The audio, also of embedded resources."""
        return tuple(each.part for each in self.blocks if isinstance(each.part, Audio))

    @property
    def resources(self) -> tuple[Block, ...]:
        """Embedded resources and resource links."""
        return tuple(each for each in self.blocks if each.type in {"resource", "resource_link"})

    @property
    def value(self) -> Any:
        """What a direct call returns: the text of a single text block, otherwise a list of texts and other blocks.

        Other blocks are content parts, or the server's JSON if there is no such part. Without blocks, and with
        `result_mode="structured"`, it is the structured value, if there is one.
        """
        if self.has_structured and (not self.blocks or self.result_mode == "structured"):
            return self.structured
        found = [_as_value(each) for each in self.blocks]
        return found[0] if len(found) == 1 and isinstance(found[0], str) else found

    @property
    def typed(self) -> Any:
        """The structured value as `result_type` or a model made from the output schema; unchanged if neither fits."""
        from ferrule.values.schema.python_types import typed_value

        return self.structured if self.structured is None else typed_value(self.structured, self.output_schema, self.result_type)

    def as_tool_result(
        self, name: str, content: Content | None = None, *, server: str | None = None, tool: str | None = None
    ) -> ToolResult:
        """A `ToolResult` with this result as its `value`; `content` is what the model sees instead of the result's own."""
        error = self.error(server=server, tool=tool) if self.is_error else None
        return ToolResult(name, self.content if content is None else content, is_error=self.is_error, value=self, error=error)

    def error(self, *, server: str | None = None, tool: str | None = None) -> MCPToolError:
        """The error of a result with `is_error`."""
        said = self.text or "it gave no reason"
        where = f" of the MCP server `{server}`" if server else ""
        return MCPToolError(
            f"`{tool or 'the tool'}`{where} failed: {_cut(said, _MOST)}", server=server, tool=tool, phase="call", may_have_run=True
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
    """A result from what a call returned; `reader` fetches linked resources.

    Raises `MCPProtocolError` for anything but a result and, with `strict_output`, for a structured value that does not fit the schema.
    Without `strict_output` such a value is kept, with a `UserWarning` that names server, tool and problem.
    """
    rules = rules if rules is not None else ShowRules()
    found = _fields(raw)
    if found is None:
        msg = f"`{tool or 'A tool'}` of the MCP server `{server}` sent an invalid result: {shown(raw)}."
        raise MCPProtocolError(msg, server=server, tool=tool, phase="call", may_have_run=True, data=raw)
    content: Any = found.get("content")
    blocks = tuple(read_block(each, reader) for each in _listed(content))
    name = next((each for each in ("structuredContent", "structured_content") if each in found), None)
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
            raise MCPProtocolError(f"T{msg[1:]}.", server=server, tool=tool, phase="call", may_have_run=True, data=structured)
        warnings.warn(f"{msg}. It is kept as it came.", UserWarning, stacklevel=2)
    meta: Any = found.get("_meta", found.get("meta"))
    return MCPResult(
        blocks=blocks,
        structured=structured,
        has_structured=name is not None,
        is_error=is_error,
        meta=meta if is_object(meta) else None,
        content=_content(blocks, structured, rules, is_absent=name is None),
        problems=problems,
        output_schema=output_schema,
        result_type=rules.result_type,
        result_mode=rules.result_mode,
    )


def asks_for_input(raw: Any) -> bool:
    """Whether it is a server's questions (`InputRequiredResult` of revision 2026-07-28) rather than a result."""
    kind = cast("Mapping[str, Any]", raw).get("resultType") if isinstance(raw, Mapping) else getattr(raw, "result_type", None)
    return kind == "input_required"


# -- reading --------------------------------------------------------------------------------------------------------


def _fields(raw: Any) -> Mapping[str, Any] | None:
    plain = as_plain(raw)
    if isinstance(plain, Mapping):
        return cast("Mapping[str, Any]", plain)
    names = ("content", "structuredContent", "structured_content", "isError", "is_error", "_meta", "meta")
    found = {name: getattr(raw, name) for name in names if hasattr(raw, name)}
    return found if "content" in found else None


def _listed(content: Any) -> Sequence[Any]:
    if content is None:
        return ()
    # Some servers send one block, or a bare text, where a list belongs.
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    return cast("Sequence[Any]", content) if isinstance(content, (list, tuple)) else (content,)


def output_problems(structured: Any, schema: Schema) -> tuple[str, ...]:
    """Why a structured result does not fit an output schema; empty if it does."""
    return _check_of(json_text(schema))(structured)


@lru_cache(maxsize=512)
def _check_of(schema: str) -> SchemaCheck:
    """The check of a schema, built once for all calls of a tool."""
    from ferrule.tools.mcp.schema_check import SchemaCheck

    return SchemaCheck(json.loads(schema))


def _as_value(block: Block) -> Any:
    if block.text is not None:
        return block.text
    return block.part if block.part is not None else block.raw


# -- showing --------------------------------------------------------------------------------------------------------


def _content(blocks: tuple[Block, ...], structured: Any, rules: ShowRules, *, is_absent: bool) -> Content:
    seen = [each for each in blocks if rules.user_blocks or not each.is_for_user_only]
    mode = rules.result_mode
    # Beside blocks a null says nothing: some servers send it where they mean no structured value.
    repeats = "" if is_absent else "blocks" if structured is None else _repeated_by(structured, blocks)
    shows = not is_absent and _shows_structured(mode, repeats, has_blocks=bool(seen))
    replaces = shows and (mode == "structured" or (mode == "auto" and repeats == "json"))
    parts = [part for each in seen if not (replaces and each.type == "text" and each.text is not None) for part in each.shown()]
    if shows:
        parts.append(Text(text=json_text(_without_bytes(structured))))
    if blocks and not seen and not parts:
        parts.append(Text(text="(The result is for the user's eyes only.)"))
    parts = _within(parts, rules.most_characters)
    return content_of(_join([Text(text=scrub(each.text)) if isinstance(each, Text) else each for each in parts]))


def _shows_structured(mode: ResultMode, repeats: str, *, has_blocks: bool) -> bool:
    match mode:
        case "structured" | "both":
            return True
        case "content":
            return not has_blocks
        case "auto":
            return repeats != "blocks" or not has_blocks
    assert_never(mode)


def _join(parts: list[Part]) -> list[Part]:
    """The parts, with a line break between adjacent texts."""
    return [
        Text(text=f"{each.text}\n") if isinstance(each, Text) and i + 1 < len(parts) and isinstance(parts[i + 1], Text) else each
        for i, each in enumerate(parts)
    ]


def _repeated_by(structured: Any, blocks: tuple[Block, ...]) -> Literal["json", "blocks", ""]:
    """How the blocks repeat the structured value: as its JSON text, as its contents, or not at all."""
    texts = [each.text or "" for each in blocks if each.type == "text"]
    if len(texts) == 1 and _read(texts[0]) == structured:
        return "json"
    if not is_object(structured) or len(structured) != 1 or not blocks:
        return ""
    [inside] = structured.values()
    if isinstance(inside, str):
        return "blocks" if inside == "\n".join(texts) else ""
    same = inside in (
        [each.raw for each in blocks],
        texts,
        [_read(each) for each in texts],
        *map(_read, texts[:1] if len(blocks) == 1 else ()),
    )
    return "blocks" if same else ""


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _UNREADABLE


def _without_bytes(value: Any, depth: int = 0) -> Any:
    """A structured value with long base64 texts replaced by their size: an image as text is useless and costs a prompt."""
    if isinstance(value, str):
        return f"[{len(value) * 3 // 4} bytes]" if _is_bytes(value) else value
    if depth > _DEEPEST:
        return value
    if is_list(value):
        return [_without_bytes(each, depth + 1) for each in value]
    if is_object(value):
        return {name: _without_bytes(each, depth + 1) for name, each in value.items()}
    return value


def _is_bytes(text: str) -> bool:
    if len(text) < _SHORTEST_BYTES:
        return False
    body = text.partition(";base64,")[2] if text.startswith("data:") else text
    return _is_mixed(body) and _BASE64.fullmatch(body) is not None


def _is_mixed(text: str) -> bool:
    """Whether it starts with digits and letters of both cases: a long line of one letter is no bytes."""
    head = text[:_SHORTEST_BYTES]
    return any(each.isdigit() for each in head) and any(each.isupper() for each in head) and any(each.islower() for each in head)


def _within(parts: list[Part], most: int | None) -> list[Part]:
    if most is None or sum(len(each.text) for each in parts if isinstance(each, Text)) <= most:
        return parts
    left, made = most, list[Part]()
    for each in parts:
        if isinstance(each, Text):
            made.append(Text(text=_cut(each.text, left)))
            left = max(left - len(each.text), 0)
        else:
            made.append(each)
    return made


def _cut(text: str, most: int) -> str:
    """A text cut to `most` characters of its beginning and end, with a mark that says how much is missing."""
    if len(text) <= most:
        return text
    tail = most // 5
    mark = f"\n… [{len(text) - most} of {len(text)} characters left out here; the whole is kept in the result] …\n"
    return text[: most - tail] + mark + (text[-tail:] if tail else "")
