"""Recovery of interrupted calls: what to do when a crash hides whether a call took effect.

In: calls that an earlier execution of the run began and that have no result in the journal. Out:
for each call a reconciled result, permission to run it (again), or a question to a person. A call
that may not be repeated never runs a second time without asking.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule import events
from ferrule.approval.asking import misfit_text
from ferrule.approval.question import Question
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_object
from ferrule.errors import StoreError, ToolArgumentsError, UnknownOutcomeError
from ferrule.record import Record, replace
from ferrule.runs.confirmation.decisions import register
from ferrule.runs.journal.entry import Entry
from ferrule.values.calls.call import CheckedArguments, CheckedCall, ToolResult, ToolSpec
from ferrule.values.calls.context import NotDone, Unknown, key_of
from ferrule.values.calls.edit import edit_arguments, made_anew

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.runs.state import Frame

REPEATABLE = frozenset({"read", "idempotent", "transactional"})
"""Effects that allow a repeat: no effect, an effect made idempotent by its key, or a transaction that was rolled back."""
_NOBODY_KNOWS = (
    "It is not known whether this call was carried out: the process stopped after it began and before its result was written down. "
    "It was not run again."
)
_NOT_RUN = (
    "This call was not run: the program has changed since it was made, and the call no longer fits."
)


class CutOff(Record):
    """A call that an earlier execution began but did not finish."""

    slot: str
    digest: str
    checked: CheckedCall
    begun: tuple[Entry, ...]
    """The entries of its starts, oldest first. Empty for a call that did not begin and no longer fits its tool."""

    @property
    def may_repeat(self) -> bool:
        """Whether it may run again without asking: both the tool's effect now and the effect recorded when it began must allow it.

        An idempotent call whose arguments or place have changed since has another key, so its
        service would take it for a new call.
        """
        effect, last = self.recorded.get("effect"), self.begun[-1]
        if self.checked.tool.effect == "idempotent" and (last.slot, last.digest) != (
            self.slot,
            self.digest,
        ):
            return False
        return (
            self.checked.tool.effect in REPEATABLE
            and isinstance(effect, str)
            and effect in REPEATABLE
        )

    @property
    def recorded(self) -> dict[str, Any]:
        """The effect and key that were recorded when it last began."""
        then: Any = self.begun[-1].value
        return cast("dict[str, Any]", then) if isinstance(then, dict) else {}


def as_begun(checked: CheckedCall, begun: Entry) -> CheckedCall:
    """The call with the arguments with which it began, if they only differ in defaults that a factory makes anew, such as an id or a time.

    Unchanged if the arguments differ because the program has changed.
    """
    tool, now = checked.tool, checked.arguments.shown
    if checked.misfit or begun.kind != "begun" or begun.digest == checked.digest:
        return checked
    try:
        then = parse_object(begun.digest.removeprefix(f"{tool.name} "), "the arguments of a call")
        made = {name: value for name, value in then.items() if now.get(name) != value}
        if not made.keys() <= made_anew(checked.arguments, checked.call.args, tool.prepare).keys():
            return checked
        found = replace(checked, arguments=edit_arguments(checked.arguments, made, tool.prepare))
    except (ToolArgumentsError, StoreError):
        return checked
    return found if found.digest == begun.digest else checked


def reconcile_call(run_id: str, left: CutOff) -> CheckedCall | None:
    """The tool's `reconcile=` as a call to run: with the key, then the tool's arguments by name. None if the tool has none."""
    tool = left.checked.tool
    if tool.reconcile is None or left.checked.misfit:
        return None
    arguments = left.checked.arguments
    asked = partial(
        tool.reconcile,
        left.recorded.get("key") or key_of(run_id, left.slot, tool.name, arguments.shown),
    )
    named = CheckedArguments(
        (),
        _accepted(asked, {**arguments.shown, **arguments.named}),
        arguments.shown,
    )
    return CheckedCall(
        left.checked.call,
        cast("ToolSpec", _Reconciling(tool.name, asked, tool.timeout_s)),
        named,
    )


def _accepted(check: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `check` accepts: many need only the key."""
    try:
        accepts = inspect.signature(check).parameters
    except ValueError:  # a function in C that has no signature
        return arguments
    if any(each.kind is each.VAR_KEYWORD for each in accepts.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in accepts}


class _Reconciling(Record):
    """The fields of a tool that are needed to run `reconcile`."""

    name: str
    func: Any
    timeout_s: float | None
    takes_context: bool = False
    is_program: bool = False


async def settle(
    frame: Frame,
    left: CutOff,
    found: ToolResult | None,
) -> ToolResult | Question | None:
    """Decide on an interrupted call: its result; the question to a person; or None to run it.

    `found` is the result of the tool's `reconcile=`. If that fails or does not know, `effect=` and
    `unknown=` decide.
    """
    decisions = [
        _recorded(frame, left, k) for k in range(1 if left.begun else 0, len(left.begun) + 1)
    ]
    if found is not None and not found.is_error and not _is(found.value, Unknown):
        return None if _is(found.value, NotDone) else found
    call, tool = left.checked.call, left.checked.tool
    if left.checked.misfit:
        return await _ask(frame, left, decisions[-1])
    if left.may_repeat:
        return None
    match tool.unknown:
        case "tell":
            _log_unknown(frame, left)
            return ToolResult(call.name, _NOBODY_KNOWS, call.id, is_error=True)
        case "fail":
            _log_unknown(frame, left)
            msg = (
                f"It is not known whether `{call.name}` ran with {json_text(left.checked.arguments.shown)} (call {left.slot} of the run "
                f"{frame.run.id}): it began, no result was recorded, and the tool says `unknown='fail'`. "
                "Find out, then resume the run with `unknown='ask'` on the tool: it asks, and a reply is the result."
            )
            raise UnknownOutcomeError(msg)
        case _:
            return await _ask(frame, left, decisions[-1])


def _log_unknown(frame: Frame, left: CutOff) -> None:
    import logging  # late: few calls are cut off

    fields = {"run_id": frame.run.id, "tool": left.checked.tool.name, "path": left.slot}
    logging.getLogger("ferrule.tools").warning(
        "It is not known whether %s ran.",
        left.checked.tool.name,
        extra=fields,
    )


def _is(value: Any, kind: type) -> bool:
    return value is kind or isinstance(value, kind)


def _decision_slot(left: CutOff, number: int) -> tuple[str, str]:
    return f"{left.slot}?{number}", f"unknown {left.digest}"


def _recorded(frame: Frame, left: CutOff, number: int) -> Entry | None:
    slot, digest = _decision_slot(left, number)
    entry = (
        frame.run.journal.take(slot, "decision", digest) if frame.run.journal.has(slot) else None
    )
    return (
        entry if entry is not None and entry.digest == digest else None
    )  # otherwise the decision was made on other arguments


async def _ask(frame: Frame, left: CutOff, entry: Entry | None) -> ToolResult | Question | None:
    """The outcome of a person's decision, or the question if undecided. Each start of the call makes a new question."""
    run, call = frame.run, left.checked.call
    kind: Literal["unknown", "migration"] = "migration" if left.checked.misfit else "unknown"
    tool = left.checked.tool
    schema = (
        tool.declaration["function"]["parameters"] if kind == "migration" else None
    )  # only then can it be edited
    shown = call.changed(args=left.checked.arguments.shown)
    bare = Question(
        kind,
        _question(left),
        shown,
        path=frame.path,
        schema=schema,
        effect=tool.effect,
    )
    if entry is None or entry.value.shown not in {
        "",
        bare.digest,
    }:  # none, or one made for another version of the program
        slot, digest = _decision_slot(left, len(left.begun))
        question = replace(bare, id=run.question_id(f"{slot} {bare.digest}"))
        decision = run.decision(question.id)
        if decision is None:
            if kind == "unknown":
                _log_unknown(frame, left)
            register(run, [question])
            if frame.tell is not None:
                frame.tell.inside(left.slot)(events.QuestionAsked(question))
            return question
        entry = Entry(slot, "decision", digest, decision)
        await frame.write(entry)
        run.decided(decision)
        if frame.tell is not None:
            frame.tell.inside(left.slot)(events.Decided(question, decision))
    else:
        run.tally.note(run.decisions, entry.value)
    match entry.value.kind:
        case "approve" if not left.checked.misfit:
            return None
        case "reply":
            return ToolResult(call.name, entry.value.text, call.id)
        case _:  # a denial; also an edit made by hand, because the call that may have run is the one shown
            reason = f" A person says: {entry.value.text}" if entry.value.text else ""
            return ToolResult(
                call.name,
                (_NOBODY_KNOWS if left.begun else _NOT_RUN) + reason,
                call.id,
                is_error=True,
            )


def _question(left: CutOff) -> str:
    shown = json_text(left.checked.arguments.shown)
    if left.checked.misfit:
        return misfit_text(left.checked, began=bool(left.begun))
    return (
        f"{left.checked.call.name} may have run with args: {shown}. The call began, but no result was recorded. "
        "Run it (again)? Approve: run it. Reply: record your text as its result. Deny: leave it."
    )
