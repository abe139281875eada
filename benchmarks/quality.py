"""Tool calls recovered from raw model text: `python quality.py LIBRARY [FOLDER]` prints one JSON line; LIBRARY is `ferrule` or `dspy`.

FOLDER holds `*.jsonl` files with one model output per line: `model`, `raw` (the text), `tools`
(declarations in OpenAI's form) and `expected`, a list of `{name: {parameter: [acceptable
values]}}`, where "" among the values says that the parameter may be left out. Without a folder, the
four samples below are used. An output counts as recovered if exactly the expected calls are read,
in any order. Names and strings are compared by letters and digits, ignoring case, as the Berkeley
Function Calling Leaderboard compares strings.

ferrule reads with `ToolCalls.from_text(raw, tools)`. DSPy reads as its agent does (`ChatAdapter`,
then `JSONAdapter`), and if that fails it gets a second chance: the whole text as the value of a
field of type `ToolCalls`. The time is CPU for reading, the lowest of three passes.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Calls = list[tuple[str, dict[str, Any]]]

_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
_SAMPLES = {
    "tagged": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>',
    "JSON": '{"tool_calls": [{"name": "weather", "arguments": {"city": "Rome", "days": 2}}]}',
    "Python": '[weather(city="Rome", days=2)]',
    "fenced": 'I look it up.\n```json\n{"name": "weather", "parameters": {"city": "Rome", "days": 2}}\n```',
}
SAMPLES = [
    {
        "model": name,
        "raw": raw,
        "tools": [_TOOL],
        "expected": [{"weather": {"city": ["Rome"], "days": [2]}}],
    }
    for name, raw in _SAMPLES.items()
]


def ferrule_reader() -> Callable[[dict[str, Any]], Calls]:
    from ferrule import ToolCalls

    return lambda output: [
        (call.name, call.args)
        for call in ToolCalls.from_text(output["raw"], output["tools"]).tool_calls
    ]


def dspy_reader() -> Callable[[dict[str, Any]], Calls]:
    import dspy
    from dspy.adapters.utils import parse_value

    asked = dspy.Signature("question, tools: list[dspy.Tool] -> tool_calls: dspy.ToolCalls")
    chat, as_json = dspy.ChatAdapter(), dspy.JSONAdapter()
    ways = [
        lambda raw: chat.parse(asked, raw)["tool_calls"],
        lambda raw: as_json.parse(asked, raw)["tool_calls"],
        lambda raw: parse_value(raw, dspy.ToolCalls),
    ]

    def read(output: dict[str, Any]) -> Calls:
        for way in ways:
            with contextlib.suppress(
                Exception,
            ):  # DSPy raises several kinds for a text without calls
                return [(call.name, call.args) for call in way(output["raw"]).tool_calls]
        return []

    return read


def is_recovered(calls: Calls, expected: list[dict[str, Any]]) -> bool:
    """Whether these are the expected calls, in any order."""
    left = [next(iter(each.items())) for each in expected]
    for name, args in calls:
        match = next(
            (
                each
                for each in left
                if _letters(name) == _letters(each[0]) and _is_like(args, each[1])
            ),
            None,
        )
        if match is None:
            return False
        left.remove(match)
    return not left


def _letters(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"[^a-z0-9]", "", value.casefold())
    if isinstance(value, list):
        return [_letters(each) for each in value]
    return (
        {key: _letters(each) for key, each in value.items()} if isinstance(value, dict) else value
    )


def _is_like(value: Any, acceptable: Any) -> bool:
    """Whether a value is acceptable. Inside an expected object, each key again lists its acceptable values."""
    if isinstance(value, dict) and isinstance(acceptable, dict):
        return value.keys() <= acceptable.keys() and all(
            any(_is_like(value.get(key, ""), each) for each in listed)
            for key, listed in acceptable.items()
        )
    if isinstance(value, list) and isinstance(acceptable, list):
        return len(value) == len(acceptable) and all(map(_is_like, value, acceptable))
    return _letters(value) == _letters(acceptable)


def main() -> None:
    """Count recovered outputs by model, and time the reading."""
    read = {"ferrule": ferrule_reader, "dspy": dspy_reader}[sys.argv[1]]()
    files = sorted(Path(sys.argv[2]).rglob("*.jsonl")) if len(sys.argv) > 2 else []
    outputs = [
        json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()
    ] or SAMPLES
    outputs = [each for each in outputs if "raw" in each and "expected" in each]
    recovered: Counter[str] = Counter()
    for output in outputs:
        recovered[output["model"]] += is_recovered(read(output), output["expected"])
    taken = []
    for _ in range(3):
        start = time.process_time()
        for output in outputs:
            read(output)
        taken.append(time.process_time() - start)
    total = Counter(output["model"] for output in outputs)
    print(
        json.dumps(
            {
                "recovered": {model: [recovered[model], total[model]] for model in sorted(total)},
                "is_sample": outputs is SAMPLES or not files,
                "us_a_text": 1e6 * min(taken) / len(outputs),
            },
        ),
    )


if __name__ == "__main__":
    main()
