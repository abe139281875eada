"""The beginning of a journal as that of another run: what a fork keeps (`Run.fork`).

A fork is a run of its own that starts with the first entries of another run's journal. Its first
execution replays them, as any resumed run does: nothing in them happens a second time.

Where the journal is cut, every branch of the run stops at one moment, as if the process had died
there; entries are in the order in which they were written. But the original went on, so some of
what a crash would leave open is known. Four rules follow:

- A call that had begun keeps what the original wrote down of it later: its result, its wait. It
  does not run again. If the cut is inside the call (in an agent that is a tool), the fork goes on
  there instead.
- A call that had begun and has no result in the original either is unknown, as after a crash. If it
  may be repeated, it has the key with which the original began it, so that a service knows it.
- Consent belongs to the run in which it was given. A call that was approved and had not begun is
  asked about again, and a grant does not hold in the fork: otherwise one approval would be two
  payments. What was denied stays denied.
- A question that was not decided is asked when the fork comes to it: its time begins then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from ferrule.approval.message import is_message, number_of
from ferrule.errors import InputError, shown
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ferrule.runs.journal.entry import Entry

_REFUSALS = frozenset({"deny", "reply"})
_MOST_PLACES = 20
"""Places that an error lists."""


class ForkedFrom(Struct, frozen=True):
    """What a run is a fork of."""

    run_id: str
    """The id of the original."""
    at: str = ""
    """The first place of the original that is not in the fork; empty if all of it is."""
    entries: int = 0
    """How many entries the fork began with."""
    began: dict[str, str] = field(default_factory=dict[str, str])
    """The calls without a result that another run began: by slot, the id of that run."""

    def starter(self, slot: str) -> str | None:
        """The id of the run that began the call at a slot; None for a call of the fork itself."""
        return self.began.get(slot.partition(">")[0])


def forked_from(head: Mapping[str, Any]) -> ForkedFrom | None:
    """What a stored run is a fork of, by its head; None if it is not one."""
    form = head.get("forked_from")
    if form is None:
        return None
    return ForkedFrom(**form)


def messages_in(entries: Iterable[Entry]) -> int:
    """The highest number of a message to the run that these entries have."""
    return max(
        (
            number_of(entry.value)
            for entry in entries
            if entry.kind == "decision" and is_message(entry.value)
        ),
        default=0,
    )


# -- the cut


def place_of_cut(entries: Sequence[Entry], at: str) -> int:
    """The number of the first entry at a place. Raises `InputError` if there is none."""
    for number, entry in enumerate(entries):
        if entry.slot == at:
            return number
    places = list(dict.fromkeys(entry.slot for entry in entries))
    listed = ", ".join(places[:_MOST_PLACES]) or "none"
    if len(places) > _MOST_PLACES:
        listed += f" and {len(places) - _MOST_PLACES} more"
    raise InputError(
        f"The journal of the run has no entry at {shown(at)}; its places are: {listed}. `ferrule "
        "show` lists them, and an event has its place as `path`. Leave `at` out to fork the run "
        "with all that it has."
    )


def first_entries(entries: Sequence[Entry], end: int) -> list[Entry]:
    """The entries with which a fork begins that is cut before the entry with this number."""
    kept = [*entries[:end], *_later_facts(entries, end)]
    return _without_unused_consent(kept)


def begun_calls(entries: Iterable[Entry]) -> set[str]:
    """The calls that have begun and have no result."""
    begun: set[str] = set()
    for entry in entries:
        if entry.kind == "begun":
            begun.add(entry.slot)
        elif entry.kind == "result":
            begun.discard(entry.slot)
    return begun


def _later_facts(entries: Sequence[Entry], end: int) -> list[Entry]:
    """What the original wrote down later of the calls that had begun by then."""
    if end == len(entries):
        return []
    begun = begun_calls(entries[:end])
    cut = Slot(entries[end].slot)
    begun = {slot for slot in begun if cut != slot and not cut.is_below({slot})}
    return [
        entry for entry in entries[end:] if entry.slot in begun or Slot(entry.slot).is_below(begun)
    ]


def _without_unused_consent(entries: list[Entry]) -> list[Entry]:
    """The entries without consent that no call has used, and without grants."""
    started = {entry.slot for entry in entries if entry.kind in {"begun", "result"}}
    started |= {Slot(entry.slot).call for entry in entries if Slot(entry.slot).is_later}
    decided = {entry.slot for entry in entries if entry.kind == "decision"}
    refused: set[str] = set()
    for entry in entries:
        slot = Slot(entry.slot)
        if entry.kind == "decision" and slot.is_of_consent:
            refused.discard(slot.call)  # the latest decision on a call counts
            if entry.value.kind in _REFUSALS:
                refused.add(slot.call)
    settled = started | refused
    kept: list[Entry] = []
    for entry in entries:
        slot = Slot(entry.slot)
        if (slot.is_of_consent or slot.is_below_consent) and slot.call not in settled:
            continue
        is_time_of_question = entry.kind == "once" and slot.endswith("?")
        if is_time_of_question and slot.rstrip("?") not in decided:
            continue
        kept.append(_without_grant(entry))
    return kept


def _without_grant(entry: Entry) -> Entry:
    if entry.kind != "decision" or entry.value.grant is None:
        return entry
    return replace(entry, value=replace(entry.value, grant=None))


# -- ids


def with_own_ids(entries: Iterable[Entry], question_id: Callable[[str], str]) -> list[Entry]:
    """The entries with the fork's ids of the questions of calls that wait for a result.

    A decision is recorded with the id of its question, and the run looks for it by that id.
    `question_id` makes the id of the fork for a slot.
    """
    renamed: dict[str, str] = {}
    copies: list[Entry] = []
    for entry in entries:
        value = entry.value
        if entry.kind == "once" and Slot(entry.slot).is_later:
            own_id = question_id(entry.slot)
            renamed[value["id"]] = own_id
            value = {**value, "id": own_id}
        elif entry.kind == "decision" and value.question_id in renamed:
            value = replace(value, question_id=renamed[value.question_id])
        copies.append(replace(entry, value=value))
    return copies
