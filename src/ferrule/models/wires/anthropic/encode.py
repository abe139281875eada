"""Encodes requests for Anthropic's Messages API.

Messages come last, after tools and system, so that each body of a conversation begins with the
previous one, except for its end and the cache markers.

Markers make the provider cache prompts: `cache_control` is on the last tool, on the last block of
the system prompt, and in conversations on the last message and on the last message of the previous
request. `prompt_cache=False` sends no markers, `prompt_cache="1h"` asks for the longer lifetime,
whose writes cost more.

Format: platform.claude.com, "Messages" of the API reference, November 2026.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_bytes
from ferrule.errors import ConfigurationError, shown
from ferrule.models.providers import Dialect
from ferrule.models.wires.anthropic.decode import UNREADABLE, WIRE, kind, read_blocks
from ferrule.models.wires.payload import (
    Json,
    body_of,
    count_of,
    list_of,
    mapping,
    placeholder,
    refuse_settings,
    take_confidence,
    tools_over_time,
)
from ferrule.models.wires.provider_tools import deferred_tools, with_provider_tools
from ferrule.schema.lowering.lower import lower_schema
from ferrule.values.content.parts import File, Image, Text, inline_data
from ferrule.values.conversation.exchange import declared_name
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
        "messages",
        "system",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "stream",
    }
)
"""Fields of the body, here or in OpenAI's form, that settings may not set.

The `Request` or the model sets them.
"""
MAX_TOKENS = 16_000
"""The default limit of an answer, because the field is required.

A thinking budget is added to it, because thoughts count too.
"""
_NAMES = {"stop": "stop_sequences", "max_completion_tokens": "max_tokens"}
_PLAIN = Dialect()
_VERSION = "2023-06-01"
_REMOTE_MCP = "mcp-client-2025-11-20"
_ADDED_TOOLS = "inline-tools-2026-09-15"
"""The beta of tools that are defined within a conversation (platform.claude.com, "Mid-conversation
system messages and tool changes", November 2026)."""
_PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_DOCUMENTS = frozenset({"application/pdf", "application/octet-stream"})
"""Media types of documents at a URL. The second is the default type of a file."""
_READABLE = re.compile(r"text/.*|application/(?:.*\+)?(?:json|xml|yaml)")


def path(model: str, *, stream: bool = False) -> str:
    """The path of the endpoint, below a base URL."""
    del model, stream
    return "/messages"


def request_headers(request: Request, dialect: Dialect) -> dict[str, str]:
    """The header that names the unreleased features of the protocol that a request uses."""
    betas: list[str] = []
    if any(tool.kind == "remote_mcp" for tool in request.provider_tools):
        betas.append(_REMOTE_MCP)
    if tools_over_time(request, dialect)[1]:
        betas.append(_ADDED_TOOLS)
    if not betas:
        return {}
    return {"anthropic-beta": ",".join(betas)}


def headers(key: str | None) -> dict[str, str]:
    """The headers with the key and the protocol's version."""
    if key is None:
        return {"anthropic-version": _VERSION}
    return {"anthropic-version": _VERSION, "x-api-key": key}


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
    settings = {**settings, **request.settings}
    mark = _mark(settings)
    extra: Json = with_provider_tools(WIRE, request, settings.pop("extra", None) or {})
    head = _head(request, model=model, settings=settings, stream=stream, dialect=dialect)
    parts: dict[str, bytes] = {}
    declared, changes = tools_over_time(request, dialect)
    if declared:
        to_mark, rest = _tools(declared, deferred_tools(request))
        if to_mark:
            parts["tools"] = b"%b%b}%b" % (to_mark, mark, rest)
        else:
            parts["tools"] = rest
    messages = list(request.messages)
    start = _number_of_system_messages(messages)
    system = _system_blocks(messages[:start])
    if system:
        parts["system"] = b"[%b%b}]" % (b",".join(system).removesuffix(b"}"), mark)
    # A single question is not sent again, and writing it to the cache would cost a quarter more.
    is_conversation = bool(request.tools) or len(messages) > start + 1
    if not is_conversation:
        mark = b""
    parts["messages"] = b"[%b]" % _conversation(
        messages[start:], mark, _changes_by_position(messages, start, declared, changes)
    )
    return body_of(head, extra, parts)


def _head(request: Request, *, model: str, settings: Json, stream: bool, dialect: Dialect) -> Json:
    """All fields of the body except tools, system and messages."""
    refused = OURS.intersection(settings)
    if refused:
        refuse_settings(refused)
    if take_confidence(settings):
        raise ConfigurationError(
            "Anthropic's protocol gives no log-probabilities, so its calls have no confidence: "
            "leave out `confidence=True`, or use a model behind another protocol."
        )
    settings.pop("stream_options", None)  # another protocol's
    thinking = mapping(settings.get("thinking"))
    head: Json = {
        "model": model,
        "max_tokens": MAX_TOKENS + count_of(thinking.get("budget_tokens")),
    }
    for name, value in settings.items():
        match name:
            case _ if value is None:
                pass
            case "stop" if isinstance(value, str):
                head["stop_sequences"] = [value]
            case "user":
                _merge(head, "metadata", {"user_id": value})
            case "reasoning_effort":
                _merge(head, "output_config", {"effort": value})
            case "metadata" | "output_config" if isinstance(value, dict):
                head[name] = {**value, **mapping(head.get(name))}
            case _:
                head[dialect.names.get(name) or _NAMES.get(name, name)] = value
    if request.tools or request.provider_tools:
        choice = _choice(request.tool_choice, request.parallel)
        if choice:
            head["tool_choice"] = choice
    if request.shape is not None:
        answer_format = _format(request.shape)
        if answer_format is not None:
            _merge(head, "output_config", {"format": answer_format})
    if stream:
        head["stream"] = True
    return head


def _merge(head: Json, field: str, keys: Json) -> None:
    """Set keys of an object in the body."""
    head[field] = {**mapping(head.get(field)), **keys}


def _choice(choice: str | Mapping[str, Any] | None, parallel: bool | None) -> Json:
    match choice:
        case None:
            fields: Json = {}
        case "auto" | "none":
            fields = {"type": choice}
        case "required":
            fields = {"type": "any"}
        case str() as name:
            fields = {"type": "tool", "name": name}
        case {"function": {"name": name}}:
            fields = {"type": "tool", "name": name}
        case _:
            fields = dict(choice)  # in Anthropic's own form
    if parallel is False and choice != "none":
        return {"type": "auto", **fields, "disable_parallel_tool_use": True}
    return fields


def _format(shape: Shape) -> Json | None:
    """The format of an answer, if the provider can enforce it.

    It cannot enforce an arbitrary object, nor every schema.
    """
    if shape.kind == "json_object" or shape.schema is None or "properties" not in shape.schema:
        return None
    if shape.strict:
        return {"type": "json_schema", "schema": shape.schema}
    lowered = lower_schema(shape.schema, "anthropic")
    # With `pairs`, a list stands for a dictionary, and the answer would not be converted back.
    if not lowered.is_strict or lowered.pairs:
        return None
    return {"type": "json_schema", "schema": lowered.schema}


@lru_cache(maxsize=64)
def _tools(declarations: Declarations, deferred: frozenset[str]) -> tuple[bytes, bytes]:
    """Tools in the provider's form: before and after the place for a marker of the cache.

    It is in the last tool that is not deferred: the provider answers a deferred one that has a
    marker with 400. If all are deferred, the first part is empty. Cached: declarations compare by
    their JSON.
    """
    definitions = _definitions(declarations)
    last_to_mark = -1
    for index, definition in enumerate(definitions):
        if definition["name"] in deferred:
            definition["defer_loading"] = True
        else:
            last_to_mark = index
    if last_to_mark == -1:
        return b"", json_bytes(definitions)
    to_mark = json_bytes(definitions[: last_to_mark + 1]).removesuffix(b"}]")
    following = b"".join([b",%b" % json_bytes(tool) for tool in definitions[last_to_mark + 1 :]])
    return to_mark, following + b"]"


def _definitions(declarations: Declarations) -> list[Json]:
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
    return tools


# -- messages


def _number_of_system_messages(messages: Sequence[Message]) -> int:
    """How many system messages begin the conversation: they form the system prompt."""
    for index, message in enumerate(messages):
        if message.role != "system":
            return index
    return len(messages)


def _system_blocks(messages: Sequence[Message]) -> list[bytes]:
    blocks = [message.rendered(f"{WIRE}+system", _system_block) for message in messages]
    return [block for block in blocks if block]


def _changes_by_position(
    messages: Sequence[Message],
    start: int,
    declared: Declarations,
    changes: Sequence[ToolChange],
) -> dict[int, bytes]:
    """Messages that add and remove tools, by the number of messages before each, from `start` on.

    Each stands at the end of its turn: "immediately before an assistant message or last" (page
    "Mid-conversation system messages and tool changes", November 2026).
    """
    known = {declared_name(tool) for tool in declared}
    blocks: dict[int, list[Json]] = {}
    for change in changes:
        position = change.after
        while position < len(messages) and messages[position].role != "assistant":
            position += 1
        of_turn = blocks.setdefault(position - start, [])
        for name in change.removed:
            of_turn.append({"type": "tool_removal", "tool": _reference(name)})
        for definition in _definitions(change.added):
            tool: Json = {"type": "tool_definition", "definition": definition}
            if definition["name"] in known:  # it was removed, and comes back
                tool = _reference(definition["name"])
            known.add(definition["name"])
            of_turn.append({"type": "tool_addition", "tool": tool})
    return {
        position: json_bytes({"role": "system", "content": of_turn})
        for position, of_turn in blocks.items()
    }


def _reference(name: str) -> Json:
    return {"type": "tool_reference", "name": name}


def _conversation(messages: Sequence[Message], mark: bytes, changes: Mapping[int, bytes]) -> bytes:
    """Messages as the items of a JSON list.

    The results of one turn share a user message, as the provider requires. `changes` are further
    items, by the number of messages before each.
    """
    positions = ()
    if mark:
        positions = _marked_positions(messages)
    pieces: list[bytes] = []
    is_in_results = False
    for position, message in enumerate(messages):
        change = changes.get(position)
        if change is not None and pieces:
            pieces += [b"]}," if is_in_results else b",", change]
            is_in_results = False
        item = message.rendered(WIRE, _item)
        if not item:
            continue
        is_result = message.role == "tool"
        if position in positions:
            # The mark goes into a block: a result is one, and a message ends with its last one.
            ending = b"}" if is_result else b"}]}"
            item = item.removesuffix(ending) + mark + ending
        if is_in_results:
            pieces.append(b"," if is_result else b"]},")
        elif pieces:
            pieces.append(b",")
        if is_result and not is_in_results:
            pieces.append(b'{"role":"user","content":[')
        pieces.append(item)
        is_in_results = is_result
    if is_in_results:
        pieces.append(b"]}")
    change = changes.get(len(messages))
    if change is not None:
        pieces += [b",", change]
    return b"".join(pieces)


def _marked_positions(messages: Sequence[Message]) -> list[int]:
    """The positions of the last messages in the user's last two turns, where the markers go.

    The earlier one ended the previous request, and so is where the cache was written. It needs its
    own marker: the provider searches only twenty blocks before a marker (platform.claude.com,
    "Prompt caching", November 2026), and a turn of many calls has more.
    """
    positions: list[int] = []
    is_end_of_turn = True
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].role == "assistant":
            is_end_of_turn = True
        elif is_end_of_turn:
            positions.append(position)
            is_end_of_turn = False
            if len(positions) == 2:
                break
    return positions


def _mark(settings: Json) -> bytes:
    """The marker that ends a cached prompt; removes `prompt_cache` from the settings."""
    wish = settings.pop("prompt_cache", None)
    if wish is False:
        return b""
    if wish is None or wish is True:
        # With `cache_control` at the top of the body, the provider places the markers itself.
        if "cache_control" in settings or "cache_control" in mapping(settings.get("extra")):
            return b""
        return b',"cache_control":{"type":"ephemeral"}'
    if wish == "5m" or wish == "1h":
        return b',"cache_control":{"type":"ephemeral","ttl":"%b"}' % wish.encode()
    raise ConfigurationError(f'`prompt_cache` is True, False, "5m" or "1h", found {shown(wish)}.')


def _system_block(message: Message) -> bytes:
    text = _plain_text(message, "system messages")
    if not text.strip():
        return b""
    return json_bytes({"type": "text", "text": text})


def _item(message: Message) -> bytes:
    """A message in the provider's form, or a block for a result; empty for an empty answer."""
    if message.role == "tool":
        return json_bytes(result_block(message))
    if message.role == "assistant":
        blocks = [block for block in assistant_blocks(message) if not _is_blank(block)]
        if not blocks:
            return b""
        return json_bytes({"role": "assistant", "content": blocks})
    # A later system message becomes one of the user: only some models accept the role there, and
    # at the top it would change the cached prompt.
    blocks = content_blocks(message.content, "messages")
    if not blocks:
        blocks = [{"type": "text", "text": "(empty)"}]
    return json_bytes({"role": "user", "content": blocks})


def _is_blank(block: Json) -> bool:
    return kind(block) == "text" and not str(block.get("text")).strip()


# -- blocks


def content_blocks(content: Content, place: str) -> list[Json]:
    """Content as blocks, without blank text, which the provider refuses."""
    if isinstance(content, str):
        parts = (Text(text=content),)
    else:
        parts = content
    blocks: list[Json] = []
    for part in parts:
        if not isinstance(part, Text) or part.text.strip():
            blocks.append(_block(part, place))
    return blocks


def _plain_text(message: Message, place: str) -> str:
    """The content of a message that may hold only text."""
    if isinstance(message.content, str):
        return message.content
    lines: list[str] = []
    for part in message.content:
        if isinstance(part, Text):
            lines.append(part.text)
        else:
            lines.append(placeholder(part, WIRE, place))
    return "\n".join(lines)


def result_block(message: Message) -> Json:
    """The block of a tool's result. The provider refuses an empty error, so that gets a text."""
    content: Any = message.content
    if not isinstance(content, str):
        content = content_blocks(content, "tool results")
    if message.is_error and not content:
        content = "error"
    block: Json = {"type": "tool_result", "tool_use_id": safe_id(message.tool_call_id)}
    if content:
        block["content"] = content
    if message.is_error:
        block["is_error"] = True
    return block


def assistant_blocks(message: Message) -> list[Json]:
    """The blocks of an answer to send back.

    They are the provider's own blocks, if the message kept them, with the message's current calls.
    """
    calls = list(message.tool_calls)
    original_blocks = _original_blocks(message)
    ids = [block.get("id") for block in original_blocks if kind(block) == "tool_use"]
    is_whole = len(ids) == len(calls)
    blocks: list[Json] = []
    for block in original_blocks:
        if kind(block) != "tool_use":
            blocks.append(block)
            continue
        if is_whole:  # a call may have got another id
            call = calls[0]
        else:
            call = next((call for call in calls if call.id == block.get("id")), None)
        if call is not None:  # a program may have dropped it
            calls.remove(call)
            blocks.append({**block, **call_block(call)})
    for call in calls:
        blocks.append(call_block(call))
    return blocks


def _original_blocks(message: Message) -> list[Json]:
    """The blocks of the provider's answer, or of its text alone if it kept none."""
    text = _plain_text(message, "answers")
    extra = mapping((message.extra or {}).get(WIRE))
    blocks = [mapping(block) for block in list_of(extra.get("content"))]
    if (read_blocks(blocks).text or "") == text:
        return [block for block in blocks if block]
    # The text was edited: only the signed thoughts among the provider's blocks are still valid.
    thoughts = [block for block in blocks if kind(block) in {"thinking", "redacted_thinking"}]
    return [*thoughts, {"type": "text", "text": text}]


def call_block(call: ToolCall) -> Json:
    """The block of a call.

    Arguments other than a JSON object are wrapped in one; characters that are not allowed in a name
    are replaced.
    """
    return {
        "type": "tool_use",
        "id": safe_id(call.id),
        "name": safe_name(call.name),
        "input": {UNREADABLE: call.arguments_text} if call.fault else call.args,
    }


def _block(part: Part, place: str) -> Json:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    block: Json | None = None
    if isinstance(part, Image):
        block = _image_block(part)
    elif isinstance(part, File):
        block = _document_block(part)
    return block or {"type": "text", "text": placeholder(part, WIRE, place)}


def _image_block(image: Image) -> Json | None:
    """The block of an image; None for a media type that the provider does not accept."""
    inline = inline_data(image)
    if inline is None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    return _inline_block(*inline, title={})


def _document_block(file: File) -> Json | None:
    """The block of a file; None for a media type that the provider does not accept."""
    title: Json = {} if file.name == "file" else {"title": file.name}
    inline = inline_data(file)
    if inline is not None:
        return _inline_block(*inline, title=title)
    if file.media_type not in _DOCUMENTS:
        return None
    return {"type": "document", "source": {"type": "url", "url": file.url}, **title}


def _inline_block(media_type: str, data: str, *, title: Json) -> Json | None:
    if media_type == "image/jpg":
        media_type = "image/jpeg"
    source = {"type": "base64", "media_type": media_type, "data": data}
    if media_type in _PICTURES:
        return {"type": "image", "source": source}
    if media_type == "application/pdf":
        return {"type": "document", "source": source, **title}
    text = _text_in(media_type, data)
    if text is None or not text.strip():
        return None
    source = {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "document", "source": source, **title}


def _text_in(media_type: str, data: str) -> str | None:
    """The text of a document, from its base64; None for one that is not text."""
    if not _READABLE.fullmatch(media_type):
        return None
    try:
        return b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
