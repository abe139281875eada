"""Cases as datasets of other libraries: `pydantic-evals` and `inspect_ai`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ferrule.approval.policy import has_wildcard
from ferrule.encoding.encode import json_text, jsonable
from ferrule.errors import checks_keywords

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.runs.cases.case import Case


@checks_keywords
def to_pydantic_evals(cases: Iterable[Case], *, name: str = "ferrule") -> str:
    """Cases as the JSON file of a dataset of `pydantic-evals`: `Dataset.from_file(path)`.

    A case has its expectations as texts in `metadata`, and the evaluator `ToolCorrectness` with the
    names of the tools that it expects, which reads the spans of `ferrule.OTel`.
    """
    names: dict[str, int] = {}
    form = {
        "name": name,
        "cases": [_pydantic_evals_case(case, names) for case in cases],
        "evaluators": [],
    }
    return json.dumps(form, indent=2, ensure_ascii=False)


def _pydantic_evals_case(case: Case, names: dict[str, int]) -> dict[str, Any]:
    form: dict[str, Any] = {
        "name": _unique(case.name or "case", names),
        "inputs": jsonable(dict(case.inputs)),
        "metadata": _metadata(case),
    }
    if case.outputs is not None:
        form["expected_output"] = jsonable(dict(case.outputs))
    tools = _expected_tools(case)
    evaluators: list[dict[str, Any]] = []
    if tools:
        evaluators.append({"ToolCorrectness": {"expected_tools": tools, "allow_extra": True}})
    return {**form, "evaluators": evaluators}


def _unique(name: str, names: dict[str, int]) -> str:
    """The name, with a number if another case has it: `pydantic-evals` wants unique names."""
    count = names[name] = names.get(name, 0) + 1
    if count == 1:
        return name
    return _unique(f"{name} ({count})", names)


def to_inspect(cases: Iterable[Case]) -> str:
    """Cases as the lines of a file of `inspect_ai`: `json_dataset("cases.jsonl")`.

    A single input that is text is the sample's `input`; other inputs are one JSON text. The only
    output, if it is expected, is the `target`; the expectations are in `metadata`.
    """
    lines: list[str] = []
    for number, case in enumerate(cases, 1):
        sample = {
            "id": number,
            "input": _text_of(case.inputs),
            "target": "" if case.outputs is None else _text_of(case.outputs),
            "metadata": {**_metadata(case), "inputs": jsonable(dict(case.inputs))},
        }
        lines.append(f"{json_text(sample)}\n")
    return "".join(lines)


def _text_of(values: Any) -> str:
    if len(values) == 1:
        [value] = values.values()
        if isinstance(value, str):
            return value
    return json_text(jsonable(dict(values)))


def _metadata(case: Case) -> dict[str, Any]:
    metadata: dict[str, Any] = {"expect": [str(expectation) for expectation in case.expect]}
    if case.program:
        metadata["program"] = case.program
    if case.name:
        metadata["case"] = case.name
    return metadata


def _expected_tools(case: Case) -> list[str]:
    """The names of the tools that a case expects to be called, once each."""
    tools = [tool for expectation in case.expect for tool in expectation.tools_called()]
    return [tool for tool in dict.fromkeys(tools) if not has_wildcard(tool)]
