"""Converts the messages of a page to a `History`: texts of the person and the model, calls, and their results.

System messages are left out: a page must not change the program's prompt. So are thoughts, texts of
nested agents, calls without a result, and parts that do not exist in OpenAI's form.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text
from ferrule.errors import InputError, shown
from ferrule.values.conversation.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MessageForm = dict[str, Any]


def read_ag_ui(messages: list[MessageForm]) -> tuple[Any, History]:
    """The content of the last user message, and the history before it, from AG-UI messages."""
    results = {
        each["toolCallId"]: each
        for each in messages
        if each.get("role") == "tool" and isinstance(each.get("toolCallId"), str)
    }

    def spoken(message: MessageForm) -> Iterable[MessageForm]:
        content = _content(message.get("content"), _ag_ui_part)
        calls = [
            each for each in objects(message.get("toolCalls")) if str(each.get("id")) in results
        ]
        if content or calls:
            yield {
                "role": "assistant",
                "content": content,
                **({"tool_calls": [_call(each) for each in calls]} if calls else {}),
            }
        for each in calls:
            yield _result(
                str(each["id"]),
                _content(results[str(each["id"])].get("content"), _ag_ui_part),
            )

    own = [each for each in messages if not each.get("subagentRunId")]
    return _split(own, lambda message: _content(message.get("content"), _ag_ui_part), spoken)


def read_ui_messages(messages: list[MessageForm]) -> tuple[Any, History]:
    """The content of the last user message, and the history before it, from messages of Vercel's AI SDK."""
    return _split(
        messages,
        lambda message: _content(message.get("parts"), _ui_part),
        _spoken_in_steps,
    )


def _spoken_in_steps(message: MessageForm) -> Iterable[MessageForm]:
    """Split an assistant message of the AI SDK, which holds all steps of a run, into the messages of each step."""
    parts: list[MessageForm] = []
    calls: list[tuple[MessageForm, MessageForm]] = []
    for part in [*objects(message.get("parts")), {"type": "step-start"}]:
        if part.get("type") != "step-start":
            parts.append(part)
            calls += [] if (made := _ui_call(part)) is None else [made]
            continue
        content = _content(
            [each for each in parts if not _facts(each, "providerMetadata").get("void")],
            _ui_part,
        )
        if content or calls:
            yield {
                "role": "assistant",
                "content": content,
                **({"tool_calls": [call for call, _ in calls]} if calls else {}),
            }
        yield from (result for _, result in calls)
        parts, calls = [], []


def _ui_call(part: MessageForm) -> tuple[MessageForm, MessageForm] | None:
    """A call and its result as messages; None for other parts, and for calls without a result."""
    kind, call_id = str(part.get("type")), part.get("toolCallId")
    name = str(part.get("toolName")) if kind == "dynamic-tool" else kind.removeprefix("tool-")
    is_call = kind == "dynamic-tool" or kind.startswith("tool-")
    if not is_call or not isinstance(call_id, str) or _facts(part, "toolMetadata").get("agent"):
        return None
    match part.get("state"):
        case "output-available":
            output = part.get("output")
            content = output if isinstance(output, str) else json_text(output)
        case "output-error":
            content = str(part.get("errorText"))
        case "output-denied":
            content = "The call was denied."
        case _:
            return None
    return _tool_call(call_id, name, part.get("input")), _result(call_id, content)


def _facts(part: MessageForm, name: str) -> MessageForm:
    """The metadata that ferrule wrote into a part."""
    found = part.get(name)
    own = cast("MessageForm", found).get("ferrule") if isinstance(found, dict) else None
    return cast("MessageForm", own) if isinstance(own, dict) else {}


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
    said: Callable[[MessageForm], Any],
    spoken: Callable[[MessageForm], Iterable[MessageForm]],
) -> tuple[Any, History]:
    last = max(
        (k for k, each in enumerate(messages) if each.get("role") == "user"),
        default=len(messages),
    )
    entries: list[MessageForm] = []
    for message in messages[:last]:
        if message.get("role") == "user":
            entries.append({"role": "user", "content": said(message)})
        elif message.get("role") == "assistant":
            entries += spoken(message)
    return (said(messages[last]) if last < len(messages) else ""), History(messages=entries)


def _call(call: MessageForm) -> MessageForm:
    function = call.get("function")
    made = cast("MessageForm", function) if isinstance(function, dict) else {}
    return _tool_call(str(call["id"]), str(made.get("name")), made.get("arguments"))


def _tool_call(call_id: str, name: str, arguments: Any) -> MessageForm:
    text = arguments if isinstance(arguments, str) else json_text(arguments or {})
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": text if is_object else "{}"},
    }


def _result(call_id: str, content: Any) -> MessageForm:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def objects(value: Any) -> list[MessageForm]:
    """The objects in a list; none for any other value."""
    return (
        [each for each in cast("list[Any]", value) if isinstance(each, dict)]
        if isinstance(value, list)
        else []
    )


def _content(value: Any, read: Callable[[MessageForm], MessageForm | None]) -> Any:
    """Content as parts in OpenAI's form, or as one text if all parts are texts."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise InputError(
            f"The content of a message is a text or a list of parts; found {shown(value)}.",
        )
    parts = [made for part in objects(cast("object", value)) if (made := read(part)) is not None]
    return (
        "".join(part["text"] for part in parts)
        if all(part["type"] == "text" for part in parts)
        else parts
    )


def _ag_ui_part(part: MessageForm) -> MessageForm | None:
    if part.get("type") == "text":
        return {"type": "text", "text": str(part.get("text", ""))}
    source = part.get("source")
    found = cast("MessageForm", source) if isinstance(source, dict) else {}
    address, kind = str(found.get("value", "")), str(found.get("mimeType", ""))
    match found.get("type"):
        case "data":
            return _media(f"data:{kind};base64,{address}", kind)
        case "url":
            return _media(address, kind or {"image": "image/*"}.get(str(part.get("type")), ""))
        case _:
            return None


def _media(address: str, kind: str, name: str = "") -> MessageForm | None:
    """An image, a sound or a document in OpenAI's form. None for other media, and for addresses outside the web."""
    head, _, inline = address.partition(";base64,")
    if not address.startswith(("https://", "http://")) and not (
        head.startswith("data:") and inline
    ):
        return None
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
