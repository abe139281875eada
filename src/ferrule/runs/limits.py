"""`Limits`: limits on what a run may spend. `Budget`: what it has spent.

Budgets form a chain from the inside out: a program's spending counts in every budget around it, and
the innermost reached limit applies. A replay repeats the acts, and so their counts, but not the
time they took: reaching a limit is therefore journalled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace as replace_call

from ferrule.concurrency.forking import ForkLock
from ferrule.errors import ConfigurationError, LimitReachedError, checks_keywords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.values.calls.call import CheckedCall
    from ferrule.values.conversation.exchange import Response

_COUNTS = ("steps", "tool_calls", "tokens")
_AMOUNTS = ("cost", "wall_s", "tool_s")
SHARED = (*_COUNTS, *_AMOUNTS)
"""The names of the limits that hold for a program together with everything it calls."""
_shared_of = attrgetter(*SHARED)
_NONE_SHARED = (None,) * len(SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on a program together with everything it calls.

    Give them as `ReAct(..., limits=)`, `agent(..., limits=)`, or the setting `limits`.

    Once a limit is reached, no further model call is made: the run ends with `LimitReachedError`,
    and can be resumed with a larger limit. Only an agent with `on_limit="extract"` makes one last
    call, which answers from the steps so far; `prediction.reason` then names the limit. None means
    no limit. `cost` is in US dollars; `wall_s` and `tool_s` are in seconds.
    """

    steps: int | None = None
    """Steps of all agents together."""
    tool_calls: int | None = None
    """Tool calls. Calls of one step beyond the limit do not run; each gets an error result."""
    tokens: int | None = None
    """Input and output tokens of all model calls."""
    cost: float | None = None
    """US dollars for all model calls.

    An answer whose cost is unknown raises `ConfigurationError`: set `prices`."""
    wall_s: float | None = None
    """Seconds that one execution may take.

    Waiting for a person does not count; a resumed run starts at 0."""
    tool_s: float | None = None
    """Seconds that one tool call may take if the tool sets no `timeout_s`.

    Does not apply to programs used as tools."""
    same_error: int = 5
    """Consecutive bad steps of the model (unknown tool, bad arguments, unparseable answer) before
    the run stops."""
    observation_chars: int = 100_000
    """The model sees longer tool results with the middle cut out; the trajectory has them whole."""
    per_tool: Mapping[str, int] | None = None
    """Calls of single tools, by name, such as `{"search": 5}`.

    A call beyond does not run and gets an error result; the run goes on. The model reads how many
    calls are left."""

    def __post_init__(self) -> None:
        check_per_tool(self.per_tool)
        for name, value in asdict(self).items():
            if name == "per_tool" or (value is None and name in SHARED):
                continue
            if name in _AMOUNTS:
                form, is_valid = "number above 0", _is_amount(value)
            else:
                form, is_valid = "whole number of at least 1", _is_count(value)
            if not is_valid:
                raise ConfigurationError(f"`{name}` in Limits must be a {form}, found {value!r}.")

    @property
    def are_shared(self) -> bool:
        """Whether any limit is set that also covers what the program calls."""
        return bool(self.per_tool) or _shared_of(self) != _NONE_SHARED

    def within(self, around: Limits | None) -> Limits:
        """These limits, completed by those around them.

        A limit that is not shared, and has its default here, comes from `around`.
        """
        if around is None:
            return self
        inherited: dict[str, int] = {}
        for name in ("same_error", "observation_chars"):
            if getattr(self, name) == getattr(_NO_LIMITS, name):
                inherited[name] = getattr(around, name)
        return replace(self, **inherited)


# A misspelled limit is refused with the nearest name, instead of Python's `TypeError`.
Limits.__init__ = checks_keywords(Limits.__init__)


def check_per_tool(per_tool: Any) -> None:
    """Check the limit `per_tool`. Raises `ConfigurationError`."""
    if per_tool is None:
        return
    is_valid = isinstance(per_tool, Mapping) and all(
        isinstance(name, str) and _is_count(most)
        for name, most in cast("Mapping[Any, Any]", per_tool).items()
    )
    if not is_valid:
        raise ConfigurationError(
            "`per_tool` in Limits maps names of tools to whole numbers of at least 1, such as "
            f"{{'search': 5}}; found {per_tool!r}."
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


_NO_LIMITS = Limits()
_NO_TOOLS: Mapping[str, int] = {}
_counting = ForkLock()
"""Held while spending is counted: branches and tools of one run spend from several threads."""


def clock() -> float:
    """The monotonic clock, in seconds. Tests replace it."""
    return time.monotonic()


class Budget:
    """Counts what a program and everything it calls have spent, and checks the limits."""

    __slots__ = (
        "_began",
        "_timed",
        "cost",
        "is_of_batch",
        "limits",
        "outer",
        "steps",
        "tokens",
        "tool_calls",
        "tools",
        "unpriced",
    )

    def __init__(
        self,
        limits: Limits = _NO_LIMITS,
        outer: Budget | None = None,
        *,
        is_of_batch: bool = False,
    ) -> None:
        self.limits = limits
        self.outer = outer
        self.is_of_batch = is_of_batch
        """Whether these are the limits of a whole batch."""
        self.steps = 0
        self.tool_calls = 0
        self.tools: dict[str, int] = {}
        """How many calls of each tool ran."""
        self.tokens = 0
        self.cost = 0.0
        self.unpriced = ""
        """The first model with an answer of unknown cost."""
        self._began = 0.0
        if limits.wall_s is not None:
            self._began = clock()
        self._timed: dict[int, tuple[Any, Any]] = {}

    def _chain(self) -> Iterator[Budget]:
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget.outer

    def spend(
        self,
        *,
        steps: int = 0,
        tool_calls: int = 0,
        tokens: int = 0,
        cost: float = 0.0,
        unpriced: str = "",
        tools: Mapping[str, int] = _NO_TOOLS,
    ) -> None:
        """Count spending here and in every budget around this one."""
        with _counting.lock:
            for budget in self._chain():
                for name, calls in tools.items():
                    budget.tools[name] = budget.tools.get(name, 0) + calls
                budget.steps += steps
                budget.tool_calls += tool_calls
                budget.tokens += tokens
                budget.cost += cost
                budget.unpriced = budget.unpriced or unpriced

    def take_back(self) -> None:
        """Take what was counted here out of the budgets around this one."""
        if self.outer is not None:
            self.outer.spend(
                **{name: -count for name, count in self._counts().items()},
                tools={name: -calls for name, calls in self.tools.items()},
            )

    def count_response(self, response: Response, lm: Any) -> None:
        """Count one answer of a model."""
        unpriced = ""
        if response.cost is None and not getattr(lm, "is_free", False):
            unpriced = response.answered_by or str(getattr(lm, "name", "")) or type(lm).__name__
        self.spend(tokens=response.usage.total_tokens, cost=response.cost or 0.0, unpriced=unpriced)

    def check_cost(self) -> None:
        """Raise `ConfigurationError` if a cost limit applies and an answer's cost is unknown."""
        for budget in self._chain():
            if not budget.unpriced or budget.limits.cost is None:
                continue
            model = budget.unpriced.partition("/")[2] or budget.unpriced
            raise ConfigurationError(
                f"`Limits(cost={budget.limits.cost})` cannot be enforced: the cost of an answer of "
                f"`{budget.unpriced}` is unknown, because its provider reports none. Set "
                "`configure(prices=Prices())` or, in US dollars a million tokens, input and "
                f"output, `Prices(extra={{{model!r}: (0.5, 2.0)}})`. For a model that reports no "
                "tokens, or is free, limit `steps` instead."
            )

    def spent(self) -> dict[str, Any]:
        """The spending here as JSON data: the arguments of `spend`."""
        form: dict[str, Any] = self._counts()
        if self.tools:
            form["tools"] = dict(self.tools)
        if self.unpriced:
            form["unpriced"] = self.unpriced
        return form

    def _counts(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "tool_calls": self.tool_calls,
            "tokens": self.tokens,
            "cost": self.cost,
        }

    def take_calls(self, wanted: int) -> int:
        """Count up to `wanted` tool calls, as many as the limits allow; returns how many."""
        with _counting.lock:
            allowed = wanted
            for budget in self._chain():
                if budget.limits.tool_calls is not None:
                    left = max(budget.limits.tool_calls - budget.tool_calls, 0)
                    allowed = min(allowed, left)
            for budget in self._chain():
                budget.tool_calls += allowed
        return allowed

    def take_tool(self, name: str) -> tuple[int, int] | None:
        """Count a call of a tool; returns how many are left, and of how many.

        None without a limit. The first number is below 0 if it was one too many.
        """
        with _counting.lock:
            for budget in self._chain():
                budget.tools[name] = budget.tools.get(name, 0) + 1
            return self._left_of(name)

    def _left_of(self, name: str) -> tuple[int, int] | None:
        bounds: list[tuple[int, int]] = []
        for budget in self._chain():
            most = (budget.limits.per_tool or _NO_TOOLS).get(name)
            if most is not None:
                bounds.append((most - budget.tools.get(name, 0), most))
        return min(bounds, default=None)

    def has_place(self) -> bool:
        """Whether the limits of tool calls allow another one now."""
        with _counting.lock:
            return all(
                budget.limits.tool_calls is None or budget.tool_calls < budget.limits.tool_calls
                for budget in self._chain()
            )

    def has_place_of(self, name: str) -> bool:
        """Whether the limits of a single tool allow another call of it now."""
        with _counting.lock:
            left = self._left_of(name)
            return left is None or left[0] > 0

    def reached(self) -> LimitReachedError | None:
        """The innermost limit that is reached, or None.

        Raises `ConfigurationError` for one that cannot be checked (`check_cost`).
        """
        self.check_cost()
        for budget in self._chain():
            reached = budget.reached_here()
            if reached is not None:
                return reached
        return None

    def reached_here(self) -> LimitReachedError | None:
        """The limit of this budget alone that is reached, or None."""
        for name, value in self._counts().items():
            limit = getattr(self.limits, name)
            if limit is not None and value >= limit:
                return LimitReachedError(name, limit, is_of_batch=self.is_of_batch)
        wall_s = self.limits.wall_s
        if wall_s is not None and clock() - self._began >= wall_s:
            return LimitReachedError("wall_s", wall_s, is_of_batch=self.is_of_batch)
        return None

    def with_timeout(self, checked: CheckedCall) -> CheckedCall:
        """The call with `tool_s` as its timeout, if its tool has none."""
        timeouts = [
            budget.limits.tool_s for budget in self._chain() if budget.limits.tool_s is not None
        ]
        tool: Any = checked.tool
        if not timeouts or tool.timeout_s is not None:
            return checked
        # One copy for each tool, kept with the tool itself: its id could be used again otherwise.
        original, timed = self._timed.get(id(tool), (None, None))
        if original is not tool:
            timed = tool.model_copy(update={"timeout_s": min(timeouts)})
            self._timed[id(tool)] = (tool, timed)
        return replace_call(checked, tool=timed)
