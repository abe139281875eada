"""`BudgetGuard`: admits only tokens after which the answer can still be completed within its budget."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConstraintError

if TYPE_CHECKING:
    from ferrule.models.local.decoding.plans import Plans

_MOST_TRIED = 16
"""The most tokens that are tried in one step: for each, the ending after it is computed."""


class BudgetGuard:
    """Counts the tokens left, and knows an ending that fits in them.

    While many are left, no ending is computed: it grows by a known number of tokens at most, and
    only where the writer has a choice. When it could have grown too long, it is computed anew. When
    one token could make it too long, each possible token is tried; if there are too many, only some
    single-byte ones are, and otherwise only tokens that certainly do not, and the first of the
    ending, are admitted.
    """

    def __init__(self, plans: Plans, budget: int) -> None:
        self._plans = plans
        self.left = budget
        self._tokens: list[int] = []
        self._text = b""
        self._plan: list[int] | None = None
        self._longest = plans.shortest_tokens or 0
        self._is_free = False
        self._tried: dict[int, list[int]] = {}

    def copy(self) -> BudgetGuard:
        """A guard in the same state."""
        made = copy.copy(self)
        made._tokens = list(self._tokens)  # noqa: SLF001  its own class
        return made

    def accept(self, token: int, text: bytes) -> None:
        """Count a token, and update the ending."""
        self.left -= 1
        self._tokens.append(token)
        self._text += text
        if self._plan and self._plan[0] == token:
            self._plan, self._longest, self._is_free = self._plan[1:], self._longest - 1, False
        elif token in self._tried:
            self._plan, self._longest, self._is_free = (
                self._tried[token],
                len(self._tried[token]),
                False,
            )
        else:
            self._plan = None
            if not (self._is_free and self._plans.plain >> token & 1):
                self._longest += self._plans.growth(token) if text else self._plans.largest_jump
                self._is_free = False
        self._tried = {}

    def narrowed(self, mask: bytes, engine: Any, eos: int) -> bytes:
        """The mask without tokens after which the answer could not be completed in time."""
        if self.left - 1 >= self._longest + self._plans.largest_jump:
            return mask
        admitted = int.from_bytes(mask, "little")
        if self.left > 0 and admitted.bit_count() == 1:
            return mask
        self._make_plan(engine, eos)
        if self.left - 1 >= self._longest + self._plans.largest_jump:
            return mask
        plan = self._plan or []
        if len(plan) > self.left:
            raise ConstraintError(
                f"The answer cannot be ended within its budget: {len(plan)} tokens are needed, and {self.left} are left.",
            )
        made = 1 << (plan[0] if plan else eos)
        few = admitted.bit_count() <= _MOST_TRIED
        if self._is_free and not few and len(plan) < self.left:
            made |= admitted & self._plans.plain
        candidates = admitted if few else admitted & self._plans.single & ~made
        if not plan:
            candidates |= 1 << eos & admitted
        for token in _ids(candidates, _MOST_TRIED):
            if token == eos or made >> token & 1:
                continue
            after = self._after(token)
            if after is not None and len(after) < self.left:
                self._tried[token] = after
                made |= 1 << token
        return (made & admitted).to_bytes(len(mask), "little")

    def _after(self, token: int) -> list[int] | None:
        return self._plans.remaining(
            [*self._tokens, token],
            self._text + self._plans.text_of(token),
        )[0]

    def _make_plan(self, engine: Any, eos: int) -> None:
        """Compute the ending, which the engine must accept; keep the rest of the previous one if that is shorter."""
        kept = self._plan
        found, self._is_free = self._plans.remaining(self._tokens, self._text)
        if found is not None and engine.validate_tokens([*found, eos]) != len(found) + 1:
            found = None
        best = min((each for each in (kept, found) if each is not None), key=len, default=None)
        if best is None:
            raise ConstraintError(
                "No ending is known for what was written so far, and the budget is running out.",
            )
        self._plan, self._longest = best, len(best)


def _ids(bits: int, most: int) -> list[int]:
    """The lowest ids in a bit set, at most `most`."""
    made: list[int] = []
    while bits and len(made) < most:
        lowest = bits & -bits
        made.append(lowest.bit_length() - 1)
        bits ^= lowest
    return made
