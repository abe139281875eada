"""What a run has spent, by its journal: the tokens and the cost of each answer of a model in it."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.runs.journal.entry import Entry
    from ferrule.values.conversation.exchange import Response


def spent(entries: Iterable[Entry]) -> Usage:
    """The sum of all answers, those of programs inside the run too, with the part of each model."""
    answers: list[Response] = [entry.value for entry in entries if entry.kind == "model"]
    if len(answers) == 1:
        return _sum(answers, {answers[0].model or "": _sum(answers, {})})
    by_model: dict[str, list[Response]] = {}
    for each in answers:
        by_model.setdefault(each.model or "", []).append(each)
    return _sum(answers, {name: _sum(of_model, {}) for name, of_model in by_model.items()})


def _sum(answers: Sequence[Response], by_model: dict[str, Usage]) -> Usage:
    costs = [each.cost for each in answers]
    known = [cost for cost in costs if cost is not None]
    cost = fsum(known) if known and len(known) == len(costs) else None
    if len(answers) == 1:
        return Usage(*answers[0].usage.counts, cost, by_model)
    return Usage(*map(sum, zip(*[each.usage.counts for each in answers], strict=True)), cost=cost, by_model=by_model)
