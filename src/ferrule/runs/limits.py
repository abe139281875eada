"""`Limits`: the bounds of a run; and `Budget`: how much of them is spent.

Budgets form a chain from the inside out: what a program spends is spent in every budget around it, and the innermost limit that is reached
counts. Counts come from acts, so a replay counts the same again. The clock does not: where a limit was reached, that is journalled.
"""

from __future__ import annotations

import math
import threading
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError, LimitReachedError
from ferrule.values.record import Record, fields_of, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ferrule.values.calls.call import CheckedCall
    from ferrule.values.conversation.exchange import Response

_COUNTS = ("steps", "tool_calls", "tokens")
_AMOUNTS = ("cost", "wall_s", "tool_s")
SHARED = (*_COUNTS, *_AMOUNTS)
"""The bounds that hold for a program and all it calls together."""
_shared_of = attrgetter(*SHARED)
_NONE_SHARED = (None,) * len(SHARED)


class Limits(Record, kw_only=True):
    """How far a program may go, and with it all that it calls: `ReAct(..., limits=)`, `agent(..., limits=)`, or the setting `limits`.

    Where a limit is reached no further model call is made, but for an agent's last one, which extracts an answer from what is there;
    `prediction.reason` then names the limit. A program that cannot do so raises `LimitReachedError`. None means no limit.
    """

    steps: int | None = None
    """Turns of all loops together."""
    tool_calls: int | None = None
    """Calls of tools. Those of one turn that are over it are not run, and the model is told so."""
    tokens: int | None = None
    """Input and output tokens of all model calls."""
    cost: float | None = None
    """What the providers say the calls cost, in their unit. Models that do not say it cost nothing here."""
    wall_s: float | None = None
    """Seconds one execution may take. Time in which the run waits for a person does not count; a resumed run begins at 0."""
    tool_s: float | None = None
    """Seconds one call of a tool may take that has no `timeout_s` of its own. Programs as tools have none."""
    same_error: int = 5
    """Bad steps of the model in a row (no such tool, bad arguments, an unreadable answer) before the run is stopped."""
    observation_chars: int = 100_000
    """A longer result of a tool is shown to the model with its middle cut out; the trajectory keeps it whole."""

    def __post_init__(self) -> None:
        for name, value in fields_of(self).items():
            if value is None and name in SHARED:
                continue
            form = "number above 0" if name in _AMOUNTS else "whole number of at least 1"
            if not (_is_amount(value) if name in _AMOUNTS else _is_count(value)):
                raise ConfigurationError(f"`{name}` in Limits must be a {form}, found {value!r}.")

    @property
    def are_shared(self) -> bool:
        """Whether there is a bound that what a program calls has a part in."""
        return _shared_of(self) != _NONE_SHARED


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


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

    def count_response(self, response: Response) -> None:
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

    def with_timeout(self, checked: CheckedCall) -> CheckedCall:
        """The call with `tool_s` as its timeout, where its tool has none."""
        limits = [each.limits.tool_s for each in self._chain() if each.limits.tool_s is not None]
        tool: Any = checked.tool
        if not limits or tool.timeout_s is not None:
            return checked
        known = self._timed.get(id(tool))
        if known is None or known[0] is not tool:
            known = self._timed[id(tool)] = (tool, tool.model_copy(update={"timeout_s": min(limits)}))
        return replace(checked, tool=known[1])
