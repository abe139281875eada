"""The journal of a run: every answer that its driver got, by position.

Invariant: an act is answered either from the journal or live, and every live answer is in the
journal before the program sees it. A slot names an act by its position: the frame's path and the
act's number in it (`3`, `qa#0/1`); a call in a batch has one more number (`3.0`). So the same
program with the same journal uses the same slots, in any driver, in any process, at any time.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING

from ferrule.encoding.pattern import pattern
from ferrule.errors import ReplayMismatchError, RunError, shown
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.matching import answers_act, names_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ferrule.runs.journal.entry import EntryKind, Sink
    from ferrule.values.conversation.exchange import Request

_ACT = pattern(r"([0-9]+)[^/0-9]?[^/]*")
_PAUSED = pattern(r"(.*)\?[it][0-9]+", re.DOTALL)


class Journal:
    """Entries in the order they were written; `take` returns recorded answers during a replay."""

    __slots__ = (
        "_begun", "_by_frame", "_dispatched", "_known", "_looking", "_paused", "_seen", "_unread", "drift", "dropped", "entries",
        "is_first", "kept", "mismatch", "on_note", "recorded", "restarts", "sink",
    )  # fmt: skip

    def __init__(self, entries: Iterable[Entry] = (), sink: Sink | None = None) -> None:
        self.entries: list[Entry] = list(entries)
        self.sink = sink
        """Makes each entry durable; None keeps entries in memory only."""
        self._unread: dict[str, Entry] = {}
        self._begun: dict[str, list[Entry]] = {}
        self._paused: set[str] = set()
        self._dispatched: dict[str, object] = {}
        self._by_frame: dict[str, list[tuple[int, str]]] | None = None
        """The acts that were unread at the first look ahead: number and slot, in order, by the path of their frame."""
        self._looking = threading.Lock()
        self.recorded = 0
        """How many entries earlier executions wrote."""
        self.is_first = not self.entries
        """Whether this is the first execution: there is nothing to replay."""
        self.restarts = False
        """Whether a program that differs drops the remaining answers instead of raising (`migrate="restart_turn"`)."""
        self.mismatch: ReplayMismatchError | None = (
            None  # of this execution; kept, because its code may have caught it
        )
        self.drift: dict[str, tuple[str, str]] = {}
        """Differences from the journal that no note has yet: the value recorded, and now."""
        self.dropped: list[str] = []
        self.kept: dict[str, list[Entry]] = {}
        """Entries that a restart dropped: results and starts of calls, by digest, so that no call is repeated; and void decisions, by the
        id of their question, so that the id is not used again."""
        self._known: dict[str, tuple[str, str]] = {}
        self._seen: set[str] = set()
        self.on_note: Callable[[dict[str, tuple[str, str]]], None] | None = None

    def add(self, entry: Entry) -> None:
        """Write one entry: durable when this returns. If that fails, raises `StoreError` and the entry is not in the journal."""
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
        later = getattr(self.sink, "later", None) if self.sink is not None else None
        if later is None:
            self.add(entry)
            return
        if self.drift and entry.kind != "migrated":
            await self.aadd(self._note())
        try:
            await later(entry)
        except BaseException as error:
            import asyncio  # late: a cancelled task has loaded it

            is_written = isinstance(error, asyncio.CancelledError) and error.__cause__ is None
            if is_written and entry.kind != "begun":  # a start may have been refused instead
                self.entries.append(entry)
            raise
        self.entries.append(entry)

    async def write(self, entry: Entry, *, blocks: bool) -> None:
        """`add`, or `aadd` if the caller must not block its thread."""
        self.add(entry) if blocks or self.sink is None else await self.aadd(entry)

    def rewind(self) -> bool:
        """Start a replay: every answer written so far can be taken once. Returns whether there are any."""
        if not self.entries and not self._dispatched:  # the first execution of most runs
            return False
        self.recorded, self.is_first, self.mismatch = len(self.entries), False, None
        self._dispatched, self._by_frame, self._begun, self._paused, self._unread = (
            {},
            None,
            {},
            set(),
            {},
        )
        self.kept, self._known, self._seen, self.drift, self.dropped = {}, {}, set(), {}, []
        for entry in self.entries:
            if entry.kind == "begun":
                self._begun.setdefault(entry.slot, []).append(entry)
                self._paused.discard(entry.slot)
            elif entry.kind == "migrated":
                self._known.update(
                    {what: (then, now) for what, (then, now) in entry.value["differs"].items()},
                )
                self._drop(entry.value["dropped"])
            else:
                self._leave(self._unread.get(entry.slot))
                self._unread[entry.slot] = entry
                if self.kept and entry.kind == "result":
                    self.take_kept(entry.digest)  # an earlier execution took it
                if entry.kind == "once" and (paused := _PAUSED.fullmatch(entry.slot)) is not None:
                    self._paused.add(paused[1])
        done = {entry.slot for entry in self._unread.values() if entry.kind in {"result", "once"}}
        # A program called as a tool, or in a function of `once`, is not replayed if its result is
        # recorded.
        self._unread = {
            slot: entry for slot, entry in self._unread.items() if not _below_any(slot, done)
        }
        return self.replaying

    def has_begun(self, slot: str) -> bool:
        """Whether an earlier execution began the call at a slot."""
        return slot in self._begun

    def has_begun_from(self, path: str, act: int) -> bool:
        """Whether an earlier execution began a call of this act of a frame, or of a later one."""
        return any(
            _act_of(slot, path) >= act for slot in list(self._begun) if slot not in self._dispatched
        )  # a copy, as in `_acts_left`

    def is_paused(self, slot: str) -> bool:
        """Whether the call at a slot can continue: it stopped to ask a person, or is a task of a server (`elicitation.py`)."""
        return slot in self._paused

    def take_begun(self, slot: str, name: str) -> tuple[Entry, ...]:
        """Take the entries of earlier executions that began the call of this tool at a slot, oldest first. They can be taken once."""
        if (starts := self._begun.get(slot)) is not None and not names_call(
            starts[-1].digest,
            name,
        ):
            self.differs(slot, f"begun {starts[-1].digest}", f"a call of {name}")
        return tuple(self._begun.pop(slot, ()))

    def dispatch(self, slot: str) -> None:
        """Claim the call at a slot for this execution, before it begins; raises `RunError` if it is already claimed."""
        claim = object()
        if self._dispatched.setdefault(slot, claim) is not claim:
            raise RunError(
                f"The call at {slot} was begun in this execution already; it does not run a second time.",
            )

    def close_frame(self, path: str, *, unfinished: bool = False) -> None:
        """Called when a frame inside the run ends: `check_finished` for the slots below it. If `unfinished`, answers may be unread."""
        for slot, entry in [
            each for each in list(self._unread.items()) if each[0].startswith(path)
        ]:
            if not unfinished:
                self.differs(
                    slot,
                    f"{entry.kind} {entry.digest}",
                    "the program ended without this act",
                )
            self._unread.pop(slot, None)
        for slot in [each for each in list(self._begun) if unfinished and each.startswith(path)]:
            del self._begun[slot]

    @property
    def replaying(self) -> bool:
        """Whether there are recorded answers that the program has not taken yet."""
        return bool(self._unread)

    def take(
        self,
        slot: str,
        kind: EntryKind,
        question: str | Request,
        call_id: str | None = None,
    ) -> Entry | None:
        """The answer recorded at a slot, or None; raises `ReplayMismatchError` if it answers another act.

        A model's answer fits any request. A result fits if it belongs to the same call: one with
        equal arguments, or the model's call with the id `call_id`. Remaining differences are noted.
        """
        if not self._unread:
            return None
        digest = question if isinstance(question, str) else question.digest
        entry = self._unread.pop(slot, None)
        if entry is None:
            self._refuse_gap(slot, f"{kind} {digest}")
            return None
        if entry.kind == kind and entry.digest == digest:
            return entry
        result_id = entry.value.call_id if entry.kind == "result" else None
        if not answers_act(
            entry.kind,
            entry.digest,
            kind,
            digest,
            is_same_call=call_id is not None and result_id == call_id,
        ):
            self._unread[slot] = entry
            self.differs(slot, f"{entry.kind} {entry.digest}", f"{kind} {digest}")
            return None
        if entry.digest != digest:
            # Only the first request that differs: all later ones contain it.
            self.note_drift(
                "model request" if kind == "model" else f"{kind} at {slot}",
                entry.digest,
                digest,
            )
        return entry

    def take_decision(self, slot: str) -> Entry | None:
        """Take the decision recorded at a slot, even if its question has changed; None if there is none."""
        entry = self._unread.get(slot)
        return self._unread.pop(slot) if entry is not None and entry.kind == "decision" else None

    def note_drift(self, what: str, then: str, now: str) -> None:
        """Note a difference from the journal once, unless the journal already has it in a note."""
        if what not in self._seen and self._known.get(what) != (then, now):
            self.drift[what] = (then, now)
        self._seen.add(what)

    def differs(self, slot: str, recorded: str, found: str) -> None:
        """Raise `ReplayMismatchError`, or (`restarts`) drop the rest of the journal, except calls that had begun."""
        if not self.restarts:
            self.mismatch = ReplayMismatchError(slot, recorded, found)
            raise self.mismatch
        self.drift[f"act {slot}"] = (recorded, found)
        left = [*self._unread, *(slot for slot, _ in self._unsettled())]
        self.dropped += left
        self._drop(left)

    def drop_from(self, path: str, act: int, *, because: str) -> None:
        """Drop what a frame recorded from this act on: it followed from a decision that is void now."""
        left = [slot for slot in list(self._unread) if _act_of(slot, path) >= act]
        if left:
            self.drift[because] = (", ".join(left), "asked again")
            self.dropped += left
            self._drop(left)

    def _drop(self, slots: list[str]) -> None:
        gone, self._by_frame = set(slots), None
        for slot in [
            each
            for each in {**self._unread, **self._begun}
            if each in gone or _below_any(each, gone)
        ]:
            entry, starts = self._unread.pop(slot, None), self._begun.pop(slot, [])
            self._leave(entry)
            if slot in gone and entry is not None and entry.kind == "result":
                self.kept.setdefault(entry.digest, []).append(entry)
            elif slot in gone and starts:
                self.kept.setdefault(starts[-1].digest, []).append(starts[-1])

    def _leave(self, entry: Entry | None) -> None:
        """Keep a decision that was dropped, or replaced by a later entry: its question may be asked again, under another id."""
        if entry is not None and entry.kind == "decision":
            self.kept[entry.value.question_id] = [entry]

    def take_kept(self, digest: str) -> Entry | None:
        """The result, or the start, of an equal call that a restart dropped. Each can be taken once."""
        found = self.kept.get(digest)
        return found.pop(0) if found else None

    async def note_migration(self, *, blocks: bool) -> None:
        """Write the noted differences. `add` does so before a live answer, so that the journal shows where another version took over."""
        await self.write(self._note(), blocks=blocks)

    def _note(self) -> Entry:
        number = sum(entry.kind == "migrated" for entry in self.entries)
        value = {
            "differs": {what: [*each] for what, each in self.drift.items()},
            "dropped": self.dropped,
        }
        note = Entry(f"migrated#{number}", "migrated", "", value)
        if self.on_note is not None:
            self.on_note(self.drift)
        self._known.update(self.drift)
        self.drift, self.dropped = {}, []
        return note

    def turn(self, path: str, act: int) -> tuple[list[tuple[str, Entry]], bool]:
        """The entries of calls, by slot, from this act of a frame up to its next model answer; and whether there is such an answer."""
        found = [
            (at, starts[-1])
            for at, starts in list(self._begun.items())
            if _act_of(at, path) >= act and at not in self._dispatched
        ]
        acts = self._left_in(path)
        for _, slot in acts[bisect_left(acts, (act, "")) :]:
            entry = self._unread.get(slot)
            if entry is not None and entry.kind in {"model", "failure", "limit"}:
                last = _act_of(slot, path)
                return [each for each in found if _act_of(each[0], path) < last], True
            if entry is not None and entry.kind in {"result", "decision"}:
                found.append((slot, entry))
        return found, False

    def has(self, slot: str) -> bool:
        """Whether there is an untaken answer at a slot."""
        return slot in self._unread

    def ahead(self, path: str, act: int) -> Entry | None:
        """An untaken answer to this act of a frame or a later one: while there is one, the frame is replaying."""
        acts = self._left_in(path)
        with self._looking:
            while (
                acts and acts[-1][1] not in self._unread
            ):  # drop each once: a replay of n steps then takes n looks, not n * n
                acts.pop()
            last, slot = acts[-1] if acts else (-1, "")
            return self._unread.get(slot) if last >= act else None

    def _left_in(self, path: str) -> list[tuple[int, str]]:
        with self._looking:
            if self._by_frame is None:
                self._by_frame = self._acts_left()
            return self._by_frame.get(path, [])

    def _acts_left(self) -> dict[str, list[tuple[int, str]]]:
        found: dict[str, list[tuple[int, str]]] = {}
        for slot, entry in list(
            self._unread.items(),
        ):  # a copy: other branches take answers meanwhile, from other threads
            path = slot[: slot.rfind("/") + 1]
            act = _act_of(slot, path)
            if act >= 0 and (
                entry.kind != "once" or not slot.endswith("?")
            ):  # a record of a question (`3.0?`) is not an answer
                found.setdefault(path, []).append((act, slot))
        for acts in found.values():
            acts.sort()
        return found

    def _refuse_gap(self, slot: str, found: str) -> None:
        # Acts of a frame come in order: an unanswered act before an answered one means that the
        # program has changed.
        act = _act_of(slot, path := slot[: slot.rfind("/") + 1])
        later = self.ahead(path, act + 1)
        if later is not None:  # show the next one, not the last
            left = [each for number, each in self._acts_left().get(path, ()) if number > act]
            later = self._unread.get(left[0], later) if left else later
        if (
            later is None
            and "." in slot[len(path) :]
            and (alone := self._unread.get(f"{path}{act}")) is not None
        ):
            later = alone
        if later is not None:
            self.differs(slot, f"{later.kind} {later.digest} at {later.slot}", found)

    def check_finished(self) -> None:
        """Called when the program has returned: answers not taken, or begun calls not settled, mean that the program has changed."""
        if left := [*self._unread.items(), *self._unsettled()]:
            slot, entry = left[0]
            self.differs(slot, f"{entry.kind} {entry.digest}", "the program ended without this act")

    def _unsettled(self) -> list[tuple[str, Entry]]:
        """The calls that an earlier execution began, that have no result, and that this one has not begun again."""
        done = (
            {entry.slot for entry in self.entries if entry.kind in {"result", "once"}}
            if self._begun
            else set[str]()
        )
        begun = [
            (slot, starts[-1])
            for slot, starts in list(self._begun.items())
            if slot not in done and slot not in self._dispatched
        ]
        return [each for each in begun if not _below_any(each[0], done)]

    def __eq__(self, other: object) -> bool:
        """Compare by slot: calls of one turn may end, and be written, in any order."""
        return isinstance(other, Journal) and _by_slot(self) == _by_slot(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  mutable and compared by content

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"Journal({shown(self.entries)})"


def _below_any(slot: str, done: set[str]) -> bool:
    if (
        "?" in slot and slot.partition("?")[0] in done
    ):  # a person's decision about a call that a crash interrupted
        return True
    at = slot.find("/")
    while at >= 0:
        if slot[:at] in done:
            return True
        at = slot.find("/", at + 1)
    return False


def _act_of(slot: str, path: str) -> int:
    """The act's number if the slot belongs to this frame; -1 otherwise."""
    found = _ACT.fullmatch(slot, len(path)) if slot.startswith(path) else None
    return int(found[1]) if found is not None else -1


def _by_slot(journal: Journal) -> dict[tuple[str, bool], Entry]:
    return {(entry.slot, entry.kind == "begun"): entry for entry in journal.entries}
