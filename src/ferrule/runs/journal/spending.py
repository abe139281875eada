"""The spending of a run: tokens and cost, summed over its journal.

The answers of models have theirs. An entry of the kind `spent` has what no answer in the journal
has: that of other runs, which a tool's function started. Its value is the arguments of
`Budget.spend`, and `usage` in the form of `usage_form`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ferrule.runs.journal.encode import read_usage
from ferrule.values.conversation.exchange import Usage, sum_counts, total_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ferrule.runs.journal.entry import Entry

    Answer = tuple[str | None, Usage, float | None]
    """The model of an answer, its tokens, its cost."""


def spent(entries: Iterable[Entry]) -> Usage:
    """The sum of all answers, also of programs inside the run, with the part of each model."""
    return spending(entries)()


def spending(entries: Iterable[Entry]) -> Callable[[], Usage]:
    """A function that sums the answers so far when it is called.

    Few readers of a prediction need the sum.
    """
    answers: list[Answer] = []
    for entry in entries:
        if entry.kind == "model":
            answers.append((entry.value.model, entry.value.usage, entry.value.cost))
        elif entry.kind == "spent" and "usage" in entry.value:
            by_model = read_usage(entry.value["usage"]).by_model
            answers += [(model, usage, usage.cost) for model, usage in by_model.items()]
    return partial(_total, answers)


def spent_below(entries: Sequence[Entry], path: str, span: slice) -> Usage:
    """The part of a program inside a run.

    The sum of the answers in this span of the journal whose slots begin with the program's path.
    """
    return spent(entry for entry in entries[span] if entry.slot.startswith(path))


def _total(answers: Sequence[Answer]) -> Usage:
    by_model: dict[str, list[Answer]] = {}
    for answer in answers:
        model, _, _ = answer
        by_model.setdefault(model or "", []).append(answer)
    return _sum(answers, {name: _sum(of_model, {}) for name, of_model in by_model.items()})


def _sum(answers: Sequence[Answer], by_model: dict[str, Usage]) -> Usage:
    cost = total_cost([cost for _, _, cost in answers])
    return Usage(
        *map(sum, zip(*[usage.counts for _, usage, _ in answers], strict=True)),
        cost=cost,
        by_model=by_model,
        provider_calls=sum_counts([usage.provider_calls for _, usage, _ in answers]),
    )
