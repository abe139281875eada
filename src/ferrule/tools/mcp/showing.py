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
    """How a model sees a result that has blocks and a structured value. `auto` and `both` show both, `auto` shows equal content only once;
    `structured` also makes the structured value the return value of direct calls. Images and audio are always shown."""
    most_characters: int | None = _MOST
    """The length of the longest text shown; the middle of a longer text is cut out. None for no limit."""
    user_blocks: bool = False
    """Whether the model also sees blocks that are for the user only."""
    fence: bool = False
    """Whether to show text between two lines that name the server and say that the text is data."""
    strict_output: bool = False
    """Whether a structured value that does not fit the output schema is an error rather than a warning."""
    result_type: Any = None
    """The type of `MCPResult.typed`; None for a model made from the output schema."""


def shown_content(
    blocks: tuple[Block, ...],
    structured: Any,
    rules: ShowRules,
    *,
    is_absent: bool,
) -> Content:
    """The content for a model: each fact once, no bytes as text, and with the middle cut out if it is too long."""
    seen = [each for each in blocks if rules.user_blocks or not each.is_for_user_only]
    mode = rules.result_mode
    # A null is ignored if there are blocks: some servers send it when they have no structured
    # value.
    repeats = (
        "" if is_absent else "blocks" if structured is None else _repeated_by(structured, blocks)
    )
    shows = not is_absent and _shows_structured(mode, repeats, has_blocks=bool(seen))
    replaces = shows and (mode == "structured" or (mode == "auto" and repeats == "json"))
    parts = [
        part
        for each in seen
        if not (replaces and each.type == "text" and each.text is not None)
        for part in each.shown()
    ]
    if shows:
        parts.append(Text(text=json_text(_without_bytes(structured))))
    if blocks and not seen and not parts:
        parts.append(Text(text="(The result is for the user's eyes only.)"))
    parts = _within(parts, rules.most_characters)
    return content_of(
        _join([Text(text=scrub(each.text)) if isinstance(each, Text) else each for each in parts]),
    )


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
        Text(text=f"{each.text}\n")
        if isinstance(each, Text) and i + 1 < len(parts) and isinstance(parts[i + 1], Text)
        else each
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
    """A structured value with long base64 texts replaced by their size: an image as text is useless, and fills the prompt."""
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
    """Whether a text starts with digits and letters of both cases, as bytes do and a long line of one letter does not."""
    head = text[:_SHORTEST_BYTES]
    return (
        any(each.isdigit() for each in head)
        and any(each.isupper() for each in head)
        and any(each.islower() for each in head)
    )


def _within(parts: list[Part], most: int | None) -> list[Part]:
    if most is None or sum(len(each.text) for each in parts if isinstance(each, Text)) <= most:
        return parts
    left, made = most, list[Part]()
    for each in parts:
        if isinstance(each, Text):
            made.append(Text(text=abridged(each.text, left)))
            left = max(left - len(each.text), 0)
        else:
            made.append(each)
    return made


def abridged(text: str, most: int = _MOST) -> str:
    """A text cut to `most` characters from its start and end, with a note on how much is missing."""
    if len(text) <= most:
        return text
    tail = most // 5
    mark = f"\n… [{len(text) - most} of {len(text)} characters left out here; the whole is kept in the result] …\n"
    return text[: most - tail] + mark + (text[-tail:] if tail else "")
