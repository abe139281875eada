"""420 recorded outputs of seven models that hold the right calls as text (L10; the README beside
them says where they come from).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from shared_files import shared_file

from ferrule import ToolCall, ToolCalls

RECORDED = shared_file("data/model_outputs/text_calls.jsonl")
AT_LEAST = 0.98


def outputs() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def letters(value: Any) -> Any:
    """A value with its strings compared as the data's README says: letters and digits only, case
    folded.
    """
    if isinstance(value, str):
        return re.sub(r"[^a-z0-9]", "", value.casefold())
    if isinstance(value, list):
        return [letters(each) for each in value]
    return {key: letters(each) for key, each in value.items()} if isinstance(value, dict) else value


def is_one_of(value: Any, acceptable: list[Any]) -> bool:
    return any(is_like(value, each) for each in acceptable)


def is_like(value: Any, acceptable: Any) -> bool:
    """Inside of an expected object each key again lists what is acceptable."""
    if isinstance(value, dict) and isinstance(acceptable, dict):
        return value.keys() <= acceptable.keys() and all(
            is_one_of(value.get(key, ""), listed) for key, listed in acceptable.items()
        )
    if isinstance(value, list) and isinstance(acceptable, list):
        return len(value) == len(acceptable) and all(map(is_like, value, acceptable))
    return letters(value) == letters(acceptable)


def is_right(call: ToolCall, expected: dict[str, Any]) -> bool:
    [(name, parameters)] = expected.items()
    return call.name == name and is_like(call.args, parameters)


def are_right(calls: list[ToolCall], expected: list[dict[str, Any]]) -> bool:
    left = list(expected)
    for call in calls:
        match = next((each for each in left if is_right(call, each)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def test_at_least_98_percent_of_the_recorded_calls_come_out_equal() -> None:
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for output in outputs():
        total[output["model"]] += 1
        right[output["model"]] += are_right(
            ToolCalls.from_text(output["raw"], output["tools"]).tool_calls,
            output["expected"],
        )
    rates = "\n".join(f"{model}: {right[model]} of {total[model]}" for model in sorted(total))
    print(f"\n{rates}\nall: {right.total()} of {total.total()}")  # noqa: T201  the rate is what is measured (`pytest -s`)
    assert right.total() >= AT_LEAST * total.total(), rates


def values_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [each for key, inner in value.items() for each in [key, *values_of(inner)]]
    return (
        [each for inner in value for each in values_of(inner)]
        if isinstance(value, list)
        else [value]
    )


def test_no_call_says_what_its_text_does_not() -> None:
    for output in outputs():
        said = letters(output["raw"].replace("\\n", "").replace("\\", ""))
        for call in ToolCalls.from_text(output["raw"], output["tools"]).tool_calls:
            assert letters(call.name) in said
            assert [
                each
                for each in values_of(call.args)
                if isinstance(each, str) and letters(each.replace("\n", "")) not in said
            ] == []
            assert call.fault is None


def test_no_call_is_found_for_tools_that_were_not_offered() -> None:
    other = [
        {
            "name": "quite_another_tool",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    ]
    assert [output["id"] for output in outputs() if ToolCalls.from_text(output["raw"], other)] == []


def test_tools_that_are_only_described_are_not_called() -> None:
    for output in outputs():
        assert not ToolCalls.from_text(json.dumps(output["tools"], indent=1), output["tools"])
        assert not ToolCalls.from_text(
            output["tools"][0]["function"]["description"],
            output["tools"],
        )
