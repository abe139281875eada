"""`OfflineLM`: a stand-in for a language model that is rules and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from ferrule.models.wires.payload import mapping
from ferrule.testing.scripted import LocalLM

if TYPE_CHECKING:
    from ferrule.testing.simulate.read_prompt import Asked, Seen
    from ferrule.values.conversation.exchange import Capabilities, Request, Response

Json = dict[str, Any]
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


class OfflineLM(LocalLM):
    """Rules, no neural network: for demos and tests without a key. It understands nothing; it only looks as if it did.

    It picks the tool whose name and description share the most words with the question, fills the arguments by their types and names
    (a sum from the question into `expression`, dates into dates, numbers into numbers, quoted or remaining words into the rest), and
    answers with what the tools returned. Where no tool fits it says so. The same question always gets the same answer.
    """

    name = "offline"

    def __init__(self, *, capabilities: Capabilities | None = None) -> None:
        if capabilities is not None:
            self.capabilities = capabilities

    def complete(self, request: Request) -> Response:
        """The next call, or the answer."""
        from ferrule.testing.offline.rules import arguments, best_tool
        from ferrule.testing.simulate.read_prompt import read_prompt
        from ferrule.testing.simulate.turns import ended, taken

        asked = read_prompt(request)
        place = len(request.messages)
        may_call = asked.is_native or asked.wants_step or "tool_calls" in asked.fields
        if may_call and request.tool_choice != "none":
            tool = best_tool(asked.question, asked.tools, {call.name for call in asked.calls})
            if tool is not None:
                why = f"The question and the tool {tool.name} have words in common, so I call it."
                return taken(asked, tool.name, arguments(asked.question, tool), why, place)
        return ended(asked, lambda name, schema: _value(asked, name, schema), place)


def _value(asked: Asked, name: str, schema: Json) -> Any:
    """The value of an output: what the tools returned, in the form its type wants."""
    from ferrule.testing.simulate.example import example

    if name == "reasoning":
        used = ", ".join(dict.fromkeys(call.name for call in asked.calls))
        return f"I am rules, no neural network. I called {used} and answer with what came back." if used else _nothing_fits(asked)
    observations = [_plain(call.observation) for call in asked.calls if call.observation and call.name != "finish"]
    said = "\n".join(observations)
    kind = mapping(schema).get("type", "string" if not mapping(schema).keys() & {"enum", "anyOf", "$ref", "const"} else None)
    if kind == "string":
        return said or _nothing_fits(asked)
    if kind in {"integer", "number"}:
        numbers = _NUMBER.findall(said)
        return (int(float(numbers[-1])) if kind == "integer" else float(numbers[-1])) if numbers else example(schema)
    if kind == "boolean":
        return not re.search(r"\b(no|not|false|never|none)\b", said.lower())
    options = mapping(schema).get("enum")
    if isinstance(options, list) and options:
        words = f"{said} {asked.question}".lower()
        choices = cast("list[Any]", options)
        return next((choice for choice in choices if str(choice).lower() in words), choices[0])
    shape = list if kind == "array" else dict
    fitting: list[Any] = [found for call in reversed(asked.calls) if isinstance(found := _json(call), shape)]
    if fitting:
        return fitting[0]
    return observations if kind == "array" and mapping(mapping(schema).get("items")).get("type", "string") == "string" else example(schema)


def _json(call: Seen) -> Any:
    from pydantic_core import from_json

    try:
        return from_json(call.observation)
    except ValueError:
        return None


def _plain(observation: str) -> str:
    """An observation as a person would read it: an object of few words as `key: value`."""
    from pydantic_core import from_json

    try:
        value = from_json(observation)
    except ValueError:
        return observation.strip()
    if isinstance(value, dict) and value and all(isinstance(each, (str, int, float, bool)) for each in mapping(value).values()):
        return ", ".join(f"{name}: {each}" for name, each in mapping(value).items())
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else observation.strip()


def _nothing_fits(asked: Asked) -> str:
    names = ", ".join(tool.name for tool in asked.tools)
    found = f"none of the tools I was given ({names}) fits this question" if names else "I was given no tool for this question"
    if not names and "trajectory" in asked.inputs:
        found = "no tool I was given fitted this question"
    return f"I am ferrule's offline model, rules and no neural network, and {found}: I cannot answer it."
