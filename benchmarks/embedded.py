"""How often the embedded model makes the right call: questions of the Berkeley leaderboard (BFCL v4).

    python benchmarks/embedded.py FOLDER [--most 100]

FOLDER is `bfcl_eval/data` of the leaderboard's repository; its data is not part of this one. A call
is right if its name is, and each argument is among the accepted values. Texts are compared as the
leaderboard does, without case, spaces and punctuation.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from itertools import islice
from pathlib import Path
from typing import Any

from ferrule import LM, InputField, OutputField, Predict, Signature, Tool, ToolCalls, context
from ferrule.errors import FerruleError

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_BINS = 5


class Choose(Signature):
    """Choose the calls."""

    question: str = InputField()
    tools: list[Tool] = InputField()
    calls: ToolCalls = OutputField()


def schema_of(node: Any) -> Any:
    """A JSON Schema from the leaderboard's types."""
    if isinstance(node, list):
        return [schema_of(item) for item in node]
    if not isinstance(node, dict):
        return node
    schema = {name: schema_of(value) for name, value in node.items()}
    if isinstance(node.get("type"), str):
        schema["type"] = _TYPES.get(node["type"], node["type"])
    return schema


def tool_of(function: dict[str, Any]) -> Tool:
    """A tool that is only declared."""
    name = function["name"].replace(".", "_")
    return Tool(lambda **_: None, name, function["description"], schema_of(function["parameters"]))


def plain(value: Any) -> Any:
    """A value for comparison."""
    if isinstance(value, str):
        return re.sub(r"[ \,\.\/\-\_\*\^]", "", value).lower().replace("'", '"')
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def is_accepted(value: Any, accepted: list[Any]) -> bool:
    """Whether a value is among the accepted ones; in those, each part of an object is a list."""
    for option in accepted:
        if isinstance(option, dict) and isinstance(value, dict):
            if is_right_call(value, option):
                return True
        elif plain(value) == plain(option):
            return True
    return False


def is_right_call(arguments: dict[str, Any], accepted: dict[str, list[Any]]) -> bool:
    """Whether all arguments are accepted, and none is missing that may not be."""
    for name, value in arguments.items():
        if name not in accepted or not is_accepted(value, accepted[name]):
            return False
    return all(name in arguments or "" in values for name, values in accepted.items())


def is_right(calls: list[Any], truth: list[dict[str, Any]]) -> bool:
    """Whether the calls are the expected ones, in any order."""
    expected = [(name.replace(".", "_"), args) for call in truth for name, args in call.items()]
    if len(calls) != len(expected):
        return False
    for call in calls:
        for entry in expected:
            if call.name == entry[0] and is_right_call(call.args, entry[1]):
                expected.remove(entry)
                break
    return not expected


def measure(folder: Path, kind: str, most: int) -> list[tuple[bool, float]]:
    """For each question, whether the calls are right, and the model's confidence in them."""
    name = f"BFCL_v4_{kind}.json"
    questions = (folder / name).read_text(encoding="utf-8").splitlines()
    answers = (folder / "possible_answer" / name).read_text(encoding="utf-8").splitlines()
    outcomes: list[tuple[bool, float]] = []
    program = Predict(Choose)
    for line, answer in islice(zip(questions, answers, strict=True), most):
        entry = json.loads(line)
        tools = [tool_of(function) for function in entry["function"]]
        calls: list[Any] = []
        try:
            prediction = program(question=entry["question"][0][0]["content"], tools=tools)
            calls = list(prediction.calls.tool_calls)
        except FerruleError:
            pass  # no call: a wrong answer
        confidence = calls[0].confidence if calls else 0.0
        outcomes.append((is_right(calls, json.loads(answer)["ground_truth"]), confidence))
    return outcomes


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Right calls of the embedded model, by BFCL v4.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=400, help="the most questions of a kind")
    chosen = parser.parse_args()
    everything: list[tuple[bool, float]] = []
    with context(lm=LM("needle")):
        for kind in ("simple_python", "multiple", "parallel"):
            begun = time.perf_counter()
            outcomes = measure(chosen.folder, kind, chosen.most)
            seconds = (time.perf_counter() - begun) / len(outcomes)
            right = sum(is_right for is_right, _ in outcomes)
            print(f"{kind:14} {right:4} of {len(outcomes):4}   {seconds:.2f} s a question")
            everything += outcomes
    print("\nconfidence     right")
    for index in range(_BINS):
        low, high = index / _BINS, (index + 1) / _BINS
        inside = [is_right for is_right, confidence in everything if low <= confidence < high]
        if inside:
            print(f"{low:.1f} to {high:.1f}    {sum(inside):4} of {len(inside):4}")


if __name__ == "__main__":
    main()
