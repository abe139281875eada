"""`EvaluationFigures`: the evaluations in a store, each with its mean scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ferrule.encoding.stored import parse_object, reading

_MOST_EVALUATIONS = 50


class ItemScore(Struct, frozen=True, kw_only=True):
    """How the metrics scored the run of one item."""

    scores: Mapping[str, float]
    """By metric."""
    has_failed: bool = False
    """Whether the program or a metric raised an error."""
    feedback: str = ""
    """What the metrics say in words."""


class EvaluationFigures(Struct, frozen=True, kw_only=True):
    """One evaluation."""

    name: str
    """Its `evaluation_id`."""
    program: str
    items: int
    failed: int
    scores: dict[str, float] = field(default_factory=dict[str, float])
    """The mean of each metric."""
    cost: float
    changed_at: float


def evaluations(db: Any) -> list[EvaluationFigures]:
    """The evaluations that were scored last, the latest first."""
    latest = db.execute(
        "SELECT name, max(changed_at) FROM ferrule_used WHERE kind = 'evaluation' "
        "GROUP BY name ORDER BY max(changed_at) DESC LIMIT ?",
        (_MOST_EVALUATIONS,),
    ).fetchall()
    figures: list[EvaluationFigures] = []
    for name, changed_at in latest:
        rows = db.execute(
            "SELECT runs.program, runs.cost, runs.scores, failed FROM ferrule_used "
            "JOIN ferrule_runs AS runs ON no = run WHERE kind = 'evaluation' AND name = ?",
            (name,),
        ).fetchall()
        if rows:
            figures.append(_figures(name, changed_at, rows))
    return figures


def _figures(name: str, changed_at: float, rows: list[Any]) -> EvaluationFigures:
    sums: dict[str, float] = {}
    with reading("The scores of a run"):
        for _, _, text, _ in rows:
            scores: Mapping[str, float] = parse_object(text, "the scores of a run")["scores"]
            for metric, score in scores.items():
                sums[metric] = sums.get(metric, 0.0) + score
    return EvaluationFigures(
        name=name,
        program=rows[0][0],
        items=len(rows),
        failed=sum(failed for *_, failed in rows),
        scores={metric: total / len(rows) for metric, total in sums.items()},
        cost=sum(cost for _, cost, *_ in rows),
        changed_at=changed_at,
    )
