"""`OfflineLM` and `AutoLM`: stand-ins for a language model that follow fixed rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from ferrule.models.wires.payload import Json, mapping
from ferrule.testing.offline.example import example, is_free
from ferrule.testing.offline.rules import arguments, best_tool
from ferrule.testing.offline.task import Task, read_task
from ferrule.testing.scripted import LocalLM

if TYPE_CHECKING:
    from ferrule.values.conversation.exchange import Capabilities, Request, Response

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NO_TEXT = frozenset({"enum", "const", "anyOf", "$ref"})
_NO = re.compile(r"\b(no|not|false|never|none)\b")


class OfflineLM(LocalLM):
    """A model for demos and tests without a key. It follows fixed rules and has no neural network: it only seems to understand.

    It picks the declared tool whose name and description share the most words with the question,
    fills the arguments by their types and names (a sum from the question into `expression`, dates
    into dates, numbers into numbers, quoted or remaining words into the rest), and answers with the
    tools' results. If no tool fits, it says so. It ignores tools that a prompt describes only in
    its text. The same question always gets the same answer.
    """

    name = "offline"

    def complete(self, request: Request) -> Response:
        """The next call, or the answer."""
        task = read_task(request)
        if request.tool_choice != "none":
            tool = best_tool(task.question, task.tools, {call.name for call in task.calls})
            if tool is not None:
                why = f"The question and the tool {tool.name} have words in common, so I call it."
                return task.call(tool.name, arguments(task.question, tool), why)
        return task.end(partial(_output, task))


class AutoLM(LocalLM):
    """Calls each offered tool once, with the smallest arguments that fit its schema, and then answers.

    It finds its earlier calls in the conversation, so one instance serves any number of runs. It
    calls only declared tools: a prompt that describes tools in its text gets an answer without
    calls. `answer` is the text of its answers, or a mapping of output fields to values; other
    fields, and texts of a certain form such as dates, get the smallest value of their type.
    """

    name = "auto"

    def __init__(self, answer: Any = "done", *, capabilities: Capabilities | None = None) -> None:
        super().__init__(capabilities=capabilities)
        self._answer = answer

    def complete(self, request: Request) -> Response:
        """The next call, or the answer."""
        task = read_task(request)
        called = {call.name for call in task.calls}
        tool = next((tool for tool in task.tools if tool.name not in called), None)
        if tool is not None and request.tool_choice != "none":
            return task.call(tool.name, example(tool.parameters), f"I call {tool.name}.")
        return task.end(self._value)

    def _value(self, name: str, schema: Json) -> Any:
        if isinstance(self._answer, Mapping):
            answers = cast("Mapping[str, Any]", self._answer)
            return answers[name] if name in answers else example(schema)
        is_text = schema.get("type", "string") == "string" and not schema.keys() & _NO_TEXT
        return (
            self._answer
            if not isinstance(self._answer, str) or (is_text and is_free(schema, self._answer))
            else example(schema)
        )


def _output(task: Task, name: str, schema: Json) -> Any:
    """The value of an output: the tools' results, in a form that fits its type."""
    if name == "reasoning":
        used = ", ".join(dict.fromkeys(call.name for call in task.calls))
        return (
            f"I am rules, no neural network. I called {used} and answer with what came back."
            if used
            else _nothing_fits(task)
        )
    results = [_plain(call.result) for call in task.calls if call.result and call.name != "finish"]
    said = "\n".join(results)
    kind = schema.get("type", None if schema.keys() & _NO_TEXT else "string")
    if isinstance(options := schema.get("enum"), list) and options:
        words = f"{said} {task.question}".lower()
        choices = cast("list[Any]", options)
        return next((choice for choice in choices if str(choice).lower() in words), choices[0])
    if kind == "string":
        text = said or _nothing_fits(task)
        return text if is_free(schema, text) else example(schema)
    if kind in {"integer", "number"}:
        numbers = _NUMBER.findall(said)
        if not numbers:
            return example(schema)
        number = float(numbers[-1])
        if kind == "integer":
            return int(number)
        return number
    if kind == "boolean":
        return not _NO.search(said.lower())
    shape = list if kind == "array" else dict
    fitting: list[Any] = [
        found for call in reversed(task.calls) if isinstance(found := _json(call.result), shape)
    ]
    if fitting:
        return fitting[0]
    return (
        results
        if kind == "array" and mapping(schema.get("items")).get("type", "string") == "string"
        else example(schema)
    )


def _json(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return None


def _plain(result: str) -> str:
    """A result in readable form: a flat object as `key: value`."""
    value = _json(result)
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(each, (str, int, float, bool)) for each in mapping(value).values())
    ):
        return ", ".join(f"{name}: {each}" for name, each in mapping(value).items())
    return (
        str(value)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
        else result.strip()
    )


def _nothing_fits(task: Task) -> str:
    names = ", ".join(tool.name for tool in task.tools)
    found = (
        f"None of the tools I was given ({names}) fits this question"
        if names
        else "I was given no tool for this question"
    )
    return f"I am ferrule's offline model: I follow fixed rules, and have no neural network. {found}, so I cannot answer it."
