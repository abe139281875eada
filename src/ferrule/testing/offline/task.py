"""`Task`: the tools of a request, the calls so far, and the outputs to write.

`AutoLM` answers from it.
Tools and calls are those of native function calling. Outputs come from the `finish` tool, from the
adapter's `Request.form`, or from the JSON Schema that the answer must fit. Prompts are not parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.models.wires.payload import Json, mapping
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Response, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.values.conversation.exchange import Request

_BUILT_IN = frozenset({"finish", "user_clarification"})


class OfferedTool(Struct, frozen=True):
    """A tool of a request."""

    name: str
    description: str
    parameters: Json
    """A JSON Schema of an object."""


class PastCall(Struct, frozen=True):
    """A call made earlier in the conversation, with the text of its result."""

    name: str
    args: Json
    result: str


class Task(Struct, frozen=True):
    """The tools, calls and outputs of a request."""

    tools: tuple[OfferedTool, ...]
    """The tools, without ferrule's own `finish` and `user_clarification`."""
    calls: tuple[PastCall, ...]
    finish: OfferedTool | None
    outputs: Json
    """The JSON Schema of the object of outputs; empty if plain text will do."""
    write: Callable[[Json], str]
    """Writes outputs as the text of an answer."""
    position: int
    """The length of the conversation: it makes the ids of new calls unique."""

    def call(self, name: str, args: Json, thought: str | None) -> Response:
        """An answer that calls a tool."""
        call = ToolCall(name=name, args=args, id=f"call_{self.position}")
        return Response(thought, (call,), finish_reason="tool_calls", usage=_ONE_CALL)

    def end(self, value: Callable[[str, Json], Any]) -> Response:
        """The final answer.

        `value` returns the value of an output, from its name and JSON Schema.
        """
        schema = self.outputs if self.finish is None else self.finish.parameters
        values = {name: _finish(each) or value(name, each) for name, each in _properties(schema)}
        if self.finish is not None:
            return self.call("finish", values, None)
        text = self.write(values) if values else str(value("answer", {"type": "string"}))
        return Response(text, finish_reason="stop", usage=_ONE_CALL)


_ONE_CALL = Usage(calls=1)


def read_task(request: Request) -> Task:
    """Read the task from a request."""
    tools = [_tool(mapping(declared.get("function"))) for declared in request.tools]
    form, shape = request.form, request.shape
    return Task(
        tuple(tool for tool in tools if tool.name not in _BUILT_IN),
        tuple(_calls(request)),
        next((tool for tool in tools if tool.name == "finish"), None),
        dict(form.schema if form is not None else (shape and shape.schema) or {}),
        json_text if form is None else form.write,
        len(request.messages),
    )


def _tool(function: Json) -> OfferedTool:
    return OfferedTool(
        str(function.get("name")),
        str(function.get("description") or ""),
        mapping(function.get("parameters")),
    )


def _calls(request: Request) -> Iterator[PastCall]:
    results = {
        message.tool_call_id: message.text for message in request.messages if message.role == "tool"
    }
    for message in request.messages:
        for call in message.tool_calls:
            yield PastCall(call.name, call.args, results.get(call.id, ""))


def _properties(schema: Json) -> Iterator[tuple[str, Json]]:
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    for name, each in mapping(schema.get("properties")).items():
        yield name, {**mapping(each), **definitions}


def _finish(schema: Json) -> str | None:
    """`finish`, if the schema offers it as a choice.

    A step in text then ends the loop, because its tools are not declared.
    """
    options = schema.get("enum")
    return "finish" if isinstance(options, list) and "finish" in options else None
