"""Decisions on questions, and the grants given with them.

In: a question's id, or a decision on it. Out: the decision, recorded on its run in its stored form;
grants with their remaining calls.
"""

from __future__ import annotations

import threading
from time import time
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from ferrule import settings
from ferrule.approval.decisions import (
    accept,
    check_second,
    plain_decision,
    read_decision,
    read_response,
)
from ferrule.approval.direct_calls import asked_directly, decide_directly
from ferrule.approval.question import Decision, DecisionStatus, Question
from ferrule.concurrency.forking import renew_in_child
from ferrule.encoding.stored import parse_object
from ferrule.errors import DecisionError
from ferrule.observers import note_caller
from ferrule.record import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.approval.policy import Grant
    from ferrule.runs.protocols import Store
    from ferrule.runs.state import RunState

_waiting: WeakValueDictionary[str, RunState] = WeakValueDictionary()
"""The runs of this process, by the ids of their questions. Weak references: waiting runs are not kept alive."""

_deciding = threading.Lock()
"""Held while a decision is recorded: if two people decide at once, the second gets an error."""
renew_in_child(globals(), _deciding=threading.Lock)


# -- decisions
# ---------------------------------------------------------------------------------------------------


def caller_notes() -> dict[str, str]:
    """The observers' notes about the caller who submits a run or decides a question, for the execution in another process."""
    return note_caller(settings.current().callbacks)


def register(run: RunState, questions: Iterable[Question]) -> None:
    """Register a run under the ids of its questions, so that `respond_to_confirmation` finds it."""
    for question in questions:
        _waiting[question.id] = run


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
    """Decide on a question by its id: of a run of this process, of a direct tool call, or (with `store`) of any stored run.

    Without a `status`, a mapping as `data` edits the arguments, and `approved=False` denies with
    `data` as the reason. Nothing runs here: continue the run with `run.resume()` or
    `agent.resume(...)`; repeat a direct call. Raises `DecisionError` for an unknown id, for
    contradictory arguments, and for a second decision that differs from the first.
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
        msg = (
            f"No question {confirmation_id!r} is known in this process. If its run is in a store, pass `store=`. Otherwise keep the run, "
            "or its `ConfirmationRequired`, until the question is decided: nothing else holds it."
        )
        raise DecisionError(msg)
    question = next((each for each in run.pending if each.id == confirmation_id), None)
    # No question: the run went on. The decision must then equal the one that was made, or it is
    # refused.
    decision = response.on_id(confirmation_id) if question is None else response.on(question)
    run.answer(decision.signed(by, via))


def get_confirmation_status(confirmation_id: str) -> DecisionStatus | None:
    """The status of a question of this process: "pending", "approved", "rejected", "edited" or "feedback"; None for an unknown id."""
    direct = asked_directly(confirmation_id)
    if direct is not None:
        return direct.decision.status if direct.decision is not None else "pending"
    run = _waiting.get(confirmation_id)
    if run is None:
        return None
    found = run.tally.first(run.decisions, confirmation_id)
    return found.status if found is not None else "pending"


def is_open(question_id: str) -> bool:
    """Whether a question of this process is still waiting: for a decision, or for the call that uses the decision."""
    direct = asked_directly(question_id)
    run = _waiting.get(question_id)
    return (
        not direct.is_used
        if direct is not None
        else run is not None and any(each.id == question_id for each in run.pending)
    )


def _stored_question(store: Store, question_id: str) -> tuple[str, Question]:
    for each in store.list(status="waiting", limit=None):
        for question in each.questions:
            if question.id == question_id:
                return each.id, question
    raise DecisionError(f"No run in this store waits with a question {question_id!r}.")


def put_decision(run: RunState, decision: Decision) -> None:
    """Record a decision on a pending question of a run; see `Run.answer`."""
    decision = plain_decision(decision)
    with _deciding:
        first = run.tally.first(run.decisions, decision.question_id)
        if first is not None:
            check_second(first, decision)
            return
        question = _pending_question(run, decision.question_id)
        if run.persistence is not None:
            accepted = run.persistence.store.decide(run.id, decision)
        else:
            accepted = accept(question, decision, now=time())
        run.answers[accepted.question_id] = accepted
        run.decisions.append(accepted)


def _pending_question(run: RunState, question_id: str) -> Question:
    pending = run.pending if run.status == "waiting" else ()
    for question in pending:
        if question.id == question_id:
            return question
    waiting = ", ".join(question.id for question in run.pending)
    raise DecisionError(
        f"No question {question_id!r} waits in this run; waiting are: {waiting or 'none'}.",
    )


def decided_ids(run: RunState) -> frozenset[str]:
    """The ids of a run's questions that have a decision, here or in its store, that the run has not yet used."""
    kept = run.persistence.store.load(run.id).decisions if run.persistence is not None else ()
    here = frozenset(key for key, each in run.answers.items() if each.kind != "revoke")
    return here | {read_decision(parse_object(text, "a decision")).question_id for text in kept}


# -- grants
# ------------------------------------------------------------------------------------------------------


def open_grants(run: RunState) -> dict[str, Grant]:
    """The valid grants of a run, by the id of the question that each was given with; `calls` is how many calls remain."""
    now = time()
    return {
        key: grant
        for key, grant in run.tally.grants(run.decisions).items()
        if grant.until is None or now < grant.until
    }


def decide_by_grant(run: RunState, question: Question) -> Decision | None:
    """The approval by a grant; None if none covers the call."""
    call = question.call
    for key, grant in open_grants(run).items() if question.kind == "confirm" else ():
        if grant.covers(call.name, question.fingerprint, call.args, inside=question.inside):
            return Decision(
                question.id,
                "approve",
                shown=question.digest,
                via=f"grant:{key}",
                at=time(),
            )
    return None


def revoke_grant(run: RunState, grant_id: str, *, by: str = "") -> None:
    """End a grant; raises `DecisionError` if no valid grant has this id."""
    known: Mapping[str, Grant] = open_grants(run)
    if grant_id not in known:
        raise DecisionError(
            f"There is no grant {grant_id!r} in this run; there are: {', '.join(known) or 'none'}.",
        )
    ended = Decision(f"revoke:{grant_id}", "revoke", by=by, via="api", at=time())
    run.decisions.append(ended)
    run.answers[ended.question_id] = (
        ended  # no question uses it: it is put here so that it is stored with the run
    )
