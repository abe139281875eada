"""255 outputs in the dialects of 2025 and 2026, in six groups (the README beside them explains
them).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from shared_files import shared_file

from ferrule import ToolCalls

WRITTEN = shared_file("data/model_outputs/dialects_2026.jsonl")
AT_LEAST = {"dialect": 0.97, "spelling": 0.97}
"""Of the other groups, all: in them a mistake runs a call that the model did not make."""


def outputs() -> list[dict[str, Any]]:
    return [json.loads(line) for line in WRITTEN.read_text(encoding="utf-8").splitlines()]


def is_right(output: dict[str, Any]) -> bool:
    calls = ToolCalls.from_text(output["raw"], output["tools"]).tool_calls
    faulty = [call for call in calls if call.fault is not None]
    if faulty:  # where a value holds its own dialect's closing tags, nothing is guessed
        return output["group"] == "embedded" and len(calls) == len(faulty)
    found = [{"name": call.name, "args": call.args} for call in calls]
    return json.dumps(found, sort_keys=True) == json.dumps(output["expected"], sort_keys=True)


@pytest.mark.parametrize(
    "group", ["dialect", "spelling", "thoughts", "quiet", "quoted", "embedded"]
)
def test_the_calls_of_each_group_are_read(group: str) -> None:
    right: Counter[bool] = Counter()
    wrong: list[str] = []
    for output in outputs():
        if output["group"] == group:
            right[is_right(output)] += 1
            if not is_right(output):
                wrong.append(f"{output['dialect']}: {output['raw']!r}")
    assert right[True] >= AT_LEAST.get(group, 1) * right.total(), "\n".join(wrong)
