"""Reads requests and messages in OpenAI's chat form.

Used for conversations that users write as dicts, for adapters whose `request` returns a body, and
by `ferrule.testing.serve`. Raises `InputError` that names the place of the problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import InputError, ToolCallError, shown
from ferrule.models.wires.payload import mapping, text_of
from ferrule.values.calls.call import ToolCall
from ferrule.values.content.convert import read_part
from ferrule.values.conversation.exchange import NO_TOOLS, Declarations, Request, Shape
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from ferrule.values.content.parts import Content, Part

Json = Mapping[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_FIELDS = frozenset(
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


def read_request(body: object) -> Request:
    """A request from the JSON of a body."""
    if not isinstance(body, Mapping):
        raise InputError(f"a request is a JSON object, found {shown(body)}")
    fields = cast("Json", body)
    tools = fields.get("tools")
    return Request(
        read_messages(fields.get("messages")),
        _tools(tools) if tools else NO_TOOLS,
        fields.get("tool_choice"),
        fields.get("parallel_tool_calls"),
        _shape(fields.get("response_format")),
        {name: value for name, value in fields.items() if name not in _FIELDS},
    )


def read_messages(entries: Any) -> Messages:
    """A conversation from `Message`s and dicts in OpenAI's form."""
    if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, Iterable):
        raise InputError(
            f"`messages` is a list of messages, found {shown(cast('object', entries))}",
        )
    messages = [
        read_message(entry, place) for place, entry in enumerate(cast("Iterable[Any]", entries))
    ]
    if not messages:
        raise InputError("`messages` is empty: a model needs something to answer")
    return Messages(messages)


def read_message(entry: object, place: int = 0) -> Message:
    """One message, from a dict in OpenAI's form or a `Message`."""
    if isinstance(entry, Message):
        return entry
    if not isinstance(entry, Mapping):
        raise InputError(f"messages[{place}] is not a message: {shown(entry)}")
    fields = cast("Json", entry)
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        raise InputError(
            f"messages[{place}] has the role {shown(fields.get('role'))}; roles are {', '.join(_ROLES)}",
        )
    calls = fields.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise InputError(f"messages[{place}]: `tool_calls` is a list, found {shown(calls)}")
    try:
        read = tuple([ToolCall.read(call) for call in cast("list[Any]", calls)])
    except ToolCallError as error:
        raise InputError(f"messages[{place}]: {error}") from error
    content = _content(fields.get("content"), place)
    call_id, name = fields.get("tool_call_id"), fields.get("name")
    if role == "tool" and not isinstance(call_id, str) and fields.get("role") == "tool":
        raise InputError(
            f"messages[{place}] is a tool result and needs the `tool_call_id` of its call",
        )
    return Message(
        cast("Any", role),
        content,
        read,
        call_id,
        name if isinstance(name, str) else None,
    )


def _content(content: object, place: int) -> Content:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InputError(
            f"messages[{place}]: `content` is text or a list of parts, found {shown(content)}",
        )
    return tuple([_part(part, place) for part in cast("list[Any]", content)])


def _part(part: Any, place: int) -> Part:
    if isinstance(part, str):
        raise InputError(f"messages[{place}]: There is no such part of a message: {shown(part)}.")
    fields = mapping(part)
    if fields.get("type") in {"text", "input_text", "refusal"}:
        part = {"type": "text", "text": fields.get("text") or fields.get("refusal") or ""}
    try:
        return read_part(part)
    except InputError as error:
        raise InputError(f"messages[{place}]: {error}") from error


def _tools(tools: object) -> Declarations:
    if not isinstance(tools, list):
        raise InputError(f"`tools` is a list, found {shown(tools)}")
    for place, tool in enumerate(cast("list[Any]", tools)):
        if not text_of(mapping(mapping(tool).get("function")).get("name")):
            raise InputError(f"tools[{place}] is not a function tool: {shown(tool)}")
    return Declarations(cast("list[dict[str, Any]]", tools))


def _shape(form: Any) -> Shape | None:
    fields = mapping(form)
    match fields.get("type", None if form else "text"):
        case "text":
            return None
        case "json_object":
            return Shape("json_object")
        case "json_schema" if mapping(mapping(fields.get("json_schema")).get("schema")):
            wanted = mapping(fields["json_schema"])
            return Shape("json_schema", wanted["schema"], text_of(wanted.get("name")) or "answer")
        case _:
            raise InputError(
                f"`response_format` is {shown(form)}; known types are text, json_object, json_schema (with its schema)",
            )
