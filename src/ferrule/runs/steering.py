"""Messages to a run, while it executes or waits: `Run.say`.

`approval/message.py` makes and checks a message. The program takes it between its steps, with the
act `Listen` (`driver/drive.py`).

A message may come while the run ends. Then the run does not end: `RunState.done`, and the `release`
of a store, compare how many messages came with how many the run has looked at.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any

from ferrule.approval.message import (
    is_for_after,
    is_message,
    key_of_message,
    number_of,
    refuse_message,
    said_before,
    unsent_message,
    with_number,
)
from ferrule.runs.state import saying

if TYPE_CHECKING:
    from ferrule.approval.message import When
    from ferrule.approval.question import Decision
    from ferrule.runs.protocols import Store
    from ferrule.runs.state import RunState


def say_to(
    run: RunState, text: str, *, when: When = "next", by: str = "", via: str = "api", key: str = ""
) -> None:
    """Give a run a message; see `Run.say`."""
    message = unsent_message(text, when=when, by=by, via=via)
    persistence = run.persistence
    if persistence is not None and not persistence.is_new:
        sent = persistence.store.say(run.id, text, when=when, by=by, via=via, key=key)
        persistence.note_message(number_of(sent))
        return
    with saying.lock:
        if said_before(run.decisions, key, message) is None:
            refuse_message(run.id, run.status, takes_messages=can_take_messages(run.program))
            run.said += 1
            run.hear([with_number(message, run.said, key, at=time())])


def send_again(store: Store, run_id: str, message: Decision) -> None:
    """Give a message to a run in a store that its `Run` got before it was there."""
    when: When = "next"
    if is_for_after(message):
        when = "after"
    key = key_of_message(message)
    store.say(run_id, message.text, when=when, by=message.by, via=message.via, key=key)


def can_take_messages(program: Any) -> bool:
    """Whether a run of this program takes messages: a loop in it makes several requests."""
    return getattr(program, "takes_messages", False)


def untaken_messages(run: RunState, *, ends: bool) -> list[Decision]:
    """The messages that the run has not used, in order.

    Those for after the answer only if the program `ends`.
    """
    messages = [decision for decision in list(run.answers.values()) if is_message(decision)]
    if not ends:
        messages = [message for message in messages if not is_for_after(message)]
    return sorted(messages, key=number_of)
