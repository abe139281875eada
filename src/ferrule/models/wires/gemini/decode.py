"""Decodes answers of Gemini's generateContent.

A part with a thought signature must be sent back unchanged: such turns keep their parts in
`Response.extra`, and so in `Message.extra`. Format: Gemini API reference, "Generating content", as
of November 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from ferrule.errors import MissingContentError, RefusalError
from ferrule.models.wires.gemini.provider_calls import (
    calls_in_metadata,
    calls_in_parts,
    citations_in,
    is_provider_part,
)
from ferrule.models.wires.payload import (
    Json,
    count_of,
    first_of,
    list_of,
    mapping,
    no_answer,
    opened,
    text_of,
    tokens_of,
)
from ferrule.net.errors import is_error, payload_error
from ferrule.values.calls.call import CallFault, ToolCall, call_at, check_last
from ferrule.values.calls.confidence import with_confidence
from ferrule.values.conversation.exchange import Response, Usage
from ferrule.values.provider_tools import count_calls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.values.provider_tools import ProviderCall

WIRE = "gemini"
"""The key of this protocol's own parts in `Response.extra` and `Message.extra`."""
_REASONS: Mapping[str, str] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "ESCALATION": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
_BAD_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})
"""Reasons of an answer whose call the provider itself could not read."""


class Turn(NamedTuple):
    """A model's turn, read from its parts."""

    text: str | None
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    extra: Json | None
    """The parts to send back with the message, for `Message.extra`."""
    provider_calls: tuple[ProviderCall, ...] = ()


def read(payload: Json | bytes) -> Response:
    """The answer in a body.

    Raises `BadRequestError` if there is none, `MissingContentError` if it is empty, `RefusalError`
    if it was withheld.
    """
    body, raw = opened(payload)
    if is_error(body, "candidates"):
        raise payload_error(body)
    candidate = first_of(body.get("candidates"))
    turn = read_parts(list_of(mapping(candidate.get("content")).get("parts")))
    word = finish_of(candidate)
    chosen = mapping(candidate.get("logprobsResult")).get("chosenCandidates")
    tokens = tokens_of(chosen, name="logProbability")
    calls = with_confidence(turn.calls, tokens, text=turn.text)
    if word in _BAD_CALLS and not calls:
        calls = (_bad_call(word, candidate),)
    reason = _reason(word, has_calls=bool(calls))
    told = calls_in_metadata(candidate, turn.provider_calls)
    provider_calls = (*turn.provider_calls, *told)
    model = text_of(body.get("modelVersion"))
    if not turn.text and not calls and reason not in {"stop", "length"}:
        raise _error_without_answer(body, candidate, word)
    return Response(
        text=turn.text,
        tool_calls=check_last(calls, reason),
        reasoning=turn.reasoning,
        finish_reason=reason,
        usage=replace(
            usage_of(mapping(body.get("usageMetadata"))),
            provider_calls=_charged(provider_calls, model),
        ),
        model=model,
        extra=turn.extra,
        body=raw,
        tokens=tokens,
        provider_calls=provider_calls,
        citations=citations_in(candidate, turn.text or ""),
    )


def _charged(calls: Iterable[ProviderCall], model: str | None) -> dict[str, int]:
    """The calls that are charged for: before Gemini 3, one search a request, however many."""
    counts = count_calls(calls)
    if "web_search" in counts and (model or "").startswith(("gemini-1", "gemini-2")):
        counts["web_search"] = 1
    return counts


def read_parts(parts: Iterable[Any]) -> Turn:
    """Text, thoughts and calls in the parts of a turn, and the parts if they must be sent back.

    Text before a call that the provider ran ("I'll look that up.") is not a part of the answer,
    unless no other text follows.
    """
    texts: list[str] = []
    texts_before: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    to_send_back: list[Json] = []
    is_plain = True
    for entry in parts:
        part = present(entry)
        text = part.get("text")
        if part.get("thought"):
            thoughts.append(text_of(text) or "")
        elif isinstance(text, str):
            texts.append(text)
        if not part.keys() <= {"text", "thought", "functionCall"}:
            is_plain = False  # a signature, an image, code that the provider ran
        if is_provider_part(part):
            texts_before += texts
            texts = []
        if "functionCall" in part:
            calls.append(call_at(part["functionCall"], len(calls)))
            # The message holds the call: a run may give it another id.
            part["functionCall"] = {}
        if part:
            to_send_back.append(part)
    if not "".join(texts).strip():
        texts = [*texts_before, *texts]
    return Turn(
        text="".join(texts) if texts else None,
        reasoning="".join(thoughts) or None,
        calls=tuple(calls),
        extra=None if is_plain else {WIRE: {"parts": to_send_back}},
        provider_calls=() if is_plain else calls_in_parts(to_send_back),
    )


def present(part: Any) -> Json:
    """A copy of a part without null fields, which some gateways send."""
    return {key: value for key, value in mapping(part).items() if value is not None}


def finish_of(candidate: Json) -> str | None:
    """The provider's reason for the end of an answer; None while it continues."""
    word = text_of(candidate.get("finishReason"))
    if word == "FINISH_REASON_UNSPECIFIED":
        return None
    return word


def block_of(body: Json) -> str | None:
    """The provider's reason for blocking the prompt, or None."""
    return text_of(mapping(body.get("promptFeedback")).get("blockReason"))


def _reason(word: str | None, *, has_calls: bool) -> str | None:
    if word is None:
        return None
    reason = _REASONS.get(word, word)
    if has_calls and (reason == "stop" or word in _BAD_CALLS):
        return "tool_calls"
    return reason


def _error_without_answer(
    body: Json, candidate: Json, word: str | None
) -> MissingContentError | RefusalError:
    """Why an answer has neither text nor calls."""
    request_id = text_of(body.get("responseId"))
    feedback = mapping(body.get("promptFeedback"))
    message = text_of(candidate.get("finishMessage")) or text_of(feedback.get("blockReasonMessage"))
    why = ""
    if message:
        why = f": {message}"
    if word is None:
        block_reason = block_of(body)
        if block_reason is not None:
            msg = f"the provider blocked the question ({block_reason}){why}"
            return RefusalError(msg, request_id=request_id, raw=body)
        if candidate:
            description = "a candidate without content"
        else:
            description = "no candidates"
        return MissingContentError(no_answer(description, body), request_id=request_id, raw=body)
    if _REASONS.get(word) == "content_filter":
        msg = f"the provider withheld the answer ({word}){why}"
        return RefusalError(msg, request_id=request_id)
    msg = f"the provider gave up before any answer ({word}){why}"
    return MissingContentError(msg, request_id=request_id)


def _bad_call(word: str, candidate: Json) -> ToolCall:
    """A call with a fault, for one that the provider could not read: the model can correct it."""
    reason = f"the provider could not read the call ({word})"
    raw = text_of(candidate.get("finishMessage")) or ""
    return ToolCall(name="", fault=CallFault("invalid_tool_call", reason, raw, 0))


def usage_of(usage: Json) -> Usage:
    """The tokens that a body reports."""
    # `promptTokenCount` includes cached tokens; thoughts and results of the provider's own tools
    # are counted separately.
    reasoning_tokens = count_of(usage.get("thoughtsTokenCount"))
    tool_tokens = count_of(usage.get("toolUsePromptTokenCount"))
    return Usage(
        input_tokens=count_of(usage.get("promptTokenCount")) + tool_tokens,
        output_tokens=count_of(usage.get("candidatesTokenCount")) + reasoning_tokens,
        cached_tokens=count_of(usage.get("cachedContentTokenCount")),
        calls=1,
        reasoning_tokens=reasoning_tokens,
    )
