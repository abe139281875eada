"""The result of a call to an MCP server, whole.

In: what `tools/call` returned, as the SDK's object or as plain data. Out: an `MCPResult` that holds every block in order, the structured
value, checked and typed, and the content that a model is shown: each thing once, bytes never as text, cut where it is too long.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, assert_never, cast

from ferrule.errors import MCPProtocolError, MCPToolError, shown
from ferrule.tools.definition.mcp import as_plain
from ferrule.tools.mcp.blocks import Block, block_of
from ferrule.tools.mcp.safety import scrubbed
from ferrule.values.calls.call import ToolResult
from ferrule.values.content.convert import content_of
from ferrule.values.content.parts import Audio, Content, Image, Part, Text
from ferrule.values.encoding.encode import json_text
from ferrule.values.record import Record, field
from ferrule.values.schema.nodes import Schema, is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.tools.mcp.argument_check import SchemaCheck

Structured = Literal["auto", "text", "structured", "both"]
_MOST = 100_000
_LONG = 200
"""Characters. A shorter text is not taken for bytes."""
_DEEPEST = 100
_BASE64 = re.compile(r"[A-Za-z0-9+/_\r\n-]+={0,2}\s*")
_BLANK: Any = object()


class ShowRules(Record, kw_only=True):
    """How results are checked and shown to a model."""

    structured: Structured = "auto"
    """Which to show where there are blocks and a structured value. `auto`: both, but what is the same only once. Pictures and sounds are
    always shown."""
    most_characters: int | None = _MOST
    """Of text shown; what is over is cut out of the middle. None for no limit."""
    user_blocks: bool = False
    """Whether blocks for the user's eyes only are shown to the model too."""
    fence: bool = False
    """Whether the model is shown its text between two lines that say whose it is, and that it is data."""
    strict_output: bool = False
    """Whether a structured value that breaks the tool's output schema is an error; else it is a warning."""
    result_type: Any = None
    """A type that pydantic knows, for `value`; None for one made of the output schema."""


class MCPResult(Record):
    """All that came back from one call."""

    blocks: tuple[Block, ...]
    """Every content block, in the server's order."""
    structured: Any = None
    """`structuredContent` as it came; None where there was none."""
    is_error: bool = False
    """The tool itself said that it failed."""
    meta: dict[str, Any] | None = None
    content: Content = field(default="", repr=False)
    """What a model is shown."""
    problems: tuple[str, ...] = ()
    """How the structured value breaks the output schema."""
    output_schema: Schema | None = field(default=None, compare=False, repr=False)
    result_type: Any = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """All text blocks, one below the other; without text, the structured value as JSON."""
        texts = [each.text for each in self.blocks if each.text is not None]
        return "\n".join(texts) if texts or self.structured is None else json_text(self.structured)

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures, those of embedded resources too."""
        return tuple(each.part for each in self.blocks if isinstance(each.part, Image))

    @property
    def audio(self) -> tuple[Audio, ...]:
        """The sounds, those of embedded resources too."""
        return tuple(each.part for each in self.blocks if isinstance(each.part, Audio))

    @property
    def resources(self) -> tuple[Block, ...]:
        """The embedded resources and the links to others."""
        return tuple(each for each in self.blocks if each.type in {"resource", "resource_link"})

    @property
    def value(self) -> Any:
        """What a direct call returns (seed 000, "MCP bridge"): the text of a single text block, else a list of texts and other blocks.

        Those are parts of ours where there is one for them, else as the server sent them. Without blocks, it is the structured value.
        """
        if not self.blocks and self.structured is not None:
            return self.structured
        found = [_as_value(each) for each in self.blocks]
        return found[0] if len(found) == 1 and isinstance(found[0], str) else found

    @property
    def typed(self) -> Any:
        """The structured value as an instance of `result_type`, or of a model made of the output schema; as it came where neither fits."""
        from ferrule.values.schema.python_types import typed_value

        return self.structured if self.structured is None else typed_value(self.structured, self.output_schema, self.result_type)

    def as_tool_result(self, name: str, *, server: str | None = None, tool: str | None = None) -> ToolResult:
        """The result for a loop, with this one as its `value`."""
        error = self.error(server=server, tool=tool) if self.is_error else None
        return ToolResult(name, self.content, is_error=self.is_error, value=self, error=error)

    def error(self, *, server: str | None = None, tool: str | None = None) -> MCPToolError:
        """The error of a result that is one."""
        said = self.text or "it gave no reason"
        where = f" of the MCP server `{server}`" if server else ""
        return MCPToolError(
            f"`{tool or 'the tool'}`{where} failed: {_cut(said, _MOST)}", server=server, tool=tool, phase="call", may_have_run=True
        )


def result_of(
    raw: Any,
    *,
    output_schema: Schema | None = None,
    rules: ShowRules | None = None,
    server: str | None = None,
    tool: str | None = None,
    reader: Callable[[str], Any] | None = None,
) -> MCPResult:
    """A result out of what a call returned; `reader` fetches what links lead to.

    Raises `MCPProtocolError` for what is no result at all, and, under `strict_output`, for a structured value that breaks the schema.
    Without that, a `UserWarning` names server, tool and problem, and the value is kept as it came.
    """
    rules = rules if rules is not None else ShowRules()
    found = _fields(raw)
    if found is None:
        msg = f"`{tool or 'A tool'}` of the MCP server `{server}` answered with what is no result: {shown(raw)}."
        raise MCPProtocolError(msg, server=server, tool=tool, phase="call", may_have_run=True, data=raw)
    content: Any = found.get("content")
    blocks = tuple(block_of(each, reader) for each in _listed(content))
    structured: Any = found.get("structuredContent", found.get("structured_content"))
    is_error = found.get("isError", found.get("is_error")) is True
    problems = _problems(structured, output_schema) if not is_error else ()
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
        is_error=is_error,
        meta=meta if is_object(meta) else None,
        content=_content(blocks, structured, rules),
        problems=problems,
        output_schema=output_schema,
        result_type=rules.result_type,
    )


def asks_for_input(raw: Any) -> bool:
    """Whether it is no result yet, but a server's questions (`InputRequiredResult` of revision 2026-07-28)."""
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


def _problems(structured: Any, schema: Schema | None) -> tuple[str, ...]:
    if schema is None:
        return ()
    if structured is None:
        return ("there is none, though the tool has an output schema",)
    return _check_of(json_text(schema))(structured)


@lru_cache(maxsize=512)
def _check_of(schema: str) -> SchemaCheck:
    """What checks against a schema, made once for all calls of a tool."""
    from ferrule.tools.mcp.argument_check import SchemaCheck

    return SchemaCheck(json.loads(schema))


def _as_value(block: Block) -> Any:
    if block.text is not None:
        return block.text
    return block.part if block.part is not None else block.raw


# -- showing --------------------------------------------------------------------------------------------------------


def _content(blocks: tuple[Block, ...], structured: Any, rules: ShowRules) -> Content:
    seen = [each for each in blocks if rules.user_blocks or not each.is_for_user_only]
    told = _told_in(structured, blocks) if structured is not None else ""
    shows = structured is not None and _shows_structured(rules.structured, told, has_blocks=bool(seen))
    replaces = shows and (rules.structured == "structured" or (rules.structured == "auto" and told == "json"))
    parts = [part for each in seen if not (replaces and each.type == "text" and each.text is not None) for part in each.shown()]
    if shows:
        parts.append(Text(text=json_text(_without_bytes(structured))))
    if blocks and not seen and not parts:
        parts.append(Text(text="(The result is for the user's eyes only.)"))
    return content_of(_joined([_clean(each) for each in _within(parts, rules.most_characters)]))


def _shows_structured(policy: Structured, told: str, *, has_blocks: bool) -> bool:
    match policy:
        case "structured" | "both":
            return True
        case "text":
            return not has_blocks
        case "auto":
            return told != "blocks" or not has_blocks
    assert_never(policy)


def _joined(parts: list[Part]) -> list[Part]:
    """A line break between texts that stand side by side: they would otherwise run into one another."""
    return [
        Text(text=f"{each.text}\n") if isinstance(each, Text) and i + 1 < len(parts) and isinstance(parts[i + 1], Text) else each
        for i, each in enumerate(parts)
    ]


def _clean(part: Part) -> Part:
    return Text(text=scrubbed(part.text)) if isinstance(part, Text) else part


def _told_in(structured: Any, blocks: tuple[Block, ...]) -> Literal["json", "blocks", ""]:
    """How the blocks tell what the structured value tells: as its JSON text; by being what is in it; or not at all."""
    texts = [each.text or "" for each in blocks if each.type == "text"]
    if len(texts) == 1 and _read(texts[0]) == structured:
        return "json"
    if not is_object(structured) or len(structured) != 1 or not blocks:
        return ""
    [inside] = structured.values()
    if isinstance(inside, str):
        return "blocks" if inside == "\n".join(texts) else ""
    same = is_list(inside) and inside in ([each.raw for each in blocks], texts, [_read(each) for each in texts])
    return "blocks" if same else ""


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _BLANK


def _without_bytes(value: Any, depth: int = 0) -> Any:
    """A structured value whose long base64 texts are replaced by their size: a picture as text costs a prompt and says nothing."""
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
    if len(text) < _LONG:
        return False
    body = text.partition(";base64,")[2] if text.startswith("data:") else text
    return _is_mixed(body) and _BASE64.fullmatch(body) is not None


def _is_mixed(text: str) -> bool:
    """Whether it has digits and letters of both kinds early on: a long line of one letter is no bytes."""
    head = text[:_LONG]
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
    """A text of at most so many characters, and the mark that says what was cut: most of its beginning, some of its end."""
    if len(text) <= most:
        return text
    tail = most // 5
    mark = f"\n… [{len(text) - most} of {len(text)} characters left out here; the whole is kept in the result] …\n"
    return text[: most - tail] + mark + (text[-tail:] if tail else "")
