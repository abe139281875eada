"""Cancel one call of a run, while it executes or waits: `Run.cancel_call`.

`approval/cancellation.py` makes and checks the decision. A call at work is ended by its halt
(`driver/halts.py`), and the entry with its result is written only if nothing came to the run that
its execution has not looked at: so a cancellation that was accepted is what the model reads.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any

from ferrule.approval.cancellation import (
    CallAtWork,
    is_cancellation,
    named_call_at_work,
    on_call,
    on_question,
    slot_of,
    unsent_cancellation,
)
from ferrule.approval.decisions import check_second
from ferrule.encoding.stored import reading
from ferrule.errors import DecisionError
from ferrule.runs.decisions import put_checked, results_awaited
from ferrule.runs.journal.journal import Journal
from ferrule.runs.journal.recall import named_call
from ferrule.runs.state import saying
from ferrule.values.calls.call import ToolCall
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.approval.question import Question
    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.state import RunState


def cancel_call_of(
    run: RunState,
    call_id: str,
    *,
    result: Any = None,
    by: str = "",
    via: str = "api",
    grace_s: float | None = None,
) -> None:
    """Cancel one call of a run; see `Run.cancel_call`."""
    cancellation = unsent_cancellation(result, by=by, via=via)
    persistence = run.persistence
    if persistence is not None and not persistence.is_new:
        sent = persistence.store.cancel_call(run.id, call_id, result=result, by=by, via=via)
        if is_cancellation(sent):
            run.hear([sent])
            halt_calls(run, grace_s)
        elif run.status == "waiting":
            run.answers[sent.question_id] = sent
            run.decisions.append(sent)
        return
    with saying.lock:
        waiting = {question.id: question for question in run.pending}
        entries = list(run.journal.entries)
        named = call_to_cancel(run.id, call_id, run.status, entries, waiting)
        if isinstance(named, CallAtWork):
            sent = on_call(named, cancellation, at=time())
            first = run.tally.first(run.decisions, sent.question_id)
            if first is not None:
                check_second(first, sent)
            else:
                run.hear([sent])
    if isinstance(named, CallAtWork):
        halt_calls(run, grace_s)
    else:
        put_checked(run, on_question(named, cancellation))


def halt_calls(run: RunState, grace_s: float | None = None) -> None:
    """End the calls of a run at work that were cancelled, if it executes here."""
    execution = run.executing
    if execution is None:
        return
    if grace_s is None:
        grace_s = execution.grace_s
    if grace_s is None:  # without a bound: the call ends by itself, and is not left behind
        return
    for decision in list(run.answers.values()):
        if not is_cancellation(decision):
            continue
        place = run.calls_at_work.get(slot_of(decision))
        if place is not None and place.cancellation_id == decision.question_id:
            place.halt.set(grace_s)


def call_to_cancel(
    run_id: str,
    call_id: str,
    status: str,
    entries: Iterable[Entry],
    waiting: Mapping[str, Question],
) -> CallAtWork | Question:
    """The call at work, or the question with which a call waits, that an id names.

    Raises `DecisionError` if there is none, or more than one.
    """
    if status not in {"running", "waiting"}:
        raise DecisionError(f"The run {run_id!r} is {status}: no call of it is at work.")
    recorded = list(entries)
    decided = {entry.value.question_id for entry in recorded if entry.kind == "decision"}
    questions = {question.id: question for question in results_awaited(recorded)}
    questions.update(waiting)
    open_questions = [question for question in questions.values() if question.id not in decided]
    at_work = calls_at_work(recorded)
    # A call that a crash interrupted is both: the question about it comes first.
    asked = {question.call.id for question in open_questions} - {None}
    at_work = [work for work in at_work if work.call.id not in asked]
    return named_call_at_work(call_id, run_id, at_work, open_questions)


def calls_at_work(entries: Iterable[Entry]) -> list[CallAtWork]:
    """The calls of a journal that have begun, and have no result yet."""
    journal = Journal(entries)
    journal.rewind()
    calls: list[CallAtWork] = []
    with reading("The starts of calls in a journal"):
        for slot, starts in journal.open_calls().items():
            facts: dict[str, Any] = starts[-1].value or {}
            call = ToolCall.unchecked(*named_call(starts[-1].digest), facts.get("id"))
            calls.append(CallAtWork(Slot(slot), call, len(starts)))
    return calls
