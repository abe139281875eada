"""Errors that end a run, or an operation on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors.error import FerruleError

if TYPE_CHECKING:
    from collections.abc import Sequence


class RunError(FerruleError):
    """The base class of errors that end a run or an operation on it."""


class TooManyFaultsError(RunError):
    """The model made too many faulty steps in a row; `faults` are the messages that it got about them."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        last = "".join(self.faults[-1:])
        last += "" if last.endswith((".", "!", "?")) else "."
        text = f"The model made {len(self.faults)} faulty steps in a row, so the run was stopped. The last fault: {last}"
        super().__init__(f"{text} Raise `limits=Limits(same_error=...)`, use a stronger model, or make the tool's description clearer.")


class MaxTurnsReachedError(RunError, RuntimeError):
    """`Predict` with tools ran out of turns; `pending` are the calls the model still wanted."""

    def __init__(self, max_turns: int, pending: Sequence[Any]) -> None:
        self.max_turns, self.pending = max_turns, tuple(pending)
        names = ", ".join(f"`{call.name}`" for call in self.pending) or "none"
        super().__init__(f"No answer after {max_turns} turns; calls still wanted: {names}. Raise `max_turns`.")


class LimitReachedError(RunError):
    """A program reached one of its `Limits`: `name`, whose value is `limit`. `reason` is as in an agent's prediction."""

    def __init__(self, name: str, limit: float) -> None:
        self.name, self.limit, self.reason = name, limit, f"limits.{name}"
        super().__init__(f"The run was stopped at its limit {name}={limit:g}. Raise the limit (`Limits({name}=...)`) and resume.")


class UnknownOutcomeError(RunError):
    """It is unknown whether a call ran, and its tool has `unknown="fail"`."""


class ReplayMismatchError(RunError):
    """A program differs from its journal: it changed, or it is not deterministic."""

    def __init__(self, at: str, recorded: str, found: str, *, is_done: bool = False) -> None:
        self.at, self.recorded, self.found = at, recorded, found
        text = f"Replay differs from the journal at act {at}: recorded {recorded}, now {found}. The program, its tools or its settings"
        text += " changed, or its choices depend on a clock or on chance. "
        if is_done:
            cure = "To read what it returned, load the run with the version of the program that ended it."
        else:
            cure = 'To continue from here with a new version, load the run with `migrate="restart_turn"`.'
        super().__init__(text + cure)


class DecisionError(RunError, ValueError):
    """A decision does not match a pending question: unknown id, decided already, or contradictory."""


class StoreError(RunError):
    """A store cannot write or read a run: the disk is full, the run unknown, or leased to another process. Nothing was written."""


class RunTakenError(StoreError):
    """Another process is executing the run now, or an earlier execution in this process still is."""


class RunCancelledError(RunError):
    """The run was cancelled. Its journal keeps what it did."""
