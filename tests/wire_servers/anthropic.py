"""Anthropic's Messages, the answering side: requests read and answers written, for
`ferrule.testing.serve`.

Raises `InputError` with the place of what is wrong in a request.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ferrule.errors import (
    AuthenticationError,
    ContextOverflowError,
    FerruleError,
    InputError,
    LMError,
    RateLimitError,
    RefusalError,
    UnavailableError,
    shown,
)
from ferrule.models.wires.anthropic.decode import kind, read_blocks
from ferrule.models.wires.anthropic.encode import assistant_blocks, call_block
from ferrule.models.wires.payload import list_of, mapping, text_of
from ferrule.net.sse import event
from ferrule.testing.server.openai_chat import Received
from ferrule.values.content.parts import File, Image, Part, Text
from ferrule.values.conversation.exchange import (
    NO_TOOLS,
    Declarations,
    Delta,
    Request,
    Response,
    Shape,
)
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.content.parts import Content
    from ferrule.values.conversation.exchange import Usage

Json = dict[str, Any]

_FIELDS = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "stream",
        "stop_sequences",
        "output_config",
        "cache_control",
    },
)
_CHANGES = frozenset({"tool_addition", "tool_removal"})
_CHOICES = {"auto": "auto", "none": "none", "any": "required"}
_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


def receive(body: Json, path: str) -> Received:
    """The request in a body."""
    del path
    body = _with_added_tools(body)
    messages = [Message("system", text) for text in _system(body.get("system") or [])]
    entries = body.get("messages")
    if not isinstance(entries, list) or not entries:
        raise InputError(
            f"`messages` is a list of messages, found {shown(cast('object', entries))}",
        )
    names: dict[str, str] = {}
    for place, entry in enumerate(cast("list[Any]", entries)):
        messages.extend(_messages(mapping(entry), f"messages[{place}]", names))
    choice = mapping(body.get("tool_choice"))
    config = mapping(body.get("output_config"))
    settings = {name: value for name, value in body.items() if name not in _FIELDS}
    if body.get("stop_sequences"):
        settings["stop"] = body["stop_sequences"]
    if rest := {name: value for name, value in config.items() if name != "format"}:
        settings["output_config"] = rest
    request = Request(
        Messages(messages),
        _tools(body["tools"]) if body.get("tools") else NO_TOOLS,
        _choice(choice) if choice else None,
        False if choice.get("disable_parallel_tool_use") else None,
        _shape(mapping(config.get("format"))),
        settings,
    )
    return Received(request, text_of(body.get("model")), bool(body.get("stream")))


def _with_added_tools(body: Json) -> Json:
    """A request with the tools that are offered at the end of the conversation.

    A change of tools that does not end its turn is refused, as the provider does.
    """
    tools = {str(mapping(tool).get("name")): mapping(tool) for tool in list_of(body.get("tools"))}
    known, entries = dict(tools), []
    messages = [mapping(entry) for entry in list_of(body.get("messages"))]
    for index, entry in enumerate(messages):
        blocks = [mapping(block) for block in list_of(entry.get("content"))]
        if not blocks or not all(kind(block) in _CHANGES for block in blocks):
            entries.append(entry)
            continue
        if index + 1 < len(messages) and messages[index + 1].get("role") != "assistant":
            raise InputError("a change of tools is immediately before an assistant message or last")
        for block in blocks:
            tool = mapping(block["tool"])
            definition = mapping(tool.get("definition")) or known[str(tool.get("name"))]
            name = str(definition["name"])
            known[name] = definition
            if kind(block) == "tool_removal":
                del tools[name]
            else:
                tools[name] = definition
    if len(entries) == len(messages):
        return body
    return {**body, "tools": list(tools.values()), "messages": entries}


def _messages(entry: Json, place: str, names: dict[str, str]) -> Iterator[Message]:
    """The messages of ours that one of theirs holds: each result is one, and what stands between
    them.
    """
    role, content = entry.get("role"), entry.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if role not in {"user", "assistant", "system"} or not isinstance(blocks, list):
        raise InputError(
            f"{place} is no message of user or assistant with its content: {shown(entry)}",
        )
    found = [mapping(block) for block in cast("list[Any]", blocks)]
    if role == "assistant":
        yield _answer(found, names)
        return
    parts: list[Part] = []
    for number, block in enumerate(found):
        if kind(block) != "tool_result":
            parts.append(_part(block, f"{place}.content[{number}]"))
            continue
        if parts:
            yield Message(role, _content(parts))
            parts = []
        call_id = text_of(block.get("tool_use_id"))
        if call_id is None:
            raise InputError(
                f"{place}.content[{number}] is a result and needs the `tool_use_id` of its call",
            )
        said = block.get("content") or ""
        result = (
            said
            if isinstance(said, str)
            else _content([_part(mapping(each), place) for each in list_of(said)])
        )
        yield Message(
            "tool",
            result,
            tool_call_id=call_id,
            name=names.get(call_id),
            is_error=block.get("is_error") is True,
        )
    if parts or not found:
        yield Message(role, _content(parts))


def _answer(blocks: list[Json], names: dict[str, str]) -> Message:
    text, thoughts, calls, extra, *_ = read_blocks(blocks)
    names.update({call.id: call.name for call in calls if call.id})
    return Message("assistant", text or "", calls, reasoning=thoughts or "", extra=extra)


def _content(parts: list[Part]) -> Content:
    return parts[0].text if len(parts) == 1 and isinstance(parts[0], Text) else tuple(parts)


def _part(block: Json, place: str) -> Part:
    source = mapping(block.get("source"))
    name = text_of(block.get("title")) or "file"
    match kind(block), kind(source):
        case "text", _ if isinstance(block.get("text"), str):
            return Text(text=block["text"])
        case "image", "base64" if text_of(source.get("data")):
            return Image(
                data=source["data"],
                media_type=text_of(source.get("media_type")) or "image/png",
            )
        case "image", "url" if text_of(source.get("url")):
            return Image(url=source["url"])
        case "document", "base64" if text_of(source.get("data")):
            return File(
                data=source["data"],
                media_type=text_of(source.get("media_type")) or "application/pdf",
                name=name,
            )
        case "document", "url" if text_of(source.get("url")):
            return File(url=source["url"], media_type="application/pdf", name=name)
        case "document", "text" if isinstance(source.get("data"), str):
            data = b64encode(str(source["data"]).encode("utf-8", "surrogatepass")).decode()
            return File(data=data, media_type="text/plain", name=name)
        case _:
            raise InputError(
                f"{place}: no such block of content: {shown(block)}; blocks are text, image, document, tool_use, tool_result",
            )


def _system(system: Any) -> list[str]:
    found = (
        [system]
        if isinstance(system, str)
        else [mapping(block).get("text") for block in list_of(system)]
    )
    if not isinstance(system, (str, list)) or not all(isinstance(text, str) for text in found):
        raise InputError(
            f"`system` is text or a list of blocks of text, found {shown(cast('object', system))}",
        )
    return cast("list[str]", found)


def _tools(tools: Any) -> Declarations:
    made: list[Json] = []
    for place, entry in enumerate(list_of(tools)):
        tool = mapping(entry)
        if not text_of(tool.get("name")) or not isinstance(tool.get("input_schema"), dict):
            raise InputError(
                f"tools[{place}] is no tool with a name and an input_schema: {shown(entry)}",
            )
        strict = {"strict": True} if tool.get("strict") else {}
        function = {
            "name": tool["name"],
            "description": text_of(tool.get("description")) or "",
            "parameters": tool["input_schema"],
            **strict,
        }
        made.append({"type": "function", "function": function})
    if not made:
        raise InputError(f"`tools` is a list of tools, found {shown(tools)}")
    return Declarations(made)


def _choice(choice: Json) -> str | Json:
    if choice.get("type") == "tool" and text_of(choice.get("name")):
        return {"type": "function", "function": {"name": choice["name"]}}
    known = _CHOICES.get(str(choice.get("type")))
    if known is None:
        raise InputError(
            f"`tool_choice` is {shown(choice)}; known types are {', '.join(_CHOICES)}, tool (with its name)",
        )
    return known


def _shape(form: Json) -> Shape | None:
    if not form:
        return None
    if form.get("type") != "json_schema" or not mapping(form.get("schema")):
        raise InputError(
            f"`output_config.format` is {shown(form)}; its type is json_schema, and it has a schema",
        )
    return Shape("json_schema", form["schema"])


# -- answers


def answer(response: Response, *, model: str) -> Json:
    """A whole answer."""
    message = response.message()
    content = assistant_blocks(replace(message, tool_calls=_named(message.tool_calls)))
    if response.reasoning and not any(kind(block) == "thinking" for block in content):
        content.insert(0, {"type": "thinking", "thinking": response.reasoning, "signature": ""})
    return {**_head(model), "content": content, **_end(response), "usage": _usage(response.usage)}


def events(
    items: Iterable[Delta | Response],
    *,
    model: str,
    with_usage: bool = False,
) -> Iterator[bytes]:
    """A stream as server-sent events; calls come in pieces, as they do from providers.

    Thoughts are unsigned: signatures are known last.
    """
    del with_usage  # a stream of this protocol always ends with its counts
    blocks = _Blocks()
    is_first = True
    for item in items:
        if is_first:  # not before: until then the model may still fail, and the answer be a status
            is_first = False
            yield event({"type": "message_start", "message": _begin(model)}, "message_start")
            yield event({"type": "ping"}, "ping")
        if isinstance(item, Delta):
            if item.reasoning:
                yield from blocks.more("thinking", item.reasoning)
            if item.text:
                yield from blocks.more("text", item.text)
            continue
        for call in _named(item.tool_calls):
            yield from blocks.call(call)
        yield from blocks.close()
        yield event(
            {"type": "message_delta", "delta": _end(item), "usage": _usage(item.usage)},
            "message_delta",
        )
    yield event({"type": "message_stop"}, "message_stop")


class _Blocks:
    """The blocks of a stream, one open at a time."""

    def __init__(self) -> None:
        self._open = ""
        self._index = -1

    def more(self, name: str, piece: str) -> Iterator[bytes]:
        if self._open != name:
            empty = {"signature": ""} if name == "thinking" else {}
            yield from self._start({"type": name, name: "", **empty})
        yield self._delta({"type": f"{name}_delta", name: piece})

    def call(self, call: ToolCall) -> Iterator[bytes]:
        yield from self._start({**call_block(call), "input": {}})
        arguments = call.arguments_text
        half = len(arguments) // 2
        for piece in filter(None, (arguments[:half], arguments[half:])):
            yield self._delta({"type": "input_json_delta", "partial_json": piece})

    def close(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield event({"type": "content_block_stop", "index": self._index}, "content_block_stop")

    def _start(self, block: Json) -> Iterator[bytes]:
        yield from self.close()
        self._open = kind(block)
        self._index += 1
        yield event(
            {"type": "content_block_start", "index": self._index, "content_block": block},
            "content_block_start",
        )

    def _delta(self, delta: Json) -> bytes:
        return event(
            {"type": "content_block_delta", "index": self._index, "delta": delta},
            "content_block_delta",
        )


def error_body(error: FerruleError) -> tuple[int, Json]:
    """The status and the body for a model error or a bad request."""
    status, name, code = next(
        (rest for each, rest in _STATUS if isinstance(error, each)),
        (500, "api_error", None),
    )
    if isinstance(error, LMError) and error.status is not None:
        status = error.status
    # The protocol has no code; two errors that it knows by their words alone get one, so that they
    # are known again.
    named = {"code": code} if code else {}
    return status, {
        "type": "error",
        "error": {"type": name, "message": f"{type(error).__name__}: {error}", **named},
    }


def error_event(body: Json) -> bytes:
    """An error in the midst of a stream."""
    return event(body, "error")


_STATUS: tuple[tuple[type[FerruleError], tuple[int, str, str | None]], ...] = (
    (InputError, (400, "invalid_request_error", None)),
    (RateLimitError, (429, "rate_limit_error", None)),
    (UnavailableError, (529, "overloaded_error", None)),
    (AuthenticationError, (401, "authentication_error", None)),
    (ContextOverflowError, (400, "invalid_request_error", "context_length_exceeded")),
    (RefusalError, (400, "invalid_request_error", "content_filter")),
    (LMError, (400, "invalid_request_error", None)),
)


def _named(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Calls with an id each: the protocol has none without."""
    return tuple(
        [call if call.id else call.with_id(f"toolu_{place}") for place, call in enumerate(calls)],
    )


def _head(model: str) -> Json:
    return {"id": "msg_ferrule", "type": "message", "role": "assistant", "model": model}


def _begin(model: str) -> Json:
    empty: list[Json] = []
    counts = {"input_tokens": 0, "output_tokens": 0}  # not known yet: they come with the end
    return {
        **_head(model),
        "content": empty,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counts,
    }


def _end(response: Response) -> Json:
    reason = response.finish_reason or ("tool_calls" if response.tool_calls else "stop")
    said = {
        "stop_reason": "refusal" if response.refusal else _REASONS.get(reason, reason),
        "stop_sequence": None,
    }
    details = (
        {"type": "refusal", "category": None, "explanation": response.refusal}
        if response.refusal
        else None
    )
    return {**said, "stop_details": details}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
