"""`Outline`: what a list and a search know of a run, kept with it so that they read no journal.

A store keeps texts and does not know what they mean. So the process that executes a run makes its
outline (`store/outliner.py`), and hands it over when the run begins, when it comes to rest, and at
most once a second in between.
"""

from __future__ import annotations

from msgspec import Struct

from ferrule.values.conversation.exchange import Usage


class NameUse(Struct, frozen=True):
    """What one tool or one model did in a run."""

    kind: str
    """`tool` or `model`."""
    name: str
    calls: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    """How long its calls took since the last outline."""


class Outline(Struct, frozen=True):
    """What a list and a search know of a run."""

    asked: str = ""
    """The first input, on one line."""
    answered: str = ""
    """The first output, on one line; empty until the run is done."""
    steps: int = 0
    """How often the program asked a model. Programs that it calls as tools do not count."""
    seconds: float = 0.0
    """How long the run executed since the last outline; waiting does not count."""
    usage: Usage = Usage()
    """The tokens and the cost so far."""
    uses: tuple[NameUse, ...] = ()
    words: tuple[str, ...] = ()
    """What a search finds, each word once."""


NO_OUTLINE = Outline()
