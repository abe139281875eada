"""Programs inside a run: what they spend, and the model failures that they leave to others.

A program that is called as a tool, or by a function of `once`, gets a frame of the same run below
that place, so that it can wait, be resumed and be counted. When it ends, its spending is recorded
at the slot of the call: a replay uses only the result, and does not execute the program again. The
spending of a program that a tool's function calls, which is another run, is recorded there, too.

A failed model call is journalled only if the program handles it; otherwise a resumed run calls the
model again. So it is with an error of an output validator, or of a function that chooses tools. A
`forward` is plain Python, so the driver cannot see whether it caught the error. It has if it goes
on: `keep_caught` then journals the failure.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ferrule.encoding.stored import reading
from ferrule.forms import usage_form
from ferrule.runs.journal.entry import Entry
from ferrule.runs.limits import Budget
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from ferrule.runs.life import CallPlace
    from ferrule.runs.state import Frame
    from ferrule.values.slot import Slot


def close_frame(frame: Frame, slot: Slot, inside: Frame, *, failed: bool) -> Entry | None:
    """Close the frame of a program that returned.

    Returns its spending, to be journalled before the result; None if that is done already.
    """
    journal = frame.run.journal
    journal.close_frame(inside.path, unfinished=failed)
    if journal.spending.pop(slot, None):
        return None
    spending: dict[str, Any] = {}
    if inside.budget is not None:
        spending = inside.budget.spent()
    return Entry(slot, "spent", "", spending)


def spent_by_function(place: CallPlace) -> Entry:
    """What other runs have spent that a tool's function started."""
    total, usage = Budget(), Usage()
    for inner in place.inner_runs.values():
        total.spend(**inner.budget.spent())
        usage += inner.usage()
    value = {**total.spent(), "usage": usage_form(usage)}
    return Entry(place.slot, "spent", "", value)


def recount(frame: Frame, slot: Slot) -> None:
    """Count, in a replay, what earlier executions spent at a slot."""
    for entry in frame.run.journal.spending.pop(slot, ()):
        if frame.budget is None:
            continue
        counts = {name: value for name, value in entry.value.items() if name != "usage"}
        with reading(f"The spending at {slot} of the journal"):
            frame.budget.spend(**counts)


async def keep_caught(frame: Frame, *, blocks: bool, has_returned: bool = False) -> None:
    """Journal the failures that plain Python caught here, so that a replay fails there, too.

    The code has caught a failure when it goes on in the task or thread that saw it. Code in another
    one may not know of it yet.
    """
    if not frame.failures:
        return
    here, failures = _task_or_thread(), frame.failures
    caught: list[Entry] = []
    frame.failures = []
    for task_or_thread, entry in failures:
        if has_returned or task_or_thread is here:
            caught.append(entry)
        else:
            frame.failures.append((task_or_thread, entry))
    for entry in caught:
        frame.check_alive()
        await frame.run.journal.write(entry, blocks=blocks)


def hand_up(frame: Frame) -> None:
    """Pass the failures that a frame did not catch to the frame around it."""
    failures, frame.failures, outer = frame.failures, None, frame.outer
    if failures and outer is not None and outer.failures is not None:
        here = _task_or_thread()
        outer.failures += [(here, entry) for _, entry in failures]


def _task_or_thread() -> Any:
    import threading

    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return threading.current_thread()
