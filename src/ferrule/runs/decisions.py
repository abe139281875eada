"""Decisions on the questions of runs, and the grants given with them.

A decision arrives by the id of its question: from this process, or through a store. Here it is
checked (`approval/decisions.py`) and recorded on its run; the run uses it when it is resumed.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from msgspec.structs import replace

from ferrule import settings
from ferrule.approval.decisions import (
    accept,
    check_second,
    named_question,
    plain_decision,
    read_decision,
    read_response,
)
from ferrule.approval.direct_calls import asked_directly, decide_directly
from ferrule.approval.question import Decision, DecisionStatus, Question, check_author
from ferrule.concurrency.forking import ForkLock
from ferrule.encoding.stored import parse_object, reading
from ferrule.errors import DecisionError, checks_keywords
from ferrule.observers import note_caller
from ferrule.runs.journal.encode import read_entry, read_question
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.approval.policy import Grant
    from ferrule.approval.result_links import ResultToken
    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.protocols import Store
    from ferrule.runs.state import RunState

_waiting: WeakValueDictionary[str, RunState] = WeakValueDictionary()
"""The runs of this process, by the ids of their questions. Weak: this keeps no run alive."""

_deciding = ForkLock()
"""Held while a decision is recorded: if two people decide at once, the second gets an error."""


@checks_keywords
def respond_to_confirmation(
    confirmation_id: str,
    approved: bool = True,
    data: Any = None,
    status: Literal["approved", "rejected", "edited", "feedback"] | None = None,
    *,
    store: Store | None = None,
    by: str = "",
    via: str = "api",
) -> None:
    """Decide on a question by its id.

    The question may be of a run of this process, of a direct tool call, or (with `store`) of any
    stored run. Without a `status`, a mapping as `data` edits the arguments, and `approved=False`
    denies with `data` as the reason. Nothing runs here: continue the run with `run.resume()` or
    `agent.resume(...)`; repeat a direct call.

    Raises:
        DecisionError: The id is unknown, the arguments contradict each other, or this is a second
            decision that differs from the first.

    """
    response = read_response(approved, data, status)
    if store is not None:
        run_id, question = _stored_question(store, confirmation_id)
        store.decide(run_id, response.on(question).signed(by, via))
        return
    direct = asked_directly(confirmation_id)
    if direct is not None:
        decide_directly(replace(response.on(direct.question), by=by, via=via, at=time()))
        return
    run: Any = _waiting.get(confirmation_id)
    if run is None:
        raise DecisionError(
            f"No question {confirmation_id!r} is known in this process. If its run is in a store, "
            "pass `store=`. Otherwise keep the run, or its `ConfirmationRequired`, until the "
            "question is decided: nothing else holds it."
        )
    question = _pending_question(run, confirmation_id)
    if question is None:
        # The run went on: `answer` accepts only a decision that equals the one that was used.
        decision = response.on_id(confirmation_id)
    else:
        decision = response.on(question)
    run.answer(decision.signed(by, via))


def get_confirmation_status(confirmation_id: str) -> DecisionStatus | None:
    """The status of a question of this process, or None for an unknown id.

    It is "pending", "approved", "rejected", "edited" or "feedback".
    """
    direct = asked_directly(confirmation_id)
    if direct is not None:
        decision = direct.decision
    else:
        run = _waiting.get(confirmation_id)
        if run is None:
            return None
        decision = run.tally.first(run.decisions, confirmation_id)
    if decision is None:
        return "pending"
    return decision.status


def is_open(question_id: str) -> bool:
    """Whether a question of this process waits: for a decision, or for the call that uses it."""
    direct = asked_directly(question_id)
    if direct is not None:
        return not direct.is_used
    run = _waiting.get(question_id)
    return run is not None and _pending_question(run, question_id) is not None


def put_decision(run: RunState, decision: Decision) -> None:
    """Record a decision on a pending question of a run; see `Run.answer`."""
    put_checked(run, plain_decision(decision))


def put_checked(run: RunState, decision: Decision) -> None:
    """`put_decision` for a decision whose form is checked."""
    question_id = decision.question_id
    with _deciding.lock:
        waiting: Sequence[Question] = ()
        if run.status == "waiting":
            waiting = run.pending
        elif run.status == "running":  # a result may come before the run comes to rest
            waiting = results_awaited(run.journal.entries)
        first = run.tally.first(run.decisions, question_id)
        if first is not None:
            check_second(first, decision, waiting)
            return
        question = named_question(waiting, question_id, where="this run")
        if run.persistence is not None:
            accepted = run.persistence.store.decide(run.id, decision)  # which checks it, too
        else:
            accepted = accept(question, decision, now=time())
        run.answers[question_id] = accepted
        run.decisions.append(accepted)


def deliver_result(run: RunState, key: str, value: Any, *, by: str = "") -> None:
    """Record the result of the calls of a run that wait for it; see `Run.deliver`."""
    for decision in deliveries(run.journal.entries, run.id, key, value):
        put_decision(run, decision.signed(by))


def deliveries(entries: Iterable[Entry], run_id: str, key: str, value: Any) -> list[Decision]:
    """The decisions that bring the result with this key, or the id of a question, to its calls.

    Raises `DecisionError` if no call of the run ever waited for it.
    """
    awaited = results_awaited(entries)
    decisions = [
        question.deliver(value).signed(via="delivery")
        for question in awaited
        if key in (question.key, question.id)
    ]
    if not decisions:
        keys = ", ".join(repr(question.key) for question in awaited) or "none"
        raise DecisionError(
            f"No call of the run {run_id!r} waits for a result with the key {key!r}; the keys of "
            f"its calls are: {keys}. If the call has only just begun, deliver it again in a "
            "moment.",
            reason="unknown",
        )
    return decisions


def deliver_by_token(store: Store, token: ResultToken, value: Any) -> None:
    """Record the result that came to the address of one call, `Context.result_url`.

    Raises `DecisionError` as `deliver` does.
    """
    stored = store.load(token.run_id)
    entries = [read_entry(text) for text in stored.entries]
    slot = Slot(token.slot)
    for entry in entries:
        if entry.slot == slot.later:
            question = read_question(entry.value)
            if token.is_for(question.call):
                store.decide(token.run_id, question.deliver(value).signed(via="result_url"))
                return
    has_ended = any(entry.slot == slot and entry.kind == "result" for entry in entries)
    if has_ended or stored.status in {"done", "failed", "cancelled"}:
        raise DecisionError(
            f"The call at {token.slot} of the run {token.run_id!r} waits for no result: it has "
            "ended without one.",
            reason="unknown",
        )
    raise DecisionError(
        f"The call at {token.slot} of the run {token.run_id!r} does not wait yet: its tool has not "
        "returned. Deliver the result again in a moment.",
        reason="early",
    )


def results_awaited(entries: Iterable[Entry], key: str | None = None) -> list[Question]:
    """The questions of all calls of a journal that waited, or wait, for a result from outside."""
    waits = [entry for entry in list(entries) if entry.kind == "once" and Slot(entry.slot).is_later]
    with reading("The waits of a journal"):
        questions = [read_question(entry.value) for entry in waits]
    return [question for question in questions if key is None or question.key == key]


def register(run: RunState, questions: Iterable[Question]) -> None:
    """Register a run under the ids of its questions, for `respond_to_confirmation`."""
    for question in questions:
        _waiting[question.id] = run


def caller_notes() -> dict[str, str]:
    """The observers' notes about the caller who submits a run or decides a question.

    They are for the execution, which may be in another process.
    """
    return note_caller(settings.current().callbacks)


def decided_ids(run: RunState) -> frozenset[str]:
    """The ids of a run's questions whose decision, here or in its store, it has not yet used."""
    ids = {key for key, decision in run.answers.items() if decision.kind != "revoke"}
    if run.persistence is not None:
        for text in run.persistence.store.load(run.id).decisions:
            ids.add(read_decision(parse_object(text, "a decision")).question_id)
    return frozenset(ids)


def _pending_question(run: RunState, question_id: str) -> Question | None:
    for question in run.pending:
        if question.id == question_id:
            return question
    return None


def _stored_question(store: Store, question_id: str) -> tuple[str, Question]:
    for summary in store.list(status="waiting", limit=None):
        for question in summary.questions:
            if question.id == question_id:
                return summary.id, question
    raise DecisionError(
        f"No run in this store waits with a question {question_id!r}: it is decided, its run has "
        "gone on or has ended, or another call of its step runs just now. "
        "`store.decide(run_id, Decision(question_id, ...))` says which, and takes it if it can.",
        reason="unknown",
    )


# -- grants


def open_grants(run: RunState) -> dict[str, Grant]:
    """The valid grants of a run, by the id of the question that each was given with.

    The `calls` of a grant is how many calls remain.
    """
    now = time()
    return {
        key: grant
        for key, grant in run.tally.grants(run.decisions).items()
        if grant.until is None or now < grant.until
    }


def decide_by_grant(run: RunState, question: Question) -> Decision | None:
    """The approval by a grant; None if none covers the call."""
    if question.kind != "confirm":
        return None
    call = question.call
    for key, grant in open_grants(run).items():
        covers = grant.covers(
            call.name,
            question.fingerprint,
            call.args,
            inside=question.inside,
            on_server=bool(question.server),
        )
        if covers:
            via = f"grant:{key}"
            return Decision(question.id, "approve", shown=question.digest, via=via, at=time())
    return None


def revoke_grant(run: RunState, grant_id: str, *, by: str = "") -> None:
    """End a grant; raises `DecisionError` if no valid grant has this id."""
    grants: Mapping[str, Grant] = open_grants(run)
    if grant_id not in grants:
        raise DecisionError(
            f"There is no grant {grant_id!r} in this run; there are: {', '.join(grants) or 'none'}."
        )
    author, source = check_author(by, "api")
    revocation = Decision(f"revoke:{grant_id}", "revoke", by=author, via=source, at=time())
    run.decisions.append(revocation)
    # No question uses it: it is put here so that it is stored with the run.
    run.answers[revocation.question_id] = revocation
