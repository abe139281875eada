"""Rebuilds events from a journal.

For readers of a run that another process executes, or that is not executing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule import events
from ferrule.approval.message import is_message
from ferrule.encoding.stored import parse_json
from ferrule.values.calls.call import ToolCall, failure
from ferrule.values.slot import Slot, programs_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ferrule.approval.question import Decision
    from ferrule.runs.journal.entry import Entry
    from ferrule.values.calls.call import ToolResult


_OF_CALLS = frozenset({"begun", "result", "decision"})
"""The kinds of entries that say what became of a call."""


def recalled_events(
    entries: list[Entry], ended: BaseException | None = None
) -> Iterator[events.Event]:
    """The events whose content is in the journal, each with its path and depth.

    They are about model calls, tool calls and changed programs. A call that began more than once
    starts once; with `ended`, the error of a run that is over, calls without a result end with it.
    """
    open_calls: dict[str, events.CallStarted] = {}
    ids: dict[str, str | None] = {
        entry.slot: entry.value.call_id for entry in entries if entry.kind == "result"
    }
    for entry in entries:
        event = _event(entry, ids.get(entry.slot))
        if isinstance(event, events.CallStarted):
            if entry.slot in open_calls:
                continue
            open_calls[entry.slot] = event
        if isinstance(event, events.CallFinished):
            open_calls.pop(entry.slot, None)
        if event is not None:
            yield _at(entry.slot, event)
    if ended is not None:
        for slot, started in reversed(open_calls.items()):
            yield _at(slot, events.CallFinished(started.call, failure(started.call, ended)))


def _at(slot: str, event: events.Event) -> events.Event:
    event.path = slot
    event.depth = len(programs_in(Slot(slot).path))
    return event


def named_call(digest: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments in the digest of a call: `pay {"to": "ada"}`.

    Raises `ValueError` for a damaged one.
    """
    name, mark, rest = digest.partition(" {")
    if not mark:
        return name, {}
    return name, parse_json(f"{{{rest}")


def ended_calls(entries: Iterable[Entry]) -> list[tuple[ToolCall, ToolResult]]:
    """The calls that have a result, each with it, in the order of their ends."""
    return [
        (_call(entry, entry.value.call_id), entry.value)
        for entry in entries
        if entry.kind == "result"
    ]


def entries_with_calls(entries: Sequence[Entry], below: str = "") -> tuple[Entry, ...]:
    """The entries whose slots begin with `below`; none if no call is among them.

    Most programs without tools have predictions by the thousand, which need not keep any.
    """
    inside = tuple([entry for entry in entries if entry.slot.startswith(below)])
    if any(entry.kind in _OF_CALLS for entry in inside):
        return inside
    return ()


def reads_untrusted(entries: Iterable[Entry], below: str = "") -> bool:
    """Whether a call has an untrusted result, among those whose slots begin with `below`."""
    return any(
        entry.kind == "result" and entry.value.untrusted and entry.slot.startswith(below)
        for entry in entries
    )


def _event(entry: Entry, call_id: str | None) -> events.Event | None:
    match entry.kind:
        case "model":
            return events.ModelAnswered(entry.slot, entry.shown().value)
        case "failure":
            return events.ModelAnswered(entry.slot, error=entry.value)
        case "begun":
            return events.CallStarted(_call(entry, call_id))
        case "result":
            return events.CallFinished(_call(entry, call_id), entry.value)
        case "migrated":
            return events.Migrated(entry.value["differs"])
        case "decision" if is_message(entry.value):
            return said_event(entry.value)
        case _:
            return None


def said_event(message: Decision) -> events.Said:
    """The event that tells of a message to the run, which its program reads."""
    return events.Said(message.text, by=message.by, via=message.via)


def _call(entry: Entry, call_id: str | None) -> ToolCall:
    return ToolCall.unchecked(*named_call(entry.digest), call_id)
