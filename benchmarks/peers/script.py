"""`Script`: the answers of a scripted model; and `Agent`: the interface of an agent of any library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

QUESTION = "q?"
ANSWER = 42


@dataclass(frozen=True)
class Script:
    """A model that calls `add(a, b)` `at_once` times in each of `turns` turns, and then answers 42."""

    turns: int
    at_once: int = 1

    def calls(self, turn: int) -> list[dict[str, int]]:
        """The arguments of the calls in a turn, counted from 0; none in the turn that answers."""
        return (
            [{"a": turn * self.at_once + i, "b": 1} for i in range(self.at_once)]
            if turn < self.turns
            else []
        )

    def texts(self, write: Callable[[list[dict[str, int]]], str]) -> list[str]:
        """The model's text for each turn, written before the clock starts: `write` takes the calls of the turn, none for the answer."""
        return [write(self.calls(turn)) for turn in range(self.turns + 1)]

    def turn(self, messages: int) -> int:
        """The turn after so many messages since the question, if each turn adds one message with its calls and one for each result."""
        return messages // (1 + self.at_once)


@dataclass(frozen=True)
class Agent:
    """An agent that can run repeatedly and concurrently. The sync and the async function return the typed answer; one may be missing."""

    run: Callable[[], int] | None
    arun: Callable[[], Awaitable[int]] | None


def fields(**values: object) -> str:
    """An answer in the form of DSPy's `ChatAdapter`, which ferrule uses, too."""
    written = (
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in values.items()
    )
    return (
        "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in written)
        + "[[ ## completed ## ]]"
    )
