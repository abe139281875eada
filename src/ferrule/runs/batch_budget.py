"""The limits of a whole batch: one budget around the budgets of all its items.

The items of a batch are runs, and this budget is around each of them. In a batch inside a run, they
are parts of that run, and take the budget of the frame that executes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.runs.limits import Budget
from ferrule.settings import scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.runs.limits import Limits
    from ferrule.runs.protocols import Summary
    from ferrule.runs.state import Frame, RunState
    from ferrule.values.conversation.exchange import Usage


class BatchBudget:
    """Counts what a batch spends, with what its earlier calls have spent on its stored runs."""

    def __init__(self, limits: Limits, stored: Iterable[Summary], *, is_inside_run: bool) -> None:
        here = scope()
        self._frame: Frame | None = None
        """The frame that the items are parts of; None if they are runs of their own."""
        around: Frame | None = None
        if is_inside_run:
            around = self._frame = here.frame
        elif here.call is not None:  # in a tool's function, whose run pays for it, too
            around = here.call.frame
        outer = None
        if around is not None:
            outer = around.budget
        self._budget = Budget(limits, outer, is_of_batch=True)
        if self._frame is not None:
            self._frame.budget = self._budget
        self._spent: dict[str, Budget] = {}
        """What each item has spent, by the id of its run."""
        for run in stored:
            self._spent[run.id] = spent = Budget(outer=self._budget)
            _count(spent, run.usage)

    def check(self) -> None:
        """Raise `LimitReachedError` if a limit is reached."""
        error = self._budget.reached()
        if error is not None:
            raise error

    def begin(self, run: RunState) -> None:
        """Before each execution of a run: let it spend from this budget.

        A resumed run counts its recorded answers again, so what it has spent before is taken back.
        """
        before = self._spent.get(run.id)
        if before is not None:
            before.take_back()
        self._spent[run.id] = run.batch_budget = Budget(outer=self._budget)

    def end(self, runs: Iterable[RunState | None]) -> None:
        """Let the runs go: they may be resumed outside the batch."""
        for run in runs:
            if run is not None:
                run.batch_budget = None
        if self._frame is not None:
            self._frame.budget = self._budget.outer


def _count(budget: Budget, usage: Usage) -> None:
    unpriced = ""
    if usage.calls and usage.cost is None:
        names = [name for name, part in usage.by_model.items() if part.cost is None]
        unpriced = next(filter(None, names), "a model")
    budget.spend(tokens=usage.total_tokens, cost=usage.cost or 0.0, unpriced=unpriced)
