"""Answer `Listen`: the messages that were said to the run since its last step.

Each message is journalled at the place of the next act: the first at `3~said.0`. So a replay gives
it to the program at the same place, and it is used once: the entry that records it takes it out of
the store. A replay takes no new message before its end, because what is recorded after it, in any
program of the run, does not follow from that message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.concurrency import offload
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.recall import said_event
from ferrule.runs.steering import untaken_messages
from ferrule.values.slot import Slot, is_own_program

if TYPE_CHECKING:
    from ferrule import events
    from ferrule.acts import Listen
    from ferrule.approval.question import Decision
    from ferrule.runs.state import Frame

_DIGEST = "said"


def listens(frame: Frame) -> bool:
    """Whether messages to the run are for this program: no other program with a loop is around it.

    A message is for the agent that a person talks to, not for one that it uses as a tool.
    """
    if not frame.path:
        return True
    if not is_own_program(frame.path):
        return False
    outer = frame.outer
    while outer is not None:
        if outer.is_flow:
            return False
        outer = outer.outer
    return True


async def listen(frame: Frame, act: Listen) -> tuple[events.Said, ...]:
    """The messages, in order: recorded ones, and those that have come since."""
    run, journal = frame.run, frame.run.journal
    if not listens(frame):
        return ()
    messages: list[Decision] = []
    if journal.unread:
        messages = _take_recorded(frame)
    if journal.is_past and not journal.is_closed:
        await _look_for_messages(frame)
        if run.answers:
            messages += await _take_new(frame, act)
    return tuple(map(said_event, messages))


def _place_of_messages(frame: Frame) -> Slot:
    """Where messages are recorded before the next act: from there, they are counted from 0."""
    place = Slot.of_value(frame.path, frame.acts, _DIGEST)
    if frame.messages_before != place:
        frame.messages_before, frame.messages = place, 0
    return place


def _take_recorded(frame: Frame) -> list[Decision]:
    run, place = frame.run, _place_of_messages(frame)
    taken: list[Decision] = []
    while True:
        recorded = run.journal.take_decision(place.item(frame.messages))
        if recorded is None:
            return taken
        frame.messages += 1
        taken.append(recorded.value)
        run.tally.note(run.decisions, recorded.value)


async def _take_new(frame: Frame, act: Listen) -> list[Decision]:
    run, place = frame.run, _place_of_messages(frame)
    taken: list[Decision] = []
    for message in untaken_messages(run, ends=act.ends):
        if not run.journal.claim(message.question_id):
            continue  # another branch has it
        slot = place.item(frame.messages)
        frame.messages += 1
        frame.live, run.goes_on_at_end = True, False
        await frame.write(Entry(slot, "decision", _DIGEST, message))
        run.decided(message)
        taken.append(message)
        tell = frame.tell_at(slot)
        if tell is not None:
            tell(said_event(message))
    return taken


async def _look_for_messages(frame: Frame) -> None:
    """Read the messages that came, if there are any: here, or in the store."""
    run = frame.run
    persistence = run.persistence
    if persistence is None:
        run.heard = run.said
    elif persistence.has_news:
        if frame.blocks:
            persistence.hear()
        else:
            await offload.run_or_cancel(persistence.hear)
