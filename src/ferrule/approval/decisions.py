"""How a decision is checked before it counts.

A decision may come from anywhere: a person at a terminal, a web page, a queue, another process. It
passes five checks, the last one after it is recorded, when it is applied to its call:

1. `plain_decision`: it is a `Decision` of one of the four kinds, with fitting fields. From here on
   it is a copy, made once, that the caller cannot change.
2. `check_second`: the question has no other decision yet. The same decision again is accepted.
3. `named_question`: it names a question that waits. The id of a question is made from its call, so
   a decision never reaches another call, at whatever door it comes in. The refusal says what is
   asked now.
4. `accept`: it is in time, was made on what the question shows now, and fits the kind of question.
5. `allowed_call`: an edit passes the tool's own check of arguments.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct
from msgspec.structs import asdict, replace

from ferrule.approval.input_form import describe_form, read_form, result_problems
from ferrule.approval.question import DECIDED, Decision, Grant, check_author
from ferrule.encoding.encode import is_column_text, jsonable
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.encoding.stored import check_fields, parse_json
from ferrule.errors import DecisionError, ToolArgumentsError, shown
from ferrule.schema.explain import SchemaCheck
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.calls.edit import edit_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.approval.question import Question
    from ferrule.values.calls.call import CheckedCall, ToolCall

_KINDS = frozenset({"approve", "edit", "deny", "reply"})
"""The kinds that answer a question; `revoke` ends a grant."""
_MOST_ASKED = 400
"""Characters of a question in an error."""


# -- checks before a decision is recorded


def check_second(first: Decision, second: Decision, waiting: Iterable[Question] = ()) -> None:
    """Raise a `DecisionError` for a second decision that differs or is another person's.

    The error names the author and the time of the first, and the questions that wait now. A
    repeated decision is accepted: a form may be sent twice.
    """
    if second == first and second.by in {"", first.by}:
        return
    if first.via == "expiry":
        raise expired_error(first.question_id)
    author = ""
    if first.by:
        author = f" by {first.by}"
    when = ""
    if first.at is not None:
        when = f" at {datetime.fromtimestamp(first.at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    others = [question for question in waiting if question.id != first.question_id]
    now = ""
    if others:
        now = f" Waiting are: {asked_now(others)}."
    raise DecisionError(
        f"Question {first.question_id!r} is decided already{author}: "
        f"{DECIDED[first.kind]}{when}.{now}",
        reason="decided",
    )


def named_question(
    waiting: Iterable[Question], question_id: str, *, where: str, state: str = ""
) -> Question:
    """The waiting question with this id, which a decision names.

    Raises `DecisionError` with what is asked now if there is none: the run has moved on, or the id
    is another run's. `state` tells why nothing waits.
    """
    questions = list(waiting)
    for question in questions:
        if question.id == question_id:
            return question
    if not state:
        state = f"waiting are: {asked_now(questions)}"
    raise DecisionError(f"No question {question_id!r} waits in {where}; {state}.", reason="unknown")


def asked_now(waiting: Iterable[Question]) -> str:
    """The questions that wait, by id, with what each asks."""
    return ", ".join(f"{question.id} ({_asks(question)})" for question in waiting) or "none"


def _asks(question: Question) -> str:
    return one_line(reveal(question.text), _MOST_ASKED)


def accept(question: Question, decision: Decision, *, now: float) -> Decision:
    """Check a decision on a waiting question.

    Returns it with the receiver's time. Raises `DecisionError` if it comes too late, was made on
    another question, or does not fit this kind of question.
    """
    digest = question.digest
    if question.expires_at is not None and now > question.expires_at:
        raise expired_error(question.id)
    if decision.shown not in {"", digest}:
        raise DecisionError(
            f"This decision does not fit what question {question.id!r} shows now. "
            f"Look at the question again: {_asks(question)}"
        )
    # The question's own methods know what it accepts, and raise for what it does not.
    if question.kind in {"migration", "result"} and decision.kind == "approve":
        question.approve()
    if question.kind == "input":
        _refuse_misfit(question, decision)
    if question.kind == "result" and decision.kind == "reply":
        _refuse_unfit_result(question, decision.text)
    if decision.kind == "edit":
        question.edit(decision.args, removed=decision.removed)
    if decision.grant is not None and decision.grant != question.bound(decision.grant):
        raise DecisionError(
            f"This grant is for another call than that of question {question.id!r}: "
            "`approve(always=...)` fills it in."
        )
    return replace(decision, at=now, shown=digest)


def expired_error(question_id: str) -> DecisionError:
    """The error for a decision that comes when its question has expired."""
    return DecisionError(
        f"Question {question_id!r} expired without a decision, so the call counts as denied.",
        reason="expired",
    )


def plain_decision(decision: Any) -> Decision:
    """Check the form of a decision, and copy it as plain JSON data.

    Later changes to the caller's objects then cannot make the call differ from the record. Raises
    `DecisionError` for a malformed decision, because every accepted one is journalled.
    """
    _refuse_malformed(decision)
    if any(hasattr(value, "get_secret_value") for value in decision.args.values()):
        raise DecisionError(
            "An edit is stored with its run, which would mask a secret: pass the value as text."
        )
    return read_decision(jsonable(asdict(decision)))


def read_decision(form: Mapping[str, Any]) -> Decision:
    """Read a decision from its stored fields.

    Ignores the `caller`, which a store adds if observers noted one.
    """
    fields = {name: value for name, value in form.items() if name != "caller"}
    decision: Decision = check_fields(Decision(**fields))
    if decision.grant is not None:
        check_fields(decision.grant)
    return decision


def _refuse_malformed(decision: Any) -> None:
    question_id = getattr(decision, "question_id", None)
    if not isinstance(decision, Decision) or not is_column_text(question_id):
        raise DecisionError(
            "A decision comes from a question: question.approve(), .deny(), .reply(text); "
            f"found {shown(decision)}."
        )
    check_author(decision.by, decision.via)
    text, kind = cast("Any", decision.text), cast("Any", decision.kind)
    if (
        not isinstance(kind, str)
        or kind not in _KINDS
        or not isinstance(text, str)
        or not _is_named(decision.args)
    ):
        raise DecisionError(
            "A decision has one of the four kinds, a text, and arguments by name; "
            f"found {shown(decision)}."
        )
    removed: Any = decision.removed
    if not isinstance(removed, tuple) or not all(
        isinstance(name, str) for name in cast("tuple[Any, ...]", removed)
    ):
        raise DecisionError(
            f"An edit names the arguments that it removes; found {shown(decision)}."
        )
    has_args, is_edit = bool(decision.args) or bool(decision.removed), decision.kind == "edit"
    at: Any = decision.at
    if at is not None and (type(at) not in {int, float} or not isfinite(at)):
        raise DecisionError(f"The time of a decision is in seconds since 1970; found {shown(at)}.")
    if decision.grant is not None and not isinstance(cast("Any", decision.grant), Grant):
        raise DecisionError(
            f"`grant` of a decision is a `Grant(...)`, found {shown(decision.grant)}."
        )
    if has_args != is_edit or (decision.grant is not None and decision.kind != "approve"):
        raise DecisionError(
            "Only an edit has arguments, and only an approval has a grant; "
            f"found {shown(decision)}."
        )


def _is_named(args: Any) -> bool:
    if not isinstance(args, dict):
        return False
    return all(isinstance(name, str) for name in cast("dict[Any, Any]", args))


def _refuse_misfit(question: Question, decision: Decision) -> None:
    """Raise `DecisionError` for a decision that an `input` question, or its form, rejects."""
    if decision.kind in {"approve", "edit"}:
        raise DecisionError(
            f"Question {question.id!r} asks for input: answer it with question.fill({{...}}), "
            "or deny it."
        )
    if decision.kind == "deny" or question.form is None:
        return
    problems = SchemaCheck(dict(question.form))(read_form(question.form, decision.text))
    if problems:
        raise DecisionError(
            f"This does not fit what the server asks for: {'; '.join(problems)}. "
            f"It takes {describe_form(question.form)}."
        )


def _refuse_unfit_result(question: Question, text: str) -> None:
    """Raise `DecisionError` for a result that is not of the type that the tool declares."""
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        raise DecisionError(
            f"The result of `{question.call.name}` is delivered as JSON; found {shown(text)}. "
            "`question.deliver(value)` writes it."
        ) from None
    problems = result_problems(question.returns, value)
    if problems:
        raise DecisionError(
            f"This does not fit the declared result of `{question.call.name}`: "
            f"{'; '.join(problems)}."
        )


# -- udspy's way to decide


class PersonResponse(Struct, frozen=True):
    """The arguments of `respond_to_confirmation`, as a kind of decision and its data."""

    kind: Literal["approve", "edit", "deny", "reply"]
    data: Any
    """The changed arguments of an edit; the text of a denial or a reply, or None."""

    def on(self, question: Question) -> Decision:
        """The decision on a question that is known."""
        match self.kind:
            case "approve":
                return question.approve()
            case "edit":
                return question.edit(self.data)
            case "deny":
                return question.deny(self.data or "")
            case "reply":
                return question.reply(self.data)

    def on_id(self, question_id: str) -> Decision:
        """The decision on a question that is gone: it must equal the one that was made."""
        if self.kind == "edit":
            return Decision(question_id, self.kind, args=self.data)
        return Decision(question_id, self.kind, self.data or "")


def read_response(approved: bool, data: Any, status: str | None) -> PersonResponse:
    """Read the arguments of `respond_to_confirmation`; raises `DecisionError` if they contradict.

    Without a `status`, a mapping as `data` means an edit.
    """
    # The text "no" of a web form would approve.
    if not isinstance(approved, bool):
        raise DecisionError(
            f"`approved` is True or False, found {shown(cast('object', approved))}."
        )
    is_edit, is_text = isinstance(data, dict), isinstance(data, str)
    if not status:
        if not approved:
            status = "rejected"
        elif is_edit:
            status = "edited"
        else:
            status = "approved"
    match status:
        case "approved" if approved and data is None:
            return PersonResponse("approve", data)
        case "edited" if approved and is_edit:
            return PersonResponse("edit", data)
        case "rejected" if not approved and (data is None or is_text):
            return PersonResponse("deny", data)
        case "feedback" if is_text:
            return PersonResponse("reply", data)
        case _:
            raise DecisionError(
                "A response approves (`approved=True`), edits (`data={...}`), rejects "
                "(`approved=False`, with the reason as `data`) or gives feedback "
                "(`data='...', status='feedback'`); "
                f"found approved={approved!r}, data={shown(cast('object', data))}, "
                f"status={status!r}."
            )


# -- the call that a decision allows


def call_as_decided(checked: CheckedCall, decision: Decision) -> ToolCall:
    """The call with the arguments that a decision allows, which may no longer fit the tool."""
    args = {**checked.arguments.shown, **decision.args}
    return checked.call.changed(
        args={name: value for name, value in args.items() if name not in decision.removed}
    )


def allowed_call(checked: CheckedCall, decision: Decision, *, has_run: bool | None) -> CheckedCall:
    """The call with the arguments of a decision, checked by its tool.

    `has_run` says whether an earlier execution ran the call so: None if this is not known. A call
    that has run keeps its result, so it is returned as a misfit even if its arguments no longer
    fit. Raises `ToolArgumentsError` if they do not fit otherwise, or if checking them changes what
    a person was shown.
    """
    tool = checked.tool
    try:
        arguments = _edited_arguments(checked, decision)
    except ToolArgumentsError:
        if not has_run:
            raise
        call = call_as_decided(checked, decision)
        return replace(
            checked,
            call=call,
            arguments=CheckedArguments((), {}, call.args),
            misfit=checked.misfit or "The changed arguments no longer fit.",
        )
    if has_run is False:
        # They fit now, but did not then: the journal goes on with the question asked again.
        problem = "they did not fit the tool when they were decided"
        raise ToolArgumentsError(tool.name, [("", problem)])
    call = checked.call.changed(args=arguments.shown)  # for observers
    return replace(checked, call=call, arguments=arguments, misfit="")


def _edited_arguments(checked: CheckedCall, decision: Decision) -> CheckedArguments:
    tool = checked.tool
    before = checked.arguments
    if checked.misfit:  # an edit then replaces all arguments
        before = CheckedArguments((), {}, {})
    arguments = edit_arguments(before, decision.args, tool, removed=decision.removed)
    if decision.kind == "approve":
        for name, value in decision.args.items():
            if arguments.shown.get(name) != value:
                problem = "checking the arguments as they were shown changed them"
                raise ToolArgumentsError(tool.name, [("", problem)])
    return arguments
