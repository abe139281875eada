"""The journal of a run: every answer its driver got, by position.  (Floor 4.)

Invariant: an act is answered either from the journal or live, and every live answer is in the journal before the program sees it.
A slot names an act by position: the frame's path and the act's number in it (`3`, `qa#0/1`), a call in a batch by one more number
(`3.0`). So the same program over the same journal asks at the same slots, whatever the driver, the process or the day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ferrule.errors import ReplayMismatch, shown
from ferrule.values.record import Changing

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["model", "failure", "begun", "result", "decision", "once"]


class Entry(Changing):
    """One line of a journal."""

    slot: str
    kind: Kind
    digest: str
    """What was asked, in a form that is equal when the question is equal."""
    value: Any = None
    """The answer: `Response`, the error's facts, `ToolResult`, `Decision`, or any JSON value. None for `begun`."""


class Journal:
    """Entries in the order they were written; `take` hands recorded answers back during a replay."""

    __slots__ = ("_unread", "entries")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = list(entries)
        self._unread: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Write one entry."""
        self.entries.append(entry)

    def rewind(self) -> None:
        """Start a replay: every answer written so far is there to be taken, once."""
        self._unread = {entry.slot: entry for entry in self.entries if entry.kind != "begun"}

    @property
    def replaying(self) -> bool:
        """Whether recorded answers are left that the program has not asked for again."""
        return bool(self._unread)

    def take(self, slot: str, kind: Kind, digest: str) -> Entry | None:
        """The answer recorded at a slot, or None where there is none yet; raises `ReplayMismatch` if it answers another question."""
        if not self._unread:
            return None
        entry = self._unread.pop(slot, None)
        if entry is None:
            return None
        fits = entry.kind == kind or (kind == "model" and entry.kind == "failure")
        if not fits or entry.digest != digest:
            raise ReplayMismatch(slot, f"{entry.kind} {entry.digest}", f"{kind} {digest}")
        return entry

    def finished(self) -> None:
        """Called when the program returned: recorded answers that it did not ask for again mean that it changed."""
        if self._unread:
            slot, entry = next(iter(self._unread.items()))
            raise ReplayMismatch(slot, f"{entry.kind} {entry.digest}", "the program ended without this act")

    def __eq__(self, other: object) -> bool:
        """By slot: calls of one turn may end, and so be written, in any order."""
        return isinstance(other, Journal) and _by_slot(self) == _by_slot(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  compared by content, and grows

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"Journal({shown(self.entries)})"


def _by_slot(journal: Journal) -> dict[tuple[str, bool], Entry]:
    return {(entry.slot, entry.kind == "begun"): entry for entry in journal.entries}
