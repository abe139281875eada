"""`Overview`: the runs of a period in figures, from what the store knows of each run."""

from __future__ import annotations

from collections import Counter
from math import fsum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOUR_S = 3_600.0
_DAY_S = 86_400.0
_FEW_HOURS = 72
"""A period of more hours is counted by the day."""


class Times(Struct, frozen=True):
    """Of some durations, in seconds, the one that half of them, and that 95 % of them, keep."""

    p50: float = 0.0
    p95: float = 0.0


class ProgramFigures(Struct, frozen=True):
    """The runs of one program."""

    name: str
    runs: int
    failed: int
    cost: float
    seconds: Times
    """How long its runs executed, without waiting."""


class ModelFigures(Struct, frozen=True):
    """The answers of one model."""

    name: str
    calls: int
    tokens: int
    cost: float
    seconds: Times
    """How long a call took, as the mean of each run."""


class ToolFigures(Struct, frozen=True):
    """The calls of one tool."""

    name: str
    calls: int
    failed: int


class Span(Struct, frozen=True):
    """The runs that changed last in one hour, or on one day."""

    begins_at: float
    runs: int
    failed: int


class Overview(Struct, frozen=True):
    """The runs that changed last in a period."""

    since: float
    until: float
    runs: int
    failed: int
    seconds: Times
    spans: tuple[Span, ...]
    """All hours, or days, of the period, the first one first; those without runs too."""
    programs: tuple[ProgramFigures, ...]
    """The most expensive first."""
    models: tuple[ModelFigures, ...]
    """The most expensive first."""
    tools: tuple[ToolFigures, ...]
    """The one with the most failures first."""


def overview(db: Any, since: float, until: float) -> Overview:
    """Read the overview of a period. An index has each column, so no run is read."""
    period = (since, until)
    runs = db.execute(
        "SELECT updated_at, program, status, seconds FROM runs "
        "WHERE updated_at >= ? AND updated_at < ?",
        period,
    ).fetchall()
    # Not grouped in SQL: the sum of each program and the times of each model come from the same
    # rows, and sorting a hundred thousand rows takes longer than reading them.
    answers = db.execute(
        "SELECT name, program, calls, tokens, cost, seconds FROM used "
        "WHERE kind = 'model' AND changed_at >= ? AND changed_at < ?",
        period,
    ).fetchall()
    tools = db.execute(
        "SELECT name, sum(calls), sum(failed) FROM used "
        "WHERE kind = 'tool' AND changed_at >= ? AND changed_at < ? GROUP BY name",
        period,
    ).fetchall()
    failed = sum(status == "failed" for _, _, status, _ in runs)
    return Overview(
        since=since,
        until=until,
        runs=len(runs),
        failed=failed,
        seconds=_times([seconds for _, _, _, seconds in runs]),
        spans=_spans(runs, since, until),
        programs=_programs(runs, answers),
        models=_models(answers),
        tools=_tools(tools),
    )


def _times(seconds: list[float]) -> Times:
    if not seconds:
        return Times()
    seconds.sort()
    last = len(seconds) - 1
    return Times(seconds[last // 2], seconds[last * 95 // 100])


def _spans(runs: Iterable[Any], since: float, until: float) -> tuple[Span, ...]:
    length_s = _HOUR_S
    if until - since > _FEW_HOURS * _HOUR_S:
        length_s = _DAY_S
    counts = Counter([int(row[0] // length_s) for row in runs])
    failures = Counter([int(row[0] // length_s) for row in runs if row[2] == "failed"])
    numbers = range(int(since // length_s), int((until - 1) // length_s) + 1)
    return tuple([Span(number * length_s, counts[number], failures[number]) for number in numbers])


def _programs(runs: Iterable[Any], answers: Iterable[Any]) -> tuple[ProgramFigures, ...]:
    seconds_of: dict[str, list[float]] = {}
    for _, program, _, seconds in runs:
        seconds_of.setdefault(program, []).append(seconds)
    failures = Counter([program for _, program, status, _ in runs if status == "failed"])
    costs: dict[str, float] = {}
    for _, program, _, _, cost, _ in answers:
        costs[program] = costs.get(program, 0.0) + cost
    figures = [
        ProgramFigures(name, len(seconds), failures[name], costs.get(name, 0.0), _times(seconds))
        for name, seconds in seconds_of.items()
    ]
    return tuple(sorted(figures, key=lambda program: (-program.cost, program.name)))


def _models(answers: Iterable[Any]) -> tuple[ModelFigures, ...]:
    rows_of: dict[str, list[Any]] = {}
    for name, _, *row in answers:
        rows_of.setdefault(name, []).append(row)
    figures: list[ModelFigures] = []
    for name, rows in rows_of.items():
        times = [seconds / calls for calls, _, _, seconds in rows if calls and seconds]
        calls, tokens, costs, _ = zip(*rows, strict=True)
        figures.append(ModelFigures(name, sum(calls), sum(tokens), fsum(costs), _times(times)))
    return tuple(sorted(figures, key=lambda model: (-model.cost, model.name)))


def _tools(rows: Iterable[Any]) -> tuple[ToolFigures, ...]:
    figures = [ToolFigures(name, int(calls), int(failed)) for name, calls, failed in rows]
    return tuple(sorted(figures, key=lambda tool: (-tool.failed, tool.name)))
