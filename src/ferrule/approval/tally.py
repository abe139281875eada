"""Count the decisions of a run: the first on each question, and the remaining grants.

A run's list of decisions only grows. Each decision is counted once, when the count is next read, so
that the thousandth question costs as much as the first.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from ferrule.approval.policy import Grant
    from ferrule.approval.question import Decision


class Tally:
    """The count of one run's decisions.

    Thread-safe, because branches of a run may receive decisions at the same time.
    """

    __slots__ = ("_counted", "_first", "_grants", "_kinds", "_lock", "_of", "_uses")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: list[Decision] | None = None

    def _begin(self, decisions: list[Decision]) -> None:
        self._of = decisions
        self._counted = 0
        self._first: dict[str, Decision] = {}
        self._kinds: set[tuple[str, str]] = set()
        self._grants: dict[str, Grant] = {}
        self._uses: Counter[str] = Counter()
        """How often each grant was used.

        A use may be counted before its grant: the journal has the decisions of a step in the order
        of its calls.
        """

    def _count(self, decisions: list[Decision]) -> None:
        if decisions is not self._of:  # the first count, or the run was read from its JSON
            self._begin(decisions)
        while self._counted < len(decisions):
            decision = decisions[self._counted]
            self._counted += 1
            self._first.setdefault(decision.question_id, decision)
            self._kinds.add((decision.question_id, decision.kind))
            if decision.grant is not None:
                self._grants[decision.question_id] = decision.grant
            elif decision.kind == "revoke":
                self._grants.pop(decision.question_id.removeprefix("revoke:"), None)
            elif decision.via.startswith("grant:"):
                self._uses[decision.via.removeprefix("grant:")] += 1

    def first(self, decisions: list[Decision], question_id: str) -> Decision | None:
        """The first decision on a question, or None."""
        with self._lock:
            self._count(decisions)
            return self._first.get(question_id)

    def grants(self, decisions: list[Decision]) -> dict[str, Grant]:
        """The grants that are not used up, by the id of their question, including expired ones."""
        with self._lock:
            self._count(decisions)
            left: dict[str, Grant] = {}
            for key, grant in self._grants.items():
                if grant.calls is None:
                    left[key] = grant
                elif grant.calls > self._uses[key]:
                    left[key] = replace(grant, calls=grant.calls - self._uses[key])
            return left

    def note(self, decisions: list[Decision], decision: Decision) -> None:
        """Append a decision, unless the list has one of the same kind on the same question.

        This completes the list after a crash that left only the journal.
        """
        with self._lock:
            self._count(decisions)
            if (decision.question_id, decision.kind) not in self._kinds:
                decisions.append(decision)
