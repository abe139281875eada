"""What is left of a program's limits: one budget for it and all that it calls.

Budgets form a chain from the inside out: what is spent inside is spent in each, and the first limit reached, from the inside, is the one
that counts. Counts come from acts, so a replay counts the same again. The clock does not: that a limit was reached is therefore
journalled wherever a program went on from it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from ferrule.errors import LimitReachedError
from ferrule.runs.limits import Limits
from ferrule.values.record import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ferrule.values.calls.call import CheckedCall
    from ferrule.values.conversation.exchange import Response

_NO_LIMITS = Limits()
_counting = threading.Lock()
"""Branches and tools of one run spend from several threads."""


def clock() -> float:
    """Seconds of a clock that only goes forward; a test puts its own in place."""
    return time.monotonic()


class Budget:
    """Limits, and what was spent of them."""

    __slots__ = ("_began", "_timed", "cost", "limits", "outer", "steps", "tokens", "tool_calls")

    def __init__(self, limits: Limits = _NO_LIMITS, outer: Budget | None = None) -> None:
        self.limits = limits
        self.outer = outer
        self.steps = 0
        self.tool_calls = 0
        self.tokens = 0
        self.cost = 0.0
        self._began = clock() if limits.wall_s is not None else 0.0
        self._timed: dict[int, tuple[Any, Any]] = {}

    def _chain(self) -> Iterator[Budget]:
        each: Budget | None = self
        while each is not None:
            yield each
            each = each.outer

    def spend(self, *, steps: int = 0, tool_calls: int = 0, tokens: int = 0, cost: float = 0.0) -> None:
        """Count something done, here and further out."""
        with _counting:
            for each in self._chain():
                each.steps += steps
                each.tool_calls += tool_calls
                each.tokens += tokens
                each.cost += cost

    def answered(self, response: Response) -> None:
        """Count one model call."""
        self.spend(tokens=response.usage.total_tokens, cost=response.cost or 0.0)

    def spent(self) -> dict[str, Any]:
        """What was spent here, as JSON, for `spend`."""
        return {"steps": self.steps, "tool_calls": self.tool_calls, "tokens": self.tokens, "cost": self.cost}

    def take_calls(self, wanted: int) -> int:
        """How many of so many tool calls may run; they are counted."""
        with _counting:
            allowed = wanted
            for each in self._chain():
                if each.limits.tool_calls is not None:
                    allowed = min(allowed, max(each.limits.tool_calls - each.tool_calls, 0))
            for each in self._chain():
                each.tool_calls += allowed
        return allowed

    def reached(self) -> LimitReachedError | None:
        """The first limit that is reached, from the inside out."""
        for each in self._chain():
            limits = each.limits
            spent: Mapping[str, float] = {"steps": each.steps, "tool_calls": each.tool_calls, "tokens": each.tokens, "cost": each.cost}
            for name, value in spent.items():
                limit = getattr(limits, name)
                if limit is not None and value >= limit:
                    return LimitReachedError(name, limit)
            if limits.wall_s is not None and clock() - each._began >= limits.wall_s:  # noqa: SLF001  a budget like this one
                return LimitReachedError("wall_s", limits.wall_s)
        return None

    def timed(self, checked: CheckedCall) -> CheckedCall:
        """The call with `tool_s` as its timeout, where its tool has none."""
        limits = [each.limits.tool_s for each in self._chain() if each.limits.tool_s is not None]
        tool: Any = checked.tool
        if not limits or tool.timeout_s is not None:
            return checked
        known = self._timed.get(id(tool))
        if known is None or known[0] is not tool:
            known = self._timed[id(tool)] = (tool, tool.model_copy(update={"timeout_s": min(limits)}))
        return replace(checked, tool=known[1])
