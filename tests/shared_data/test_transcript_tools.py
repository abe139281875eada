"""The tools of recorded conversations and outputs: a grammar takes the schema of each."""

from __future__ import annotations

import json

import pytest
from bench_schemas import judged
from shared_files import shared_file

pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")
TOOLS = json.loads(shared_file("data/transcripts/airline_tools.json").read_text(encoding="utf-8"))


def test_no_schema_of_the_airline_tools_is_widened() -> None:
    assert {each["function"]["name"]: judged(each["function"]["parameters"]) for each in TOOLS} == {
        each["function"]["name"]: ("exact", []) for each in TOOLS
    }


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_no_schema_of_the_tools_of_recorded_outputs_is_widened(every: int) -> None:
    text = shared_file("data/model_outputs/text_calls.jsonl").read_text(encoding="utf-8")
    tools = [
        tool.get("function", tool)
        for line in text.splitlines()
        for tool in json.loads(line)["tools"]
    ]
    schemas = {json.dumps(each["parameters"]): each["parameters"] for each in tools}
    found = {name: judged(schemas[name], 1) for name in sorted(schemas)[::every]}
    assert [
        each for each in found.items() if each[1][1] or each[1][0] not in {"exact", "rewritten"}
    ] == []
