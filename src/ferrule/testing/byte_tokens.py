"""A vocabulary of single bytes, for testing constrained answers without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.errors import checks_keywords
from ferrule.models.local.vocabulary import Vocabulary

if TYPE_CHECKING:
    import random

    from ferrule.models.local.constraint import Constraint
    from ferrule.models.local.matcher import Matcher

END, OPENER = 256, 257


@checks_keywords
def byte_vocabulary(size: int | None = None) -> Vocabulary:
    """One token for each byte; 256 ends a text, and 257 is the special token `<tool_call>`.

    `size` may be larger: models often pad their ids to a round number.
    """
    return Vocabulary(
        [*(bytes([i]) for i in range(256)), b"</s>", b"<tool_call>"],
        eos=[END],
        special=[END, OPENER],
        size=size,
    )


def random_walk(constraint: Constraint, chance: random.Random) -> Matcher:
    """A finished matcher of this constraint, with tokens chosen at random."""
    matcher = constraint.matcher()
    while not matcher.is_finished:
        allowed: list[int] = []
        for i, byte in enumerate(matcher.mask()):
            allowed += [8 * i + bit for bit in range(8) if byte >> bit & 1]
        matcher.accept(chance.choice(allowed))
    return matcher
