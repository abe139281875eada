"""The content that a model sees for the result of a call to an MCP server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, assert_never, get_args

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.schema.nodes import is_list, is_object
from ferrule.tools.mcp.safety import scrub
from ferrule.values.content.convert import content_of
from ferrule.values.content.parts import Content, Part, Text

if TYPE_CHECKING:
    from ferrule.tools.mcp.blocks import Block

ResultMode = Literal["auto", "content", "structured", "both"]
RESULT_MODES: tuple[ResultMode, ...] = get_args(ResultMode)
_MOST = 100_000
_SHORTEST_BYTES = 200
"""In characters. A shorter text is not treated as bytes."""
_DEEPEST = 100
_BASE64 = re.compile(r"[A-Za-z0-9+/_\r\n-]+={0,2}\s*")
_UNREADABLE: Any = object()


class ShowRules(Struct, frozen=True, kw_only=True):
    """How to check results and show them to a model."""

    result_mode: ResultMode = "auto"
    """How a model sees a result that has blocks and a structured value.

    `auto` and `both` show both, and `auto` shows equal content only once; `structured` also makes
    the structured value the return value of direct calls. Images and audio are always shown."""
    most_characters: int | None = _MOST
    """The length of the longest text shown; the middle of a longer one is cut out.

    None for no limit."""
    user_blocks: bool = False
    """Whether the model also sees blocks that are for the user only."""
    fence: bool = False
    """Whether to show text between two lines that name the server and say that the text is data."""
    strict_output: bool = False
    """Whether a structured value that does not fit the output schema is an error, not a warning."""
    result_type: Any = None
    """The type of `MCPResult.typed`; None for a model made from the output schema."""


def shown_content(
    blocks: tuple[Block, ...], structured: Any, rules: ShowRules, *, is_absent: bool
) -> Content:
    """The content for a model: each fact once, no bytes as text, and no text that is too long."""
    visible = [block for block in blocks if rules.user_blocks or not block.is_for_user_only]
    mode = rules.result_mode
    repeats = ""
    if not is_absent:
        if structured is None:
            # Ignored if there are blocks: some servers send a null for the structured value that
            # they do not have.
            repeats = "blocks"
        else:
            repeats = _repeated_by(structured, blocks)
    shows = not is_absent and _shows_structured(mode, repeats, has_blocks=bool(visible))
    replaces_text = shows and (mode == "structured" or (mode == "auto" and repeats == "json"))
    parts: list[Part] = []
    for block in visible:
        if not (replaces_text and block.type == "text" and block.text is not None):
            parts.extend(block.shown())
    if shows:
        parts.append(Text(text=json_text(_without_bytes(structured))))
    if blocks and not visible and not parts:
        parts.append(Text(text="(The result is for the user's eyes only.)"))
    scrubbed: list[Part] = []
    for part in _within(parts, rules.most_characters):
        if isinstance(part, Text):
            scrubbed.append(Text(text=scrub(part.text)))
        else:
            scrubbed.append(part)
    return content_of(_join(scrubbed))


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
    joined: list[Part] = []
    for part, following in zip(parts, [*parts[1:], None], strict=False):
        if isinstance(part, Text) and isinstance(following, Text):
            joined.append(Text(text=f"{part.text}\n"))
        else:
            joined.append(part)
    return joined


def _repeated_by(structured: Any, blocks: tuple[Block, ...]) -> Literal["json", "blocks", ""]:
    """How the blocks repeat the structured value.

    They do so as its JSON text, as its contents, or not at all.
    """
    texts = [block.text or "" for block in blocks if block.type == "text"]
    if len(texts) == 1 and _read(texts[0]) == structured:
        return "json"
    if not is_object(structured) or len(structured) != 1 or not blocks:
        return ""
    [inside] = structured.values()
    if isinstance(inside, str):
        return "blocks" if inside == "\n".join(texts) else ""
    forms: list[Any] = [[block.raw for block in blocks], texts, [_read(text) for text in texts]]
    if len(blocks) == 1 and texts:
        forms.append(_read(texts[0]))
    return "blocks" if inside in forms else ""


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _UNREADABLE


def _without_bytes(value: Any, depth: int = 0) -> Any:
    """A structured value with long base64 texts replaced by their size.

    An image as text is useless, and fills the prompt.
    """
    if isinstance(value, str) and _is_bytes(value):
        return f"[{len(value) * 3 // 4} bytes]"
    if depth > _DEEPEST:
        return value
    if is_list(value):
        return [_without_bytes(item, depth + 1) for item in value]
    if is_object(value):
        return {name: _without_bytes(item, depth + 1) for name, item in value.items()}
    return value


def _is_bytes(text: str) -> bool:
    if len(text) < _SHORTEST_BYTES:
        return False
    body = text
    if text.startswith("data:"):
        body = text.partition(";base64,")[2]
    return _is_mixed(body) and _BASE64.fullmatch(body) is not None


def _is_mixed(text: str) -> bool:
    """Whether a text starts with digits and letters of both cases.

    Bytes do so, and a long line of one letter does not.
    """
    head = text[:_SHORTEST_BYTES]
    return (
        any(character.isdigit() for character in head)
        and any(character.isupper() for character in head)
        and any(character.islower() for character in head)
    )


def _within(parts: list[Part], most: int | None) -> list[Part]:
    """The parts, with their texts cut to `most` characters together."""
    if most is None or sum(len(part.text) for part in parts if isinstance(part, Text)) <= most:
        return parts
    remaining = most
    cut_parts: list[Part] = []
    for part in parts:
        if isinstance(part, Text):
            cut_parts.append(Text(text=abridged(part.text, remaining)))
            remaining = max(remaining - len(part.text), 0)
        else:
            cut_parts.append(part)
    return cut_parts


def abridged(text: str, most: int = _MOST) -> str:
    """A text cut to `most` characters from its start and end, with a note on what is missing."""
    if len(text) <= most:
        return text
    tail = most // 5
    mark = (
        f"\n… [{len(text) - most} of {len(text)} characters left out here; "
        "the whole is kept in the result] …\n"
    )
    return text[: most - tail] + mark + text[len(text) - tail :]
