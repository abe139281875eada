"""OpenAI's chat completions as pure functions: `Request` to body bytes, answer to `Response`.

vLLM, llama.cpp, Ollama, OpenRouter, Groq, Mistral, DeepSeek and most others speak it too; all their
variants of an answer are read. Messages and tools are rendered once. Messages come last, so that
each body begins with the previous one, except for its end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_bytes, json_text
from ferrule.errors import MissingContentError, RefusalError, shown
from ferrule.models.providers import Dialect
from ferrule.models.wires.payload import (
    Json,
    cost_of,
    count_of,
    list_of,
    mapping,
    no_answer,
    openai_function,
    opened,
    placeholder,
    refuse_settings,
    text_of,
)
from ferrule.net.errors import payload_error
from ferrule.record import replace
from ferrule.values.calls.call import CallFault, ToolCall, call_at
from ferrule.values.conversation.exchange import Declarations, Request, Response, Shape, Usage
from ferrule.values.conversation.message import Message, openai_content, safe_id, sent_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OURS = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "stream",
        "stream_options",
    },
)
"""Fields of the body that settings may not set, because the `Request` or the model does."""
WIRE = "openai_chat"
_PLAIN = Dialect()


def render(
    request: Request,
    *,
    model: str,
    settings: Mapping[str, Any],
    stream: bool = False,
    dialect: Dialect = _PLAIN,
) -> bytes:
    """The body of a request. Settings of the request override the model's `settings`; None omits a setting."""
    head = json_bytes(_head(request, model, {**settings, **request.settings}, stream, dialect))
    tools = (
        b',"tools":' + request.tools.kept(WIRE, lambda: _tools(request.tools))
        if request.tools
        else b""
    )
    wire = f"{WIRE}+reasoning" if dialect.wants_reasoning else WIRE
    wire = wire if dialect.longest_id is None else f"{wire}<{dialect.longest_id}"
    messages = request.messages.joined(wire, lambda added: _conversation(added, wire, dialect))
    return b"".join((head[:-1], tools, b',"messages":[', messages, b"]}"))


def _tools(declarations: Declarations) -> bytes:
    return json_bytes(
        [{**each, "function": openai_function(each["function"])} for each in declarations],
    )


def _head(request: Request, model: str, settings: Json, stream: bool, dialect: Dialect) -> Json:
    extra: Json = settings.pop("extra", None) or {}
    if found := OURS.intersection(settings):
        refuse_settings(found)
    head: Json = {"model": model}
    for name, value in settings.items():
        if value is not None:
            head[dialect.names.get(name, name)] = value
    if request.tool_choice is not None and request.tools:
        head["tool_choice"] = _choice(request.tool_choice)
    if request.parallel is not None and request.tools:
        head["parallel_tool_calls"] = request.parallel
    if request.shape is not None:
        head["response_format"] = _format(request.shape)
    if stream:
        head["stream"] = True
        if dialect.stream_usage:
            head["stream_options"] = {"include_usage": True}
    head.update(extra)
    return head


def _choice(choice: str | Mapping[str, Any]) -> Any:
    if isinstance(choice, str) and choice not in {"auto", "none", "required"}:
        return {"type": "function", "function": {"name": choice}}
    return choice


def _format(shape: Shape) -> Json:
    if shape.kind == "json_object" or shape.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": shape.name, "schema": shape.schema}}


def _conversation(messages: Iterable[Message], wire: str, dialect: Dialect) -> list[bytes]:
    """The messages as JSON; after the results of one turn, a user message with the media that they cannot carry."""
    form = partial(_sent, dialect=dialect)
    pieces: list[bytes] = []
    media: list[bytes] = []
    for each in messages:
        message = each if type(each.content) is str else _without_far_sounds(each)
        if media and message.role != "tool":
            pieces.append(_USER % b",".join(media))
            media = []
        if message.role == "tool" and type(message.content) is not str:
            result = _with_short_ids(message, dialect.longest_id)
            pieces.append(result.rendered(f"{WIRE}+text", _text_alone))
            media += filter(None, [result.rendered(f"{WIRE}+media", _media)])
        elif message.role in _PLAIN_ROLES and not message.extra:
            pieces.append(message.json)
        else:
            pieces.append(message.rendered(wire, form))
    return [*pieces, _USER % b",".join(media)] if media else pieces


def _without_far_sounds(message: Message) -> Message:
    """The message with a note in place of each audio part with a URL: the protocol only takes bytes."""
    from ferrule.values.content.parts import Audio, Text

    content = tuple([
        Text(text=placeholder(part, WIRE, "messages")) if isinstance(part, Audio) and not part.address.startswith("data:") else part
        for part in message.content
    ])  # fmt: skip
    return message if content == message.content else replace(message, content=content)


_PLAIN_ROLES = ("system", "user")
"""Roles whose messages, without calls and ids, look the same in all dialects."""


def _sent(message: Message, dialect: Dialect) -> bytes:
    """A message with calls or a result in the provider's dialect, without the media of a result."""
    message = _with_short_ids(message, dialect.longest_id)
    if dialect.wants_reasoning:
        return _with_reasoning(message)
    return _with_extra(message) if message.extra else message.json


def _with_short_ids(message: Message, longest: int | None) -> Message:
    """The message, with long ids from other providers shortened."""
    found, calls = message.tool_call_id, message.tool_calls
    if longest is None or (
        (found is None or len(found) <= longest)
        and all(call.id is None or len(call.id) <= longest for call in calls)
    ):
        return message
    short = [call if call.id is None else call.with_id(safe_id(call.id, longest)) for call in calls]
    return replace(
        message,
        tool_call_id=None if found is None else safe_id(found, longest),
        tool_calls=tuple(short),
    )


_USER = b'{"role":"user","content":[%b]}'


def _text_alone(message: Message) -> bytes:
    """A result with notes in place of images, audio and files: tool messages are text (API reference, "Create chat completion")."""
    from ferrule.values.content.parts import Text

    parts = [
        part
        if isinstance(part, Text)
        else Text(text=f"[{part!r}: see the message after the tool results]")
        for part in message.content
    ]
    return json_bytes(sent_message(replace(message, content=tuple(parts))))


def _media(message: Message) -> bytes:
    """The media that `_text_alone` left out, under a heading; empty if there are none."""
    from ferrule.values.content.parts import Text

    parts = [part for part in message.content if not isinstance(part, (str, Text))]
    if not parts:
        return b""
    heading = Text(
        text=f"From the result of `{message.name or 'the tool'}` (call {message.tool_call_id}):",
    )
    return json_bytes(openai_content((heading, *parts)))[1:-1]


def _with_extra(message: Message) -> bytes:
    """A message with the opaque fields, its own and those of its calls, that its provider needs back."""
    shape = sent_message(message)
    kept: Mapping[str, Any] = (message.extra or {}).get(WIRE) or {}
    shape.update(kept.get("message") or {})
    calls: Mapping[str, Any] = kept.get("calls") or {}
    for index, call in enumerate(shape.get("tool_calls") or ()):
        call.update(calls.get(str(index)) or {})
    return json_bytes(shape)


def _with_reasoning(message: Message) -> bytes:
    """A message with `reasoning_content`, even null: DeepSeek reportedly refuses calls without it (deepseek-harness, discussion 1850)."""
    if not message.tool_calls:
        return _with_extra(message) if message.extra else message.json
    return (
        _with_extra(message)[:-1] + b',"reasoning_content":' + json_bytes(message.reasoning) + b"}"
    )


def path(model: str, *, stream: bool = False) -> str:
    """The path of the endpoint, below a base URL."""
    del model, stream
    return "/chat/completions"


def headers(key: str | None) -> dict[str, str]:
    """The header that carries the key (RFC 6750)."""
    return {} if key is None else {"authorization": f"Bearer {key}"}


# -- answers
# ----------------------------------------------------------------------------------------------------


_REASONS = {"function_call": "tool_calls", "model_length": "length"}
"""Other names for the reasons why an answer ended. `model_length` is Mistral's: the context is full."""
_THOUGHTS = ("thinking", "reasoning")
"""Types of parts with thoughts. Their text is in `thinking` (Mistral, Cohere), `summary` (Databricks) or `text`."""


def read(payload: Json | bytes) -> Response:
    """The answer in a body.

    Raises `BadRequestError` if there is none, `MissingContentError` if there is no message,
    `RefusalError` if it was withheld.
    """
    body, raw = opened(payload)
    if (
        body.get("error") or body.get("object") == "error"
    ):  # the second is the form of FastChat and vLLM
        raise payload_error(body)
    choice = mapping(next(iter(list_of(body.get("choices"))), None))
    if choice.get("error"):  # OpenRouter, if the provider behind it fails
        raise payload_error(choice)
    message = mapping(choice.get("message"))
    request_id, model, reason = (
        text_of(body.get("id")),
        text_of(body.get("model")),
        text_of(choice.get("finish_reason")),
    )
    if not message:
        found = "a choice without a message" if choice else "no choices"
        raise MissingContentError(no_answer(found, body), request_id=request_id, raw=body)
    refusal, reasoning = text_of(message.get("refusal")), reasoning_of(message)
    counts = mapping(body.get("usage"))
    text, thought = content_of(message.get("content"))
    extra = _extra(message)
    calls = _calls(message)
    if reason == "content_filter" and not text and not calls and not refusal:
        raise RefusalError(
            "the provider's content filter withheld the answer",
            request_id=request_id,
        )
    reason = _REASONS.get(reason, reason) if reason else None
    return Response(
        text,
        calls,
        reasoning or thought,
        reason,
        refusal,
        _usage(counts),
        model,
        cost_of(counts),
        extra,
        raw,
    )


def _usage(counts: Json) -> Usage:
    details = mapping(counts.get("prompt_tokens_details"))
    cached = details.get("cached_tokens") or counts.get("prompt_cache_hit_tokens")
    entered, written = (
        count_of(counts.get("prompt_tokens")),
        count_of(counts.get("completion_tokens")),
    )
    reasoning = count_of(mapping(counts.get("completion_tokens_details")).get("reasoning_tokens"))
    if (
        reasoning and counts.get("total_tokens") == entered + written + reasoning
    ):  # xAI does not count thoughts in the answer
        written += reasoning
    return Usage(
        entered,
        written,
        count_of(cached),
        1,
        reasoning,
        count_of(details.get("cache_write_tokens")),
    )


def reasoning_of(message: Json) -> str | None:
    """The reasoning next to the content of a message or chunk, as named by DeepSeek, by OpenRouter and vLLM, and by GitHub Copilot."""
    return (
        text_of(message.get("reasoning_content"))
        or text_of(message.get("reasoning"))
        or text_of(message.get("reasoning_text"))
    )


def content_of(content: Any) -> tuple[str | None, str | None]:
    """Text and reasoning of a message; some providers send a list of parts."""
    if isinstance(content, str) or content is None:
        return content, None
    if not isinstance(content, list):
        return json_text(content), None
    text: list[str] = []
    thoughts: list[str] = []
    for part in cast("list[Any]", content):
        part = {"type": "text", "text": part} if isinstance(part, str) else mapping(part)  # noqa: PLW2901  the part in its full form
        if part.get("type") in _THOUGHTS:
            inner, _ = content_of(part.get("thinking") or part.get("summary") or part.get("text"))
            thoughts.append(inner or "")
        else:
            text.append(text_of(part.get("text")) or text_of(part.get("refusal")) or "")
    return "".join(text), "".join(thoughts) or None


def _calls(message: Json) -> tuple[ToolCall, ...]:
    entries = message.get("tool_calls")
    if isinstance(entries, list) and entries:
        return tuple(
            [call_at(entry, index) for index, entry in enumerate(cast("list[Any]", entries))],
        )
    if entries and not isinstance(
        entries,
        list,
    ):  # becomes a call with a fault, which the program reports to the model
        reason = f"the calls must be a list of calls, found {shown(entries)}"
        return (
            ToolCall(name="", fault=CallFault("invalid_tool_calls", reason, json_text(entries))),
        )
    function = message.get("function_call")  # deprecated since 2023, still sent by some gateways
    return (call_at(function, 0),) if isinstance(function, dict) else ()


def _extra(message: Json) -> Json | None:
    """The fields to send back with the message: OpenRouter's `reasoning_details`, and Gemini's signature in a call's `extra_content`."""
    kept: Json = {}
    if message.get("reasoning_details"):
        kept["message"] = {"reasoning_details": message["reasoning_details"]}
    entries = message.get("tool_calls")
    if isinstance(entries, list):
        found = [
            cast("Json", entry).get("extra_content") if isinstance(entry, dict) else None
            for entry in cast("list[Any]", entries)
        ]
        if any(found):
            kept["calls"] = {
                str(index): {"extra_content": each} for index, each in enumerate(found) if each
            }
    return {WIRE: kept} if kept else None
