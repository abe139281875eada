"""Decodes answers of OpenAI's chat completions, in all variants that other servers send."""

from __future__ import annotations

from typing import Any, cast

from ferrule.encoding.encode import json_text
from ferrule.errors import MissingContentError, RefusalError, shown
from ferrule.models.wires.payload import (
    Json,
    cost_of,
    count_of,
    first_of,
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

WIRE = "openai_chat"
"""The key of this protocol's own fields in `Response.extra` and `Message.extra`."""
REASONING = "reasoning_content"
"""The field for reasoning that DeepSeek, Kimi and others send, and need back with a call."""
_REASONS = {"function_call": "tool_calls", "model_length": "length"}
"""Other names for the reasons why an answer ended. `model_length` is Mistral's: the context is
full."""
_THOUGHTS = ("thinking", "reasoning")
"""Types of parts with thoughts. Their text is in `thinking` (Mistral, Cohere), `summary`
(Databricks) or `text`."""


def read(payload: Json | bytes) -> Response:
    """The answer in a body.

    Raises `BadRequestError` if there is none, `MissingContentError` if there is no message,
    `RefusalError` if it was withheld.
    """
    body, raw = opened(payload)
    if is_error(body, "choices"):
        raise payload_error(body)
    choice = first_of(body.get("choices"))
    if choice.get("error"):  # OpenRouter, if the provider behind it fails
        raise payload_error(choice)
    request_id = text_of(body.get("id"))
    message = mapping(choice.get("message"))
    if not message:
        if choice:
            description = "a choice without a message"
        else:
            description = "no choices"
        raise MissingContentError(no_answer(description, body), request_id=request_id, raw=body)

    model = text_of(body.get("model"))
    reason = text_of(choice.get("finish_reason"))
    refusal = text_of(message.get("refusal"))
    reasoning = reasoning_of(message)
    usage = mapping(body.get("usage"))
    cost = cost_of(usage)
    counts = usage_of(usage)
    text, thoughts = content_of(message.get("content"))
    extra = _extra(message)
    # OpenAI reports the tokens of the text only, vLLM and llama.cpp those of calls, too.
    tokens = tokens_of(mapping(choice.get("logprobs")).get("content"))
    calls = with_confidence(_calls(message), tokens, text=text)
    if reason == "content_filter" and not text and not calls and not refusal:
        raise RefusalError(
            "the provider's content filter withheld the answer", request_id=request_id
        )
    if reason is not None:
        reason = _REASONS.get(reason, reason)
    return Response(
        text=text,
        tool_calls=check_last(calls, reason),
        reasoning=reasoning or thoughts,
        finish_reason=reason,
        refusal=refusal,
        usage=counts,
        model=model,
        cost=cost,
        extra=extra,
        body=raw,
        tokens=tokens,
    )


def reasoning_of(message: Json) -> str | None:
    """The reasoning next to the content of a message or chunk.

    The names are DeepSeek's, that of OpenRouter and vLLM, and GitHub Copilot's.
    """
    return (
        text_of(message.get(REASONING))
        or text_of(message.get("reasoning"))
        or text_of(message.get("reasoning_text"))
    )


def content_of(content: Any) -> tuple[str | None, str | None]:
    """Text and thoughts of a message; some providers send a list of parts."""
    if content is None or isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        return json_text(content), None
    texts: list[str] = []
    thoughts: list[str] = []
    for part in cast("list[Any]", content):
        if isinstance(part, str):
            texts.append(part)
            continue
        fields = mapping(part)
        if fields.get("type") in _THOUGHTS:
            inner = fields.get("thinking") or fields.get("summary") or fields.get("text")
            thought, _ = content_of(inner)
            thoughts.append(thought or "")
        else:
            texts.append(text_of(fields.get("text")) or text_of(fields.get("refusal")) or "")
    return "".join(texts), "".join(thoughts) or None


def _calls(message: Json) -> tuple[ToolCall, ...]:
    entries: Any = message.get("tool_calls")
    if isinstance(entries, list) and entries:
        calls = enumerate(cast("list[Any]", entries))
        return tuple([call_at(call, index) for index, call in calls])
    if message.get("tool_calls"):
        return (_odd_call(message["tool_calls"]),)
    function = message.get("function_call")  # deprecated since 2023, still sent by some gateways
    if isinstance(function, dict):
        return (call_at(function, 0),)
    return ()


def _odd_call(entries: Any) -> ToolCall:
    """A call with a fault, which the program reports to the model."""
    reason = f"the calls must be a list of calls, found {shown(entries)}"
    return ToolCall(name="", fault=CallFault("invalid_tool_calls", reason, json_text(entries)))


def usage_of(usage: Json) -> Usage:
    """The tokens that a body reports."""
    details = mapping(usage.get("prompt_tokens_details"))
    details_of_output = mapping(usage.get("completion_tokens_details"))
    input_tokens = count_of(usage.get("prompt_tokens"))
    output_tokens = count_of(usage.get("completion_tokens"))
    reasoning_tokens = count_of(details_of_output.get("reasoning_tokens"))
    # xAI does not count thoughts as a part of the answer.
    if reasoning_tokens and usage.get("total_tokens") == (
        input_tokens + output_tokens + reasoning_tokens
    ):
        output_tokens += reasoning_tokens
    cached_tokens = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=count_of(cached_tokens),
        calls=1,
        reasoning_tokens=reasoning_tokens,
        cache_write_tokens=count_of(details.get("cache_write_tokens")),
    )


def _extra(message: Json) -> Json | None:
    """The fields to send back with the message, by `encode`.

    They are OpenRouter's `reasoning_details`, and Gemini's signature in a call's `extra_content`;
    and the name of the field of the reasoning, whose text is the message's.
    """
    extra: Json = {}
    if message.get("tool_calls") and text_of(message.get(REASONING)):
        extra["reasoning"] = REASONING
    if message.get("reasoning_details"):
        extra["message"] = {"reasoning_details": message["reasoning_details"]}
    calls: Any = message.get("tool_calls")
    if isinstance(calls, list):
        for index, call in enumerate(cast("list[Any]", calls)):
            if isinstance(call, dict) and "extra_content" in call:
                content = cast("Json", call)["extra_content"]
                extra.setdefault("calls", {})[str(index)] = {"extra_content": content}
    if not extra:
        return None
    return {WIRE: extra}
