"""Calls of a recorded model answer, when the program has changed since: the journal says which of them ran, not the checks of today.

In: the calls of one answer. Out: for each, whether the earlier execution acted on it. A call that it ran keeps its result, even if the tool
is gone; a call that it did not run does not run now.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ferrule.runs.journal.matching import equal_arguments, names_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.run.act import RecallCalls


def recall_calls(frame: Frame, act: RecallCalls) -> list[bool | None]:
    """See `RecallCalls`."""
    if frame.live:
        return [None] * len(act.calls)
    entries, is_over = frame.run.journal.turn(frame.path, frame.acts)
    did: set[int] = set()
    ended: set[int] = set()
    latest = dict(entries)  # a call that has ended has two entries: that it began, and then its result
    for _, batch in groupby(sorted(latest.items(), key=_place), key=lambda each: each[0].partition(".")[0]):
        at = -1
        for _, entry in batch:  # the calls of a batch are in the order of the answer
            found = _call_of(entry, act.calls, at + 1, ended)
            if found is not None:
                at = found
                did.add(at)
                if _ends_call(entry):
                    ended.add(at)
    asked = {question.call.id for question in frame.run.asked if question.path == frame.path}
    return [True if k in did or _is_among(call, asked) else False if is_over else None for k, call in enumerate(act.calls)]


def _call_of(entry: Entry, calls: Sequence[ToolCall], first: int, ended: set[int]) -> int | None:
    """The place of the call that an entry is about, `first` or later; None if no call has its name.

    A result has the id of its call. Other entries have none: they are about a call that has not ended, the likest one.
    """
    found = [k for k in range(first, len(calls)) if names_call(entry.digest, calls[k].name)]
    for k in found:
        if entry.kind == "result" and entry.value.call_id is not None and entry.value.call_id == calls[k].id:
            return k
    left = [k for k in found if k not in ended] or found
    return max(left, key=lambda k: equal_arguments(entry.digest, calls[k].args), default=None)


def _ends_call(entry: Entry) -> bool:
    """Whether a call has its result with this entry, so that a later one of this tool is of another call."""
    if entry.kind == "decision":
        return entry.value.kind in {"deny", "reply"} or entry.digest.startswith("clarify ")
    return entry.kind == "result"


def _is_among(call: ToolCall, asked: set[str | None]) -> bool:
    return call.id is not None and call.id in asked


def _place(each: tuple[str, Entry]) -> list[int]:
    """`3.10` comes after `3.9`."""
    return [int(number) if number.isdigit() else -1 for number in each[0].rpartition("/")[2].split(".")]
