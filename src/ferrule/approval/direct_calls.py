"""Consent to direct calls, outside any program.

A call raises `ConfirmationRequired`, is approved elsewhere, and is made again. Questions and
decisions are kept in one table of the process, so that another thread or task can decide. A
decision applies once, to the next call of the same tool with the same arguments, in the same run if
there is one.
"""

from __future__ import annotations

import secrets
from operator import eq
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ferrule import settings
from ferrule.approval.asking import confirmation_text, tool_fingerprint
from ferrule.approval.decisions import check_second
from ferrule.approval.policy import arguments_digest
from ferrule.approval.question import Question
from ferrule.approval.rulings import needs_person
from ferrule.concurrency.forking import ForkLock
from ferrule.encoding.encode import has_json_form
from ferrule.errors import ConfirmationRejected, ConfirmationRequired, DecisionError
from ferrule.values.calls.call import CheckedArguments, ToolCall
from ferrule.values.calls.edit import Coerced, edit_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ferrule.approval.question import Decision
    from ferrule.values.calls.call import ToolSpec

_MOST = 10_000
"""The number of questions kept. The oldest are dropped first, with their decisions."""
_IN_THE_MIDDLE = (
    "(`{name}` was called inside another tool, which cannot pause halfway: its code would run a second time. Give the agent "
    "`{name}` itself as a tool; or decide with `respond_to_confirmation` and resume: then a person is asked whether to run the outer tool "
    "again.)"
)
_IN_A_FORWARD = "(`{name}` was called in a `forward`, where it ends the run: with `ferrule.call_tool({name}, ...)`, the run waits for the decision.)"


class Asked(Struct):
    """One direct call that needs consent."""

    key: Hashable
    given: _Given
    question: Question
    checked: CheckedArguments
    prepare: Callable[[dict[str, Any]], CheckedArguments]
    decision: Decision | None = None
    is_used: bool = False


class _Given(Struct, frozen=True):
    """The arguments of a call as it was made, to recognise the same call."""

    digests: tuple[str, str]
    """Digests of the arguments as given, and as shown: shown ones include defaults, which a factory makes anew for each call."""
    objects: tuple[Any, ...]
    """Arguments without a JSON form. A digest cannot distinguish them from other objects of their class."""

    @classmethod
    def of(cls, checked: CheckedArguments) -> _Given:
        given = checked.given if isinstance(checked, Coerced) else checked.named
        return cls(
            (arguments_digest(given), arguments_digest(checked.shown)),
            tuple(filter(_is_object, given.values())),
        )

    def is_same(self, other: _Given) -> bool:
        """Whether two calls have the same arguments, as given or as shown."""
        if not any(map(eq, self.digests, other.digests)):
            return False
        try:
            return self.objects == other.objects
        except (ValueError, TypeError):  # arrays: their comparison is not a boolean
            return False


def _is_object(value: Any) -> bool:
    # An iterator has been read, and another one may yield the same items.
    return not hasattr(value, "__next__") and not has_json_form(value)


_guard = ForkLock()
_table: dict[str, Asked] = {}


def consent(tool: ToolSpec, checked: CheckedArguments) -> CheckedArguments:
    """Return the arguments of a direct call that needs no confirmation or was approved, with the person's edits.

    Raises `ConfirmationRequired` if there is no decision yet, `ConfirmationRejected` if the call
    was denied or answered with feedback.
    """
    if not needs_person(tool, checked.shown):
        return checked
    here = settings.scope()
    place = here.call
    function: Hashable = (
        tool.func if getattr(tool.func, "__hash__", None) is not None else id(tool.func)
    )
    bound = tool_fingerprint(tool.declaration, tool.effect)
    key = (
        function,
        bound,
        tuple(checked.secrets.values()),
        place.run_id if place is not None else "",
    )
    given = _Given.of(checked)
    call = ToolCall(name=tool.name, args=checked.shown)
    with _guard.lock:
        decided = [
            each
            for each in _table.values()
            if each.key == key and each.decision is not None and not each.is_used
        ]
        found = next((each for each in decided if each.given.is_same(given)), None)
        if found is None:
            question = Question(
                "confirm",
                confirmation_text(tool.name, checked.shown),
                call,
                secrets.token_hex(10),
                bound,
            )
            _table[question.id] = Asked(key, given, question, checked, tool.prepare)
            while len(_table) > _MOST:
                del _table[next(iter(_table))]
            asking = ConfirmationRequired(
                question.text,
                confirmation_id=question.id,
                tool_call=call,
            )
            hint = (
                _IN_THE_MIDDLE
                if place is not None
                else _IN_A_FORWARD
                if here.frame is not None
                else ""
            )
            if hint:
                asking.args = (f"{question.text} {hint.format(name=tool.name)}",)
            raise asking
        found.is_used = True
    decision = found.decision
    if decision is None or decision.kind not in {"approve", "edit"}:
        said = decision.text if decision is not None else ""
        message = said or f"A person decided against `{tool.name}`; it was not run."
        raise ConfirmationRejected(message, confirmation_id=found.question.id, tool_call=call)
    if found.given.digests[1] != given.digests[1]:
        checked = found.checked  # the arguments that the person saw
    return (
        checked
        if decision.kind == "approve"
        else edit_arguments(checked, decision.args, tool.prepare)
    )


def asked_directly(question_id: str) -> Asked | None:
    """The direct call that asked this question; None for an unknown id."""
    return _table.get(question_id)


def forget_direct(question_id: str) -> None:
    """Forget a direct call's question, with the decision on it: the next such call asks again."""
    with _guard.lock:
        _table.pop(question_id, None)


def decide_directly(decision: Decision) -> None:
    """Record the decision on a direct call.

    Raises `DecisionError` if there is a different decision already, `ToolArgumentsError` if edited
    arguments are invalid; then the question stays open.
    """
    asked = _table[decision.question_id]
    if decision.kind == "edit":
        edit_arguments(asked.checked, decision.args, asked.prepare)
    if decision.grant is not None:
        raise DecisionError(
            "A grant applies to a run, and this call was made outside any run: approve each call.",
        )
    with _guard.lock:
        if asked.decision is not None:
            check_second(asked.decision, decision)
        asked.decision = asked.decision or replace(decision, args=dict(decision.args))
