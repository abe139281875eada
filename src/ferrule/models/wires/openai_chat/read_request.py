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
    from ferrule.values.conversation.message import Role

_Fields = Mapping[str, Any]

_ROLES: Mapping[str, Role] = {
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
    }
)
"""The fields of a body that are not settings of the model."""


def read_request(body: object) -> Request:
    """A request from the JSON of a body."""
    if not isinstance(body, Mapping):
        raise InputError(f"a request is a JSON object, found {shown(body)}")
    fields = cast("_Fields", body)
    tools = fields.get("tools")
    return Request(
        messages=read_messages(fields.get("messages")),
        tools=_tools(tools) if tools else NO_TOOLS,
        tool_choice=fields.get("tool_choice"),
        parallel=fields.get("parallel_tool_calls"),
        shape=_shape(fields.get("response_format")),
        settings={name: value for name, value in fields.items() if name not in _FIELDS},
    )


def read_messages(entries: Any) -> Messages:
    """A conversation from `Message`s and dicts in OpenAI's form."""
    if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, Iterable):
        raise InputError(
            f"`messages` is a list of messages, found {shown(cast('object', entries))}"
        )
    numbered = enumerate(cast("Iterable[Any]", entries))
    messages = [read_message(entry, index) for index, entry in numbered]
    if not messages:
        raise InputError("`messages` is empty: a model needs something to answer")
    return Messages(messages)


def read_message(entry: object, index: int = 0) -> Message:
    """One message, from a dict in OpenAI's form or a `Message`."""
    if isinstance(entry, Message):
        return entry
    where = f"messages[{index}]"
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} is not a message: {shown(entry)}")
    fields = cast("_Fields", entry)
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        role_text = shown(fields.get("role"))
        raise InputError(f"{where} has the role {role_text}; roles are {', '.join(_ROLES)}")
    call_id, name = fields.get("tool_call_id"), fields.get("name")
    if fields.get("role") == "tool" and not isinstance(call_id, str):
        raise InputError(f"{where} is a tool result and needs the `tool_call_id` of its call")
    return Message(
        role=role,
        content=_content(fields.get("content"), where),
        tool_calls=_calls(fields.get("tool_calls") or (), where),
        tool_call_id=call_id,
        name=name if isinstance(name, str) else None,
    )


def _calls(calls: object, where: str) -> tuple[ToolCall, ...]:
    if not isinstance(calls, (list, tuple)):
        raise InputError(f"{where}: `tool_calls` is a list, found {shown(calls)}")
    try:
        return tuple([ToolCall.read(call) for call in cast("list[Any]", calls)])
    except ToolCallError as error:
        raise InputError(f"{where}: {error}") from error


def _content(content: object, where: str) -> Content:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InputError(f"{where}: `content` is text or a list of parts, found {shown(content)}")
    return tuple([_part(part, where) for part in cast("list[Any]", content)])


def _part(part: Any, where: str) -> Part:
    if isinstance(part, str):
        raise InputError(f"{where}: There is no such part of a message: {shown(part)}.")
    fields = mapping(part)
    if fields.get("type") in ("text", "input_text", "refusal"):
        part = {"type": "text", "text": fields.get("text") or fields.get("refusal") or ""}
    try:
        return read_part(part)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _tools(tools: object) -> Declarations:
    if not isinstance(tools, list):
        raise InputError(f"`tools` is a list, found {shown(tools)}")
    for index, tool in enumerate(cast("list[Any]", tools)):
        if not text_of(mapping(mapping(tool).get("function")).get("name")):
            raise InputError(f"tools[{index}] is not a function tool: {shown(tool)}")
    return Declarations(cast("list[dict[str, Any]]", tools))


def _shape(response_format: Any) -> Shape | None:
    if not response_format:
        return None
    fields = mapping(response_format)
    json_schema = mapping(fields.get("json_schema"))
    match fields.get("type"):
        case "text":
            return None
        case "json_object":
            return Shape("json_object")
        case "json_schema" if mapping(json_schema.get("schema")):
            name = text_of(json_schema.get("name")) or "answer"
            is_strict = json_schema.get("strict") is True
            return Shape("json_schema", json_schema["schema"], name, is_strict)
        case _:
            raise InputError(
                f"`response_format` is {shown(response_format)}; known types are text, "
                "json_object, json_schema (with its schema)"
            )
