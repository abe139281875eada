"""Answers of Anthropic that pause.

The provider ends a long answer that uses its own tools with `pause_turn`. The conversation with the
answer so far is then sent again, and the model goes on with it. Both parts become one answer, whose
blocks are sent back in later requests in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ferrule.models.wires.anthropic.decode import WIRE, read_blocks
from ferrule.models.wires.anthropic.encode import assistant_blocks
from ferrule.values.conversation.exchange import total_cost
from ferrule.values.conversation.message import AUTHOR

if TYPE_CHECKING:
    from ferrule.values.conversation.exchange import Response


PAUSED = "pause_turn"
"""The finish reason of an answer whose model has more to say, without anything from us."""


def continued(first: Response, second: Response) -> Response:
    """One answer from the part before a pause and the part after it."""
    blocks = [*assistant_blocks(first.message()), *assistant_blocks(second.message())]
    whole = read_blocks(blocks)
    authors = [(part.extra or {}).get(AUTHOR) for part in (first, second)]
    # A fallback model has written the second part: the blocks of the first are not its own.
    is_of_one_author = None in authors or authors[0] == authors[1]
    extra = second.extra
    if is_of_one_author:
        extra = {**(first.extra or {}), **(second.extra or {}), WIRE: {"content": blocks}}
    thoughts = [part.reasoning for part in (first, second) if part.reasoning]
    return replace(
        second,
        text=whole.text,
        reasoning="\n\n".join(thoughts) or None,
        usage=first.usage + second.usage,
        cost=total_cost([first.cost, second.cost]),
        extra=extra,
        provider_calls=whole.provider_calls,
        citations=whole.citations,
    )
