"""Bounds of a run."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

from ferrule.errors import ConfigurationError
from ferrule.values.record import Record, fields_of

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
                msg = f"`{name}` in Limits must be a {form}, found {value!r}."
                raise ConfigurationError(msg)

    @property
    def are_shared(self) -> bool:
        """Whether there is a bound that what a program calls has a part in."""
        return _shared_of(self) != _NONE_SHARED


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
