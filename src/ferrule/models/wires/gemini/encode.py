"""Encodes requests for Gemini's generateContent.

The API of Google AI Studio, `v1beta`. A message's parts are rendered once; the results of one turn
share one content, as the API requires. Contents come last, so that each body of a conversation
begins with the previous one, except for its end, and can be cached.

Format: Gemini API reference, "Generating content", as of November 2026.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic_core import from_json

from ferrule.encoding.encode import json_bytes
from ferrule.errors import ConfigurationError, shown
from ferrule.models.providers import Dialect
from ferrule.models.wires.gemini.decode import WIRE, read_parts
from ferrule.models.wires.payload import (
    Json,
    body_of,
    list_of,
    mapping,
    placeholder,
    refuse_settings,
    take_confidence,
    text_of,
)
from ferrule.models.wires.provider_tools import with_provider_tools
from ferrule.schema.lowering.lower import lower_schema, lower_tools
from ferrule.values.content.parts import Text, inline_data, media_type_of
from ferrule.values.conversation.message import safe_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.content.parts import Audio, Content, File, Image
    from ferrule.values.conversation.exchange import Declarations, Request
    from ferrule.values.conversation.message import Message, Messages

OURS = frozenset(
    {
        "model",
        "contents",
        "messages",
        "systemInstruction",
        "tools",
        "toolConfig",
        "toolChoice",
        "parallelToolCalls",
        "responseMimeType",
        "responseSchema",
        "responseJsonSchema",
        "responseFormat",
        "stream",
    }
)
"""Fields of the body, here or in chat completions, that settings may not set.

The `Request` or the model sets them.
"""
UNSIGNED = "skip_thought_signature_validator"
"""The signature of a call that Gemini did not make ("Thought signatures", section FAQs, as of
November 2026)."""
_NAMES: Mapping[str, str] = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "stop": "stopSequences",
}
"""Settings with a different name here; all others are converted from `snake_case` to
`camelCase`."""
_OUTSIDE_CONFIG = frozenset(
    {"safetySettings", "cachedContent", "serviceTier", "labels", "store", "continuationToken"}
)
"""Settings outside `generationConfig`; all others go into it."""
_BUDGETS: Mapping[str, int] = {
    "none": 0,
    "minimal": 1024,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
}
"""Reasoning efforts in tokens, for models before Gemini 3 ("OpenAI compatibility", section
"Thinking", as of June 2026)."""
_SINCE_3 = re.compile(r"gemini-(?:[3-9]|[1-9][0-9]|(?:pro|flash)(?:-lite)?-latest)")
"""Models with thinking levels, signed calls, and media in results."""
_MODES: Mapping[str, str] = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_ROLES: Mapping[str, bytes] = {
    "user": b"user",
    "system": b"user",
    "tool": b"user",
    "assistant": b"model",
}
_IN_RESULTS = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
"""Media types that results can carry ("Function calling", section "Multimodal function responses",
as of November 2026)."""
_PLAIN = Dialect()


def path(model: str, *, stream: bool = False) -> str:
    """The path for a model, below a base URL; `models/x` and `tunedModels/x` are names too."""
    if not model.startswith(("models/", "tunedModels/")):
        model = f"models/{model}"
    if stream:
        method = "streamGenerateContent?alt=sse"
    else:
        method = "generateContent"
    return f"/{quote(model, safe='/:@')}:{method}"


def headers(key: str | None) -> dict[str, str]:
    """The header that carries the key ("API keys", section "Provide the API key")."""
    if key is None:
        return {}
    return {"x-goog-api-key": key}


def render(
    request: Request,
    *,
    model: str,
    settings: Mapping[str, Any],
    stream: bool = False,
    dialect: Dialect = _PLAIN,
) -> bytes:
    """The body of a request.

    Settings of the request override the model's `settings`; None omits a setting.
    `request.parallel` is not sent: the API cannot limit the model to one call at a time.
    """
    del stream  # the path already says so
    settings = {**settings, **request.settings}
    if take_confidence(settings):
        settings["response_logprobs"] = True
    is_since_3 = _SINCE_3.search(model) is not None
    extra: Json = with_provider_tools(WIRE, request, settings.pop("extra", None) or {})
    head = _head(request, settings=settings, dialect=dialect, is_since_3=is_since_3)
    if request.tools and request.provider_tools:
        _allow_both(head, model, is_since_3=is_since_3)
    parts: dict[str, bytes] = {}
    if request.tools:
        parts["tools"] = b"[%b]" % _functions(request.tools)
    start = _number_of_system_messages(request.messages)
    if start:
        system = [message.rendered(WIRE, _words) for message in request.messages[:start]]
        parts["systemInstruction"] = b'{"parts":[%b]}' % b",".join(system)
    contents = _contents(request.messages, start, is_since_3=is_since_3)
    parts["contents"] = b"[%b]" % contents
    return body_of(head, {**extra, **_merged(head, extra)}, parts)


def _allow_both(head: Json, model: str, *, is_since_3: bool) -> None:
    """Let a request have functions and the provider's own tools ("Tool combination")."""
    if not is_since_3:
        raise ConfigurationError(
            f"`{model}` takes either functions or its provider's own tools: nothing was sent. "
            "Models from Gemini 3 on take both; with this one, use one kind alone, or "
            '`calls="prompted"`, which declares no functions.'
        )
    config = mapping(head.get("toolConfig"))
    head["toolConfig"] = {**config, "includeServerSideToolInvocations": True}


def _merged(head: Json, extra: Json) -> Json:
    """The objects of `extra` that the body has too, such as `generationConfig`, merged."""
    merged: Json = {}
    for name, value in extra.items():
        if isinstance(value, dict) and isinstance(head.get(name), dict):
            merged[name] = {**head[name], **value}
    return merged


def _head(request: Request, *, settings: Json, dialect: Dialect, is_since_3: bool) -> Json:
    """All fields of the body except tools, system and contents."""
    refused = [name for name in settings if _camel(name) in OURS]
    if refused:
        refuse_settings(refused)
    settings.pop("stream_options", None)  # another protocol's
    effort = settings.pop("reasoning_effort", None)
    head: Json = {}
    config: Json = {}
    for name, value in settings.items():
        if value is None:
            continue
        field = dialect.names.get(name) or _NAMES.get(name) or _camel(name)
        if field == "generationConfig":
            config.update(mapping(value))
        elif field in _OUTSIDE_CONFIG:
            head[field] = value
        else:
            config[field] = value
    if isinstance(config.get("stopSequences"), str):
        config["stopSequences"] = [config["stopSequences"]]
    if effort is not None:
        thinking = _thinking(effort, is_since_3=is_since_3)
        config["thinkingConfig"] = {**thinking, **mapping(config.get("thinkingConfig"))}
    if request.shape is not None:
        config["responseMimeType"] = "application/json"
        if request.shape.strict:
            config["responseJsonSchema"] = request.shape.schema
        elif request.shape.kind == "json_schema" and request.shape.schema is not None:
            config["responseJsonSchema"] = _lowered(json_bytes(request.shape.schema))
    if config:
        head["generationConfig"] = config
    if request.tools and request.tool_choice is not None:
        head["toolConfig"] = {"functionCallingConfig": _choice(request.tool_choice)}
    return head


def _thinking(effort: Any, *, is_since_3: bool) -> Json:
    budget = _BUDGETS.get(str(effort))
    if is_since_3 or budget is None:
        return {"thinkingLevel": effort}
    return {"thinkingBudget": budget}


def _camel(name: str) -> str:
    return re.sub("_([a-z0-9])", lambda match: match[1].upper(), name)


def _choice(choice: str | Mapping[str, Any]) -> Json:
    if isinstance(choice, str):
        if choice in _MODES:
            return {"mode": _MODES[choice]}
        name: str | None = choice
    elif "mode" in choice:
        return dict(choice)  # in Gemini's own form
    else:
        name = text_of(mapping(choice.get("function")).get("name"))
    if not name:
        raise ConfigurationError(
            f'`tool_choice` is "auto", "none", "required" or names one tool, found {shown(choice)}.'
        )
    return {"mode": "ANY", "allowedFunctionNames": [name]}


@lru_cache(maxsize=64)
def _functions(tools: Declarations) -> bytes:
    """The declarations as one tool. Cached: declarations compare by their JSON."""
    functions: list[Json] = []
    for tool in lower_tools(tools, "gemini").tools:
        function = tool["function"]
        schema = mapping(function.get("parameters"))
        fields = {"name": function["name"], "description": function.get("description") or ""}
        if schema.keys() - {"type"}:  # a function without arguments has no schema
            fields["parametersJsonSchema"] = schema
        functions.append(fields)
    return json_bytes({"functionDeclarations": functions})


@lru_cache(maxsize=64)
def _lowered(schema: bytes) -> Json:
    """The schema of an answer, lowered for Gemini. Shared; do not change it."""
    return lower_schema(from_json(schema), "gemini").schema


# -- messages


def _number_of_system_messages(messages: Messages) -> int:
    """How many messages form the system instruction.

    The first ones, but never all, because contents must not be empty.
    """
    count = 0
    while count < len(messages) - 1 and messages[count].role == "system":
        count += 1
    return count


def _contents(messages: Messages, start: int, *, is_since_3: bool) -> bytes:
    """The conversation as contents.

    A later system message becomes a user message in its place: the only roles are user and model.
    """
    contents: list[bytes] = []
    parts: list[bytes] = []
    role_before = None
    for index in range(start, len(messages)):
        role = messages[index].role
        if parts and (role != role_before or role == "user"):
            contents.append(_content(role_before, parts))
            parts = []
        parts.append(_parts(messages, index, is_since_3=is_since_3))
        role_before = role
    if parts:
        contents.append(_content(role_before, parts))
    return b",".join(contents)


def _content(role: str | None, parts: list[bytes]) -> bytes:
    return b'{"role":"%b","parts":[%b]}' % (_ROLES[role or "user"], b",".join(parts))


def _parts(messages: Messages, index: int, *, is_since_3: bool) -> bytes:
    """The parts of one message, as the items of a JSON list."""
    message = messages[index]
    if is_since_3:
        form = f"{WIRE}+3"
    else:
        form = WIRE
    if message.role == "assistant":
        return message.rendered(form, partial(_turn, is_signed=is_since_3))
    if message.role == "tool":
        if message.name is not None:
            name = message.name
        else:
            name = _name_of_tool(messages, index)
        result = partial(_result, name=name, has_media=is_since_3)
        return message.rendered(f"{form}:{name}", result)
    return message.rendered(WIRE, _words)


def _name_of_tool(messages: Messages, index: int) -> str | None:
    """The name of a result's tool, from the call that it answers: the API requires it."""
    call_id = messages[index].tool_call_id
    for position in range(index - 1, -1, -1):
        for call in messages[position].tool_calls:
            if call.id == call_id:
                return call.name
    return None


def _turn(message: Message, *, is_signed: bool) -> bytes:
    return _joined(turn_parts(message, signed=is_signed))


def _result(message: Message, *, name: str | None, has_media: bool) -> bytes:
    return _joined(result_parts(message, name=name, media=has_media))


def _words(message: Message) -> bytes:
    return _joined(content_parts(message.content))


def _joined(parts: list[Json]) -> bytes:
    return json_bytes(parts).removeprefix(b"[").removesuffix(b"]")


# -- parts


def turn_parts(message: Message, *, signed: bool = False) -> list[Json]:
    """The parts of a model's message.

    If calls must be `signed`, a turn whose calls have no signature gets `UNSIGNED`.
    """
    parts = _original_parts(message) or _new_parts(message)
    if signed:
        for part in parts:
            if "functionCall" in part:
                part.setdefault("thoughtSignature", UNSIGNED)
                break  # only the first of parallel calls is signed
    return parts


def _new_parts(message: Message) -> list[Json]:
    parts: list[Json] = []
    if message.content or not message.tool_calls:
        parts += content_parts(message.content)
    for call in message.tool_calls:
        parts.append({"functionCall": _call(call)})
    return parts


def content_parts(content: Content) -> list[Json]:
    """The content of a user's or model's message as parts."""
    if isinstance(content, str):
        return [{"text": content}]
    parts: list[Json] = []
    for part in content:
        if isinstance(part, Text):
            parts.append({"text": part.text})
        else:
            parts.append(_media(part))
    return parts or [{"text": ""}]


def result_parts(message: Message, *, name: str | None, media: bool) -> list[Json]:
    """The parts of a tool's result.

    `media` says whether the model accepts images and documents in it, as Gemini 3 and later do.
    """
    content = message.content
    if isinstance(content, str):
        parts = (Text(text=content),)
    else:
        parts = content
    texts: list[str] = []
    blobs: list[Json] = []
    for part in parts:
        if isinstance(part, Text):
            texts.append(part.text)
            continue
        # The Gemini API has no place for a URL in a result (`FunctionResponseFileData`).
        blob = _media(part)
        if media and mapping(blob.get("inlineData")).get("mimeType") in _IN_RESULTS:
            blobs.append(blob)
        else:
            texts.append(placeholder(part, WIRE, "tool results"))
    response: Json = {}
    if message.tool_call_id is not None:
        response["id"] = message.tool_call_id
    response["name"] = safe_name(name)
    # As text, not as an object: the API interprets a key `$ref` in an object (vercel/ai, issue
    # 14369).
    response["response"] = {"error" if message.is_error else "output": "\n".join(texts)}
    if blobs:
        response["parts"] = blobs
    return [{"functionResponse": response}]


def _media(part: Image | Audio | File) -> Json:
    inline = inline_data(part)
    if inline is not None:
        media_type, data = inline
        return {"inlineData": {"mimeType": media_type, "data": data}}
    return {"fileData": {"mimeType": _media_type_at_address(part), "fileUri": part.address}}


def _media_type_at_address(part: Image | Audio | File) -> str:
    if "media_type" in part.model_fields_set:
        return part.media_type
    name, _, _ = part.address.partition("?")
    return media_type_of(name) or part.media_type


def _call(call: ToolCall) -> Json:
    fields: Json = {} if call.id is None else {"id": call.id}
    fields["name"] = safe_name(call.name)
    fields["args"] = call.args
    if call.fault is not None and call.fault.raw:
        # The API accepts only objects. Invalid arguments are wrapped in one, so that the model
        # sees what it wrote.
        fields["args"] = {"invalid_arguments": call.fault.raw}
    return fields


def _original_parts(message: Message) -> list[Json]:
    """The parts of the provider's answer, with the message's calls.

    Empty if the turn came from another provider, or was changed.
    """
    extra = mapping((message.extra or {}).get(WIRE))
    parts = [mapping(part) for part in list_of(extra.get("parts"))]
    number_of_calls = sum("functionCall" in part for part in parts)
    if number_of_calls != len(message.tool_calls) or (read_parts(parts).text or "") != message.text:
        return []
    calls = iter(message.tool_calls)
    original: list[Json] = []
    for part in parts:
        if "functionCall" in part:
            original.append({**part, "functionCall": _call(next(calls))})
        else:
            original.append(dict(part))
    return original
