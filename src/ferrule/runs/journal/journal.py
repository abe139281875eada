"""The journal of a run: every answer to its driver, by position.

Invariant: an act is answered either from the journal or live, and every live answer is in the journal before the program sees it.
A slot names an act by position: the frame's path and the act's number in it (`3`, `qa#0/1`), a call in a batch by one more number
(`3.0`). So the same program with the same journal uses the same slots, in any driver, in any process, at any time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from ferrule.errors import ReplayMismatchError, RunError, shown
from ferrule.values.record import Changing

if TYPE_CHECKING:
    from collections.abc import Iterable

_ACT = re.compile(r"([0-9]+)[^/0-9]?[^/]*")
_ASKED = re.compile(r"(.*)\?i[0-9]+", re.DOTALL)
EntryKind = Literal["model", "failure", "limit", "begun", "result", "decision", "once"]


class Entry(Changing):
    """One line of a journal."""

    slot: str
    kind: EntryKind
    digest: str
    """A digest of the question: equal questions have equal digests."""
    value: Any = None
    """The answer: `Response`, the error itself, `ToolResult`, `Decision`, or any JSON value."""


Sink = Callable[[Entry], None]
"""Makes one entry durable before it returns. An optional `async def later(entry)` does the same without blocking the loop."""


class Journal:
    """Entries in the order they were written; `take` returns recorded answers during a replay."""

    __slots__ = ("_begun", "_by_frame", "_dispatched", "_looking", "_paused", "_unread", "entries", "sink")

    def __init__(self, entries: Iterable[Entry] = (), sink: Sink | None = None) -> None:
        self.entries: list[Entry] = list(entries)
        self.sink = sink
        """Makes each entry durable; None keeps entries in memory only."""
        self._unread: dict[str, Entry] = {}
        self._begun: dict[str, list[Entry]] = {}
        self._paused: set[str] = set()
        self._dispatched: dict[str, object] = {}
        self._by_frame: dict[str, list[tuple[int, str]]] | None = None
        """The unread acts at the first look ahead, by the path of their frame: number and slot, in order."""
        self._looking = threading.Lock()

    def add(self, entry: Entry) -> None:
        """Write one entry: durable when this returns. If that fails, raises `StoreError` and the entry is not in the journal."""
        if self.sink is not None:
            self.sink(entry)
        self.entries.append(entry)

    async def aadd(self, entry: Entry) -> None:
        """`add` without blocking the event loop. If cancelled, it waits for the current write, so that journal and store agree."""
        later = getattr(self.sink, "later", None) if self.sink is not None else None
        if later is None:
            self.add(entry)
            return
        import asyncio  # imported late: a run without a store does not need it

        writing = asyncio.ensure_future(later(entry))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            if not writing.cancelled() and writing.exception() is None:
                self.entries.append(entry)
            raise
        self.entries.append(entry)

    async def write(self, entry: Entry, *, blocks: bool) -> None:
        """`add`, or `aadd` if the caller must not block its thread."""
        if blocks or self.sink is None:
            self.add(entry)
        else:
            await self.aadd(entry)

    def rewind(self) -> None:
        """Start a replay: every answer written so far can be taken once."""
        if not self.entries and not self._dispatched:  # the first execution of most runs
            return
        done = {entry.slot for entry in self.entries if entry.kind == "result"}
        self._dispatched = {}
        self._by_frame = None
        self._begun = {}
        self._paused = set()
        for entry in self.entries:
            if entry.kind == "begun":
                self._begun.setdefault(entry.slot, []).append(entry)
                self._paused.discard(entry.slot)
            elif entry.kind == "once" and (asked := _ASKED.fullmatch(entry.slot)) is not None:
                self._paused.add(asked[1])
        # A program called as a tool is not replayed once its call has a result.
        self._unread = {entry.slot: entry for entry in self.entries if entry.kind != "begun" and not _below_any(entry.slot, done)}

    def has_begun(self, slot: str) -> bool:
        """Whether an earlier execution began the call at a slot."""
        return slot in self._begun

    def is_paused(self, slot: str) -> bool:
        """Whether the call at a slot stopped with a question to a person (`elicitation.py`), not in a crash."""
        return slot in self._paused

    def take_begun(self, slot: str) -> tuple[Entry, ...]:
        """Take the entries of earlier executions that began the call at a slot, oldest first. They can be taken once."""
        return tuple(self._begun.pop(slot, ()))

    def dispatch(self, slot: str) -> None:
        """Claim the call at a slot for this execution, before it begins; raises `RunError` if it is already claimed."""
        claim = object()
        if self._dispatched.setdefault(slot, claim) is not claim:
            raise RunError(f"The call at {slot} was begun in this execution already; it does not run a second time.")

    def close_frame(self, path: str, *, unfinished: bool = False) -> None:
        """Called when a frame inside the run ends: `check_finished` for the slots below it. A failed frame may leave answers unread."""
        for slot, entry in [each for each in list(self._unread.items()) if each[0].startswith(path)]:
            if not unfinished:
                raise ReplayMismatchError(slot, f"{entry.kind} {entry.digest}", "the program ended without this act")
            del self._unread[slot]

    @property
    def replaying(self) -> bool:
        """Whether there are recorded answers that the program has not taken yet."""
        return bool(self._unread)

    def take(self, slot: str, kind: EntryKind, digest: str) -> Entry | None:
        """The answer recorded at a slot, or None; raises `ReplayMismatchError` if it answers another question."""
        if not self._unread:
            return None
        entry = self._unread.pop(slot, None)
        if entry is None:
            self._refuse_gap(slot, f"{kind} {digest}")
            return None
        fits = entry.kind == kind or (kind == "model" and entry.kind in {"failure", "limit"})
        if not fits or entry.digest != digest:
            raise ReplayMismatchError(slot, f"{entry.kind} {entry.digest}", f"{kind} {digest}")
        return entry

    def has(self, slot: str) -> bool:
        """Whether there is an untaken answer at a slot."""
        return slot in self._unread

    def ahead(self, path: str, act: int) -> Entry | None:
        """An untaken answer to this act of a frame or a later one: while there is one, the frame is replaying."""
        with self._looking:
            if self._by_frame is None:
                self._by_frame = self._acts_left()
            acts = self._by_frame.get(path, [])
            while acts and acts[-1][1] not in self._unread:  # each is dropped once: a replay of n steps takes n looks, not n * n
                acts.pop()
            last, slot = acts[-1] if acts else (-1, "")
            return self._unread.get(slot) if last >= act else None

    def _acts_left(self) -> dict[str, list[tuple[int, str]]]:
        found: dict[str, list[tuple[int, str]]] = {}
        for slot, entry in list(self._unread.items()):  # a copy: other branches take answers meanwhile, from other threads
            path = _path_of(slot)
            act = _act_of(slot, path)
            if act >= 0 and (entry.kind != "once" or not slot.endswith("?")):  # a record of a question (`3.0?`) is not an answer
                found.setdefault(path, []).append((act, slot))
        for acts in found.values():
            acts.sort()
        return found

    def _refuse_gap(self, slot: str, found: str) -> None:
        # Acts of a frame come in order: an unanswered act before an answered one means that the program has changed.
        path = _path_of(slot)
        act = _act_of(slot, path)
        later = self.ahead(path, act + 1)
        if later is not None:  # of several, show the next one
            left = [each for number, each in self._acts_left().get(path, ()) if number > act]
            later = self._unread.get(left[0], later) if left else later
        if later is None and "." in slot[len(path) :] and (alone := self._unread.get(f"{path}{act}")) is not None:
            later = alone
        if later is not None:
            raise ReplayMismatchError(slot, f"{later.kind} {later.digest} at {later.slot}", found)

    def check_finished(self) -> None:
        """Called when the program returned: untaken answers mean that the program has changed."""
        if self._unread:
            slot, entry = next(iter(self._unread.items()))
            raise ReplayMismatchError(slot, f"{entry.kind} {entry.digest}", "the program ended without this act")

    def __eq__(self, other: object) -> bool:
        """Compare by slot: calls of one turn may end, and be written, in any order."""
        return isinstance(other, Journal) and _by_slot(self) == _by_slot(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  mutable and compared by content

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"Journal({shown(self.entries)})"


def replayed_only(entry: Entry) -> None:
    """The sink of a run that was done when loaded: it is replayed to its end and must not perform new acts."""
    raise ReplayMismatchError(entry.slot, "the end of a run that is done", f"{entry.kind} {entry.digest}")


def _below_any(slot: str, done: set[str]) -> bool:
    if "?" in slot and slot.partition("?")[0] in done:  # a person's decision about a call that a crash interrupted
        return True
    at = slot.find("/")
    while at >= 0:
        if slot[:at] in done:
            return True
        at = slot.find("/", at + 1)
    return False


def _path_of(slot: str) -> str:
    """The path of the frame of an act or a call."""
    return slot[: slot.rfind("/") + 1]


def _act_of(slot: str, path: str) -> int:
    """The act's number if the slot belongs to this frame; -1 otherwise."""
    found = _ACT.fullmatch(slot, len(path)) if slot.startswith(path) else None
    return int(found[1]) if found is not None else -1


def _by_slot(journal: Journal) -> dict[tuple[str, bool], Entry]:
    return {(entry.slot, entry.kind == "begun"): entry for entry in journal.entries}
