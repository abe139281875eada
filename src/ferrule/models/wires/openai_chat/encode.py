"""Encodes requests for OpenAI's chat completions.

vLLM, llama.cpp, Ollama, OpenRouter, Groq, Mistral, DeepSeek and most others speak this protocol
too. A `Dialect` says how a provider differs.

A body is joined from bytes, not encoded as one object, because each step of a conversation sends
the earlier messages again. Tools, each message, and the joined messages keep their bytes, under the
name of their form (`Declarations.cached_value`, `Message.rendered`, `Messages.joined`). Messages
come last, so that each body of a conversation begins with the previous one, except for its end: a
provider can cache that beginning.

The name of a form must say all that the bytes depend on, or one dialect gets those of another
(`_form_name`). Most messages are equal in all dialects; those share `Message.json`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.encoding.encode import json_bytes
from ferrule.models.providers import Dialect
from ferrule.models.wires.openai_chat.decode import REASONING, WIRE
from ferrule.models.wires.payload import (
    Json,
    body_of,
    openai_function,
    placeholder,
    refuse_settings,
    take_confidence,
)
from ferrule.models.wires.provider_tools import with_provider_tools
from ferrule.values.content.parts import Audio, Text
from ferrule.values.conversation.message import Message, openai_content, safe_id, sent_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.values.conversation.exchange import Declarations, Request, Shape

OURS = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "stream",
    }
)
"""Fields of the body that settings may not set, because the `Request` or the model does."""
_COMMON = Dialect()


def path(model: str, *, stream: bool = False) -> str:
    """The path of the endpoint, below a base URL."""
    del model, stream  # other wires have them in the path; here they are in the body
    return "/chat/completions"


def headers(key: str | None) -> dict[str, str]:
    """The header that carries the key (RFC 6750)."""
    if key is None:
        return {}
    return {"authorization": f"Bearer {key}"}


def render(
    request: Request,
    *,
    model: str,
    settings: Mapping[str, Any],
    stream: bool = False,
    dialect: Dialect = _COMMON,
) -> bytes:
    """The body of a request.

    Settings of the request override the model's `settings`; None omits a setting.
    """
    settings = {**settings, **request.settings}
    extra: Json = settings.pop("extra", None) or {}
    head = _head(request, model=model, settings=settings, stream=stream, dialect=dialect)
    tools = b""
    if request.tools:
        tools = request.tools.cached_value(WIRE, lambda: _tools(request.tools))
    form_name = _form_name(dialect)
    messages = request.messages.joined(
        form_name, lambda added: _conversation(added, form_name, dialect)
    )
    extra = with_provider_tools(WIRE, request, extra)  # raises: this protocol has none
    return body_of(head, extra, {"tools": tools, "messages": b"[%b]" % messages})


def _head(request: Request, *, model: str, settings: Json, stream: bool, dialect: Dialect) -> Json:
    """All fields of the body except tools and messages."""
    refused = OURS.intersection(settings)
    if refused:
        refuse_settings(refused)
    stream_options: Any = {"include_usage": True} if dialect.stream_usage else None
    stream_options = settings.pop("stream_options", stream_options)
    head: Json = {"model": model}
    if take_confidence(settings):
        head["logprobs"] = True
    for name, value in settings.items():
        if value is not None:
            head[dialect.names.get(name, name)] = value
    if request.tools and request.tool_choice is not None:
        head["tool_choice"] = _choice(request.tool_choice)
    if request.tools and request.parallel is not None:
        head["parallel_tool_calls"] = request.parallel
    if request.shape is not None:
        head["response_format"] = _format(request.shape)
    if stream:
        head["stream"] = True
        if stream_options:
            head["stream_options"] = stream_options
    return head


def _choice(choice: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    if isinstance(choice, str) and choice not in {"auto", "none", "required"}:
        return {"type": "function", "function": {"name": choice}}
    return choice


def _format(shape: Shape) -> Json:
    if shape.kind == "json_object" or shape.schema is None:
        return {"type": "json_object"}
    json_schema: Json = {"name": shape.name, "schema": shape.schema}
    if shape.strict:
        json_schema["strict"] = True
    return {"type": "json_schema", "json_schema": json_schema}


def _tools(declarations: Declarations) -> bytes:
    return json_bytes(
        [{**tool, "function": openai_function(tool["function"])} for tool in declarations]
    )


# -- messages


def _form_name(dialect: Dialect) -> str:
    """The name of a message's form in this dialect; equal for dialects with equal messages."""
    name = WIRE
    if dialect.reasoning != "received":
        name += f"+reasoning:{dialect.reasoning}"
    if dialect.longest_id is not None:
        name += f"<{dialect.longest_id}"
    return name


def _conversation(messages: Iterable[Message], form_name: str, dialect: Dialect) -> list[bytes]:
    """The messages as JSON objects.

    Tool messages hold only text (API reference, "Create chat completion"), so the media of one
    turn's results follow in a user message. It comes after the last result, because no other
    message may separate results from their calls.
    """
    form = partial(_in_dialect, dialect=dialect)
    pieces: list[bytes] = []
    media: list[bytes] = []
    for message in messages:
        if not isinstance(message.content, str):
            message = _without_remote_audio(message)  # noqa: PLW2901  the message that can be sent
        if media and message.role != "tool":
            pieces.append(_user_message(media))
            media = []
        if message.role == "tool" and not isinstance(message.content, str):
            # The names of these two forms need not say the dialect: if an id is shortened, `result`
            # is a new message, which has no forms yet.
            result = _with_short_ids(message, dialect.longest_id)
            pieces.append(result.rendered(f"{WIRE}+text", _text_of_result))
            media_of_result = result.rendered(f"{WIRE}+media", _media_of_result)
            if media_of_result:
                media.append(media_of_result)
        elif _is_common(message, dialect):
            pieces.append(message.json)
        else:
            pieces.append(message.rendered(form_name, form))
    if media:
        pieces.append(_user_message(media))
    return pieces


def _user_message(parts: list[bytes]) -> bytes:
    return b'{"role":"user","content":[%b]}' % b",".join(parts)


def _is_common(message: Message, dialect: Dialect) -> bool:
    """Whether a message looks the same in this dialect as in the common one."""
    if message.extra or (dialect.reasoning == "always" and message.tool_calls):
        return False
    return _has_short_ids(message, dialect.longest_id)


def _in_dialect(message: Message, dialect: Dialect) -> bytes:
    """A message with what its provider needs back: opaque fields, short ids, reasoning.

    The decoder put the opaque fields of the message and of its calls, by index, into `extra`.
    """
    message = _with_short_ids(message, dialect.longest_id)
    fields = sent_message(message)
    extra: Mapping[str, Any] = (message.extra or {}).get(WIRE) or {}
    fields.update(extra.get("message") or {})
    extra_of_calls: Mapping[str, Any] = extra.get("calls") or {}
    for index, call in enumerate(fields.get("tool_calls") or ()):
        call.update(extra_of_calls.get(str(index)) or {})
    if message.tool_calls and _sends_reasoning(extra, dialect):
        # The field is sent even if it is empty: DeepSeek reportedly refuses calls without it
        # (deepseek-harness, discussion 1850).
        fields[REASONING] = message.reasoning
    return json_bytes(fields)


def _sends_reasoning(extra: Mapping[str, Any], dialect: Dialect) -> bool:
    if dialect.reasoning == "received":
        return extra.get("reasoning") == REASONING
    return dialect.reasoning == "always"


def _has_short_ids(message: Message, longest: int | None) -> bool:
    if longest is None:
        return True
    lengths = [len(call.id or "") for call in message.tool_calls]
    lengths.append(len(message.tool_call_id or ""))
    return max(lengths) <= longest


def _with_short_ids(message: Message, longest: int | None) -> Message:
    """The message, with long ids from other providers shortened; itself if none is too long."""
    if _has_short_ids(message, longest):
        return message
    calls = tuple(
        [
            call if call.id is None else call.with_id(safe_id(call.id, longest))
            for call in message.tool_calls
        ]
    )
    result_id = message.tool_call_id
    if result_id is not None:
        result_id = safe_id(result_id, longest)
    return replace(message, tool_call_id=result_id, tool_calls=calls)


# -- media


def _without_remote_audio(message: Message) -> Message:
    """The message with a note in place of each audio part with a URL.

    The protocol takes only the bytes of audio.
    """
    parts: list[Any] = []
    for part in message.content:
        if isinstance(part, Audio) and not part.address.startswith("data:"):
            parts.append(Text(text=placeholder(part, WIRE, "messages")))
        else:
            parts.append(part)
    content = tuple(parts)
    if content == message.content:
        return message
    return replace(message, content=content)


def _text_of_result(message: Message) -> bytes:
    """A result with notes in place of its images, audio and files."""
    parts: list[Any] = []
    for part in message.content:
        if isinstance(part, Text):
            parts.append(part)
        else:
            parts.append(Text(text=f"[{part!r}: see the message after the tool results]"))
    return json_bytes(sent_message(replace(message, content=tuple(parts))))


def _media_of_result(message: Message) -> bytes:
    """The media that `_text_of_result` leaves out, under a heading; empty if there are none."""
    media = [part for part in message.content if not isinstance(part, (str, Text))]
    if not media:
        return b""
    tool_name = message.name or "the tool"
    heading = Text(text=f"From the result of `{tool_name}` (call {message.tool_call_id}):")
    parts = json_bytes(openai_content((heading, *media)))
    # Without brackets: the media of several results are joined into one list.
    return parts.removeprefix(b"[").removesuffix(b"]")
