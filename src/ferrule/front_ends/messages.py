"""Converts the messages of a page to a `History`: texts, calls, and their results.

System messages are left out: a page must not change the program's prompt. So are thoughts, texts of
nested agents, calls without a result, and parts that do not exist in OpenAI's form.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text
from ferrule.errors import InputError, shown
from ferrule.values.content.parts import is_base64
from ferrule.values.conversation.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MessageForm = dict[str, Any]


def read_ag_ui(messages: list[MessageForm]) -> tuple[Any, History]:
    """The content of the last user message, and the history before it, from AG-UI messages."""
    results = {
        message["toolCallId"]: message
        for message in messages
        if message.get("role") == "tool" and isinstance(message.get("toolCallId"), str)
    }

    def content_of(message: MessageForm) -> Any:
        return _content(message.get("content"), _ag_ui_part)

    def spoken(message: MessageForm) -> Iterable[MessageForm]:
        calls = [
            call for call in objects(message.get("toolCalls")) if str(call.get("id")) in results
        ]
        yield from _assistant(content_of(message), [_call(call) for call in calls])
        for call in calls:
            call_id = str(call["id"])
            yield _result(call_id, content_of(results[call_id]))

    of_the_agent = [message for message in messages if not message.get("subagentRunId")]
    return _split(of_the_agent, content_of, spoken)


def text_of_ag_ui(message: MessageForm) -> str:
    """The text of an AG-UI message."""
    content = _content(message.get("content"), _ag_ui_part)
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def read_ui_messages(messages: list[MessageForm]) -> tuple[Any, History]:
    """The content of the last user message, and the history before it, from Vercel's messages."""

    def content_of(message: MessageForm) -> Any:
        return _content(message.get("parts"), _ui_part)

    return _split(messages, content_of, _spoken_in_steps)


def _spoken_in_steps(message: MessageForm) -> Iterable[MessageForm]:
    """Split an assistant message of the AI SDK into the messages of each step.

    One such message holds all steps of a run.
    """
    parts: list[MessageForm] = []
    calls: list[tuple[MessageForm, MessageForm]] = []
    for part in [*objects(message.get("parts")), {"type": "step-start"}]:
        if part.get("type") != "step-start":
            parts.append(part)
            call = _ui_call(part)
            if call is not None:
                calls.append(call)
            continue
        valid = [part for part in parts if not _facts(part, "providerMetadata").get("void")]
        yield from _assistant(_content(valid, _ui_part), [call for call, _ in calls])
        yield from (result for _, result in calls)
        parts, calls = [], []


def _assistant(content: Any, calls: list[MessageForm]) -> Iterable[MessageForm]:
    """What the model said and called, unless it is nothing."""
    message: MessageForm = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    if content or calls:
        yield message


def _ui_call(part: MessageForm) -> tuple[MessageForm, MessageForm] | None:
    """A call and its result as messages; None for other parts, and for calls without a result."""
    kind, call_id = str(part.get("type")), part.get("toolCallId")
    if kind == "dynamic-tool":
        name = str(part.get("toolName"))
    elif kind.startswith("tool-"):
        name = kind.removeprefix("tool-")
    else:
        return None
    if not isinstance(call_id, str) or _facts(part, "toolMetadata").get("agent"):
        return None
    match part.get("state"):
        case "output-available":
            output = part.get("output")
            if isinstance(output, str):
                content = output
            else:
                content = json_text(output)
        case "output-error":
            content = str(part.get("errorText"))
        case "output-denied":
            content = "The call was denied."
        case _:
            return None
    return _tool_call(call_id, name, part.get("input")), _result(call_id, content)


def _facts(part: MessageForm, name: str) -> MessageForm:
    """The metadata that ferrule wrote into a part."""
    metadata = _object(part.get(name))
    return _object(metadata.get("ferrule"))


def _ui_part(part: MessageForm) -> MessageForm | None:
    match part.get("type"):
        case "text":
            return {"type": "text", "text": str(part.get("text", ""))}
        case "file":
            return _media(
                str(part.get("url", "")),
                str(part.get("mediaType", "")),
                str(part.get("filename") or ""),
            )
        case _:
            return None


def _split(
    messages: list[MessageForm],
    content_of: Callable[[MessageForm], Any],
    spoken: Callable[[MessageForm], Iterable[MessageForm]],
) -> tuple[Any, History]:
    """The content of the last message of the user, and what was said before it."""
    last = len(messages)
    for index, message in enumerate(messages):
        if message.get("role") == "user":
            last = index
    entries: list[MessageForm] = []
    for message in messages[:last]:
        if message.get("role") == "user":
            entries.append({"role": "user", "content": content_of(message)})
        elif message.get("role") == "assistant":
            entries += spoken(message)
    content: Any = ""
    if last < len(messages):
        content = content_of(messages[last])
    return content, History(messages=entries)


def _call(call: MessageForm) -> MessageForm:
    function = _object(call.get("function"))
    return _tool_call(str(call["id"]), str(function.get("name")), function.get("arguments"))


def _tool_call(call_id: str, name: str, arguments: Any) -> MessageForm:
    text = arguments
    if not isinstance(text, str):
        text = json_text(arguments or {})
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        text = "{}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _result(call_id: str, content: Any) -> MessageForm:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def objects(value: Any) -> list[MessageForm]:
    """The objects in a list; none for any other value."""
    if not isinstance(value, list):
        return []
    return [item for item in cast("list[Any]", value) if isinstance(item, dict)]


def _object(value: Any) -> MessageForm:
    if not isinstance(value, dict):
        return {}
    return cast("MessageForm", value)


def _content(value: Any, read: Callable[[MessageForm], MessageForm | None]) -> Any:
    """Content as parts in OpenAI's form, or as one text if all parts are texts."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise InputError(
            f"The content of a message is a text or a list of parts; found {shown(value)}."
        )
    parts = [part for part in map(read, objects(cast("object", value))) if part is not None]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _ag_ui_part(part: MessageForm) -> MessageForm | None:
    if part.get("type") == "text":
        return {"type": "text", "text": str(part.get("text", ""))}
    source = _object(part.get("source"))
    address, kind = str(source.get("value", "")), str(source.get("mimeType", ""))
    if source.get("type") == "data":
        return _media(f"data:{kind};base64,{address}", kind)
    if source.get("type") == "url":
        if not kind and part.get("type") == "image":
            kind = "image/*"
        return _media(address, kind)
    return None


def _media(address: str, kind: str, name: str = "") -> MessageForm | None:
    """An image, a sound or a document in OpenAI's form.

    None for other media, and for addresses outside the web. Raises `InputError` for content that is
    not base64: a provider would refuse the whole conversation.
    """
    head, _, inline = address.partition(";base64,")
    is_inline = head.startswith("data:") and bool(inline)
    if not is_inline and not address.startswith(("https://", "http://")):
        return None
    if is_inline and not is_base64(inline):
        raise InputError(
            f"The content of a part of a message ({shown(kind)}) must be base64; found "
            f"{shown(inline, 60)}."
        )
    if kind.startswith("audio") and inline:
        return {
            "type": "input_audio",
            "input_audio": {"data": inline, "format": kind.partition("/")[2]},
        }
    if kind.startswith("image"):
        return {"type": "image_url", "image_url": {"url": address}}
    if inline and not kind.startswith(("audio", "video")):
        return {"type": "file", "file": {"filename": name or "file", "file_data": address}}
    return None
