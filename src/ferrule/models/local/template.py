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
    """A message in the form that chat templates take: text content, arguments of calls as objects, ids that all templates accept."""
    shape = openai_message(message)
    shape["content"] = message.text
    if message.tool_calls:
        shape["tool_calls"] = [_template_call(each) for each in shape["tool_calls"]]
    if message.tool_call_id is not None:
        shape["tool_call_id"] = _template_id(message.tool_call_id)
    if message.name is not None:
        shape["name"] = message.name
    if message.reasoning:
        shape["reasoning_content"] = message.reasoning
    return shape


def _template_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:  # the arguments are not JSON
        arguments = function["arguments"]
    own = {"id": _template_id(call["id"])} if "id" in call else {}
    return {**call, **own, "function": {**function, "arguments": arguments}}


def _template_id(call_id: str) -> str:
    """Nine letters and digits: Mistral's templates accept no other ids."""
    return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


# -- for a template without tool support
# ---------------------------------------------------------------------------


def tools_as_text(tools: Iterable[dict[str, Any]]) -> str:
    """The tool declarations as text, with instructions for writing a call."""
    lines = [json_text(each["function"]) for each in tools]
    form = f'{OPENER}{{"name": the tool, "arguments": its arguments}}'
    return "\n".join(
        [
            "You can call these tools:",
            *lines,
            f"A call is written as {form}, after your reasoning.",
        ],
    )


def text_message(message: Message) -> dict[str, Any]:
    """A message with its calls and results written as text."""
    if message.role == "tool":
        return {
            "role": "user",
            "content": f"Result of {message.name or 'the call'}: {message.text}",
        }
    calls = [
        f"{OPENER}{json_text({'name': call.name, 'arguments': call.args})}"
        for call in message.tool_calls
    ]
    return {
        "role": message.role,
        "content": "\n".join([*([message.text] if message.text else []), *calls]),
    }
