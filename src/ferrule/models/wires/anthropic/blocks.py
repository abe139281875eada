"""Converts the blocks of Anthropic's messages from and to ferrule's messages."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import TYPE_CHECKING, Any, cast

from ferrule.models.wires.payload import Json, list_of, mapping, placeholder, text_of
from ferrule.values.calls.call import call_at
from ferrule.values.content.parts import File, Image, Text, inline_data
from ferrule.values.conversation.message import safe_id, safe_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.content.parts import Content, Part
    from ferrule.values.conversation.message import Message

WIRE = "anthropic"
UNREADABLE = "INVALID_JSON"
"""The key that wraps invalid JSON arguments, because a call's `input` must be an object (page "Fine-grained tool streaming")."""
_PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_READABLE = re.compile(r"text/.*|application/(?:.*\+)?(?:json|xml|yaml)")


def kind(block: Json) -> str:
    """The type of a block."""
    return text_of(block.get("type")) or ""


def content_blocks(content: Content, place: str) -> list[Json]:
    """Content as blocks, without blank text, which the provider refuses."""
    parts = (Text(text=content),) if isinstance(content, str) else content
    return [
        _block(part, place) for part in parts if not isinstance(part, Text) or part.text.strip()
    ]


def plain_text(message: Message, place: str) -> str:
    """The content of a message that may hold only text."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(
        [
            part.text if isinstance(part, Text) else placeholder(part, WIRE, place)
            for part in message.content
        ],
    )


def result_block(message: Message) -> Json:
    """The block of a tool's result. The provider refuses an empty error, so that gets a text."""
    block: Json = {"type": "tool_result", "tool_use_id": safe_id(message.tool_call_id)}
    content = message.content
    said = content if isinstance(content, str) else content_blocks(content, "tool results")
    if said or message.is_error:
        block["content"] = said or "error"
    if message.is_error:
        block["is_error"] = True
    return block


def assistant_blocks(message: Message) -> list[Json]:
    """The blocks of an answer to send back: the provider's own if it needs them, with the message's current calls."""
    text = plain_text(message, "answers")
    calls = [(call.id, call_block(call)) for call in message.tool_calls]
    came = [
        block
        for each in list_of(mapping((message.extra or {}).get(WIRE)).get("content"))
        if (block := mapping(each))
    ]
    if text != "".join(
        [text_of(block.get("text")) or "" for block in came if kind(block) == "text"],
    ):
        # The text was edited: only the signed thoughts among the provider's blocks are still valid.
        came = [block for block in came if kind(block) in {"thinking", "redacted_thinking"}]
        came += [{"type": "text", "text": text}]
    blocks: list[Json] = []
    for block in came:
        match kind(block):
            case "tool_use":
                found = next((each for each in calls if each[0] == block.get("id")), None)
                if found is not None:
                    calls.remove(found)
                    blocks.append({**block, **found[1]})
            case _:
                blocks.append(block)
    return [*blocks, *[block for _, block in calls]]


def read_blocks(
    blocks: Sequence[Json],
) -> tuple[str | None, str | None, tuple[ToolCall, ...], Json | None]:
    """The text, thoughts and calls of an answer, and the blocks to send back with it, for `Message.extra`.

    An answer with more than plain text and calls (signed thoughts, the provider's own tools,
    citations) is sent back with all its blocks in order, except the arguments of calls, which the
    message holds.
    """
    texts = [text_of(block.get("text")) or "" for block in blocks if kind(block) == "text"]
    thoughts = [
        text_of(block.get("thinking")) or "" for block in blocks if kind(block) == "thinking"
    ]
    uses = [block for block in blocks if kind(block) == "tool_use"]
    calls = tuple([call_in(block, index) for index, block in enumerate(uses)])
    extra: Json | None = None
    if any(kind(block) not in {"text", "tool_use"} or block.get("citations") for block in blocks):
        as_sent = [
            {k: v for k, v in block.items() if k != "input"} if kind(block) == "tool_use" else block
            for block in blocks
        ]
        extra = {WIRE: {"content": as_sent}}
    return "".join(texts) if texts else None, "".join(thoughts) or None, calls, extra


def call_block(call: ToolCall) -> Json:
    """The block of a call. Arguments other than a JSON object are wrapped in one; characters not allowed in a name are replaced."""
    arguments: Json = {UNREADABLE: call.arguments_text} if call.fault else call.args
    return {
        "type": "tool_use",
        "id": safe_id(call.id),
        "name": safe_name(call.name),
        "input": arguments,
    }


def call_in(block: Json, index: int) -> ToolCall:
    """The call in a block of an answer, or of a conversation."""
    arguments = block.get("input")
    if isinstance(arguments, dict) and list(cast("Json", arguments)) == [UNREADABLE]:
        arguments = cast("Json", arguments)[UNREADABLE]
    return call_at({"id": block.get("id"), "name": block.get("name"), "input": arguments}, index)


def _block(part: Part, place: str) -> Json:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    block = _media(part) if isinstance(part, (Image, File)) else None
    return block or {"type": "text", "text": placeholder(part, WIRE, place)}


def _media(part: Image | File) -> Json | None:
    """The block of an image or document; None for a media type that the provider does not accept."""
    media_type, data = inline_data(part) or (part.media_type, None)
    media_type = "image/jpeg" if media_type == "image/jpg" else media_type
    title: Any = {"title": part.name} if isinstance(part, File) and part.name != "file" else {}
    if data is None:
        source: Json = {"type": "url", "url": part.url}
        if isinstance(part, Image):
            return {"type": "image", "source": source}
        is_document = media_type in {
            "application/pdf",
            "application/octet-stream",
        }  # the second is the default type of a file
        return {"type": "document", "source": source, **title} if is_document else None
    if media_type in _PICTURES:
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": media_type, "data": data},
        }
    if media_type == "application/pdf":
        return {
            "type": "document",
            "source": {"type": "base64", "media_type": media_type, "data": data},
            **title,
        }
    if not _READABLE.fullmatch(media_type):
        return None
    try:
        text = b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return (
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": text},
            **title,
        }
        if text.strip()
        else None
    )
