"""Anthropic's Messages API as pure functions: `Request` to body bytes, answer to `Response`.

Format: platform.claude.com, "Messages" of the API reference, November 2026. Messages come last,
after tools and system, so that each body begins with the previous one, except for its end and the
cache markers.

Markers make the provider cache prompts: `cache_control` is on the last tool, on the last block of
the system prompt, and in conversations on the last message and on the last message of the previous
request. `prompt_cache=False` sends no markers, `prompt_cache="1h"` asks for the longer lifetime,
whose writes cost more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_bytes
from ferrule.errors import ConfigurationError, MissingContentError, RefusalError, shown
from ferrule.models.providers import Dialect
from ferrule.models.wires.anthropic.blocks import (
    WIRE,
    assistant_blocks,
    content_blocks,
    kind,
    plain_text,
    read_blocks,
    result_block,
)
from ferrule.models.wires.payload import (
    Json,
    count_of,
    list_of,
    mapping,
    no_answer,
    opened,
    refuse_settings,
    text_of,
)
from ferrule.net.errors import payload_error
from ferrule.values.conversation.exchange import Declarations, Request, Response, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.values.conversation.exchange import Shape
    from ferrule.values.conversation.message import Message

OURS = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "stream",
    },
)
"""Fields of the body (here or in OpenAI's form) that settings may not set, because the `Request` or the model does."""
MAX_TOKENS = 16_000
"""The default limit of an answer: the field is required. A thinking budget is added to it, because thoughts count too."""
_NAMES = {"stop": "stop_sequences", "max_completion_tokens": "max_tokens"}
_PLAIN = Dialect()
_VERSION = "2023-06-01"
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


def render(
    request: Request,
    *,
    model: str,
    settings: Mapping[str, Any],
    stream: bool = False,
    dialect: Dialect = _PLAIN,
) -> bytes:
    """The body of a request. Settings of the request override the model's `settings`; None omits a setting."""
    said = {**settings, **request.settings}
    mark = _mark(said)
    body = json_bytes(_head(request, model, said, stream, dialect))[:-1]
    if request.tools:
        body += b',"tools":' + _tools(request.tools)[:-2] + mark + b"}]"
    messages = list(request.messages)
    begin = next(
        (place for place, message in enumerate(messages) if message.role != "system"),
        len(messages),
    )
    system = [
        block
        for message in messages[:begin]
        if (block := message.rendered(f"{WIRE}+system", _system))
    ]
    if system:
        body += b',"system":[' + b",".join(system)[:-1] + mark + b"}]"
    # A single question is not sent again, and writing it to the cache would cost a quarter more.
    goes_on = bool(request.tools) or len(messages) > begin + 1
    return body + b',"messages":[' + _joined(messages[begin:], mark if goes_on else b"") + b"]}"


def _head(request: Request, model: str, settings: Json, stream: bool, dialect: Dialect) -> Json:
    extra: Json = settings.pop("extra", None) or {}
    if found := OURS.intersection(settings):
        refuse_settings(found)
    head: Json = {
        "model": model,
        "max_tokens": MAX_TOKENS + count_of(mapping(settings.get("thinking")).get("budget_tokens")),
    }
    for name, value in settings.items():
        match name:
            case _ if value is None:
                pass
            case "stop" if isinstance(value, str):
                head["stop_sequences"] = [value]
            case "user":
                head["metadata"] = {**mapping(head.get("metadata")), "user_id": value}
            case "reasoning_effort":
                head["output_config"] = {**mapping(head.get("output_config")), "effort": value}
            case "metadata" | "output_config":
                head[name] = (
                    {**value, **mapping(head.get(name))} if isinstance(value, dict) else value
                )
            case _:
                head[dialect.names.get(name) or _NAMES.get(name, name)] = value
    if request.tools and (choice := _choice(request.tool_choice, request.parallel)):
        head["tool_choice"] = choice
    if request.shape is not None and (form := _format(request.shape)):
        head["output_config"] = {**mapping(head.get("output_config")), "format": form}
    if stream:
        head["stream"] = True
    head.update(extra)
    return head


def _choice(choice: str | Mapping[str, Any] | None, parallel: bool | None) -> Json:
    match choice:
        case None:
            said: Json = {}
        case "auto" | "none":
            said = {"type": choice}
        case "required":
            said = {"type": "any"}
        case str():
            said = {"type": "tool", "name": choice}
        case {"function": {"name": name}}:
            said = {"type": "tool", "name": name}
        case _:
            said = dict(choice)  # in Anthropic's own form
    if parallel is False and choice != "none":
        return {"type": "auto", **said, "disable_parallel_tool_use": True}
    return said


def _format(shape: Shape) -> Json | None:
    """The format of an answer, if the provider can enforce it: not for an arbitrary object, nor for every schema."""
    if shape.kind == "json_object" or shape.schema is None or "properties" not in shape.schema:
        return None
    from ferrule.schema.lowering.lower import lower_schema

    lowered = lower_schema(
        shape.schema,
        "anthropic",
    )  # but a list in place of a dictionary would not be converted back
    return (
        {"type": "json_schema", "schema": lowered.schema}
        if lowered.is_strict and not lowered.pairs
        else None
    )


@lru_cache(maxsize=64)
def _tools(declarations: Declarations) -> bytes:
    """Tools in the provider's form. Cached: declarations compare by their JSON."""
    tools: list[Json] = []
    for declaration in declarations:
        function: Json = declaration["function"]
        tool: Json = {"name": function["name"]}
        if function.get("description"):
            tool["description"] = function["description"]
        tool["input_schema"] = {"type": "object", **(function.get("parameters") or {})}
        if function.get("strict"):
            tool["strict"] = True
        tools.append(tool)
    return json_bytes(tools)


# -- messages
# ---------------------------------------------------------------------------------------------------


def _joined(messages: Sequence[Message], mark: bytes) -> bytes:
    """Messages as the items of a JSON list. The results of one turn share a user message, as the provider requires."""
    marked = _stations(messages) if mark else ()
    pieces: list[bytes] = []
    in_results = False
    for place, message in enumerate(messages):
        made = message.rendered(WIRE, _message)
        if not made:
            continue
        is_result = message.role == "tool"
        if place in marked:
            end = (
                -1 if is_result else -3
            )  # before `}` of the result, or `}]}` of the message's last block
            made = made[:end] + mark + made[end:]
        if in_results:
            pieces.append(b"," if is_result else b"]},")
        elif pieces:
            pieces.append(b",")
        if is_result and not in_results:
            pieces.append(b'{"role":"user","content":[')
        pieces.append(made)
        in_results = is_result
    if in_results:
        pieces.append(b"]}")
    return b"".join(pieces)


def _stations(messages: Sequence[Message]) -> tuple[int, ...]:
    """The positions of the last messages in the user's last two turns, where the markers go.

    The earlier one ended the previous request, and so is where the cache was written. It needs its
    own marker: the provider searches only twenty blocks before a marker (platform.claude.com,
    "Prompt caching", November 2026), and a turn of many calls has more.
    """
    found: list[int] = []
    answered = True
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "assistant":
            answered = True
        elif answered:
            found.append(place)
            answered = False
            if len(found) == 2:
                break
    return tuple(found)


def _mark(settings: Json) -> bytes:
    """The marker that ends a cached prompt; removes `prompt_cache` from the settings."""
    wish = settings.pop("prompt_cache", None)
    match wish:
        case False:
            return b""
        case None | True if "cache_control" in settings or "cache_control" in mapping(
            settings.get("extra"),
        ):
            return b""  # `cache_control` at the top of the body: the provider places the markers
        case None | True:
            return b',"cache_control":{"type":"ephemeral"}'
        case "5m" | "1h":
            return b',"cache_control":{"type":"ephemeral","ttl":"%b"}' % wish.encode()
        case _:
            raise ConfigurationError(
                f'`prompt_cache` is True, False, "5m" or "1h", found {shown(wish)}.',
            )


def _system(message: Message) -> bytes:
    text = plain_text(message, "system messages")
    return json_bytes({"type": "text", "text": text}) if text.strip() else b""


def _message(message: Message) -> bytes:
    """A message in the provider's form, or a block for a result; empty for an empty answer."""
    match message.role:
        case "tool":
            return json_bytes(result_block(message))
        case "assistant":
            blocks = [
                block
                for block in assistant_blocks(message)
                if kind(block) != "text" or str(block.get("text")).strip()
            ]
            return json_bytes({"role": "assistant", "content": blocks}) if blocks else b""
        case _:  # also a later system message: only some models accept that role here, and at the top it would change the cached prompt
            blocks = content_blocks(message.content, "messages") or [
                {"type": "text", "text": "(empty)"},
            ]
            return json_bytes({"role": "user", "content": blocks})


def path(model: str, *, stream: bool = False) -> str:
    """The path of the endpoint, below a base URL."""
    del model, stream
    return "/messages"


def headers(key: str | None) -> dict[str, str]:
    """The headers with the key and the protocol's version."""
    return (
        {"anthropic-version": _VERSION}
        if key is None
        else {"anthropic-version": _VERSION, "x-api-key": key}
    )


# -- answers
# ----------------------------------------------------------------------------------------------------


def read(payload: Json | bytes) -> Response:
    """The answer in a body.

    Raises `BadRequestError` if there is none, `MissingContentError` if it has no content,
    `RefusalError` if it was withheld.
    """
    body, raw = opened(payload)
    if body.get("error") or body.get("type") == "error":
        raise payload_error(body)
    content = body.get("content")
    reason = text_of(body.get("stop_reason"))
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not (content or reason):
        raise MissingContentError(
            no_answer("no content", body),
            request_id=text_of(body.get("id")),
            raw=body,
        )
    blocks = [block for each in list_of(content) if (block := mapping(each))]
    text, thoughts, calls, extra = read_blocks(blocks)
    refusal = (
        text_of(mapping(body.get("stop_details")).get("explanation"))
        if reason == "refusal"
        else None
    )
    if reason == "refusal" and not text and not calls and not refusal:
        raise RefusalError("the provider withheld the answer", request_id=text_of(body.get("id")))
    reason = _REASONS.get(reason, reason) if reason else None
    usage = _usage(mapping(body.get("usage")))
    return Response(
        text,
        calls,
        thoughts,
        reason,
        refusal,
        usage,
        text_of(body.get("model")),
        None,
        extra,
        raw,
    )


def _usage(usage: Json) -> Usage:
    cached, kept = (
        count_of(usage.get("cache_read_input_tokens")),
        count_of(usage.get("cache_creation_input_tokens")),
    )
    # The provider's input tokens include neither cache reads nor cache writes.
    entered = count_of(usage.get("input_tokens")) + kept + cached
    thoughts = mapping(usage.get("output_tokens_details")).get("thinking_tokens")
    return Usage(entered, count_of(usage.get("output_tokens")), cached, 1, count_of(thoughts), kept)
