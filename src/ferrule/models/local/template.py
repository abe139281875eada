"""Converts messages for chat templates, with or without tool support."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.models.local.grammar import OPENER
from ferrule.values.conversation.message import openai_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.values.conversation.message import Message


def template_message(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates take.

    Its content is text, the arguments of calls are objects, and all templates accept its ids.
    """
    fields = openai_message(message)
    fields["content"] = message.text
    if message.tool_calls:
        fields["tool_calls"] = [_template_call(call) for call in fields["tool_calls"]]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = _template_id(message.tool_call_id)
    if message.name is not None:
        fields["name"] = message.name
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    return fields


def _template_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:  # the arguments are not JSON
        arguments = function["arguments"]
    fields = {**call, "function": {**function, "arguments": arguments}}
    if "id" in call:
        fields["id"] = _template_id(call["id"])
    return fields


def _template_id(call_id: str) -> str:
    """Nine letters and digits: Mistral's templates accept no other ids."""
    return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


# -- for a template without tool support


def tools_as_text(tools: Iterable[dict[str, Any]]) -> str:
    """The tool declarations as text, with instructions for writing a call."""
    form = f'{OPENER}{{"name": the tool, "arguments": its arguments}}'
    lines = ["You can call these tools:"]
    for tool in tools:
        lines.append(json_text(tool["function"]))
    lines.append(f"A call is written as {form}, after your reasoning.")
    return "\n".join(lines)


def text_message(message: Message) -> dict[str, Any]:
    """A message with its calls and results written as text."""
    if message.role == "tool":
        name = message.name or "the call"
        return {"role": "user", "content": f"Result of {name}: {message.text}"}
    lines: list[str] = []
    if message.text:
        lines.append(message.text)
    for call in message.tool_calls:
        lines.append(f"{OPENER}{json_text({'name': call.name, 'arguments': call.args})}")
    return {"role": message.role, "content": "\n".join(lines)}
