"""What a run has spent, by its journal: the tokens and the cost of each answer of a model in it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ferrule.values.conversation.exchange import Usage, total_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ferrule.runs.journal.entry import Entry

    Answer = tuple[str | None, Usage, float | None]
    """The model of an answer, its tokens, its cost."""


def spent(entries: Iterable[Entry]) -> Usage:
    """The sum of all answers, those of programs inside the run too, with the part of each model."""
    return spending(entries)()


def spending(entries: Iterable[Entry]) -> Callable[[], Usage]:
    """What makes the sum of the answers so far: few readers of a prediction ask for it."""
    answers = [(entry.value.model, entry.value.usage, entry.value.cost) for entry in entries if entry.kind == "model"]
    return partial(_total, answers)


def spent_below(entries: Sequence[Entry], path: str, span: slice) -> Usage:
    """The part of a program inside a run: the answers whose places begin with its path. They are in this span of the journal."""
    return spent(entry for entry in entries[span] if entry.slot.startswith(path))


def _total(answers: Sequence[Answer]) -> Usage:
    by_model: dict[str, list[Answer]] = {}
    for each in answers:
        by_model.setdefault(each[0] or "", []).append(each)
    return _sum(answers, {name: _sum(of_model, {}) for name, of_model in by_model.items()})


def _sum(answers: Sequence[Answer], by_model: dict[str, Usage]) -> Usage:
    cost = total_cost([cost for _, _, cost in answers])
    return Usage(*map(sum, zip(*[usage.counts for _, usage, _ in answers], strict=True)), cost=cost, by_model=by_model)
