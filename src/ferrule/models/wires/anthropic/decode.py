"""Decodes answers of Anthropic's Messages API.

Format: platform.claude.com, "Messages" of the API reference, November 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ferrule.errors import MissingContentError, RefusalError
from ferrule.models.wires.anthropic.provider_calls import calls_in, citations_in, is_call
from ferrule.models.wires.payload import (
    Json,
    count_of,
    list_of,
    mapping,
    no_answer,
    opened,
    text_of,
)
from ferrule.net.errors import is_error, payload_error
from ferrule.values.calls.call import call_at, check_last
from ferrule.values.conversation.exchange import Response, Usage
from ferrule.values.provider_tools import count_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.provider_tools import Citation, ProviderCall

WIRE = "anthropic"
"""The key of this protocol's own blocks in `Response.extra` and `Message.extra`."""
UNREADABLE = "INVALID_JSON"
"""The key that wraps invalid JSON arguments, because a call's `input` must be an object (page
"Fine-grained tool streaming")."""
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class Blocks(NamedTuple):
    """What the blocks of an answer hold."""

    text: str | None
    thoughts: str | None
    calls: tuple[ToolCall, ...]
    extra: Json | None
    """The blocks to send back with the message, for `Message.extra`."""
    provider_calls: tuple[ProviderCall, ...] = ()
    citations: tuple[Citation, ...] = ()


def read(payload: Json | bytes, *, is_streamed: bool = False) -> Response:
    """The answer in a body, or in one that was put together from a stream.

    Raises `BadRequestError` if there is none, `MissingContentError` if it has no content,
    `RefusalError` if it was withheld.
    """
    body, raw = opened(payload)
    if is_error(body, "content"):
        raise payload_error(body)
    request_id = text_of(body.get("id"))
    content = body.get("content")
    reason = text_of(body.get("stop_reason"))
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not (content or reason):
        raise MissingContentError(no_answer("no content", body), request_id=request_id, raw=body)

    blocks = read_blocks([mapping(block) for block in list_of(content)])
    calls = blocks.calls
    if content and kind(mapping(content[-1])) == "tool_use":
        # Page "Handling stop reasons". In a stream, arguments are a text.
        calls = check_last(calls, _REASONS.get(reason or ""), is_object=not is_streamed)
    refusal = None
    if reason == "refusal":
        refusal = text_of(mapping(body.get("stop_details")).get("explanation"))
        if not blocks.text and not calls and not refusal:
            raise RefusalError("the provider withheld the answer", request_id=request_id)
    if reason is not None:
        reason = _REASONS.get(reason, reason)
    return Response(
        text=blocks.text,
        tool_calls=calls,
        reasoning=blocks.thoughts,
        finish_reason=reason,
        refusal=refusal,
        usage=usage_of(mapping(body.get("usage")), blocks.provider_calls),
        model=text_of(body.get("model")),
        extra=blocks.extra,
        body=raw,
        provider_calls=blocks.provider_calls,
        citations=blocks.citations,
    )


def read_blocks(blocks: Sequence[Json]) -> Blocks:
    """The text, thoughts and calls in the blocks of an answer.

    An answer with more than plain text and calls (signed thoughts, the provider's own tools,
    citations) is sent back with all its blocks in order, except the arguments of calls, which the
    message holds.

    Text before a call that the provider ran ("I'll look that up.") is not a part of the answer,
    unless no other text follows.
    """
    texts: list[Json] = []
    texts_before: list[Json] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    to_send_back: list[Json] = []
    is_plain = True
    for block in blocks:
        if not block:
            continue
        block_to_send = block
        match kind(block):
            case "text":
                texts.append(block)
            case "tool_use":
                calls.append(call_in(block, len(calls)))
                block_to_send = {key: value for key, value in block.items() if key != "input"}
            case "thinking":
                thoughts.append(text_of(block.get("thinking")) or "")
                is_plain = False
            case other:
                is_plain = False
                if is_call(other):
                    texts_before += texts
                    texts = []
        if block.get("citations"):
            is_plain = False
        to_send_back.append(block_to_send)
    if not _joined(texts).strip():
        texts = [*texts_before, *texts]
    return Blocks(
        text=_joined(texts) if texts else None,
        thoughts="".join(thoughts) or None,
        calls=tuple(calls),
        extra=None if is_plain else {WIRE: {"content": to_send_back}},
        provider_calls=() if is_plain else calls_in(blocks),
        citations=() if is_plain else citations_in(texts),
    )


def _joined(texts: Sequence[Json]) -> str:
    return "".join([text_of(block.get("text")) or "" for block in texts])


def kind(block: Json) -> str:
    """The type of a block."""
    return text_of(block.get("type")) or ""


def call_in(block: Json, index: int) -> ToolCall:
    """The call in a block of an answer, or of a conversation."""
    arguments: Any = block.get("input")
    if isinstance(arguments, dict) and list(cast("Json", arguments)) == [UNREADABLE]:
        arguments = cast("Json", arguments)[UNREADABLE]
    return call_at({"id": block.get("id"), "name": block.get("name"), "input": arguments}, index)


def usage_of(usage: Json, provider_calls: Sequence[ProviderCall] = ()) -> Usage:
    """The tokens that a body reports, and the calls that the provider ran.

    What it says of its calls comes first: it charges for those.
    """
    counts = count_calls(provider_calls)
    for name, count in mapping(usage.get("server_tool_use")).items():
        if count_of(count):
            counts[name.removesuffix("_requests")] = count_of(count)
    cached_tokens = count_of(usage.get("cache_read_input_tokens"))
    cache_write_tokens = count_of(usage.get("cache_creation_input_tokens"))
    output_details = mapping(usage.get("output_tokens_details"))
    return Usage(
        # The provider's input tokens include neither cache reads nor cache writes.
        input_tokens=count_of(usage.get("input_tokens")) + cached_tokens + cache_write_tokens,
        output_tokens=count_of(usage.get("output_tokens")),
        cached_tokens=cached_tokens,
        calls=1,
        reasoning_tokens=count_of(output_details.get("thinking_tokens")),
        cache_write_tokens=cache_write_tokens,
        provider_calls=counts,
    )
