"""`AutoLM`: a stand-in for a language model that follows fixed rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import checks_keywords
from ferrule.testing.offline.example import example, is_free
from ferrule.testing.offline.task import read_task
from ferrule.testing.scripted import LocalLM

if TYPE_CHECKING:
    from ferrule.models.wires.payload import Json
    from ferrule.values.conversation.exchange import Capabilities, Request, Response

_NO_TEXT = frozenset({"enum", "const", "anyOf", "$ref"})


class AutoLM(LocalLM):
    """Calls each offered tool once, and then answers.

    The arguments of a call are the smallest that fit the tool's schema. It finds its earlier calls
    in the conversation, so one instance serves any number of runs. It calls only declared tools: a
    prompt that describes tools in its text gets an answer without calls. `answer` is the text of
    its answers, or a mapping of output fields to values; other fields, and texts of a certain form
    such as dates, get the smallest value of their type.
    """

    name = "auto"

    @checks_keywords
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
        answer = self._answer
        if isinstance(answer, Mapping):
            answers = cast("Mapping[str, Any]", answer)
            if name in answers:
                return answers[name]
            return example(schema)
        if not isinstance(answer, str):
            return answer
        is_text = schema.get("type", "string") == "string" and not schema.keys() & _NO_TEXT
        if is_text and is_free(schema, answer):
            return answer
        return example(schema)
