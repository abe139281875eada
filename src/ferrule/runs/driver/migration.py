"""Calls of a recorded model answer, when the program has changed since: the journal says which of them ran, not the checks of today.

In: the calls of one answer. Out: for each, whether the earlier execution acted on it. A call that it ran keeps its result, even if the tool
is gone; a call that it did not run does not run now.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ferrule.runs.journal.matching import equal_arguments, names_call
from ferrule.values.encoding.encode import json_text

if TYPE_CHECKING:
    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.run.act import RecallCalls


def recall_calls(frame: Frame, act: RecallCalls) -> list[bool | None]:
    """See `RecallCalls`."""
    if frame.live:
        return [None] * len(act.calls)
    entries, is_over = frame.run.journal.turn(frame.path, frame.acts)
    turn = _Turn(act)
    latest = dict(entries)  # a call that has ended has two entries: that it began, and then its result
    for _, batch in groupby(sorted(latest.items(), key=_place), key=lambda each: _place(each)[0]):
        places = [[entry for _, entry in about] for _, about in groupby(batch, key=_place)]
        first, end = 0, len(act.calls) - len(places) + 1  # later places are about later calls
        for k, about in enumerate(places):
            first = turn.take(about, first, end + k)
    if is_over:
        return [k in turn.did for k in range(len(act.calls))]
    decided = {entry.value.question_id for entry in frame.run.journal.entries if entry.kind == "decision"}
    asked = {question.call.id for question in frame.run.asked if question.path == frame.path and question.id not in decided}
    return [True if k in turn.did or _is_among(call, asked) else None for k, call in enumerate(act.calls)]


class _Turn:
    """The calls of one answer. The journal's entries about them have no number of their call, but the calls of a batch are in order."""

    def __init__(self, act: RecallCalls) -> None:
        self._calls = act.calls
        self._checked = act.checked or (None,) * len(act.calls)
        self.did: set[int] = set()
        self._ended: set[int] = set()
        self._edited: set[int] = set()

    def take(self, about: list[Entry], first: int, end: int) -> int:
        """Take the entries about a call of a batch, from `first` on and before `end`; returns from where on the batch's next call is.

        A result has the id of its call. Other entries are about the likest call that has not ended.
        """
        at = self._with_result(about)
        if at is None:
            found = [k for k in range(first, end) if self._has_name(about[-1].digest, k)]
            left = [k for k in found if k not in self._ended] or found
            at = max(left, key=lambda k: self._likeness(about[-1].digest, k), default=None)
        if at is None:
            return first
        self.did.add(at)
        for entry in about:
            if _ends_call(entry):
                self._ended.add(at)
            elif entry.kind == "decision" and entry.value.kind == "edit":
                self._edited.add(at)
        return at + 1

    def _with_result(self, about: list[Entry]) -> int | None:
        ids = {entry.value.call_id for entry in about if entry.kind == "result"} - {None}
        return next((k for k, call in enumerate(self._calls) if call.id in ids), None)

    def _has_name(self, digest: str, k: int) -> bool:
        checked = self._checked[k]  # a model may write a tool's name in the form that providers accept
        return names_call(digest, self._calls[k].name) or (checked is not None and names_call(digest, checked.tool.name))

    def _likeness(self, digest: str, k: int) -> tuple[bool, bool, int, bool]:
        checked = self._checked[k]
        is_equal = checked is not None and digest.endswith(f" {json_text(checked.arguments.shown)}")
        written = equal_arguments(digest, self._calls[k].args) if not is_equal else 0  # of equal calls, the first
        return is_equal, k in self._edited, written, checked is not None


def _ends_call(entry: Entry) -> bool:
    """Whether a call has its result with this entry, so that a later one of this tool is of another call."""
    if entry.kind == "decision":
        return entry.value.kind in {"deny", "reply"} or entry.digest.startswith("clarify ")
    return entry.kind == "result"


def _is_among(call: ToolCall, asked: set[str | None]) -> bool:
    return call.id is not None and call.id in asked


def _place(each: tuple[str, Entry]) -> list[int]:
    """`3.10` comes after `3.9`. `3.9?1` is the same place: the decision about a call that was cut off."""
    numbers = each[0].rpartition("/")[2].partition("?")[0].split(".")
    return [int(number) if number.isdigit() else -1 for number in numbers]
