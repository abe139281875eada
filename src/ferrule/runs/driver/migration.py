"""Which calls of a recorded model answer ran, according to the journal: the program, and so its checks, may have changed since.

In: the calls of one answer. Out: for each, whether the earlier execution acted on it. A call that
it ran keeps its result, even if the tool is gone; a call that it did not run does not run now.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.errors import ReplayMismatchError
from ferrule.runs.journal.matching import equal_arguments, names_call

if TYPE_CHECKING:
    from ferrule.acts import RecallCalls, Suspended
    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.journal.journal import Journal
    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import ToolCall


def recall_calls(frame: Frame, act: RecallCalls) -> list[bool | None]:
    """For each call of the answer, whether the earlier execution acted on it; None if that is open. See `RecallCalls`."""
    if (
        frame.live and not act.edited
    ):  # `edited`: no answer is left after the decision, but the call that it allowed may have begun
        return [None] * len(act.calls)
    entries, is_over = frame.run.journal.turn(frame.path, frame.acts)
    turn = _Turn(act)
    latest = dict(entries)  # a finished call has two entries: its start, and then its result
    for _, batch in groupby(sorted(latest.items(), key=_place), key=lambda each: _place(each)[0]):
        turn.take(
            [
                (place[-1], [entry for _, entry in about])
                for place, about in groupby(batch, key=_place)
            ],
        )
    if act.edited:
        return [turn.ran.get(k) for k in range(len(act.calls))]
    if is_over:
        return [k in turn.did for k in range(len(act.calls))]
    decided = {
        entry.value.question_id for entry in frame.run.journal.entries if entry.kind == "decision"
    }
    asked = {
        question.call.id
        for question in frame.run.asked
        if question.path == frame.path and question.id not in decided
    }
    return [
        True if k in turn.did or _is_among(call, asked) else None
        for k, call in enumerate(act.calls)
    ]


def lost_answers(journal: Journal, asking: Suspended) -> BaseException:
    """The reason why an execution ends: `asking`, or an error if a `forward` called the asking program with other inputs than before.

    Such a `forward` would do so in each execution: call the model again, and lose the approvals of
    the last execution.
    """
    before = (
        journal.entries[: journal.recorded] if journal.replaying and not journal.restarts else []
    )
    for question in asking.questions if before else ():
        *outer, _ = question.path.split("/")
        for depth, own in enumerate(outer):
            inside, kind = "".join(f"{each}/" for each in outer[: depth + 1]), own.partition(":")[0]
            if ":" not in own or any(entry.slot.startswith(inside) for entry in before):
                continue
            around = f"{inside.removesuffix(f'{own}/')}{kind}:"
            left = next(
                (
                    entry
                    for entry in before
                    if entry.slot.startswith(around) and journal.has(entry.slot)
                ),
                None,
            )
            if left is not None:
                return ReplayMismatchError(
                    left.slot,
                    f"{left.kind} {left.digest}",
                    f"a call of `{kind}` with other inputs",
                )
    return asking


class _Turn:
    """Matches the calls of one answer to their journal entries, which do not number their call. Within a batch, both are in order."""

    def __init__(self, act: RecallCalls) -> None:
        self._calls = act.calls
        self._checked = act.checked or (None,) * len(act.calls)
        self._arguments = [
            f" {json_text(each.arguments.shown)}" if each is not None else None
            for each in self._checked
        ]
        self.did: set[int] = set()
        self.ran: dict[int, bool] = {}
        """For each matched call, whether it ran at once; otherwise, a person was asked first."""
        self._ended: set[int] = set()
        self._edited: set[int] = set()

    def take(self, places: list[tuple[int, list[Entry]]]) -> None:
        """Match the entries of a batch, in the order of its calls: as many places as possible, to the most similar calls.

        The entries at place `n` cannot belong to the first `n` unfinished calls: each earlier place
        belongs to another call.
        """
        left = [k for k in range(len(self._calls)) if k not in self._ended]
        end = len(self._calls)
        best: list[tuple[int, int, Any]] = [(0, 0, None)] * (end + 1)
        for place, about in reversed(places):
            # `best[k]`, for the places from this one on and the calls from `k` on: how many places
            # find a call, how similar, which.
            later, best, similarity = best, best[:], self._similarity(about)
            for k in reversed(range(end)):
                options = [best[k + 1], later[k]]
                if k in similarity and k not in left[:place]:
                    found, similar, rest = later[k + 1]
                    options.insert(0, (found + 1, similar + similarity[k], (k, about, rest)))
                best[k] = max(
                    options,
                    key=lambda each: each[:2],
                )  # of equal options the first, which takes the earliest call
        chosen = best[0][2]
        while chosen is not None:
            at, about, chosen = chosen
            self._note(at, about)

    def _note(self, at: int, about: list[Entry]) -> None:
        self.did.add(at)
        self.ran.setdefault(at, about[0].kind != "decision")
        for entry in about:
            if _ends_call(entry):
                self._ended.add(at)
            elif entry.kind == "decision" and entry.value.kind == "edit":
                self._edited.add(at)

    def _similarity(self, about: list[Entry]) -> dict[int, int]:
        """The calls that these entries may belong to, with a score of similarity. Only a result has the id of its call."""
        ids = {entry.value.call_id for entry in about if entry.kind == "result"} - {None}
        known = [k for k, call in enumerate(self._calls) if call.id in ids]
        if known:
            return {known[0]: 0}
        digest = about[-1].digest
        found = [k for k in range(len(self._calls)) if self._has_name(digest, k)]
        return {
            k: self._similarity_to(digest, k)
            for k in [k for k in found if k not in self._ended] or found
        }

    def _has_name(self, digest: str, k: int) -> bool:
        checked = self._checked[
            k
        ]  # a model may write a tool's name in the form that providers accept
        return names_call(digest, self._calls[k].name) or (
            checked is not None and names_call(digest, checked.tool.name)
        )

    def _similarity_to(self, digest: str, k: int) -> int:
        """The highest score is for equal arguments as the tool takes them now; then for an edited call; then for arguments as written."""
        arguments = self._arguments[k]
        if arguments is not None and digest.endswith(arguments):
            return 1000
        written = min(equal_arguments(digest, self._calls[k].args), 9)
        return 100 * (k in self._edited) + 10 * written + (arguments is not None)


def _ends_call(entry: Entry) -> bool:
    """Whether this entry ends its call, so that a later entry of the same tool belongs to another call."""
    if entry.kind == "decision":
        return entry.value.kind in {"deny", "reply"} or entry.digest.startswith("clarify ")
    return entry.kind == "result"


def _is_among(call: ToolCall, asked: set[str | None]) -> bool:
    return call.id is not None and call.id in asked


def _place(each: tuple[str, Entry]) -> list[int]:
    """A sort key for slots: `3.10` comes after `3.9`. `3.9?1`, the decision on an interrupted call, has the same place as `3.9`."""
    numbers = each[0].rpartition("/")[2].partition("?")[0].split(".")
    return [int(number) if number.isdigit() else -1 for number in numbers]
