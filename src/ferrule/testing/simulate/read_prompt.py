"""What a request asks for, read from its messages as a model would have to.

For the models that are rules (`AutoLM`, `OfflineLM`). They understand declared tools, and ferrule's own text prompts in all three forms:
`[[ ## field ## ]]` markers, JSON objects, XML tags. In any other conversation the last user message is the question.
"""

from __future__ import annotations

import re
from json import JSONDecoder
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic_core import from_json

from ferrule.models.wires.payload import mapping
from ferrule.values.encoding.encode import json_text
from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.message import Message

Json = dict[str, Any]
Form = Literal["chat", "json", "xml", "plain"]

STEP = ("next_thought", "next_tool_name", "next_tool_args")
"""The fields of one step of `ReAct` in text."""
_BUILT_IN = frozenset({"finish", "user_clarification"})

_MARKER = re.compile(r"^[ \t]*\[\[ ## (\w+) ## \]\]", re.MULTILINE)
_ANY_MARKER = re.compile(r"\[\[ ## (\w+) ## \]\]")
_ELEMENT = re.compile(r"<(\w+)>\s*(.*?)\s*</\1>", re.DOTALL)
_TOOL = re.compile(
    r"^\((\d+)\) (?P<name>\S+?)(?:, whose description is <desc>(?P<desc>.*?)</desc>)?\. It takes (?P<rest>.*)$", re.MULTILINE
)
_REMINDER = re.compile(r"\n\s*(?:Answer|Respond) with [^\n]*\s*\Z")
"""The last line of a question, which says again what to write: not a part of what is asked."""
_DECODER = JSONDecoder()
_STEP_FIELD = re.compile(r"(thought|tool_name|tool_args|observations?)_(\d+)")
_LISTED = re.compile(r"^\s*(?:\d+\.|[-*])\s+[`\"]?(\w+)[`\"]?\s*\(([^)\n]*)\)", re.MULTILINE)
_OUTPUTS = re.compile(r"^[^\n]*\boutputs?\b[^\n]*$", re.IGNORECASE | re.MULTILINE)


class SeenTool(Record):
    """A tool that a request offers."""

    name: str
    description: str
    parameters: Json
    """A JSON Schema of an object."""


class Seen(Record):
    """A call that was made earlier in the conversation, and what came of it."""

    name: str
    args: Json
    observation: str


class Asked(Record):
    """What a request asks for."""

    form: Form
    fields: tuple[str, ...]
    """The outputs to write, in order; empty where plain text will do."""
    types: Mapping[str, str]
    """What is said of the fields' types."""
    question: str
    inputs: Mapping[str, str]
    tools: tuple[SeenTool, ...]
    """Without ferrule's own `finish` and `user_clarification`."""
    calls: tuple[Seen, ...]
    finish: SeenTool | None
    """The declared tool that ends the loop, if there is one."""
    is_native: bool
    """Calls are made as structured calls."""

    @property
    def wants_step(self) -> bool:
        """One step of `ReAct` in text is asked for."""
        return "next_tool_name" in self.fields

    def written(self, values: Mapping[str, Any]) -> str:
        """Outputs in the form that is asked for."""
        match self.form:
            case "chat":
                return "\n\n".join([*(f"[[ ## {name} ## ]]\n{_text(value)}" for name, value in values.items()), "[[ ## completed ## ]]"])
            case "json":
                return json_text(dict(values))
            case "xml":
                return "\n".join(f"<{name}>\n{_text(value)}\n</{name}>" for name, value in values.items())
            case "plain":
                return "\n".join(_text(value) for value in values.values())


def read_prompt(request: Request) -> Asked:
    """What a request asks for."""
    system = "\n".join(message.text for message in request.messages if message.role == "system")
    declared = [_declared(tool) for tool in request.tools]
    listed = [*_listed_tools(system)]
    asking = _question_message(request)
    inputs = fields_in(asking.text) if asking is not None else {}
    form, fields = _fields(request, system, {name for name in inputs if not _STEP_FIELD.fullmatch(name)})
    question = "\n".join(value for name, value in inputs.items() if name != "trajectory" and not _STEP_FIELD.fullmatch(name))
    tools = [tool for tool in declared or listed if tool.name not in _BUILT_IN]
    return Asked(
        form,
        fields,
        {name: kind for name, kind in _LISTED.findall(system) if name in fields},
        question or (asking.text if asking is not None else ""),
        inputs,
        tuple(tools),
        tuple(_calls(request)),
        next((tool for tool in declared if tool.name == "finish"), None),
        bool(declared),
    )


def fields_in(text: str) -> dict[str, str]:
    """The fields of one message, whichever form it is in; empty for plain text."""
    text = _REMINDER.sub("", text)
    start = text.lstrip()[:1]
    elements = dict[str, str](_ELEMENT.findall(text)) if start == "<" else {}
    if elements:
        return elements
    found = list(_MARKER.finditer(text)) if start != "{" else []
    if found:
        ends = [*(mark.start() for mark in found[1:]), len(text)]
        return {mark[1]: text[mark.end() : end].strip() for mark, end in zip(found, ends, strict=True) if mark[1] != "completed"}
    objects = {str(name): _text(each) for found in _objects(text) for name, each in found.items()}
    if objects:
        return objects
    return dict(_ELEMENT.findall(text))


def _objects(text: str) -> Iterator[Json]:
    """The JSON objects that follow one another in a text."""
    place = text.find("{")
    while place >= 0:
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return
        yield value
        following = text[place:].lstrip()
        place = len(text) - len(following) if following.startswith("{") else -1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _declared(tool: Json) -> SeenTool:
    function: Json = tool.get("function") or {}
    return SeenTool(str(function.get("name")), str(function.get("description") or ""), function.get("parameters") or {})


def _listed_tools(system: str) -> Iterator[SeenTool]:
    for found in _TOOL.finditer(system):
        rest = found["rest"]
        start, end = rest.find("{"), rest.rfind("}")
        try:
            found_properties = from_json(rest[start : end + 1]) if start >= 0 else None
        except ValueError:
            found_properties = None
        properties = mapping(found_properties)
        required = [name for name, schema in properties.items() if not (isinstance(schema, dict) and "default" in schema)]
        yield SeenTool(found["name"], found["desc"] or "", {"type": "object", "properties": properties, "required": required})


def _question_message(request: Request) -> Message | None:
    """The message with the inputs: the last user message that is no finished step and no complaint about an answer."""
    plain: Message | None = None
    for message in reversed(list(request.messages)):
        if message.role != "user":
            continue
        fields = fields_in(message.text)
        if fields and not all(_STEP_FIELD.fullmatch(name) for name in fields):
            return message
        plain = plain or (None if fields else message)
    return plain


def _fields(request: Request, system: str, inputs: set[str]) -> tuple[Form, tuple[str, ...]]:
    """The form of the answer and the names of its fields."""
    if request.shape is not None and request.shape.schema:
        return "json", tuple(mapping(request.shape.schema.get("properties")))
    said = system + "\n" + (request.messages[-1].text if request.messages else "")
    without_tools = _TOOL.sub("", said)
    markers = dict.fromkeys(_ANY_MARKER.findall(without_tools))
    elements = dict.fromkeys(name for name, _ in _ELEMENT.findall(without_tools))
    form: Form = "json" if request.shape is not None or re.search(r"\bJSON object\b.*\bfields?\b", without_tools) else "plain"
    if markers:
        form = "chat"
    elif elements:
        form = "xml"
    if "next_tool_name" in without_tools and not request.tools:
        return ("json" if form == "plain" else form), STEP
    heading = list(_OUTPUTS.finditer(system))
    listed = [name for name, _ in _LISTED.findall(system[heading[0].end() :])] if heading else []
    names = listed or [*markers, *elements]
    fields = tuple(name for name in dict.fromkeys(names) if name not in inputs | {"completed"} and not _STEP_FIELD.fullmatch(name))
    return (form, fields) if fields else ("plain", ())


def _calls(request: Request) -> Iterator[Seen]:
    """Calls made so far: structured ones with their results, and those of text prompts with their observations."""
    results = {message.tool_call_id: message.text for message in request.messages if message.role == "tool"}
    waiting: list[tuple[str, Json]] = []
    for message in request.messages:
        for call in message.tool_calls:
            yield Seen(call.name, call.args, results.get(call.id, ""))
        if message.role == "assistant" and not message.tool_calls:
            waiting = [*_text_calls(fields_in(message.text).get("tool_calls", ""))] or waiting
        if message.role != "user":
            continue
        yield from _steps(fields_in(message.text), waiting)


def _steps(fields: dict[str, str], waiting: list[tuple[str, Json]]) -> Iterator[Seen]:
    nested = fields.get("trajectory")
    if nested:
        fields = {**fields, **fields_in(nested)}
    for name, value in fields.items():
        found = _STEP_FIELD.fullmatch(name)
        if found is None or not found[1].startswith("observation"):
            continue
        number = found[2]
        if f"tool_name_{number}" in fields:
            args = _object(fields.get(f"tool_args_{number}", ""))
            yield Seen(fields[f"tool_name_{number}"], args, value)
        else:
            yield from (Seen(called, args, value) for called, args in waiting)


def _text_calls(value: str) -> Iterator[tuple[str, Json]]:
    try:
        found: Any = from_json(value) if value else None
    except ValueError:
        return
    entries: Any = mapping(found).get("tool_calls") if isinstance(found, dict) else found
    for entry in cast("list[Any]", entries) if isinstance(entries, list) else []:
        name = mapping(entry).get("name")
        if isinstance(name, str):
            yield name, mapping(mapping(entry).get("args"))


def _object(text: str) -> Json:
    try:
        value = from_json(text)
    except ValueError:
        return {}
    return cast("Json", value) if isinstance(value, dict) else {}
