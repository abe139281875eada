"""The server's side of OpenAI's chat completions.

It reads requests, and writes answers whole or as a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ferrule.errors import (
    AuthenticationError,
    ConfigurationError,
    ContextOverflowError,
    FerruleError,
    InputError,
    LMError,
    RateLimitError,
    RefusalError,
    UnavailableError,
)
from ferrule.models.wires.openai_chat.read_request import read_request
from ferrule.models.wires.payload import Json, mapping, text_of
from ferrule.net.sse import event
from ferrule.values.conversation.exchange import Delta, Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Received(Struct, frozen=True):
    """A request as it reached the server."""

    request: Request
    model: str | None = None
    stream: bool = False
    with_usage: bool = True
    """Whether the client wants token counts at a stream's end, if the protocol lets it choose."""


def receive(body: Json, path: str) -> Received:
    """Read a request from a body; raises `InputError` that names the place of the problem."""
    del path
    options = mapping(body.get("stream_options"))
    return Received(
        read_request(body),
        text_of(body.get("model")),
        bool(body.get("stream")),
        bool(options.get("include_usage")),
    )


def answer(response: Response, *, model: str) -> Json:
    """The body of a whole answer."""
    message: Json = {"role": "assistant", "content": response.text}
    if response.tool_calls:
        message["tool_calls"] = [call.format() for call in response.tool_calls]
    if response.reasoning:
        message["reasoning_content"] = response.reasoning
    if response.refusal:
        message["refusal"] = response.refusal
    choice = {"index": 0, "message": message, "finish_reason": _reason(response)}
    return {**_head(model, "chat.completion"), "choices": [choice], "usage": _usage(response)}


def events(
    items: Iterable[Delta | Response], *, model: str, with_usage: bool = False
) -> Iterator[bytes]:
    """A stream as server-sent events; calls come in pieces, as they do from providers."""
    head = _head(model, "chat.completion.chunk")

    def chunk(delta: Json, reason: str | None = None) -> bytes:
        return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    is_first = True
    for item in items:
        if is_first:  # not earlier: until now the model may fail, which needs an error status
            is_first = False
            yield chunk({"role": "assistant", "content": ""})
        if isinstance(item, Delta):
            if not item.text and not item.reasoning:
                continue  # a piece of a call: calls are sent with the whole answer
            delta: Json = {}
            if item.text:
                delta["content"] = item.text
            if item.reasoning:
                delta["reasoning_content"] = item.reasoning
            yield chunk(delta)
            continue
        for index, call in enumerate(item.tool_calls):
            shape = call.format()
            function = shape["function"]
            arguments: str = function["arguments"]
            half = len(arguments) // 2
            opening = {
                **shape,
                "index": index,
                "function": {"name": function["name"], "arguments": ""},
            }
            yield chunk({"tool_calls": [opening]})
            for piece in filter(None, (arguments[:half], arguments[half:])):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        if item.refusal:
            yield chunk({"refusal": item.refusal})
        yield chunk({}, _reason(item))
        if with_usage:
            yield event({**head, "choices": [], "usage": _usage(item)})
    yield b"data: [DONE]\n\n"


def error_body(error: FerruleError) -> tuple[int, Json]:
    """The status and the body for a model error or a bad request."""
    status, code = next(
        ((status, code) for kind, status, code in _STATUS if isinstance(error, kind)),
        (500, "server_error"),
    )
    if isinstance(error, LMError) and error.status is not None:
        status = error.status
    if status < 500:
        kind = "invalid_request_error"
    else:
        kind = "server_error"
    return status, {
        "error": {"message": f"{type(error).__name__}: {error}", "type": kind, "code": code}
    }


def error_event(body: Json) -> bytes:
    """An error body as an event of a stream."""
    return event(body)


_STATUS: tuple[tuple[type[FerruleError], int, str], ...] = (
    (InputError, 400, "invalid_request"),
    (ConfigurationError, 400, "invalid_request"),  # raised by a script: a retry does not help
    (RateLimitError, 429, "rate_limit_exceeded"),
    (UnavailableError, 503, "unavailable"),
    (AuthenticationError, 401, "invalid_api_key"),
    (ContextOverflowError, 400, "context_length_exceeded"),
    (RefusalError, 400, "content_filter"),
    (LMError, 400, "invalid_request"),
)


def _head(model: str, kind: str) -> Json:
    return {"id": "chatcmpl-ferrule", "object": kind, "created": 0, "model": model}


def _reason(response: Response) -> str:
    if response.finish_reason:
        return response.finish_reason
    return "tool_calls" if response.tool_calls else "stop"


def _usage(response: Response) -> Json:
    usage, further = response.usage, Json()
    if usage.reasoning_tokens:
        further["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    if response.cost is not None:  # in OpenRouter's form
        further["cost"] = response.cost
    prompt_details = {"cached_tokens": usage.cached_tokens}
    if usage.cache_write_tokens:
        prompt_details["cache_write_tokens"] = usage.cache_write_tokens
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": prompt_details,
        **further,
    }
