"""The journal of a run: every answer that its driver got, by position.

Invariant: an act is answered either from the journal or live, and every live answer is in the
journal before the program sees it. An answer is found by its slot (`values/slot.py`), which names
the act's position: so the same program with the same journal finds the same answers.

A resumed run replays: each recorded answer is *taken* once, in the order in which the program asks.
The program may have changed meanwhile. What it asks for then differs from what was recorded:

- in a way that does not matter, such as another prompt. The answer is used, and the difference is
  noted (`drift`); the note is written before the next live answer.
- in what it does next. `ReplayMismatchError` ends the execution, and nothing is written.

Branches of a `gather` take answers from several threads. The sets of what is left change meanwhile,
so nothing here iterates over them: the indexes (`_Index`) are built once and not changed, and each
look-up of a slot is atomic.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Never

from ferrule.errors import ReplayMismatchError, RunError, shown
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.matching import answers_act, names_call
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ferrule.runs.journal.entry import EntryKind, Sink
    from ferrule.values.calls.call import ToolCall, ToolResult
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.outcome import Step

_ENDS_A_TURN = frozenset({"model", "failure", "limit"})


class Journal:
    """Entries in the order they were written; `take` returns recorded answers during a replay."""

    def __init__(self, entries: Iterable[Entry] = (), sink: Sink | None = None) -> None:
        self.entries: list[Entry] = list(entries)
        self.sink = sink
        """Makes each entry durable; None keeps entries in memory only."""
        self.is_closed = False
        """Whether a replay only reads: an act that is not recorded is not performed."""
        self.is_whole = False
        """Whether it is closed, and the run went to its end: no act is missing."""
        self.may_bring_messages = True
        """Whether messages to the run are recorded, or may still come."""
        self.is_first = not self.entries
        """Whether this is the first execution: there is nothing to replay."""
        self.recorded = 0
        """How many entries earlier executions wrote."""
        self.mismatch: ReplayMismatchError | None = None
        """The mismatch of this execution. Kept, because the program's code may have caught it."""
        self.drift: dict[str, tuple[str, str]] = {}
        """Differences from the journal that no note has yet: the value recorded, and now."""
        self.on_note: Callable[[dict[str, tuple[str, str]]], None] | None = None
        self.void_questions: set[str] = set()
        """The ids of questions whose decision was dropped or replaced. They are not used again."""
        self.once_names: frozenset[str] = frozenset()
        """The names of the values that earlier executions recorded."""
        self.unread: dict[str, Entry] = {}
        """The recorded answers that the program has not taken yet, by slot.

        While there are any, the run is replaying.
        """
        self._begun: dict[str, list[Entry]] = {}
        """The starts of calls in earlier executions, oldest first, by slot."""
        self._paused: set[str] = set()
        self.spending: dict[str, list[Entry]] = {}
        """What earlier executions spent besides the answers of models, by slot.

        A replay takes it out as it counts it, and need not ask for all of it."""
        self._dispatched: dict[str, object] = {}
        """The calls and messages that this execution has claimed, with a mark of who did."""
        self._dropped: list[str] = []
        self._noted: dict[str, tuple[str, str]] = {}
        """Differences that notes of earlier executions have."""
        self._compared: set[str] = set()
        self._is_past = False
        self._index: _Index | None = None
        self._indexing = threading.Lock()

    # -- writing

    def add(self, entry: Entry) -> None:
        """Write one entry: durable when this returns.

        If that fails, raises `StoreError`, and the entry is not in the journal.
        """
        if self.drift and entry.kind != "migrated":
            self.add(self._note())
        if self.sink is not None:
            self.sink(entry)
        self.entries.append(entry)

    async def aadd(self, entry: Entry) -> None:
        """`add` without blocking the event loop. If cancelled, it waits for the current write.

        The journal then lacks the start of a call, because the call does not begin; the next
        execution reads what the store has.
        """
        later = getattr(self.sink, "later", None)
        if later is None:
            self.add(entry)
            return
        if self.drift and entry.kind != "migrated":
            await self.aadd(self._note())
        try:
            await later(entry)
        except BaseException as error:
            is_written = isinstance(error, asyncio.CancelledError) and error.__cause__ is None
            if is_written and entry.kind != "begun":  # a start may have been refused instead
                self.entries.append(entry)
            raise
        self.entries.append(entry)

    async def write(self, entry: Entry, *, blocks: bool) -> None:
        """`add`, or `aadd` if the caller must not block its thread."""
        if blocks or self.sink is None:
            self.add(entry)
        else:
            await self.aadd(entry)

    # -- replaying

    def rewind(self) -> bool:
        """Start a replay: every answer written so far can be taken once.

        Returns whether there are any.
        """
        if not self.entries and not self._dispatched:  # the first execution of most runs
            return False
        self.recorded, self.is_first, self.mismatch = len(self.entries), False, None
        self._dispatched, self._begun, self._paused, self.unread = {}, {}, set(), {}
        self.spending = {}
        self._noted, self._compared, self.drift, self._dropped = {}, set(), {}, []
        self.void_questions, self._index, self._is_past = set(), None, False
        for entry in self.entries:
            self._reread(entry)
        self.once_names = frozenset(entry.digest for entry in self.entries if entry.kind == "once")
        self._leave_out_inner_answers()
        return bool(self.unread)

    def _reread(self, entry: Entry) -> None:
        slot = entry.slot
        if entry.kind == "begun":
            self._begun.setdefault(slot, []).append(entry)
            self._paused.discard(slot)
        elif entry.kind == "spent":
            self.spending.setdefault(slot, []).append(entry)
        elif entry.kind == "migrated":
            self._noted.update(
                {what: (then, now) for what, (then, now) in entry.value["differs"].items()}
            )
            self._drop(entry.value["dropped"])
        else:
            if slot in self.unread:
                self._void(self.unread[slot])
            self.unread[slot] = entry
            if entry.kind == "once":
                paused_call = Slot(slot).paused_call
                if paused_call is not None:
                    self._paused.add(paused_call)

    def _leave_out_inner_answers(self) -> None:
        """Leave out what happened inside a call that does not run again, or a value of `once`.

        That is a call whose result is recorded, or whose wait for a result from outside.
        """
        done = {entry.slot for entry in self.unread.values() if entry.kind in {"result", "once"}}
        if not done:
            return
        waiting: set[str] = {Slot(slot).call for slot in done if Slot(slot).is_later}
        self.unread = {
            slot: entry for slot, entry in self.unread.items() if not Slot(slot).is_below(done)
        }
        if not waiting:
            return
        for slot in [*self.unread, *self._begun]:
            if _is_before_wait(Slot(slot), waiting):
                self.unread.pop(slot, None)
                self._begun.pop(slot, None)

    def take(
        self, slot: str, kind: EntryKind, question: str | Request, call_id: str | None = None
    ) -> Entry | None:
        """The answer recorded at a slot, or None.

        A model's answer fits any request. A result fits if it belongs to the same call: one with
        equal arguments, or the model's call with the id `call_id`. Remaining differences are noted.
        Raises `ReplayMismatchError` for an entry that answers another act.
        """
        if not self.unread and not self._begun:
            return None
        digest = _digest_of(question)
        entry = self.unread.pop(slot, None)
        if entry is None:
            self._refuse_gap(Slot(slot), f"{kind} {digest}")
            return None
        if entry.kind == kind and entry.digest == digest:
            return entry
        is_same_call = (
            call_id is not None and entry.kind == "result" and entry.value.call_id == call_id
        )
        if not answers_act(entry.kind, entry.digest, kind, digest, is_same_call=is_same_call):
            self.unread[slot] = entry  # nothing was answered: what comes next must not pass it
            self.differs(slot, f"{entry.kind} {entry.digest}", f"{kind} {digest}")
        if entry.digest != digest:
            what = f"{kind} at {slot}"
            if kind == "model":
                # One name for all requests, so that only the first that differs is noted: all later
                # ones contain it.
                what = "model request"
            self.note_drift(what, entry.digest, digest)
        return entry

    def take_optional(self, slot: str, kind: EntryKind, question: str) -> Entry | None:
        """`take` for an answer that not every run has: its absence is not a mismatch."""
        if slot not in self.unread:
            return None
        return self.take(slot, kind, question)

    def take_decision(self, slot: str) -> Entry | None:
        """Take the decision recorded at a slot, even if its question has changed, or None."""
        entry = self.unread.get(slot)
        if entry is None or entry.kind != "decision":
            return None
        return self.unread.pop(slot)

    def ahead(self, path: str, act: int) -> Entry | None:
        """An untaken answer to this act of a frame or a later one.

        While there is one, the frame is replaying.
        """
        answers = self._indexed().answers.get(path, _NOTHING)
        with self._indexing:
            while answers.last >= 0 and answers.numbers[answers.last] >= act:
                for slot in reversed(answers.slots[answers.numbers[answers.last]]):
                    entry = self.unread.get(slot)
                    if entry is not None:
                        return entry
                # Taken: nothing puts it back, so no later look passes it again. A replay of n
                # steps then takes n looks, not n * n.
                answers.last -= 1
        return None

    @property
    def is_past(self) -> bool:
        """Whether this execution has come past all that earlier ones did, in every frame.

        Only then may something new come between two acts: whatever follows from it is new, too.
        """
        if not self._is_past and not self.unread:
            self._is_past = not self._unsettled()
        return self._is_past

    def check_finished(self) -> None:
        """Called when the program has returned.

        Answers not taken, or begun calls not settled, mean that the program has changed: raises
        `ReplayMismatchError`.
        """
        for slot, entry in [*self.unread.items(), *self._unsettled()]:
            if _found_nothing(entry):
                continue
            self.differs(slot, f"{entry.kind} {entry.digest}", "the program ended without this act")

    def close_frame(self, path: str, *, unfinished: bool = False) -> None:
        """Called when a frame inside the run ends: `check_finished` for the slots below it.

        If `unfinished`, answers may be unread: they are left out.
        """
        if not self.unread and not self._begun:
            return
        for slot in self._indexed().below(path):
            entry = self.unread.get(slot)
            if entry is not None and not unfinished and not _found_nothing(entry):
                recorded = f"{entry.kind} {entry.digest}"
                self.differs(slot, recorded, "the program ended without this act")
            if unfinished:
                self.unread.pop(slot, None)
                self._begun.pop(slot, None)

    def has_below(self, path: str) -> bool:
        """Whether anything that an earlier execution recorded below a path is left."""
        if not self.unread and not self._begun:
            return False
        below = self._indexed().below(path)
        return any(slot in self.unread or slot in self._begun for slot in below)

    # -- calls that began

    def has_begun(self, slot: str) -> bool:
        """Whether an earlier execution began the call at a slot."""
        return slot in self._begun

    def has_begun_from(self, path: str, act: int) -> bool:
        """Whether an earlier execution began a call of this act of a frame, or of a later one."""
        for _ in self._starts_from(path, act):
            return True
        return False

    def starts(self, slot: str) -> int:
        """How often earlier executions began the call at a slot."""
        return len(self._begun.get(slot, ()))

    def open_calls(self) -> dict[str, list[Entry]]:
        """The starts of the calls that earlier executions began, and that have no result.

        Without those that wait for their result from outside.
        """
        return {slot: starts for slot, starts in self._begun.items() if slot not in self.unread}

    def is_paused(self, slot: str) -> bool:
        """Whether the call can continue: it stopped to ask a person, or is a task of a server."""
        return slot in self._paused

    def take_begun(self, slot: str, name: str) -> tuple[Entry, ...]:
        """Take the entries of earlier executions that began the call of this tool at a slot.

        Oldest first. They can be taken once. Raises `ReplayMismatchError` for a call of another
        tool.
        """
        starts = self._begun.get(slot)
        if starts is not None and not names_call(starts[-1].digest, name):
            self.differs(slot, f"begun {starts[-1].digest}", f"a call of {name}")
        return tuple(self._begun.pop(slot, ()))

    def claim(self, name: str) -> bool:
        """Claim a call or a message for this execution. False if another branch has claimed it."""
        claim = object()
        return self._dispatched.setdefault(name, claim) is claim

    def dispatch(self, slot: str) -> None:
        """Claim the call at a slot for this execution, before it begins.

        Raises `RunError` if it is already claimed.
        """
        if not self.claim(slot):
            raise RunError(
                f"The call at {slot} was begun in this execution already; "
                "it does not run a second time."
            )

    def turn(self, path: str, act: int) -> tuple[list[tuple[str, Entry]], bool]:
        """The entries of calls from this act of a frame up to its next model answer, by slot.

        The second value says whether there is such an answer.
        """
        end: int | None = None
        entries: list[tuple[str, Entry]] = []
        for number, slot in self._indexed().answers.get(path, _NOTHING).since(act):
            entry = self.unread.get(slot)
            if entry is not None and entry.kind in _ENDS_A_TURN:
                end = number
                break
            is_of_call = entry is not None and entry.kind in {"result", "decision"}
            if entry is not None and is_of_call and not Slot(slot).is_message:
                entries.append((slot, entry))
        starts: list[tuple[str, Entry]] = []
        for number, slot, start in self._starts_from(path, act):
            if end is not None and number >= end:
                break
            starts.append((slot, start))
        return starts + entries, end is not None

    def _starts_from(self, path: str, act: int) -> Iterator[tuple[int, str, Entry]]:
        """The latest starts from this act on that this execution has not claimed, in order."""
        if not self._begun:
            return
        for number, slot in self._indexed().starts.get(path, _NOTHING).since(act):
            entries = self._begun.get(slot)
            if entries is not None and slot not in self._dispatched:
                yield number, slot, entries[-1]

    def _unsettled(self) -> list[tuple[str, Entry]]:
        """The calls without a result that an earlier execution began, and this one did not."""
        if not self._begun:
            return []
        done = {entry.slot for entry in self.entries if entry.kind in {"result", "once"}}
        return [
            (slot, starts[-1])
            for slot, starts in list(self._begun.items())
            if slot not in done and slot not in self._dispatched and not Slot(slot).is_below(done)
        ]

    # -- differences

    def note_drift(self, what: str, then: str, now: str) -> None:
        """Note a difference from the journal once, unless an earlier note has it."""
        if what not in self._compared and self._noted.get(what) != (then, now):
            self.drift[what] = (then, now)
        self._compared.add(what)

    async def note_migration(self, *, blocks: bool) -> None:
        """Write the noted differences.

        `add` does so before a live answer, so that the journal shows where another version of the
        program took over.
        """
        await self.write(self._note(), blocks=blocks)

    def differs(self, slot: str, recorded: str, found: str) -> Never:
        """Raise `ReplayMismatchError`."""
        self.mismatch = ReplayMismatchError(slot, recorded, found)
        raise self.mismatch

    def drop_from(self, path: str, act: int, *, because: str) -> None:
        """Drop what a frame recorded from this act on: it followed from a decision that is void."""
        answers = self._indexed().answers.get(path, _NOTHING)
        slots = [slot for _, slot in answers.since(act) if slot in self.unread]
        if slots:
            self.drift[because] = (", ".join(slots), "asked again")
            self._dropped += slots
            self._drop(slots)

    def drop_latest_answers(self) -> None:
        """Drop the latest answers of models, which led to the error of a run, to ask again.

        Those of one frame, back to its latest call or decision: what has happened stays. The
        verdicts on these answers are dropped with them.
        """
        slots: dict[str, None] = {}
        verdicts: list[Slot] = []
        path: str | None = None
        for entry in reversed(self.entries):
            slot = Slot(entry.slot)
            is_inside = path is not None and slot.path != path and slot.startswith(path)
            if is_inside or entry.kind in {"spent", "migrated"}:
                continue
            if path not in {None, slot.path}:
                break
            path = slot.path
            if entry.kind in _ENDS_A_TURN:
                slots.update(dict.fromkeys([*verdicts, slot]))
                verdicts = []
            elif entry.kind == "once" and not slot.is_act:
                verdicts.append(slot)
            else:
                break
        latest = [slot for slot in reversed(slots) if slot in self.unread]
        if latest:
            self.drift["the answers that led to an error"] = (", ".join(latest), "asked again")
            self._dropped += latest
            self._drop(latest)

    def _drop(self, slots: list[str]) -> None:
        gone = set(slots)
        for slot in [*self.unread, *self._begun]:
            if slot in gone or Slot(slot).is_below(gone):
                entry = self.unread.pop(slot, None)
                self._void(entry)
                self._begun.pop(slot, None)
                if entry is not None and entry.kind == "model":  # it was paid
                    self.spending.setdefault(slot, []).append(_spending_of(entry))

    def _void(self, entry: Entry | None) -> None:
        """Note that a decision was dropped or replaced: its question is asked under another id."""
        if entry is not None and entry.kind == "decision":
            self.void_questions.add(entry.value.question_id)

    def _note(self) -> Entry:
        number = sum(entry.kind == "migrated" for entry in self.entries)
        value = {
            "differs": {what: list(values) for what, values in self.drift.items()},
            "dropped": self._dropped,
        }
        if self.on_note is not None:
            self.on_note(self.drift)
        self._noted.update(self.drift)
        self.drift, self._dropped = {}, []
        return Entry(Slot.of_note(number), "migrated", "", value)

    def _refuse_gap(self, slot: Slot, found: str) -> None:
        """Raise `ReplayMismatchError` if a later act of the frame is answered, and this one is not.

        Acts of a frame come in order, so the program has changed.
        """
        path, act = slot.position
        if self.ahead(path, act + 1) is not None:
            # The next one, which tells a reader more than the last.
            answers = self._indexed().answers[path].since(act + 1)
            later = next((self.unread[slot] for _, slot in answers if slot in self.unread), None)
        elif "." in slot.name:  # a call of a batch, where one act is recorded
            later = self.unread.get(Slot.of_act(path, act))
        elif slot.is_act:
            later = self._recorded_call(path, act)
        else:
            later = None
        if later is not None:
            self.differs(slot, f"{later.kind} {later.digest} at {later.slot}", found)

    def _recorded_call(self, path: str, act: int) -> Entry | None:
        """What is recorded of a batch of calls at this act of a frame: a ruling, or a call.

        A call that began, and has no result, may be of a later act, too.
        """
        for number, slot in self._indexed().answers.get(path, _NOTHING).since(act):
            if number > act:
                break
            entry = self.unread.get(slot)
            if entry is not None and not Slot(slot).is_message and not _found_nothing(entry):
                return entry
        starts = [(begun, start) for _, begun, start in self._starts_from(path, act)]
        if not starts:
            return None
        unsettled = dict(self._unsettled())
        return next((start for begun, start in starts if begun in unsettled), None)

    def _indexed(self) -> _Index:
        with self._indexing:
            if self._index is None:
                self._index = _Index(list(self.unread), list(self._begun))
            return self._index

    # -- as a value

    def __eq__(self, other: object) -> bool:
        """Compare by slot: calls of one turn may end, and be written, in any order."""
        return isinstance(other, Journal) and _by_slot(self) == _by_slot(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  mutable and compared by content

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"Journal({shown(self.entries)})"


class ClosedJournal(Journal):
    """Replays what a run has recorded, to read it, and performs no new act.

    An act that is not recorded raises `ReplayMismatchError`, before it calls anything. If the run
    has not ended, that is where its recorded part ends (`end`).
    """

    def __init__(
        self, entries: Iterable[Entry], *, is_whole: bool = True, keeps_requests: bool = False
    ) -> None:
        super().__init__(entries, self._refuse)
        self.is_closed, self.is_whole = True, is_whole
        # A reader takes no new messages: most runs then have none.
        self.may_bring_messages = any(Slot(entry.slot).is_message for entry in self.entries)
        self.end: Slot | None = None
        """The first act that the program asked for and that is not recorded."""
        self.steps: dict[str, list[Step]] = {}
        """The steps of programs inside the run, by their paths."""
        self.most_steps: int | None = None
        """After how many steps of the run's own program to note how far the replay has come."""
        self.after_steps: int | None = None
        """The number of the first entry that was not taken then; None before that."""
        self._own_steps = 0
        self.keeps_requests = keeps_requests
        self.requests: dict[str, tuple[Any, Request]] = {}
        """By slot, the model and the request of each call that the replay has reached.

        Kept only if asked for: each holds its own view of the conversation."""

    def note_step(self) -> None:
        """Called when the run's own program has done one more step."""
        self._own_steps += 1
        if self._own_steps == self.most_steps:
            untaken = {id(entry) for entry in self.unread.values()}
            self.after_steps = next(
                (number for number, entry in enumerate(self.entries) if id(entry) in untaken),
                len(self.entries),
            )

    def take(
        self, slot: str, kind: EntryKind, question: str | Request, call_id: str | None = None
    ) -> Entry | None:
        """As in any journal, but refuses here to ask a model or a person, or to compute a value.

        Elsewhere that happens before the answer is written, and `sink` would refuse it too late.
        """
        entry = self.unread.get(slot)
        if kind == "model" and entry is not None and entry.kind in _ENDS_A_TURN:
            # Any request fits. Its digest would only serve a note, and this journal takes none.
            return self.unread.pop(slot)
        entry = super().take(slot, kind, question, call_id)
        if entry is None and kind != "result":
            self._refuse(Entry(slot, kind, _digest_of(question)))
        return entry

    def take_results(
        self, path: str, act: int, calls: Sequence[ToolCall]
    ) -> list[ToolResult] | None:
        """The results of these calls, if nothing but them was recorded at this act.

        None if a call has no result, if its result is an error, or if any other fact is recorded
        there, such as a decision or a ruling.
        """
        recorded = self._indexed().answers.get(path, _NOTHING).slots.get(act, ())
        if len(recorded) != len(calls):
            return None
        act_slot = Slot.of_act(path, act)
        results: list[ToolResult] = []
        for number, call in enumerate(calls):
            entry = self.unread.get(act_slot.item(number))
            if entry is None or entry.kind != "result" or entry.value.is_error:
                return None
            if call.id is None or entry.value.call_id != call.id:
                return None
            results.append(entry.value)
        for slot in recorded:
            del self.unread[slot]
        return results

    def take_begun(self, slot: str, name: str) -> tuple[Entry, ...]:
        """Refuses, because an interrupted call would be settled now: its tool may be asked."""
        self._refuse(Entry(slot, "begun", name))

    def dispatch(self, slot: str) -> None:
        """Refuses, because the call would run now."""
        self._refuse(Entry(slot, "begun", "a call"))

    def differs(self, slot: str, recorded: str, found: str) -> Never:
        """Raise `ReplayMismatchError`."""
        raise ReplayMismatchError(slot, recorded, found, is_read=True)

    def _refuse(self, entry: Entry) -> Never:
        if self.end is None:
            self.end = Slot(entry.slot)
        self.differs(entry.slot, "the end of a run that is done", f"{entry.kind} {entry.digest}")


def _found_nothing(entry: Entry) -> bool:
    """Whether this is a check that objected to nothing: a version without it goes the same way."""
    return entry.kind == "once" and Slot(entry.slot).is_check and not entry.value


def _spending_of(entry: Entry) -> Entry:
    """What a dropped answer of a model has cost: limits go on counting it."""
    tokens, cost = entry.value.usage.total_tokens, entry.value.cost or 0.0
    return Entry(entry.slot, "spent", "", {"tokens": tokens, "cost": cost})


def _is_before_wait(slot: Slot, waiting: set[str]) -> bool:
    """Whether this belongs to one of these calls, and came before its wait for its result."""
    if slot.is_of_wait:
        waiting = waiting - {slot.call}
    return slot.is_below(waiting)


def _digest_of(question: str | Request) -> str:
    if isinstance(question, str):
        return question
    return question.digest


class _Acts:
    """What is recorded for the acts of one frame."""

    def __init__(self) -> None:
        self.slots: dict[int, list[str]] = {}
        """By the number of an act, its slots."""
        self.numbers: list[int] = []
        """The numbers of these acts, in order."""
        self.last = -1
        """The position of the last number with an answer that may be untaken."""

    def sort(self) -> None:
        """Put everything in order. Called once, when all is noted."""
        for slots in self.slots.values():
            slots.sort()
        self.numbers = sorted(self.slots)
        self.last = len(self.numbers) - 1

    def since(self, act: int) -> Iterator[tuple[int, str]]:
        """The slots of this act and the later ones, in order, each with the number of its act."""
        for position in range(bisect_left(self.numbers, act), len(self.numbers)):
            number = self.numbers[position]
            for slot in self.slots[number]:
                yield number, slot


_NOTHING = _Acts()


class _Index:
    """Where the answers and starts are that were left when the index was built, by frame."""

    def __init__(self, unread: list[str], begun: list[str]) -> None:
        # Facts about a question answer no act.
        self.answers = _by_frame(slot for slot in unread if not slot.endswith("?"))
        self._unread = unread
        self._begun = begun

    @cached_property
    def starts(self) -> dict[str, _Acts]:
        """By the path of each frame, the calls that earlier executions began."""
        return _by_frame(self._begun)

    @cached_property
    def _slots(self) -> list[str]:
        return sorted({*self._unread, *self._begun})

    def below(self, path: str) -> Iterator[str]:
        """The slots that begin with this path, which stand together in sorted order."""
        for position in range(bisect_left(self._slots, path), len(self._slots)):
            if not self._slots[position].startswith(path):
                return
            yield self._slots[position]


def _by_frame(slots: Iterable[str]) -> dict[str, _Acts]:
    """By the path of each frame, what is recorded for its acts."""
    frames: defaultdict[str, _Acts] = defaultdict(_Acts)
    for slot in slots:
        path, act = Slot(slot).position
        if act >= 0:
            frames[path].slots.setdefault(act, []).append(slot)
    for acts in frames.values():
        acts.sort()
    return dict(frames)


def _by_slot(journal: Journal) -> dict[tuple[str, str], Entry]:
    return {
        (entry.slot, entry.kind if entry.kind in {"begun", "spent"} else "answer"): entry
        for entry in journal.entries
    }
