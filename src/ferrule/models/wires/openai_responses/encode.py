"""Encodes requests for OpenAI's Responses API.

The provider stores nothing: `store` is false, each request holds the whole conversation, and
reasoning comes encrypted and is sent back (unless settings say otherwise). A message becomes one or
more items, rendered once. Items come last, so that each body of a conversation begins as the
previous one does, up to its last item, and a provider can cache that beginning.

Format: OpenAI's API reference, "Create a model response", as of November 2026.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_bytes
from ferrule.models.providers import Dialect
from ferrule.models.wires.openai_responses.decode import WIRE, is_call, text_in
from ferrule.models.wires.openai_responses.provider_calls import included_for
from ferrule.models.wires.payload import (
    Json,
    body_of,
    list_of,
    mapping,
    openai_function,
    placeholder,
    refuse_settings,
    take_confidence,
    tools_over_time,
)
from ferrule.models.wires.provider_tools import deferred_tools, with_provider_tools
from ferrule.values.calls.call import call_at
from ferrule.values.content.parts import File, Image, Text
from ferrule.values.conversation.message import safe_id, safe_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.content.parts import Content, Part
    from ferrule.values.conversation.exchange import Declarations, Request, Shape, ToolChange
    from ferrule.values.conversation.message import Message

OURS = frozenset(
    {
        "model",
        "input",
        "messages",
        "previous_response_id",
        "conversation",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "stream",
    }
)
"""Fields of the body, here or in chat completions, that settings may not set.

The `Request` or the model sets them.
"""
_INCLUDED = ["reasoning.encrypted_content"]
_LOGPROBS = "message.output_text.logprobs"
_WITHOUT_REASONING = re.compile(r"gpt-[34]|chatgpt|-chat-")
"""Models without reasoning: they refuse requests for it (pydantic-ai, issues 2865 and 3326)."""
_RENAMED: Mapping[str, tuple[str, str | None]] = {
    "max_tokens": ("max_output_tokens", None),
    "max_completion_tokens": ("max_output_tokens", None),
    "reasoning_effort": ("reasoning", "effort"),
    "verbosity": ("text", "verbosity"),
}
"""Settings with a different name here: the field, and the key in it."""
_LONGEST_ID = 64
"""The longest id of a call: "string too long. Expected a string with maximum length 64" (openclaw,
pull request 137489)."""
_PLAIN = Dialect()


def path(model: str, *, stream: bool = False) -> str:
    """The path of the endpoint, below a base URL."""
    del model, stream
    return "/responses"


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
    dialect: Dialect = _PLAIN,
) -> bytes:
    """The body of a request.

    Settings of the request override the model's `settings`; None omits a setting.
    """
    head, extra = _head(request, model=model, settings=settings, stream=stream)
    declared, changes = tools_over_time(request, dialect)
    tools = b""
    if declared:
        tools = _tools(declared, deferred_tools(request))
    extra = with_provider_tools(WIRE, request, extra)
    if changes:
        items = _with_added_tools([*request.messages], changes)
    else:
        items = request.messages.joined(WIRE, _conversation)
    return body_of(head, extra, {"tools": tools, "input": b"[%b]" % items})


def _head(
    request: Request, *, model: str, settings: Mapping[str, Any], stream: bool
) -> tuple[Json, Json]:
    """All fields of the body except tools and items, and those that the user adds (`extra`)."""
    head: Json = {"model": model, "store": False}
    if not _WITHOUT_REASONING.search(model):
        head["include"] = [*_INCLUDED]
    included = included_for(request.provider_tools)
    if included:
        head["include"] = [*list_of(head.get("include")), *included]
    extra: Json = {}
    # One after the other, not merged: `reasoning_effort` of the model and `reasoning` of the
    # request are two settings of one field.
    for layer in (settings, request.settings):
        refused = OURS.intersection(layer)
        if refused:
            refuse_settings(refused)
        for name, value in layer.items():
            if name == "extra":
                extra = value or {}
            elif name != "confidence":
                field, key = _RENAMED.get(name, (name, None))
                _put(head, field, key, value)
    if take_confidence({**settings, **request.settings}):
        head["include"] = [*list_of(head.get("include")), _LOGPROBS]
    if (request.tools or request.provider_tools) and request.tool_choice is not None:
        head["tool_choice"] = _choice(request.tool_choice)
    if request.tools and request.parallel is not None:
        head["parallel_tool_calls"] = request.parallel
    if request.shape is not None:
        _put(head, "text", "format", _format(request.shape))
    if stream:
        head["stream"] = True
    if not stream or not head.get("stream_options"):
        head.pop("stream_options", None)  # only a stream takes them
    return head, extra


def _put(head: Json, field: str, key: str | None, value: Any) -> None:
    """Set a field, or one key of it; None removes it. Objects are merged."""
    current = {**mapping(head.get(field))}  # a copy: it may be a dict of the settings
    if key is not None:
        current[key] = value
        if value is None:
            del current[key]
        value = current or None
    elif current and isinstance(value, dict):
        value = {**current, **mapping(value)}
    if value is None:
        head.pop(field, None)
    else:
        head[field] = value


def _choice(choice: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    if isinstance(choice, str):
        if choice in {"auto", "none", "required"}:
            return choice
        return {"type": "function", "name": choice}
    function = mapping(choice.get("function"))
    if function:
        return {"type": "function", "name": function.get("name")}
    return choice


def _format(shape: Shape) -> Json:
    if shape.kind == "json_object" or shape.schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "name": shape.name,
        "schema": shape.schema,
        "strict": shape.strict,
    }


@lru_cache(maxsize=64)
def _tools(declarations: Declarations, deferred: frozenset[str] = frozenset()) -> bytes:
    tools: list[Json] = []
    for declaration in declarations:
        # Without `strict`, OpenAI makes the schema strict, and so every optional argument required
        # (guide "Function calling").
        tool = {"type": "function", "strict": False, **openai_function(declaration["function"])}
        if tool["name"] in deferred:
            tool["defer_loading"] = True
        tools.append(tool)
    return json_bytes(tools)


# -- messages


def _with_added_tools(messages: list[Message], changes: Sequence[ToolChange]) -> bytes:
    """The items of a conversation, with the tools that were added between its messages."""
    items = _conversation(messages)
    # From the last change on, so that the positions of the earlier ones hold.
    for change in reversed(changes):
        start = b'{"type":"additional_tools","role":"developer","tools":'
        items.insert(change.after, b"%b%b}" % (start, _tools(change.added)))
    return b",".join(items)


def _conversation(messages: list[Message]) -> list[bytes]:
    return [message.rendered(WIRE, _rendered) for message in messages]


def _rendered(message: Message) -> bytes:
    return b",".join([json_bytes(item) for item in _items(message)])


def _items(message: Message) -> list[Json]:
    """A message as one or more items.

    Their type is optional at OpenAI, but llama.cpp requires it.
    """
    if message.role == "tool":
        output = _content(message.content, "tool results")
        return [{"type": "function_call_output", **_id(message.tool_call_id), "output": output}]
    if message.role != "assistant":
        content = _content(message.content, "messages")
        return [{"type": "message", "role": message.role, "content": content}]
    original = _original_items(message)
    if original:
        return original
    items: list[Json] = []
    text = _in_words(message.content)
    if text or not message.tool_calls:
        items.append({"type": "message", "role": "assistant", "content": text})
    for call in message.tool_calls:
        items.append(call_item(call))
    return items


def call_item(call: ToolCall) -> Json:
    """A call as an item."""
    return {
        "type": "function_call",
        "name": safe_name(call.name),
        "arguments": call.arguments_text,
        **_id(call.id),
    }


def _id(call_id: str | None) -> Json:
    if call_id is None:
        return {}
    return {"call_id": safe_id(call_id, _LONGEST_ID)}


def _content(content: Content, place: str) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return [_part(part, place) for part in content]


def _part(part: Part, place: str) -> Json:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text}
        case Image():
            return {"type": "input_image", "detail": "auto", "image_url": part.address}
        case File() if part.url is not None:
            return {"type": "input_file", "file_url": part.url}
        case File():
            return {"type": "input_file", "filename": part.name, "file_data": part.address}
        case _:
            return {"type": "input_text", "text": placeholder(part, WIRE, place)}


def _in_words(content: Content) -> str:
    """The content of an answer, which may hold only text."""
    if isinstance(content, str):
        return content
    lines: list[str] = []
    for part in content:
        if isinstance(part, Text):
            lines.append(part.text)
        else:
            lines.append(placeholder(part, WIRE, "answers"))
    return "\n".join(lines)


def _original_items(message: Message) -> list[Json]:
    """The items of the provider's answer, with the message's current calls.

    Empty if the message has another text or another number of calls, as when a program dropped a
    call: the provider refuses reasoning without the item after it.
    """
    extra = mapping((message.extra or {}).get(WIRE))
    items = [mapping(item) for item in list_of(extra.get("output"))]
    number_of_calls = sum(map(is_call, items))
    text, _ = text_in(items)
    if number_of_calls != len(message.tool_calls) or (text or "") != message.text:
        return []
    calls = iter(message.tool_calls)
    original: list[Json] = []
    for item in items:
        if is_call(item):
            original.append(_original_call(item, next(calls)))
        elif item.get("type") == "reasoning":
            # The list of its contents is optional at OpenAI, but other servers require it.
            original.append({**item, "content": item.get("content", [])})
        else:
            original.append(item)
    return original


def _original_call(item: Json, call: ToolCall) -> Json:
    """A call with the id of its result.

    Its arguments are the model's exact text, if they still mean the same.
    """
    current = call_item(call)
    written = item.get("arguments")
    if isinstance(written, str) and call_at(item, 0).args == call.args:
        current["arguments"] = written
    return {**item, **current}
