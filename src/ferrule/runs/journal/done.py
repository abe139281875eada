"""The journal of a run that was done when it was loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from ferrule.errors import ReplayMismatchError
from ferrule.runs.journal.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.runs.journal.entry import Entry, EntryKind
    from ferrule.values.conversation.exchange import Request


class DoneJournal(Journal):
    """Replays a run to its end and performs no new act: any step that is not recorded raises `ReplayMismatchError`."""

    __slots__ = ()

    def __init__(self, entries: Iterable[Entry]) -> None:
        super().__init__(entries, lambda entry: _refuse(entry.slot, f"{entry.kind} {entry.digest}"))

    def take(
        self,
        slot: str,
        kind: EntryKind,
        question: str | Request,
        call_id: str | None = None,
    ) -> Entry | None:
        """As in any journal; but refuses here to ask a model or a person, which otherwise happens before the answer is written."""
        found = super().take(slot, kind, question, call_id)
        if found is None and kind in {"model", "decision"}:
            _refuse(slot, f"{kind} {question if isinstance(question, str) else question.digest}")
        return found

    def differs(self, slot: str, recorded: str, found: str) -> Never:
        """Raise `ReplayMismatchError`."""
        raise ReplayMismatchError(slot, recorded, found, is_done=True)


def _refuse(slot: str, found: str) -> Never:
    raise ReplayMismatchError(slot, "the end of a run that is done", found, is_done=True)
