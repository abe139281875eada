"""Questions to a person: a decision that was made is taken, one that was not suspends the run.  (Floor 4.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.errors import Suspended
from ferrule.runs.journal import Entry
from ferrule.values import event as events
from ferrule.values.jsonable import json_text
from ferrule.values.record import replace

if TYPE_CHECKING:
    from ferrule.runs.state import Frame
    from ferrule.values.act import AskPerson
    from ferrule.values.question import Decision, Question


def decisions(frame: Frame, act: AskPerson) -> list[Decision]:
    """One decision a question, in their order; raises `Suspended` with those that have none yet."""
    run, slot = frame.run, frame.slot()
    found: list[Decision] = []
    waiting: list[Question] = []
    for k, bare in enumerate(act.questions):
        at = f"{slot}.{k}"
        digest = f"{bare.kind} {bare.call.name} {json_text(bare.call.args)}"
        entry = run.journal.take(at, "decision", digest)
        if entry is None:
            question = replace(bare, id=run.question_id(at))
            decision = run.decision(question.id)
            if decision is None:
                waiting.append(question)
                if run.tell is not None:
                    run.tell(events.QuestionAsked(question))
                continue
            entry = Entry(at, "decision", digest, decision)
            run.journal.add(entry)
        found.append(entry.value)
    if waiting:
        raise Suspended(waiting)
    return found
