"""Decodes answers of OpenAI's Responses API.

Format: OpenAI's API reference, "Create a model response", as of November 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.errors import LMError, MissingContentError, RefusalError
from ferrule.models.wires.openai_responses.provider_calls import (
    citations_in,
    is_provider_call,
    provider_calls_in,
)
from ferrule.models.wires.payload import (
    Json,
    cost_of,
    count_of,
    list_of,
    mapping,
    no_answer,
    opened,
    text_of,
    tokens_of,
)
from ferrule.net.errors import is_error, payload_error
from ferrule.values.calls.call import call_at, check_last
from ferrule.values.conversation.exchange import Response, Usage
from ferrule.values.provider_tools import count_calls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.calls.confidence import Token

WIRE = "openai_responses"
"""The key of this protocol's own items in `Response.extra` and `Message.extra`."""
_PLAIN_ITEMS: Mapping[str, frozenset[str]] = {
    "message": frozenset({"type", "id", "role", "status", "content"}),
    "function_call": frozenset({"type", "id", "status", "name", "arguments", "call_id"}),
}
"""Items that a `Message` can express, if they have no further fields such as `phase`."""


def read(payload: Json | bytes) -> Response:
    """The answer in a body.

    Raises `BadRequestError` if there is none, `MissingContentError` if it is empty, `RefusalError`
    if it was withheld.
    """
    body, raw = opened(payload)
    if is_error(body, "output"):
        raise error_of(body.get("error") or body)
    if body.get("status") == "failed":
        raise error_of("the answer failed, and the provider says no more")
    request_id = text_of(body.get("id"))
    status = text_of(body.get("status")) or "completed"
    items = _items(body)
    if not items and status != "incomplete":
        description = f"no output (its status is {status!r})"
        raise MissingContentError(no_answer(description, body), request_id=request_id, raw=body)

    usage = mapping(body.get("usage"))
    text, refusal = text_in(items)
    calls = calls_in(items)
    provider_calls = provider_calls_in(items)
    reason = _reason(status, body, has_calls=bool(calls))
    if items and items[-1].get("type") == "function_call":
        calls = check_last(calls, reason)
    if reason == "content_filter" and not text and not calls and not refusal:
        raise RefusalError(
            "the provider's content filter withheld the answer", request_id=request_id
        )
    return Response(
        text=text,
        tool_calls=calls,
        reasoning=reasoning_in(items),
        finish_reason=reason,
        refusal=refusal,
        usage=replace(_usage(usage), provider_calls=count_calls(provider_calls)),
        model=text_of(body.get("model")),
        cost=cost_of(usage),
        extra=extra_of(items, is_stored=body.get("store") is True),
        body=raw,
        tokens=_tokens(items),
        provider_calls=provider_calls,
        citations=citations_in(answer_parts(items)),
    )


def error_of(error: Any) -> LMError:
    """The error in a body with a success status, or in an event of a stream."""
    code = text_of(mapping(error).get("code")) or ""
    if "policy" in code:
        # bio_policy, misalignment_policy_violation, image_content_policy_violation
        error = {**error, "type": "content_policy_violation"}
    elif "image" in code:
        # empty_image_file, image_too_large, ...: a retry does not help
        error = {**error, "status": 400}
    return payload_error({"error": error})


def text_in(items: Iterable[Json]) -> tuple[str | None, str | None]:
    """The text and the refusal in the items of an answer; None for one that is missing."""
    items = list(items)
    text = None
    parts = answer_parts(items)
    if parts:
        text = "".join([part["text"] for part in parts])
    refusals: list[str] = []
    for item in items:
        if item.get("type") == "message":
            for part in _content_parts(item.get("content")):
                refusal = part.get("refusal")
                if part.get("type") == "refusal" and isinstance(refusal, str):
                    refusals.append(refusal)
    return text, "".join(refusals) or None


def answer_parts(items: Iterable[Json]) -> list[Json]:
    """The parts of the answer's text.

    Text before a call that the provider ran ("I'll look that up.") is not a part of the answer,
    unless no other text follows.
    """
    parts: list[Json] = []
    parts_before: list[Json] = []
    for item in items:
        if is_provider_call(item):
            parts_before += parts
            parts = []
        elif item.get("type") == "message":
            for part in _content_parts(item.get("content")):
                is_text = text_of(part.get("type")) in {"output_text", "text"}
                if is_text and isinstance(part.get("text"), str):
                    parts.append(part)
    if any(part["text"].strip() for part in parts):
        return parts
    return [*parts_before, *parts]


def _tokens(items: Iterable[Json]) -> tuple[Token, ...]:
    """The tokens of the text. The protocol reports none of calls."""
    entries: list[Any] = []
    for item in items:
        if item.get("type") == "message":
            for part in _content_parts(item.get("content")):
                entries += list_of(part.get("logprobs"))
    return tokens_of(entries)


def calls_in(items: Iterable[Json]) -> tuple[ToolCall, ...]:
    """The calls among items of an answer."""
    calls = filter(is_call, items)
    return tuple([call_at(item, index) for index, item in enumerate(calls)])


def is_call(item: Json) -> bool:
    """Whether an item is a call of one of the program's tools."""
    return item.get("type") == "function_call"


def reasoning_in(items: Iterable[Json]) -> str | None:
    """The reasoning in the items of an answer.

    It is a summary (OpenAI), or the full text (models with open weights).
    """
    thoughts: list[str] = []
    for item in items:
        if item.get("type") != "reasoning":
            continue
        for part in (*list_of(item.get("summary")), *list_of(item.get("content"))):
            text = text_of(mapping(part).get("text"))
            if text is not None:
                thoughts.append(text)
    return "\n\n".join(thoughts) or None


def extra_of(items: Iterable[Json], *, is_stored: bool) -> Json | None:
    """The items to send back with the message, in order; None if a `Message` can express them all.

    Reasoning that is neither encrypted nor open can only be sent by its id, which a provider knows
    only if it stored the answer. Reasoning at the end, as in an answer that was cut off, is left
    out: the provider refuses it.
    """
    sendable = [item for item in items if is_stored or not _is_bare_reasoning(item)]
    while sendable and sendable[-1].get("type") == "reasoning":
        del sendable[-1]
    if all(map(_is_plain, sendable)):
        return None
    return {WIRE: {"output": sendable}}


def _is_bare_reasoning(item: Json) -> bool:
    """Whether an item is reasoning without its content, encrypted or open."""
    if item.get("type") != "reasoning":
        return False
    return not item.get("encrypted_content") and not item.get("content")


def _is_plain(item: Json) -> bool:
    plain_fields = _PLAIN_ITEMS.get(str(item.get("type")), frozenset())
    return item.keys() <= plain_fields


def _items(body: Json) -> list[Json]:
    items: list[Json] = []
    for entry in list_of(body.get("output")):
        item = mapping(entry)
        if item:
            items.append(item)
    return items


def _content_parts(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "output_text", "text": content}]
    return [mapping(part) for part in list_of(content)]


def _reason(status: str, body: Json, *, has_calls: bool) -> str:
    if status == "completed":
        return "tool_calls" if has_calls else "stop"
    if status != "incomplete":
        return status
    reason = text_of(mapping(body.get("incomplete_details")).get("reason")) or status
    if reason == "max_output_tokens":
        return "length"
    return reason


def _usage(usage: Json) -> Usage:
    # Input tokens include cache reads and writes; output tokens include reasoning.
    input_details = mapping(usage.get("input_tokens_details"))
    output_details = mapping(usage.get("output_tokens_details"))
    return Usage(
        input_tokens=count_of(usage.get("input_tokens")),
        output_tokens=count_of(usage.get("output_tokens")),
        cached_tokens=count_of(input_details.get("cached_tokens")),
        calls=1,
        reasoning_tokens=count_of(output_details.get("reasoning_tokens")),
        cache_write_tokens=count_of(input_details.get("cache_write_tokens")),
    )
