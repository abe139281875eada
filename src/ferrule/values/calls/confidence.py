"""The confidence in a call, from the log-probabilities of its tokens.

Where a server reports the tokens of an answer (the setting `confidence=True` asks for them), the
confidence in a call is the probability of its tokens together: how likely the model was to make
exactly this call, given the text before. Each further token can only lower it, so a long text among
the arguments lowers it, too. An average would hide one doubtful number among many sure braces.

The tokens of a call are found by its parts: its name, then the names and values of its arguments,
in order, each near the one before. So the textual form of the call does not matter. A call that
is not found has no confidence.
"""

from __future__ import annotations

import json
from math import exp, fsum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ferrule.encoding.encode import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ferrule.values.calls.call import ToolCall

_WIDEST_GAP = 100
"""How many characters may be between two parts of a call: the marks of its form."""
_WORDS = {None: ("null", "None"), True: ("true", "True"), False: ("false", "False")}
"""How forms of calls write a value. The first is JSON's, the second Python's."""


class Token(NamedTuple):
    """A piece of an answer, and the logarithm of its probability."""

    text: str
    logprob: float


def with_confidence(
    calls: Sequence[ToolCall], tokens: Sequence[Token], *, text: str | None = None
) -> tuple[ToolCall, ...]:
    """The calls of an answer, each with its confidence, as far as the tokens tell.

    Args:
        calls: The calls, in the order of the answer.
        tokens: The tokens of the whole answer.
        text: For structured calls, the text beside them: its tokens are not those of a call.

    """
    if not tokens or not calls:
        return tuple(calls)
    whole = "".join([token.text for token in tokens])
    start = 0
    beside = (text or "").strip()
    if beside:
        start = max(whole.find(beside), 0) + len(beside)
    end = len(whole)
    found: list[ToolCall] = []
    # From the end: a thought before the calls may hold a draft of them.
    for call in reversed(calls):
        span = _span_of(call, whole, start, end)
        if span is not None:
            end = span[0]
            call = call.changed(confidence=_probability(tokens, *span))  # noqa: PLW2901
        found.append(call)
    return tuple(reversed(found))


def _probability(tokens: Sequence[Token], start: int, end: int) -> float:
    """The probability of the tokens between two offsets of their text."""
    logprobs: list[float] = []
    offset = 0
    for token in tokens:
        before, offset = offset, offset + len(token.text)
        if before < end and start < offset:
            logprobs.append(token.logprob)
    return min(exp(fsum(logprobs)), 1.0)


def _span_of(call: ToolCall, text: str, start: int, end: int) -> tuple[int, int] | None:
    """The last place between these offsets that has the parts of a call in order."""
    parts = list(_parts_of(call.args))
    begin = text.rfind(call.name, start, end)
    while call.name and begin >= 0:
        stop = _end_of(parts, text, begin + len(call.name), end)
        if stop is not None:
            return begin, stop
        begin = text.rfind(call.name, start, begin)
    return None


def _end_of(parts: Sequence[tuple[str, ...]], text: str, offset: int, end: int) -> int | None:
    """Where the last of these parts ends; None if one is not near the one before."""
    for spellings in parts:
        places: list[tuple[int, int]] = []
        for spelling in spellings:
            limit = min(offset + _WIDEST_GAP + len(spelling), end)
            place = text.find(spelling, offset, limit)
            if place >= 0:
                places.append((place, place + len(spelling)))
        if not places:
            return None
        _, offset = min(places)
    return offset


def _parts_of(value: Any) -> Iterator[tuple[str, ...]]:
    """The names and plain values in the arguments, in order, each in its possible spellings."""
    if isinstance(value, dict):
        for name, member in cast("dict[str, Any]", value).items():
            yield _spellings(name)
            yield from _parts_of(member)
    elif isinstance(value, (list, tuple)):
        for item in cast("Sequence[Any]", value):
            yield from _parts_of(item)
    else:
        yield _spellings(value)


def _spellings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        # As it is, and as in JSON, with and without escapes for letters beyond ASCII.
        return value, json_text(value)[1:-1], json.dumps(value)[1:-1]
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    return (json_text(value),)
