"""Bounds of a run.  (Floor 4.)"""

from __future__ import annotations

from ferrule.errors import ConfigurationError
from ferrule.values.record import Record


class Limits(Record, kw_only=True):
    """How far a loop may go."""

    same_error: int = 5
    """Bad steps of the model in a row (no such tool, bad arguments, an unreadable answer) before the run is stopped."""
    observation_chars: int = 100_000
    """A longer result of a tool is shown to the model with its middle cut out; the trajectory keeps it whole."""

    def __post_init__(self) -> None:
        if self.same_error < 1 or self.observation_chars < 1:
            msg = f"Limits must be at least 1, found {self!r}."
            raise ConfigurationError(msg)
