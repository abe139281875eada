"""`Later`: what a tool returns when it has begun something whose result comes from outside."""

from __future__ import annotations

from math import isfinite
from typing import Any

from msgspec import Struct

from ferrule.errors import ConfigurationError, shown
from ferrule.record import CheckedStruct


class Later(Struct, metaclass=CheckedStruct, frozen=True, kw_only=True):
    """A tool returns it when its result comes later, from outside: a build, a payment, a person.

    The call has begun and the run waits, without a process, until `deliver` brings the result.
    Other calls of the step go on.
    """

    key: str = ""
    """Names the result in its run for `deliver`. Empty for `Context.key` of the call."""
    note: str = ""
    """What a person should know about the wait."""
    within_s: float | None = None
    """Seconds after which the model reads that no result came; None to wait without end."""

    def __post_init__(self) -> None:
        # Users pass anything, and a run stores these values.
        for name in ("key", "note"):
            text: Any = getattr(self, name)
            if not isinstance(text, str):
                raise ConfigurationError(f"`{name}` of `Later` is a text, found {shown(text)}.")
        seconds: Any = self.within_s
        if seconds is None:
            return
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not isfinite(seconds) or seconds <= 0:
            raise ConfigurationError(
                f"`within_s` of `Later` is a number of seconds above 0, found {shown(seconds)}."
            )
