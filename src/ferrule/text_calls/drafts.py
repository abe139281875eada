"""Calls while they are read: drafts, their faults, and what reading them may cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Offer

_DEEPEST = 200
"""The largest depth of arguments; deeper ones cannot be written as JSON everywhere."""
_MOST_EFFORT = 2_500_000
"""What is read in less than a second. A megabyte of XML, the densest of pages, uses most."""
COST_OF_SIGN = 16
"""What looking at a sign costs. The densest programs have one in thirteen characters."""
COST_OF_ATTEMPT = 100
"""What an attempt to read calls at a sign costs, whether or not there are any."""
COST_OF_CALL = 300
"""What a call costs of the budget: an answer has tens, not ten thousands."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """Why a call cannot run as the model wrote it."""

    code: str
    """`invalid_tool_call` or `invalid_tool_call_arguments`.

    `invalid_tool_calls` for something that is not a list of calls.
    """
    reason: str
    raw: str = ""
    """The text as the model wrote it."""
    index: int | None = None
    """The call's position in its answer, if known."""


class Draft(NamedTuple):
    """A call in a text, not yet a `ToolCall`."""

    offer: Offer
    args: dict[str, Any]
    repairs: tuple[str, ...] = ()
    call_id: str | None = None
    intention: str | None = None
    fault: CallFault | None = None

    def repaired(self, *repairs: str) -> Draft:
        """The draft with the repairs of the surrounding text, which come first."""
        return self._replace(repairs=(*repairs, *self.repairs)) if repairs else self

    def faulty(self, reason: str, raw: str) -> Draft:
        """The call as one that cannot run, with the reason for the model and what it wrote."""
        fault = CallFault("invalid_tool_call_arguments", reason, raw)
        return self._replace(args={}, fault=fault)


class Group(NamedTuple):
    """Calls that follow one another, and where the last of them ends."""

    drafts: list[Draft]
    end: int


class Effort:
    """A budget, in characters, for what is read more than once.

    It bounds the time for texts that were written to cost more than pages of HTML, JSON, logs and
    programs do; `find` tells the model of one that used it up. It stops growing where reading takes
    about a second: an answer of a megabyte has no more calls than one of 400 KB.
    """

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = min(200_000 + 10 * size, _MOST_EFFORT)

    def spend(self, characters: int) -> bool:
        """Spend some; returns False if nothing is left."""
        self.left -= characters + 16
        return self.left > 0


def faulty(offer: Offer, reason: str, raw: str) -> Draft:
    """A call that cannot run, with the reason for the model and the text that it wrote."""
    return Draft(offer, {}).faulty(reason, raw)


def read_id(value: Any) -> str | None:
    """The id of a call as text: some servers number their calls.

    None for anything else; the run then assigns an id.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def unwritable(args: dict[str, Any]) -> str | None:
    """Why arguments do not survive a round trip through JSON; None if they do."""
    level: list[dict[str, Any] | list[Any]] = [args]
    for _ in range(_DEEPEST):
        inside: dict[int, Any] = {}  # by identity: a value in two positions is checked once
        for container in level:
            values: Any = container.values() if isinstance(container, dict) else container
            for value in cast("list[object]", values):
                if type(value) in (dict, list):
                    inside[id(value)] = value
                elif isinstance(value, float) and value - value != 0:
                    return "hold NaN or an infinity, which JSON cannot express"
        if not inside:
            return None
        level = list(inside.values())
    return "are nested too deeply"
