"""What a scripted model says, and what an agent of any library must offer to be measured."""

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
        """The arguments of the calls in a turn, counted from 0; none when it is time to answer."""
        return [{"a": turn * self.at_once + i, "b": 1} for i in range(self.at_once)] if turn < self.turns else []

    def texts(self, write: Callable[[list[dict[str, int]]], str]) -> list[str]:
        """What the model writes in each turn, made before the clock starts: `write` takes the calls of the turn, none at the end."""
        return [write(self.calls(turn)) for turn in range(self.turns + 1)]

    def turn(self, messages: int) -> int:
        """The turn after so many messages since the question, where a turn adds its calls and a message for each result."""
        return messages // (1 + self.at_once)


@dataclass(frozen=True)
class Agent:
    """An agent that can be run often, also concurrently. Both ways return the typed answer; a library may have only one."""

    run: Callable[[], int] | None
    arun: Callable[[], Awaitable[int]] | None


def fields(**values: object) -> str:
    """An answer in the form of DSPy's `ChatAdapter`, which is ferrule's, too."""
    written = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in values.items())
    return "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in written) + "[[ ## completed ## ]]"
