"""Turns of the models that are rules, written as the request wants them: structured calls, or fields in text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Response, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.testing.simulate.read_prompt import Asked

Json = dict[str, Any]
_ONE = Usage(calls=1)

_TYPES: tuple[tuple[str, Json], ...] = (
    (r"^(list|tuple|set|sequence)|array", {"type": "array"}),
    (r"^(dict|mapping)|object", {"type": "object"}),
    (r"^bool", {"type": "boolean"}),
    (r"^int", {"type": "integer"}),
    (r"^(float|number)", {"type": "number"}),
)


def taken(asked: Asked, name: str, args: Json, thought: str, place: int) -> Response:
    """A turn that calls a tool. `place` is the length of the conversation: it makes the call's id new."""
    if asked.is_native:
        call = ToolCall(name=name, args=args, id=f"call_{place}")
        return Response(thought, (call,), finish_reason="tool_calls", usage=_ONE)
    if "tool_calls" in asked.fields:
        return _text(asked.written({"tool_calls": {"tool_calls": [{"name": name, "args": args}]}}))
    if asked.wants_step:
        return _text(asked.written({"next_thought": thought, "next_tool_name": name, "next_tool_args": args}))
    return _text(thought)


def ended(asked: Asked, value: Callable[[str, Json], Any], place: int) -> Response:
    """The turn that ends the work. `value` gives each output its value, by name and JSON Schema."""
    if asked.finish is not None:
        properties: Json = asked.finish.parameters.get("properties") or {}
        outputs = {name: value(name, schema) for name, schema in properties.items()}
        call = ToolCall(name="finish", args=outputs, id=f"call_{place}")
        return Response(None, (call,), finish_reason="tool_calls", usage=_ONE)
    if asked.wants_step:
        return _text(asked.written({"next_thought": "All that is needed is known.", "next_tool_name": "finish", "next_tool_args": {}}))
    if asked.fields:
        return _text(asked.written({name: _output(asked, name, value) for name in asked.fields}))
    return _text(str(value("answer", {"type": "string"})))


def _output(asked: Asked, name: str, value: Callable[[str, Json], Any]) -> Any:
    if name == "tool_calls":
        return {"tool_calls": []}
    return value(name, _schema(asked.types.get(name, "str")))


def _schema(type_name: str) -> Json:
    """A JSON Schema for a type as prompts name it."""
    plain = type_name.strip().lower()
    choices = re.fullmatch(r"literal\[(.*)\]", plain)
    if choices:
        written = type_name[type_name.index("[") + 1 : type_name.rindex("]")]
        return {"enum": [choice.strip().strip("'\"") for choice in written.split(",")]}
    return next((schema for pattern, schema in _TYPES if re.match(pattern, plain)), {"type": "string"})


def _text(text: str) -> Response:
    return Response(text, finish_reason="stop", usage=_ONE)
