"""Begin a run as a fork of another one: `Run.fork`. `journal/cut.py` says what it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.runs.journal.cut import (
    ForkedFrom,
    begun_calls,
    first_entries,
    messages_in,
    with_own_ids,
)
from ferrule.runs.store.fingerprint import differences, program_fingerprint

if TYPE_CHECKING:
    from ferrule.runs.state import RunState


def begin_fork(fork: RunState, original: RunState, end: int) -> None:
    """Give a new run the first entries of another one, and what governs it."""
    entries = original.journal.entries
    at = ""
    if end < len(entries):
        at = entries[end].slot
    own = with_own_ids(first_entries(entries, end), fork.question_id)
    fork.journal.entries.extend(own)
    began = {slot: original.starter_of(slot) for slot in begun_calls(own)}
    fork.forked_from = ForkedFrom(original.id, at, len(own), began)
    if original.governing is not None:
        fork.governing = original.governing.copied()
    fork.extra_tools = original.extra_tools
    fork.changed = original.changed
    if fork.program is not original.program:
        changes = differences(program_fingerprint(original.program), fork.program)
        fork.changed = {**original.changed, **changes}
    fork.decisions = [entry.value for entry in own if entry.kind == "decision"]
    fork.said = fork.heard = messages_in(own)
