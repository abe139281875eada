"""How often the embedded model makes the right call: questions of the Berkeley leaderboard (BFCL v4).

    python benchmarks/embedded.py FOLDER [--results FILE] [--most 100]

FOLDER is `bfcl_eval/data` of the leaderboard's repository; its data is not part of this one. Each
question is asked in three ways: of the model alone, by `Predict` with `ToolCalls`, and, for the
questions that need several calls, by `ReAct`, whose calls of all turns count.

A call is right as the leaderboard has it: its name is right, and each argument is among the
accepted values and has the type of the parameter. Texts are compared without case, spaces and
punctuation.

Each answer is a line in the file of results. A run that was stopped goes on after the last one, and
the tables and the picture are made from the file. The seconds of an answer count only if the
machine had nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule import (
    LM,
    InputField,
    Message,
    Messages,
    OutputField,
    Predict,
    ReAct,
    Request,
    Signature,
    Tool,
    ToolCalls,
    context,
)
from ferrule.errors import FerruleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]
Answer = tuple[list[tuple[str, Json]], float]
"""The calls, and the model's confidence in the first of them; 0 without a call."""

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_PYTHON_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_KINDS = {"simple_python": "one tool", "multiple": "several tools", "parallel": "several calls"}
_BINS = 10
_IDLE = 1.5
"""The load of the machine, with the engine itself, up to which seconds are counted."""
_DONE = "done"
"""The result of every tool: the leaderboard has no functions."""


class Choose(Signature):
    """Choose the calls."""

    question: str = InputField()
    tools: list[Tool] = InputField()
    calls: ToolCalls = OutputField()


# -- tools


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


def name_of(function: str) -> str:
    """The name of a function as that of a tool."""
    return function.replace(".", "_")


def tool_of(function: Json, calls: list[tuple[str, Json]]) -> Tool:
    """A tool that notes its calls."""
    name = name_of(function["name"])

    def run(**arguments: Any) -> str:
        calls.append((name, arguments))
        return _DONE

    return Tool(run, name, function["description"], schema_of(function["parameters"]))


# -- ways to ask


def alone(question: str, functions: list[Json]) -> Answer:
    """One request to the model, whose calls nobody checks."""
    tools = [tool_of(function, []).declaration for function in functions]
    request = Request(Messages([Message("user", question)]), tools=tools)
    response = LM("needle", max_tokens=512).complete(request)
    calls = [(call.name, call.args) for call in response.tool_calls]
    confidence = response.tool_calls[0].confidence if response.tool_calls else None
    return calls, confidence or 0.0


def by_predict(question: str, functions: list[Json]) -> Answer:
    """`Predict` with `ToolCalls` as its output."""
    tools = [tool_of(function, []) for function in functions]
    calls = Predict(Choose)(question=question, tools=tools).calls.tool_calls
    confidence = calls[0].confidence if calls else None
    return [(call.name, call.args) for call in calls], confidence or 0.0


def by_react(question: str, functions: list[Json]) -> Answer:
    """`ReAct`: the calls of all its turns."""
    calls: list[tuple[str, Json]] = []
    tools = [tool_of(function, calls) for function in functions]
    run = ReAct("question -> answer", tools, max_iters=8).start(question=question)
    confidence = None
    if run.trajectory.steps and run.trajectory.steps[0].calls:
        confidence = run.trajectory.steps[0].calls[0].confidence
    return calls, confidence or 0.0


WAYS: dict[str, Callable[[str, list[Json]], Answer]] = {
    "alone": alone,
    "Predict": by_predict,
    "ReAct": by_react,
}


# -- what is right


def plain(value: Any) -> Any:
    """A value for comparison."""
    if isinstance(value, str):
        return re.sub(r"[ \,\.\/\-\_\*\^]", "", value).lower().replace("'", '"')
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def has_type(value: Any, expected: type, accepted: list[Any]) -> bool:
    """Whether a value has the type of its parameter, or that of an accepted value.

    The second is that of a name for a value that the question gives elsewhere.
    """
    if type(value) is expected:
        return True
    named = [option for option in accepted if option != ""]
    return bool(named) and type(value) is type(named[0])


def fits(value: Any, schema: Json, accepted: list[Any]) -> bool:
    """Whether an argument has an accepted type, also within a list."""
    expected = _PYTHON_TYPES[schema["type"]]
    if not has_type(value, expected, accepted):
        return False
    if expected is not list or not isinstance(value, list):
        return True
    inner = _PYTHON_TYPES[schema["items"]["type"]]
    for option in accepted:
        if not isinstance(option, list) or all(has_type(item, inner, option) for item in value):
            return True
    return False


def is_accepted(value: Any, accepted: list[Any]) -> bool:
    """Whether a value is among the accepted ones; in those, each part of an object is a list."""
    for option in accepted:
        if isinstance(option, dict) and isinstance(value, dict):
            if has_accepted_parts(value, option):
                return True
        elif isinstance(option, list) and isinstance(value, list):
            if len(option) == len(value) and all(
                is_accepted(item, [part]) for item, part in zip(value, option, strict=True)
            ):
                return True
        elif plain(value) == plain(option):
            return True
    return False


def has_accepted_parts(parts: Json, accepted: dict[str, list[Any]]) -> bool:
    """Whether all parts are accepted, and none is missing that may not be."""
    for name, value in parts.items():
        if name not in accepted or not is_accepted(value, accepted[name]):
            return False
    return all(name in parts or "" in values for name, values in accepted.items())


def is_right_call(arguments: Json, schemas: Json, accepted: dict[str, list[Any]]) -> bool:
    """Whether the arguments of a call are accepted."""
    for name, value in arguments.items():
        if name not in schemas or name not in accepted:
            return False
        number = value
        if schemas[name]["type"] == "float" and type(value) is int:
            number = float(value)
        if not fits(number, schemas[name], accepted[name]):
            return False
    return has_accepted_parts(arguments, accepted)


def is_right(
    calls: list[tuple[str, Json]], functions: list[Json], truth: list[dict[str, Json]]
) -> bool:
    """Whether the calls are the expected ones, in any order."""
    schemas = {
        name_of(function["name"]): function["parameters"]["properties"] for function in functions
    }
    expected = [(name_of(name), args) for call in truth for name, args in call.items()]
    if len(calls) != len(expected):
        return False
    for name, arguments in calls:
        for entry in expected:
            if name == entry[0] and is_right_call(arguments, schemas[name], entry[1]):
                expected.remove(entry)
                break
    return not expected


# -- asking


def questions_of(folder: Path, kind: str, most: int) -> Iterator[tuple[Json, list[Any]]]:
    """The questions of a kind, each with its right calls."""
    name = f"BFCL_v4_{kind}.json"
    questions = (folder / name).read_text(encoding="utf-8").splitlines()
    answers = (folder / "possible_answer" / name).read_text(encoding="utf-8").splitlines()
    for question, answer in islice(zip(questions, answers, strict=True), most):
        yield json.loads(question), json.loads(answer)["ground_truth"]


def ask(way: str, entry: Json) -> Json:
    """Ask one question; the line for the file of results."""
    text = entry["question"][0][0]["content"]
    begun = time.perf_counter()
    problem = None
    calls: list[tuple[str, Json]] = []
    confidence = 0.0
    try:
        calls, confidence = WAYS[way](text, entry["function"])
    except FerruleError as error:
        problem = f"{type(error).__name__}: {error}"  # no call: a wrong answer
    return {
        "way": way,
        "id": entry["id"],
        "calls": calls,
        "confidence": confidence,
        "seconds": round(time.perf_counter() - begun, 3),
        "load": round(os.getloadavg()[0], 2),
        "problem": problem,
    }


def read_results(file: Path) -> dict[tuple[str, str], Json]:
    """The lines of the file by way and question."""
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {(line["way"], line["id"]): line for line in lines}


def ask_all(folder: Path, file: Path, ways: list[str], most: int) -> None:
    """Ask the questions that the file has no answer to."""
    known = read_results(file)
    with file.open("a", encoding="utf-8") as results, context(lm=LM("needle")):
        for way in ways:
            for kind in _KINDS:
                if way == "ReAct" and kind != "parallel":
                    continue  # one call: as by `Predict`
                for entry, _ in questions_of(folder, kind, most):
                    if (way, entry["id"]) in known:
                        continue
                    results.write(json.dumps(ask(way, entry)) + "\n")
                    results.flush()


# -- tables


class Row:
    """The answers of one way to the questions of one kind."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[bool, float]] = []
        """Whether the calls are right, and the confidence in them."""
        self.seconds: list[float] = []
        """Those of answers on an idle machine."""

    @property
    def right(self) -> int:
        """How many answers are right."""
        return sum(is_right for is_right, _ in self.outcomes)


def rows_of(folder: Path, file: Path, most: int) -> dict[tuple[str, str], Row]:
    """The rows of the table, by way and kind."""
    results = read_results(file)
    rows: dict[tuple[str, str], Row] = {}
    for kind in _KINDS:
        for entry, truth in questions_of(folder, kind, most):
            for way in WAYS:
                result = results.get((way, entry["id"]))
                if result is None:
                    continue
                row = rows.setdefault((way, kind), Row())
                calls = [(name, arguments) for name, arguments in result["calls"]]
                right = is_right(calls, entry["function"], truth)
                row.outcomes.append((right, result["confidence"]))
                if result["load"] < _IDLE:
                    row.seconds.append(result["seconds"])
    return rows


def print_table(rows: dict[tuple[str, str], Row]) -> None:
    """The table for the page."""
    print("| questions | asked | right | seconds a question |\n|---|---|---|---|")
    for (way, kind), row in rows.items():
        seconds = "-"
        if row.seconds:
            seconds = f"{sum(row.seconds) / len(row.seconds):.2f} ({len(row.seconds)})"
        print(f"| {_KINDS[kind]} | {way} | {row.right} of {len(row.outcomes)} | {seconds} |")


def by_confidence(outcomes: list[tuple[bool, float]]) -> list[tuple[int, int]]:
    """For each range of confidence, the number of right answers, and of all."""
    counts = [(0, 0)] * _BINS
    for right, confidence in outcomes:
        index = min(int(confidence * _BINS), _BINS - 1)
        counts[index] = (counts[index][0] + right, counts[index][1] + 1)
    return counts


# -- the picture

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 300, 56, 40
_RIGHT, _BOTTOM = _WIDTH - 16, _HEIGHT - 56


def picture(outcomes: list[tuple[bool, float]]) -> str:
    """Right answers by confidence, as SVG without fonts, scripts or colors that a viewer may lack."""
    step = (_RIGHT - _LEFT) / _BINS
    height = _BOTTOM - _TOP
    parts: list[str] = []
    for percent in (0, 25, 50, 75, 100):
        y = _BOTTOM - height * percent / 100
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="#d8dee4"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for index, (right, count) in enumerate(by_confidence(outcomes)):
        x = _LEFT + index * step
        label = f"{index / _BINS:.1f}-{(index + 1) / _BINS:.1f}"
        middle = x + step / 2
        parts.append(
            f'<text x="{middle:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{label}</text>'
        )
        if not count:
            continue
        top = _BOTTOM - height * right / count
        parts.append(
            f'<rect x="{x + 6:.1f}" y="{top:.1f}" width="{step - 12:.1f}" '
            f'height="{_BOTTOM - top:.1f}" fill="#b4531f"/>'
        )
        parts.append(
            f'<text x="{middle:.1f}" y="{top - 5:.1f}" text-anchor="middle">{right}/{count}</text>'
        )
    parts.append(
        f'<path d="M{_LEFT} {_BOTTOM}L{_RIGHT} {_TOP}" stroke="#57606a" stroke-dasharray="4 4"/>'
    )
    parts.append(f'<text x="{_LEFT}" y="18" font-weight="bold">Right calls by confidence</text>')
    parts.append(
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}">the model\'s confidence (dashed: a measure that is exact)</text>'
    )
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#1f2328"'
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {style}>'
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    title = "<title>Right calls of the embedded model by its confidence</title>"
    return "\n".join([head, title, ground, *parts, "</svg>\n"])


def main() -> None:
    """Ask, and print the tables."""
    parser = argparse.ArgumentParser(description="Right calls of the embedded model, by BFCL v4.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, default=Path("bfcl-results.jsonl"))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--most", type=int, default=400, help="the most questions of a kind")
    parser.add_argument("--picture", type=Path, help="write right answers by confidence as SVG")
    chosen = parser.parse_args()
    ask_all(chosen.folder, chosen.results, chosen.ways, chosen.most)
    rows = rows_of(chosen.folder, chosen.results, chosen.most)
    print_table(rows)
    outcomes = [
        outcome for (way, _), row in rows.items() if way == "Predict" for outcome in row.outcomes
    ]
    print("\n| confidence | right |\n|---|---|")
    for index, (right, count) in enumerate(by_confidence(outcomes)):
        print(f"| {index / _BINS:.1f} to {(index + 1) / _BINS:.1f} | {right} of {count} |")
    if chosen.picture is not None:
        chosen.picture.write_text(picture(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
