"""Decisions from wherever they come, and the rules that decide in a person's stead.  (Floor 4.)

In: the id of a question, or calls that a program is about to make. Out: a decision put on its run; verdicts of the policies in force, kept
in the journal, so that a resumed run goes by what was decided then; grants, with what is left of them.
"""

from __future__ import annotations

import threading
from time import time
from typing import TYPE_CHECKING, Any, Literal, cast
from weakref import WeakValueDictionary

from ferrule import settings
from ferrule.errors import DecisionError, shown
from ferrule.runs.journal import Entry
from ferrule.tools.confirmed import asked_directly, decide_directly
from ferrule.values import event as events
from ferrule.values.jsonable import json_text
from ferrule.values.policy import Grant, Policy, Rule, strictest
from ferrule.values.question import Decision, Question, Status
from ferrule.values.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.runs.state import Frame, RunState
    from ferrule.runs.store import Store
    from ferrule.values.call import CheckedCall

_waiting: WeakValueDictionary[str, RunState] = WeakValueDictionary()
"""The runs of this process by the ids of their questions, for as long as somebody holds them."""

_deciding = threading.Lock()
"""Held while a decision is put: of two people who press at once, one is told that the other was first."""


# -- decisions ---------------------------------------------------------------------------------------------------


def remember(run: RunState, questions: Iterable[Question]) -> None:
    """A run waits for these: `respond_to_confirmation` finds it by their ids."""
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
    """Decide on a question by its id: of a run of this process, of a direct call of a tool, or with `store` of any run kept there.

    Without a `status`, a mapping as `data` edits the arguments, `approved=False` denies with `data` as the reason. Nothing runs here: the
    run goes on with `run.resume()` or `agent.resume(...)`, a direct call when it is made again. Raises `DecisionError` for an id that was
    never given, for what contradicts itself, and for a second decision that differs from the first.
    """
    said = _said(approved, data, status)
    if store is not None:
        run_id, question = _kept_question(store, confirmation_id)
        store.decide(run_id, _decided(question, said).signed(by, via))
        return
    direct = asked_directly(confirmation_id)
    if direct is not None:
        decide_directly(replace(_decided(direct[0], said), by=by, via=via, at=time()))
        return
    run: Any = _waiting.get(confirmation_id)
    if run is None:
        msg = f"No question {confirmation_id!r} is known in this process; of a run that is kept in a store, say `store=`."
        raise DecisionError(msg)
    question = next((each for each in run.pending if each.id == confirmation_id), None)
    decided = _first(run, confirmation_id)
    if question is None and decided is not None and (decided.kind, decided.args or decided.text or None) == (said[0], said[1] or None):
        return
    run.answer(_decided(question, said).signed(by, via) if question is not None else Decision(confirmation_id, "approve"))


def get_confirmation_status(confirmation_id: str) -> Status | None:
    """How a question of this process stands: "pending", "approved", "rejected", "edited" or "feedback"; None for an id nobody was given."""
    direct = asked_directly(confirmation_id)
    if direct is not None:
        return direct[1].status if direct[1] is not None else "pending"
    run = _waiting.get(confirmation_id)
    if run is None:
        return None
    found = _first(run, confirmation_id)
    return found.status if found is not None else "pending"


def _kept_question(store: Store, question_id: str) -> tuple[str, Question]:
    for each in store.list(status="waiting"):
        for question in each.questions:
            if question.id == question_id:
                return each.id, question
    msg = f"No run in this store waits with a question {question_id!r}."
    raise DecisionError(msg)


Said = tuple[Literal["approve", "edit", "deny", "reply"], Any]


def _said(approved: bool, data: Any, status: str | None) -> Said:
    is_edit, is_text = isinstance(data, dict), isinstance(data, str)
    status = status or (("edited" if is_edit else "approved") if approved else "rejected")
    kinds: dict[str, tuple[Literal["approve", "edit", "deny", "reply"], bool]] = {
        "approved": ("approve", approved and data is None),
        "edited": ("edit", approved and is_edit),
        "rejected": ("deny", not approved and (data is None or is_text)),
        "feedback": ("reply", is_text),
    }
    kind, makes_sense = kinds.get(status, ("deny", False))
    if not makes_sense:
        found = f"approved={approved!r}, data={shown(cast('object', data))}, status={status!r}"
        msg = (
            "A response approves (`approved=True`), edits (`data={...}`), rejects (`approved=False`, with the reason as `data`) or gives "
            f"feedback (`data='...', status='feedback'`); found {found}."
        )
        raise DecisionError(msg)
    return kind, cast("Any", data)


def _decided(question: Question, said: Said) -> Decision:
    kind, data = said
    match kind:
        case "approve":
            return question.approve()
        case "edit":
            return question.edit(data)
        case "deny":
            return question.deny(data or "")
        case "reply":
            return question.reply(data)


def _first(run: RunState, question_id: str) -> Decision | None:
    """What was decided on a question, if anything was."""
    return next((each for each in run.decisions if each.question_id == question_id), None)


def refuse_malformed(decision: Any) -> None:
    """Raise `DecisionError` for what no program could use: whatever is accepted is journalled."""
    if not isinstance(decision, Decision):
        msg = f"A decision comes from a question: question.approve(), .deny(), .reply(text); found {shown(decision)}."
        raise DecisionError(msg)
    args: Any = decision.args
    named = isinstance(args, dict) and all(isinstance(name, str) for name in cast("dict[Any, Any]", args))
    if decision.kind not in {"approve", "edit", "deny", "reply"} or not isinstance(decision.text, str) or not named:  # pyright: ignore[reportUnnecessaryIsInstance]
        msg = f"A decision has one of the four kinds, a text, and arguments by name; found {shown(decision)}."
        raise DecisionError(msg)
    if bool(decision.args) != (decision.kind == "edit") or (decision.grant is not None and decision.kind != "approve"):
        msg = f"An edit changes arguments and nothing else does; only an approval comes with a grant; found {shown(decision)}."
        raise DecisionError(msg)


def put(run: RunState, decision: Decision) -> None:
    """Put a decision on a pending question of a run; see `Run.answer`."""
    refuse_malformed(decision)
    asked = decision.question_id
    with _deciding:
        first = _first(run, asked)
        if first is not None:
            if first == decision:
                return
            who = f" by {first.by}" if first.by else ""
            msg = f"Question {asked!r} is decided already{who}: {first.status}."
            raise DecisionError(msg)
        question = next((each for each in run.pending if each.id == asked), None)
        if question is None:
            waiting = ", ".join(each.id for each in run.pending)
            msg = f"No question {asked!r} waits in this run; waiting are: {waiting or 'none'}."
            raise DecisionError(msg)
        decision = fitting(question, decision, now=time())
        if run.kept is not None:
            run.kept.store.decide(run.id, decision)
        run.answers[asked] = decision
        run.decisions.append(decision)


def fitting(question: Question, decision: Decision, *, now: float) -> Decision:
    """A decision on a waiting question, with its time. Raises `DecisionError` if it comes too late, or was made on something else."""
    if question.expires_at is not None and now > question.expires_at:
        msg = f"Question {question.id!r} is decided already: nobody decided in time, so the call counts as denied."
        raise DecisionError(msg)
    if decision.shown not in {"", question.digest}:
        msg = f"This decision was made on something else than question {question.id!r} shows; look at it again."
        raise DecisionError(msg)
    return replace(decision, at=decision.at if decision.at is not None else now, shown=question.digest)


# -- policies ----------------------------------------------------------------------------------------------------


class Ruling(Record):
    """What the policies in force say of one call."""

    verdict: Literal["allow", "ask", "deny"]
    reason: str = ""
    expires_s: float | None = None


def is_ruled(own: Policy | None) -> bool:
    """Whether a policy may have a say here: one is in force, or was when the run that is replayed came by."""
    if own is not None or settings.setting("policy") is not None:
        return True
    frame = settings.scope().frame
    return frame is not None and frame.run.journal.replaying


def rulings(calls: Sequence[CheckedCall], own: Policy | None) -> Sequence[Ruling | None]:
    """What the policies say of each call; None where they leave it to the tool. In a replay: what they said then."""
    frame: Frame | None = settings.scope().frame
    digest = f"policy {json_text([[each.tool.name, each.arguments.shown] for each in calls])}"
    # Beside the acts, not among them: a policy that comes or goes while a run waits must not move their places.
    slot = f"{frame.path}{frame.acts}p" if frame is not None else ""
    if frame is not None and frame.run.journal.replaying:
        entry = frame.run.journal.take(slot, "once", digest) if frame.run.journal.has(slot) else None
        if entry is not None:
            return [Ruling(*each) if each is not None else None for each in entry.value]
        if frame.run.journal.ahead(frame.path, frame.acts) is not None:
            return [None] * len(calls)
    policies = [each for each in (settings.setting("policy"), own) if each is not None]
    found = [_rule(policies, each) for each in calls]
    if not any(found):
        return found  # pyright: ignore[reportReturnType]  all None
    made = [Ruling(rule.verdict, rule.reason, rule.expires_s) if rule is not None else None for rule in found]
    if frame is not None:
        frame.run.journal.add(Entry(slot, "once", digest, [[r.verdict, r.reason, r.expires_s] if r is not None else None for r in made]))
        if frame.tell is not None:
            for rule, checked in zip(found, calls, strict=True):
                if rule is not None:
                    frame.tell(events.RuleUsed(checked.call, rule.verdict, str(rule)))
    return made


def _rule(policies: Sequence[Policy], checked: CheckedCall) -> Rule | None:
    found = [rule for each in policies if (rule := each.rule_for(checked.tool.name, checked.arguments.shown)) is not None]
    return strictest(found) if found else None


# -- grants ------------------------------------------------------------------------------------------------------


def grants(run: RunState) -> dict[str, Grant]:
    """The grants of a run that still hold, by the id of the question each was given with; `calls` is how many are left."""
    held: dict[str, Grant] = {}
    for decision in run.decisions:
        if decision.grant is not None:
            held[decision.question_id] = decision.grant
        elif decision.kind == "revoke":
            held.pop(decision.question_id.removeprefix("revoke:"), None)
        elif decision.via.startswith("grant:"):
            _used(held, decision.via.removeprefix("grant:"))
    now = time()
    return {key: grant for key, grant in held.items() if grant.until is None or now < grant.until}


def _used(held: dict[str, Grant], key: str) -> None:
    grant = held.get(key)
    if grant is not None and grant.calls is not None:
        if grant.calls > 1:
            held[key] = replace(grant, calls=grant.calls - 1)
        else:
            del held[key]


def by_grant(run: RunState, question: Question) -> Decision | None:
    """The approval that a grant gives, if one covers the call."""
    for key, grant in grants(run).items() if run.decisions else ():
        if question.kind == "confirm" and grant.covers(question.call.name, question.fingerprint, question.call.args):
            return Decision(question.id, "approve", shown=question.digest, via=f"grant:{key}", at=time())
    return None


def revoke(run: RunState, grant_id: str, *, by: str = "") -> None:
    """End a grant; raises `DecisionError` if there is none of this id."""
    known: Mapping[str, Grant] = grants(run)
    if grant_id not in known:
        msg = f"There is no grant {grant_id!r} in this run; there are: {', '.join(known) or 'none'}."
        raise DecisionError(msg)
    ended = Decision(f"revoke:{grant_id}", "revoke", by=by, via="api", at=time())
    run.decisions.append(ended)
    run.answers[ended.question_id] = ended  # no question takes it: there it is kept with the run
