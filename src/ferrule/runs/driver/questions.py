"""Questions to a person: a decision is used if there is one; otherwise the run is suspended.

A decision applies to the question as it was shown. The question's id is made from its slot in the
run and its digest (the tool's definition, the arguments), so that a decision on another question is
not found here. Each decision is used once.

A resumed run checks its calls again, and a default made by a factory (an id, a time) then differs.
The question stays as it was shown, and the decision carries the arguments that were shown.
"""

from __future__ import annotations

import threading
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

from ferrule import events
from ferrule.acts import Suspended
from ferrule.approval.question import Decision
from ferrule.concurrency import offload
from ferrule.concurrency.forking import renew_in_child
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import check_fields, reading
from ferrule.record import replace
from ferrule.runs.confirmation.decisions import decide_by_grant, register
from ferrule.runs.journal.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.acts import AskPerson
    from ferrule.approval.question import Question
    from ferrule.runs.state import Frame, RunState

_GRANTING = threading.Lock()
"""Held while a grant is looked up and used: concurrent branches must not use its last call twice."""
renew_in_child(globals(), _GRANTING=threading.Lock)


async def decide(frame: Frame, act: AskPerson) -> list[Decision]:
    """One decision per question, in order; raises `Suspended` with the undecided questions."""
    run, slot = frame.run, frame.slot()
    found: list[Decision] = []
    waiting: list[Question] = []
    for k, bare in enumerate(act.questions):
        at = f"{slot}.{k}"
        made = (
            await _made_before(frame, at, bare) if run.asked or run.journal.has(f"{at}??") else {}
        )
        if made:
            bare = replace(  # noqa: PLW2901
                bare,
                text=made["text"],
                call=bare.call.changed(args={**bare.call.args, **made["args"]}),
            )
        digest = f"{bare.kind} {bare.call.name} {json_text(bare.call.args)}"
        asked = run.journal.take(f"{at}?", "once", digest) if run.journal.has(f"{at}?") else None
        entry = run.journal.take(at, "decision", digest)
        if entry is not None and not is_void(run, entry, bare):
            run.tally.note(run.decisions, entry.value)
            found.append(_with_args(entry.value, made))
            continue
        if entry is not None:
            run.journal.drop_from(frame.path, frame.acts, because=f"decision at {at}")
        question = replace(bare, id=run.question_id(f"{at} {bare.digest}"), path=frame.path)
        if bare.expires_s is not None or asked is not None:
            if asked is None:
                asked = Entry(f"{at}?", "once", digest, await now(frame) + (bare.expires_s or 0))
                await frame.write(asked)
            with reading(f"The time at {at} of the journal"):
                question = check_fields(replace(question, expires_at=asked.value))
        denial = act.denials[k] if act.denials else None
        decision = await _decision(frame, question, at, digest, denial)
        if decision is None:
            waiting.append(question)
            if frame.tell is not None:
                frame.tell.inside(at)(events.QuestionAsked(question))
        else:
            found.append(_with_args(decision, made))
    if waiting:
        register(run, waiting)
        raise Suspended(waiting)
    return found


async def _made_before(frame: Frame, at: str, bare: Question) -> dict[str, Any]:
    """The text and the arguments with which this question was shown, if checking its call again made other arguments; otherwise empty."""
    run = frame.run
    if run.journal.has(f"{at}??"):
        entry = run.journal.take(f"{at}??", "once", bare.call.name)
        return entry.value if entry is not None else {}
    asked = next(
        (each for each in run.asked if each.id == run.question_id(f"{at} {each.digest}")),
        None,
    )
    if (
        asked is None
        or asked.kind != "confirm"
        or asked.call.args == bare.call.args
        or _written(asked) != _written(bare)
    ):
        return {}
    args = {name: value for name, value in asked.call.args.items() if bare.call.args[name] != value}
    made = Entry(f"{at}??", "once", bare.call.name, {"text": asked.text, "args": args})
    await frame.write(made)
    return made.value


def _written(question: Question) -> tuple[Any, ...]:
    """The parts of a question that come from the model's call and the tool, not from checking the call."""
    return (
        question.kind,
        question.call.name,
        question.fingerprint,
        question.raw,
        question.call.args.keys(),
    )


def _with_args(decision: Decision, made: Mapping[str, Any]) -> Decision:
    """A decision for the program, with the arguments as shown; those of an edit take precedence."""
    return (
        replace(decision, args={**made["args"], **decision.args})
        if made and decision.kind in {"approve", "edit"}
        else decision
    )


async def _decision(
    frame: Frame,
    question: Question,
    at: str,
    digest: str,
    denial: str | None,
) -> Decision | None:
    """Use and journal the decision on a question; None if there is none. `denial` is the reason if a rule denies the call."""
    run = frame.run
    decision = run.decision(question.id)
    ends = question.expires_at
    if (
        ends is not None
        and ((decision.at if decision is not None else None) or await now(frame)) > ends
    ):
        decision = Decision(
            question.id,
            "deny",
            "Nobody decided in time.",
            shown=question.digest,
            via="expiry",
            at=time(),
        )
    if decision is not None and decision.shown and decision.shown != question.digest:
        run.answers.pop(question.id, None)  # made on another question
        decision = None
    if denial is not None:
        decision = Decision(
            question.id,
            "deny",
            denial,
            shown=question.digest,
            via="policy",
            at=time(),
        )
    if decision is not None:
        await frame.write(Entry(at, "decision", digest, decision))
        run.decided(decision)
    elif run.decisions:
        use = partial(_use_grant, run, question, at, digest)
        decision = use() if frame.blocks else await offload.run_or_cancel(use)
    if decision is not None and frame.tell is not None:
        frame.tell.inside(at)(events.Decided(question, decision))
    return decision


async def now(frame: Frame) -> float:
    """The time by the clock of the run's store, which all machines share; by this machine's clock if the run is not stored."""
    if frame.run.persistence is None:
        return time()
    clock = frame.run.persistence.store.now
    return clock() if frame.blocks else await offload.run_or_cancel(clock)


def _use_grant(run: RunState, question: Question, at: str, digest: str) -> Decision | None:
    # In a thread that may block: concurrent branches must not use the last call of a grant twice.
    with _GRANTING:
        decision = decide_by_grant(run, question)
        if decision is not None:
            run.journal.add(Entry(at, "decision", digest, decision))
            run.tally.note(run.decisions, decision)
    return decision


def is_void(run: RunState, entry: Entry, bare: Question) -> bool:
    """Whether a recorded decision was made on another tool definition and not acted on yet: then the question is asked again."""
    shown = entry.value.shown
    if not shown or shown == bare.digest:
        return False
    for each in reversed(run.journal.entries):
        if each is entry:
            return True
        if each.kind in {"begun", "result", "model"}:
            return False
    return True
