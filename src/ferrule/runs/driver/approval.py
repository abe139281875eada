"""Approval inside a run: rulings on calls before they run, and questions to a person.

`approval/` decides; this module asks, waits and records.

**Rulings** (`RuleCalls`). Policies rule on each call of a turn, and the rulings are recorded. So a
resumed run takes the same path: a question stays a question, even if the policy or the tool has
changed.

**Questions** (`AskPerson`, and `CallTools` with a `Consent`). A decision is used if there is one;
otherwise the question is asked, and the run is suspended. A decision applies to the question as it
was shown: the question's id is made from its slot in the run and its digest (the tool's definition,
the arguments), so a decision on another question is not found here. Each decision is used once.

A resumed run checks its calls again, and a default made by a factory (an id, a time) then differs.
The question stays as it was shown, and the decision carries the arguments that were shown.
"""

from __future__ import annotations

from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

from ferrule import events
from ferrule.acts import Suspended
from ferrule.approval.policy import rule_for
from ferrule.approval.question import Decision, Question, Subject
from ferrule.approval.rulings import read_ruling, ruling_form, stricter_ruling
from ferrule.concurrency import offload
from ferrule.concurrency.forking import ForkLock
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import check_fields, reading
from ferrule.runs.decisions import decide_by_grant, register
from ferrule.runs.driver.once import run_code
from ferrule.runs.journal.entry import Entry, secrets_of
from ferrule.values.calls.call import CheckedCall
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.acts import AskPerson, Consent, RuleCalls
    from ferrule.approval.rulings import Ruling
    from ferrule.runs.state import Frame, RunState
    from ferrule.values.calls.call import ToolResult

_GRANTING = ForkLock()
"""Held while a grant is looked up and used: two branches must not use its last call twice."""


# -- rulings


async def rule_calls(frame: Frame, act: RuleCalls) -> list[Ruling]:
    """Rule on calls: apply the policies, and record their rulings.

    The recorded rulings are final once a question was asked, a call began, or a later act of the
    program was answered. If there is no record then, settled calls go on without a ruling: one
    could hide that they may have run. In all other cases a resumed run rules again, and the
    stricter of the two rulings applies.
    """
    journal = frame.run.journal
    # Without a number among the acts: a policy added or removed while a run waits must not shift
    # their slots.
    slot = Slot.of_value(frame.path, frame.acts, "policy")
    recorded = _recorded_rulings(frame, slot, act)
    # Then a call may have run under the recorded rulings, and a new one would come too late.
    is_underway = journal.has_begun_from(frame.path, frame.acts) or (
        journal.unread and journal.ahead(frame.path, frame.acts) is not None
    )
    if recorded is not None and (is_underway or any(map(_asks, recorded))):
        return recorded
    rules = [rule_for(act.policies, checked) for checked in act.calls]
    rulings: list[Ruling] = []
    for number, checked in enumerate(act.calls):
        ruling = rules[number]
        if ruling is None:
            ruling = act.wish(checked)
        if recorded is not None:
            ruling = stricter_ruling(ruling, recorded[number])
        if is_underway and (act.settled is None or act.settled[number]):
            ruling = None
        rulings.append(ruling)
    # Most turns have no ruling at all, and a replay rarely changes one: neither writes an entry.
    forms = list(map(ruling_form, rulings))
    if any(forms) and (recorded is None or forms != list(map(ruling_form, recorded))):
        await frame.write(Entry(slot, "once", _digest_of(act), forms))
    if frame.tell is not None:
        for rule, checked in zip(rules, act.calls, strict=True):
            if rule is not None:
                frame.tell(events.RuleUsed(checked.call, rule.verdict, str(rule)))
    return rulings


def _digest_of(act: RuleCalls) -> str:
    shown = [[checked.tool.name, checked.arguments.shown] for checked in act.calls]
    return f"policy {json_text(shown)}"


def _recorded_rulings(frame: Frame, slot: Slot, act: RuleCalls) -> list[Ruling] | None:
    journal = frame.run.journal
    if slot not in journal.unread:  # as in most turns, which then need no digest
        return None
    entry = journal.take(slot, "once", _digest_of(act))
    if entry is None:
        return None
    with reading(f"The rulings at {slot} of the journal"):
        if len(entry.value) != len(act.calls):
            return None
        return [read_ruling(form) for form in entry.value]


def _asks(ruling: Ruling) -> bool:
    return ruling is not None and ruling.verdict == "ask"


# -- questions


class _Shown(Struct, frozen=True):
    """What a question showed when it was asked, where checking its call again made other values."""

    text: str = ""
    args: dict[str, Any] = field(default_factory=dict[str, Any])

    def on(self, question: Question) -> Question:
        """The question as it was shown."""
        if not self.args:
            return question
        call = question.call.changed(args={**question.call.args, **self.args})
        return replace(question, text=self.text, call=call)

    def with_args(self, decision: Decision) -> Decision:
        """A decision with the arguments as shown; those of an edit take precedence."""
        if not self.args or decision.kind not in {"approve", "edit"}:
            return decision
        args = {**self.args, **decision.args}
        kept = {name: value for name, value in args.items() if name not in decision.removed}
        return replace(decision, args=kept)


async def answer_questions(frame: Frame, act: AskPerson) -> list[Decision]:
    """One decision per question, in order.

    Raises `Suspended` with the undecided questions.
    """
    act_slot = frame.slot()
    decisions: list[Decision] = []
    waiting: list[Question] = []
    # All questions are asked before the run waits, so that a person sees them together.
    for number, question in enumerate(act.questions):
        answer = await _find_decision(frame, act_slot.item(number), *_of(question))
        if isinstance(answer, Decision):
            decisions.append(answer)
        else:
            waiting.append(await ask_now(frame, answer))
    if waiting:
        raise Suspended(waiting)
    return decisions


class OpenQuestion(Struct, frozen=True):
    """A question without a decision, which is to be asked."""

    slot: Slot
    digest: str
    question: Question
    """With its id; without a time at which it expires if it was not asked before."""


async def ask_now(frame: Frame, to_ask: OpenQuestion) -> Question:
    """Ask a question; returns it as the run waits for it."""
    question, slot = to_ask.question, to_ask.slot
    if question.expires_s is not None and question.expires_at is None:
        ends = await now(frame) + question.expires_s
        await frame.write(Entry(slot.asked_at, "once", to_ask.digest, ends))
        question = replace(question, expires_at=ends)
    register(frame.run, [question])
    tell = frame.tell_at(slot.call)
    if tell is not None:
        tell(events.QuestionAsked(question))
    return question


async def find_consent(
    frame: Frame, slot: Slot, consent: Consent
) -> CheckedCall | ToolResult | OpenQuestion:
    """The call at a slot as it was allowed; its result, if it does not run; or what to ask."""
    subject, ask, number = consent.subject, consent.question, 0
    while True:
        answer = await _find_decision(frame, slot.consent(number), subject, ask, consent.denial)
        if isinstance(answer, OpenQuestion):
            return answer
        consent.decision = answer
        outcome = await _allow(frame, slot, number, consent)
        if isinstance(outcome, CheckedCall):
            consent.allowed = outcome
        if not isinstance(outcome, Question):
            return outcome
        subject, ask = _of(outcome)
        number += 1


def _of(question: Question) -> tuple[Subject, Callable[[], Question]]:
    """What a question is about, and a function that gives the question itself."""
    return question.subject, lambda: question


async def _allow(
    frame: Frame, slot: Slot, number: int, consent: Consent
) -> CheckedCall | ToolResult | Question:
    """What a decision makes of the call at a slot. Its checks are recorded beside the decision."""
    has_run = _has_run(frame, slot, number)
    allowing = consent.allow(cast("Decision", consent.decision), has_run)
    is_over = has_run is not None or frame.run.journal.is_closed
    answer: Any = None
    checks = 0
    while True:
        try:
            act = allowing.send(answer)
        except StopIteration as end:
            return end.value
        place = slot.consent(number).check(checks)
        answer = await run_code(frame, place, act, lambda: is_over)
        checks += 1


def _has_run(frame: Frame, slot: Slot, number: int) -> bool | None:
    """Whether an earlier execution ran a call after the decision with this number.

    False if it asked again; None if it did neither.
    """
    journal, unread = frame.run.journal, frame.run.journal.unread
    if slot.consent(number + 1) in unread:
        return False
    if slot in unread or slot.later in unread or journal.has_begun(slot):
        return True
    return None


async def _find_decision(
    frame: Frame,
    slot: Slot,
    subject: Subject,
    ask: Callable[[], Question],
    denial: str | None = None,
) -> Decision | OpenQuestion:
    """The decision on a question, or the question with its id if there is none.

    `ask` makes the question, unless the run asked it before: then it stays as it was shown.
    `denial` is the reason if a rule denies the call now, whatever a person decided.
    """
    run = frame.run
    question = _asked(run, slot, subject)
    shown = await _shown_before(frame, slot, subject, ask, is_asked=question is not None)
    if shown.args:
        subject, ask = _of(shown.on(ask()))
        question = _asked(run, slot, subject)
    digest = f"{subject.kind} {subject.call.name} {json_text(subject.call.args)}"
    asked_at = run.journal.take_optional(slot.asked_at, "once", digest)
    entry: Entry | None = None
    was_refused = _was_refused(run, slot)
    if not was_refused:
        entry = run.journal.take(slot, "decision", digest)
    if entry is not None:
        if not _is_void(frame, slot, entry, subject):
            run.tally.note(run.decisions, entry.value)
            return shown.with_args(_with_grant(run, entry.value))
        run.journal.drop_from(frame.path, frame.acts, because=f"decision at {slot}")
    if question is None:
        question = replace(ask(), id=_id_of(run, slot, subject), path=frame.path)
    if asked_at is not None:
        with reading(f"The time at {slot} of the journal"):
            question = check_fields(replace(question, expires_at=asked_at.value))
    if was_refused:
        return OpenQuestion(slot, digest, question)
    decision = await decision_in_time(frame, question, "No one decided in time.")
    if decision is not None and decision.shown not in {"", subject.digest}:
        run.answers.pop(question.id, None)  # made on another question
        decision = None
    if denial is not None:
        decision = _made_by("policy", question, denial)
    if decision is not None:
        await frame.write(Entry(slot, "decision", digest, decision, secrets_of(question)))
        run.decided(decision)
    elif run.decisions and _has_place(frame, subject):
        decision = await _granted(frame, question, slot, digest)
    if decision is None:
        return OpenQuestion(slot, digest, question)
    tell = frame.tell_at(slot.call)
    if tell is not None:
        tell(events.Decided(question, decision.masked(question.secrets)))
    return shown.with_args(_with_grant(run, decision))


def _was_refused(run: RunState, slot: Slot) -> bool:
    """Whether an earlier execution refused a call over a limit in place of asking about it."""
    unread = run.journal.unread
    if not slot.is_of_consent or slot in unread:
        return False
    call, _ = slot.consent_of
    entry = unread.get(call)
    return entry is not None and entry.kind == "result"


def _has_place(frame: Frame, subject: Subject) -> bool:
    """Whether the limits leave the call a place: one that is refused must not use up a grant."""
    if frame.budget is None or subject.kind != "confirm":
        return True
    return frame.budget.has_place() and frame.budget.has_place_of(subject.call.name)


async def _shown_before(
    frame: Frame, slot: Slot, subject: Subject, ask: Callable[[], Question], *, is_asked: bool
) -> _Shown:
    """What this question showed, if checking its call again made other arguments."""
    run = frame.run
    entry = run.journal.take_optional(slot.shown_values, "once", subject.call.name)
    if entry is not None:
        return _Shown(**entry.value)
    if is_asked or subject.kind != "confirm":
        return _Shown()
    for asked in run.asked:
        if asked.id == _id_of(run, slot, asked.subject):
            break
    else:
        return _Shown()
    if _written(asked) != _written(ask()):
        return _Shown()  # the program has changed: this is another question
    now = subject.call.args
    args = {name: value for name, value in asked.call.args.items() if now[name] != value}
    form: dict[str, Any] = {"text": asked.text, "args": args}
    await frame.write(Entry(slot.shown_values, "once", subject.call.name, form))
    return _Shown(**form)


def _asked(run: RunState, slot: Slot, subject: Subject) -> Question | None:
    """The question about this that the run asked at this slot before it was resumed."""
    if not run.asked:
        return None
    question_id = _id_of(run, slot, subject)
    return next((asked for asked in run.asked if asked.id == question_id), None)


def _id_of(run: RunState, slot: Slot, subject: Subject) -> str:
    return run.question_id(f"{slot} {subject.digest}")


def _written(question: Question) -> tuple[Any, ...]:
    """The parts of a question that come from the model's call and the tool, not from a check."""
    return (
        question.kind,
        question.call.name,
        question.fingerprint,
        question.raw,
        question.call.args.keys(),
    )


async def _granted(frame: Frame, question: Question, slot: Slot, digest: str) -> Decision | None:
    """Use a grant that decides the question, and journal its decision; None if there is none."""
    use = partial(_use_grant, frame.run, question, slot, digest)
    if frame.blocks:
        return use()
    # In a thread: it waits for a lock, and the store's write may be slow.
    return await offload.run_or_cancel(use)


async def decision_in_time(frame: Frame, question: Question, expired: str) -> Decision | None:
    """The decision on a question that the journal does not have yet, or None.

    A question that expired before it was decided is denied, with `expired` as the reason.
    """
    decision = frame.run.answers.get(question.id)
    if question.expires_at is None:
        return decision
    # A decision made in time applies, though the run may be resumed long after.
    if decision is not None and decision.at:
        decided_at = decision.at
    else:
        decided_at = await now(frame)
    if decided_at <= question.expires_at:
        return decision
    return _made_by("expiry", question, expired)


def _made_by(via: str, question: Question, reason: str) -> Decision:
    return Decision(question.id, "deny", reason, shown=question.digest, via=via, at=time())


async def now(frame: Frame, *, blocks: bool | None = None) -> float:
    """The time by the clock of the run's store, which all machines share.

    By this machine's clock if the run is not stored. `blocks` says how to wait for it, if not as
    the frame does.
    """
    if frame.run.persistence is None:
        return time()
    clock = frame.run.persistence.store.now
    if blocks is None:
        blocks = frame.blocks
    if blocks:
        return clock()
    return await offload.run_or_cancel(clock)


def _use_grant(run: RunState, question: Question, slot: Slot, digest: str) -> Decision | None:
    # In a thread that may block: concurrent branches must not use the last call of a grant twice.
    with _GRANTING.lock:
        decision = decide_by_grant(run, question)
        if decision is not None:
            run.journal.add(Entry(slot, "decision", digest, decision))
            run.tally.note(run.decisions, decision)
    return decision


def _with_grant(run: RunState, decision: Decision) -> Decision:
    """A decision by a grant, with that grant, for the program: it holds until the tool runs.

    The recorded decision has none, because it gives none.
    """
    if not decision.via.startswith("grant:"):
        return decision
    given = run.tally.first(run.decisions, decision.via.removeprefix("grant:"))
    if given is None:
        return decision
    return replace(decision, grant=given.grant)


def _is_void(frame: Frame, slot: Slot, entry: Entry, subject: Subject) -> bool:
    """As `is_void`. A decision on a consent is acted on by its own call, whatever else ran.

    A denial or a reply is acted on at once: it is the result.
    """
    if not slot.is_of_consent:
        return is_void(frame.run, entry, subject)
    if entry.value.shown in {"", subject.digest} or entry.value.kind in {"deny", "reply"}:
        return False
    if frame.run.journal.ahead(frame.path, frame.acts) is not None:  # the step is over
        return False
    return _has_run(frame, *slot.consent_of) is None


def is_void(run: RunState, entry: Entry, subject: Subject) -> bool:
    """Whether a recorded decision was made on another tool definition, and not acted on yet.

    Then the question is asked again.
    """
    shown = entry.value.shown
    if not shown or shown == subject.digest:
        return False
    for later in reversed(run.journal.entries):
        if later is entry:
            return True
        if later.kind in {"begun", "result", "model"}:
            return False
    return True
