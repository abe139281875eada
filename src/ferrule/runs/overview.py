"""`Overview`: the runs of a period in figures, from what the store knows of each run."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_HOUR_S = 3_600.0
_DAY_S = 86_400.0
_FEW_HOURS = 8 * 24
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
    """Read the overview of a period.

    An index has each column, so no run is read. What SQL counts it counts; the durations come one
    by one, because a percentile needs them all.
    """
    period = (since, until)
    durations = _grouped(
        db.execute(
            "SELECT program, seconds FROM ferrule_runs WHERE updated_at >= ? AND updated_at < ?",
            period,
        ).fetchall()
    )
    failures = db.execute(
        "SELECT program, updated_at FROM ferrule_runs "
        "WHERE status = 'failed' AND updated_at >= ? AND updated_at < ?",
        period,
    ).fetchall()
    answers = db.execute(
        "SELECT name, program, sum(calls), sum(tokens), sum(cost) FROM ferrule_used "
        "WHERE kind = 'model' AND changed_at >= ? AND changed_at < ? GROUP BY name, program",
        period,
    ).fetchall()
    answer_times = _grouped(
        db.execute(
            "SELECT name, seconds / calls FROM ferrule_used WHERE kind = 'model' "
            "AND changed_at >= ? AND changed_at < ? AND seconds > 0 AND calls > 0",
            period,
        ).fetchall()
    )
    tools = db.execute(
        "SELECT name, sum(calls), sum(failed) FROM ferrule_used "
        "WHERE kind = 'tool' AND changed_at >= ? AND changed_at < ? GROUP BY name",
        period,
    ).fetchall()
    for seconds in (*durations.values(), *answer_times.values()):
        seconds.sort()
    all_durations = sorted([value for seconds in durations.values() for value in seconds])
    return Overview(
        since=since,
        until=until,
        runs=len(all_durations),
        failed=len(failures),
        seconds=_times(all_durations),
        spans=_spans(db, [at for _, at in failures], since, until),
        programs=_programs(durations, Counter([name for name, _ in failures]), answers),
        models=_models(answers, answer_times),
        tools=_tools(tools),
    )


def _grouped(rows: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Numbers by name."""
    numbers: dict[str, list[float]] = defaultdict(list)
    for name, number in rows:
        numbers[name].append(number)
    return numbers


def _times(ascending: list[float]) -> Times:
    if not ascending:
        return Times()
    last = len(ascending) - 1
    return Times(ascending[last // 2], ascending[last * 95 // 100])


def _spans(db: Any, failed_at: list[float], since: float, until: float) -> tuple[Span, ...]:
    length_s = _HOUR_S
    if until - since > _FEW_HOURS * _HOUR_S:
        length_s = _DAY_S
    first, last = int(since // length_s), int((until - 1) // length_s)
    # A range of the index for each span, in one statement: grouping would sort all runs.
    rows = db.execute(
        "WITH RECURSIVE span(number) AS (SELECT CAST(? AS bigint) UNION ALL "
        "SELECT number + 1 FROM span WHERE number < ?) "
        "SELECT number, (SELECT count(*) FROM ferrule_runs "
        "WHERE updated_at >= CASE WHEN number * ? < ? THEN ? ELSE number * ? END "
        "AND updated_at < CASE WHEN (number + 1) * ? > ? THEN ? ELSE (number + 1) * ? END) "
        "FROM span",
        (first, last, length_s, since, since, length_s, length_s, until, until, length_s),
    ).fetchall()
    failures = Counter([int(at // length_s) for at in failed_at])
    return tuple([Span(number * length_s, count, failures[number]) for number, count in rows])


def _programs(
    durations: Mapping[str, list[float]], failures: Mapping[str, int], answers: Iterable[Any]
) -> tuple[ProgramFigures, ...]:
    costs: dict[str, float] = defaultdict(float)
    for _, program, _, _, cost in answers:
        costs[program] += cost
    figures = [
        ProgramFigures(name, len(seconds), failures[name], costs[name], _times(seconds))
        for name, seconds in durations.items()
    ]
    return tuple(sorted(figures, key=lambda program: (-program.cost, program.name)))


def _models(
    answers: Iterable[Any], answer_times: Mapping[str, list[float]]
) -> tuple[ModelFigures, ...]:
    sums: dict[str, list[float]] = {}
    for name, _, *numbers in answers:
        before = sums.get(name, [0, 0, 0.0])
        sums[name] = [total + number for total, number in zip(before, numbers, strict=True)]
    figures = [
        ModelFigures(name, int(calls), int(tokens), cost, _times(answer_times.get(name, [])))
        for name, (calls, tokens, cost) in sums.items()
    ]
    return tuple(sorted(figures, key=lambda model: (-model.cost, model.name)))


def _tools(rows: Iterable[Any]) -> tuple[ToolFigures, ...]:
    figures = [ToolFigures(name, int(calls), int(failed)) for name, calls, failed in rows]
    return tuple(sorted(figures, key=lambda tool: (-tool.failed, tool.name)))
