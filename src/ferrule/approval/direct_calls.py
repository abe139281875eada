"""Consent to direct calls, outside any program.

A call raises `ConfirmationRequired`, is approved elsewhere, and is made again. Questions and
decisions are kept in one table of the process, so that another thread or task can decide. A
decision applies once, to the next call of the same tool with the same arguments, in the same run if
there is one.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ferrule import settings
from ferrule.approval.asking import confirmation_text, tool_fingerprint
from ferrule.approval.decisions import check_second
from ferrule.approval.policy import arguments_digest
from ferrule.approval.question import Decision, Question
from ferrule.approval.rulings import needs_person
from ferrule.concurrency.forking import ForkLock
from ferrule.encoding.encode import has_json_form
from ferrule.errors import ConfirmationRejected, ConfirmationRequired, DecisionError
from ferrule.values.calls.call import CheckedArguments, ToolCall, ToolSpec
from ferrule.values.calls.edit import Coerced, edit_arguments

_MOST_QUESTIONS = 10_000
"""The number of questions kept. The oldest are dropped first, with their decisions."""
_INSIDE_A_TOOL = (
    "(`{name}` was called inside another tool, which cannot pause halfway: its code would run a "
    "second time. Give the agent `{name}` itself as a tool; or decide with "
    "`respond_to_confirmation` and resume: then a person is asked whether to run the outer tool "
    "again.)"
)
_INSIDE_A_FORWARD = (
    "(`{name}` was called in a `forward`, where it ends the run: with "
    "`ferrule.call_tool({name}, ...)`, the run waits for the decision.)"
)


class Asked(Struct):
    """One direct call that needs consent."""

    key: Hashable
    """The tool, its definition, its secrets and the run: see `_key_of`."""
    arguments: _CallArguments
    question: Question
    checked: CheckedArguments
    tool: ToolSpec
    decision: Decision | None = None
    is_used: bool = False


class _CallArguments(Struct, frozen=True):
    """The arguments of a call as it was made, to recognise the same call."""

    digests: tuple[str, str]
    """Digests of the arguments as given, and as shown.

    Shown ones include defaults, which a factory makes again for each call."""
    objects: tuple[Any, ...]
    """Arguments without a JSON form: a digest cannot tell them from others of their class."""

    @classmethod
    def of(cls, checked: CheckedArguments) -> _CallArguments:
        arguments = checked.named
        if isinstance(checked, Coerced):
            arguments = checked.given
        return cls(
            (arguments_digest(arguments), arguments_digest(checked.shown)),
            tuple(filter(_is_object, arguments.values())),
        )

    def is_same(self, other: _CallArguments) -> bool:
        """Whether two calls have the same arguments, as given or as shown."""
        passed, shown = self.digests
        other_passed, other_shown = other.digests
        if passed != other_passed and shown != other_shown:
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
"""The direct calls of this process that asked, by the id of their question, oldest first."""


def consent(tool: ToolSpec, checked: CheckedArguments) -> CheckedArguments:
    """The arguments of a direct call that needs no confirmation or was approved, as edited.

    Raises `ConfirmationRequired` if there is no decision yet, `ConfirmationRejected` if the call
    was denied or answered with feedback.
    """
    call = ToolCall.unchecked(tool.name, checked.shown)
    if not needs_person(tool, checked.shown, call):
        return checked
    key = _key_of(tool, checked)
    arguments = _CallArguments.of(checked)
    with _guard.lock:
        asked = _find_decided(key, arguments)
        if asked is None:
            raise _ask(tool, key, arguments, checked, call)
        asked.is_used = True
    decision = asked.decision
    if decision is None or decision.kind not in {"approve", "edit"}:
        reason = ""
        if decision is not None:
            reason = decision.text
        raise ConfirmationRejected(
            reason or f"A person decided against `{tool.name}`; it was not run.",
            confirmation_id=asked.question.id,
            tool_call=call,
        )
    if asked.arguments.digests[1] != arguments.digests[1]:
        checked = asked.checked  # the arguments that the person saw
    if decision.kind == "approve":
        return checked
    return edit_arguments(checked, decision.args, tool, removed=decision.removed)


def asked_directly(question_id: str) -> Asked | None:
    """The direct call that asked this question; None for an unknown id."""
    return _table.get(question_id)


def forget_direct(question_id: str) -> None:
    """Forget a direct call's question and decision: the next such call asks again."""
    with _guard.lock:
        _table.pop(question_id, None)


def decide_directly(decision: Decision) -> None:
    """Record the decision on a direct call.

    Raises `DecisionError` if there is a different decision already, `ToolArgumentsError` if edited
    arguments are invalid; then the question stays open.
    """
    asked = _table[decision.question_id]
    if decision.kind == "edit":
        edit_arguments(asked.checked, decision.args, asked.tool, removed=decision.removed)
    if decision.grant is not None:
        raise DecisionError(
            "A grant applies to a run, and this call was made outside any run: approve each call."
        )
    with _guard.lock:
        if asked.decision is not None:
            check_second(asked.decision, decision)
        else:
            asked.decision = replace(decision, args=dict(decision.args))


def _key_of(tool: ToolSpec, checked: CheckedArguments) -> Hashable:
    """What must be equal for a decision to apply, apart from the arguments.

    Secrets are shown as stars, so the digest of the arguments does not distinguish them.
    """
    function: Any = tool.func
    if getattr(function, "__hash__", None) is None:  # an object with `__eq__` alone is not hashable
        function = id(function)
    run_id = ""
    call_of_run = settings.scope().call
    if call_of_run is not None:
        run_id = call_of_run.run_id
    secret_values = tuple(checked.secrets.values())
    return function, tool_fingerprint(tool, checked.shown), secret_values, run_id


def _find_decided(key: Hashable, arguments: _CallArguments) -> Asked | None:
    """An equal call that was decided, and whose decision is not used yet."""
    for asked in _table.values():
        is_decided = asked.decision is not None and not asked.is_used
        if is_decided and asked.key == key and asked.arguments.is_same(arguments):
            return asked
    return None


def _ask(
    tool: ToolSpec,
    key: Hashable,
    arguments: _CallArguments,
    checked: CheckedArguments,
    call: ToolCall,
) -> ConfirmationRequired:
    """Put a question into the table, and return the error that asks it."""
    question = Question(
        "confirm",
        confirmation_text(tool.name, checked.shown),
        call,
        secrets.token_hex(10),
        tool_fingerprint(tool, checked.shown),
    )
    _table[question.id] = Asked(key, arguments, question, checked, tool)
    while len(_table) > _MOST_QUESTIONS:
        del _table[next(iter(_table))]
    error = ConfirmationRequired(question.text, confirmation_id=question.id, tool_call=call)
    scope = settings.scope()
    hint = ""
    if scope.call is not None:
        hint = _INSIDE_A_TOOL
    elif scope.frame is not None:
        hint = _INSIDE_A_FORWARD
    if hint:
        error.args = (f"{question.text} {hint.format(name=tool.name)}",)
    return error
