"""Cases: what a run should do, as conditions on its calls; files of cases; other datasets."""

from __future__ import annotations

from ferrule.runs.cases.case import (
    Case,
    GradedRun,
    Grades,
    cases_of,
    grade,
    meets_case,
    read_cases,
    write_cases,
)
from ferrule.runs.cases.expectations import (
    Expectation,
    Judgement,
    asked_person,
    at_least,
    at_most,
    called,
    cost_under,
    in_order,
    never,
)
from ferrule.runs.cases.export import to_inspect, to_pydantic_evals
from ferrule.runs.cases.reading import read_expectation

__all__ = [
    "Case",
    "Expectation",
    "GradedRun",
    "Grades",
    "Judgement",
    "asked_person",
    "at_least",
    "at_most",
    "called",
    "cases_of",
    "cost_under",
    "grade",
    "in_order",
    "meets_case",
    "never",
    "read_cases",
    "read_expectation",
    "to_inspect",
    "to_pydantic_evals",
    "write_cases",
]
