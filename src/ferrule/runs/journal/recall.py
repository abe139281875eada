"""Rebuilds events from a journal.

For readers of a run that another process executes, or that is not executing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule import events
from ferrule.encoding.stored import parse_json
from ferrule.values.calls.call import ToolCall
from ferrule.values.slot import Slot, programs_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.runs.journal.entry import Entry


def recalled_events(entries: list[Entry]) -> Iterator[events.Event]:
    """The events whose content is in the journal, each with its path and depth.

    They are about model calls, tool calls and changed programs.
    """
    ids: dict[str, str | None] = {
        entry.slot: entry.value.call_id for entry in entries if entry.kind == "result"
    }
    for entry in entries:
        event = _event(entry, ids.get(entry.slot))
        if event is not None:
            event.path = entry.slot
            event.depth = len(programs_in(Slot(entry.slot).path))
            yield event


def named_call(digest: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments in the digest of a call: `pay {"to": "ada"}`.

    Raises `ValueError` for a damaged one.
    """
    name, mark, rest = digest.partition(" {")
    if not mark:
        return name, {}
    return name, parse_json(f"{{{rest}")


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
        case _:
            return None


def _call(entry: Entry, call_id: str | None) -> ToolCall:
    return ToolCall.unchecked(*named_call(entry.digest), call_id)
