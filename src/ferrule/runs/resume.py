"""Resuming a run whose process or program has changed: which calls ran, and what to do with them.

`Run.resume` executes the program again, and the journal (`journal/journal.py`) answers its acts
until it ends. Two kinds of calls need more than a recorded answer:

- **A call of a recorded answer.** The model's answer is read again, perhaps by a program with other
  tools and checks. A call that ran keeps its result, even if its tool is gone. A call that did not
  run, because the program went on without it, does not run now. `recall_calls` says which is which.
- **An interrupted call.** It began, and the process died before its result was written down: it may
  have taken effect or not. In this order: the tool's `reconcile=` finds out; an effect that allows
  a repeat runs again; the tool's `unknown=` decides between telling the model, failing, and asking
  a person. A call that may not be repeated never runs a second time without asking. `settle`
  does this.
"""

from __future__ import annotations

import inspect
import logging
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule import events
from ferrule.approval.asking import misfit_text
from ferrule.approval.question import Question
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_object
from ferrule.errors import ReplayMismatchError, StoreError, ToolArgumentsError, UnknownOutcomeError
from ferrule.runs.decisions import register
from ferrule.runs.journal.entry import Entry, secrets_of
from ferrule.runs.journal.journal import ClosedJournal
from ferrule.runs.journal.matching import equal_arguments, names_call
from ferrule.values.calls.call import CheckedArguments, CheckedCall, StandIn, ToolResult, ToolSpec
from ferrule.values.calls.context import NotDone, Unknown, key_of
from ferrule.values.calls.edit import edit_arguments, made_anew
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.acts import RecallCalls, RecallResults, Suspended
    from ferrule.runs.journal.journal import Journal
    from ferrule.runs.state import Frame

_log = logging.getLogger("ferrule.tools")

REPEATABLE = frozenset({"read", "idempotent", "transactional"})
"""Effects that allow a repeat: none, one that its key makes idempotent, or a transaction that was
rolled back."""
_OUTCOME_UNKNOWN = (
    "It is not known whether this call was carried out: the process stopped after it began and "
    "before its result was written down. It was not run again."
)
_NOT_RUN = (
    "This call was not run: the program has changed since it was made, and the call no longer fits."
)


# -- interrupted calls


class InterruptedCall(Struct, frozen=True):
    """A call that an earlier execution began but did not finish."""

    slot: Slot
    digest: str
    checked: CheckedCall
    starts: tuple[Entry, ...]
    """The entries of its starts, oldest first. Empty for a call that did not begin and no longer
    fits its tool."""

    @property
    def may_repeat(self) -> bool:
        """Whether it may run again without asking.

        Both the tool's effect now and the effect recorded when it began must allow it. An
        idempotent call whose arguments have changed since has another key, so its service would
        take it for a new call.
        """
        effect = self.recorded.get("effect")
        if self.checked.tool.effect == "idempotent" and self.starts[-1].digest != self.digest:
            return False
        return self.checked.tool.effect in REPEATABLE and effect in REPEATABLE

    @property
    def recorded(self) -> dict[str, Any]:
        """The effect and key that were recorded when it last began."""
        return self.starts[-1].value or {}  # None: a call with the effect `once` without a key


def as_begun(checked: CheckedCall, start: Entry) -> CheckedCall:
    """The call with the arguments with which it began.

    They may differ in defaults that a factory makes each time, such as an id or a time. The call is
    returned unchanged if they differ because the program has changed.
    """
    tool, arguments = checked.tool, checked.arguments
    if checked.misfit or start.kind != "begun" or start.digest == checked.digest:
        return checked
    try:
        recorded = parse_object(
            start.digest.removeprefix(f"{tool.name} "), "the arguments of a call"
        )
        differing = {
            name: value for name, value in recorded.items() if arguments.shown.get(name) != value
        }
        factory_made = made_anew(arguments, checked.call.args, tool.prepare)
        if not differing.keys() <= factory_made.keys():
            return checked
        same = replace(checked, arguments=edit_arguments(arguments, differing, tool))
    except (ToolArgumentsError, StoreError):
        return checked
    if same.digest != start.digest:
        return checked
    return same


def reconcile_call(run_id: str, interrupted: InterruptedCall) -> CheckedCall | None:
    """The tool's `reconcile=` as a call to run, or None if the tool has none.

    It receives the key, then the tool's arguments by name.
    """
    tool, arguments = interrupted.checked.tool, interrupted.checked.arguments
    if tool.reconcile is None or interrupted.checked.misfit:
        return None
    key = interrupted.recorded.get("key")
    if not key:
        key = key_of(run_id, interrupted.slot, tool.name, arguments.shown)
    reconcile = partial(tool.reconcile, key)
    accepted = _accepted(reconcile, {**arguments.shown, **arguments.named})
    return CheckedCall(
        interrupted.checked.call,
        cast("ToolSpec", StandIn(tool.name, reconcile, tool.timeout_s)),
        CheckedArguments((), accepted, arguments.shown),
    )


def _accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a function accepts: many need only the key."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a function in C that has no signature
        return arguments
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


async def settle(
    frame: Frame, interrupted: InterruptedCall, reconciled: ToolResult | None
) -> ToolResult | Question | None:
    """Decide on an interrupted call: its result; the question to a person; or None to run it.

    `reconciled` is the result of the tool's `reconcile=`. If that fails or does not know, `effect=`
    and `unknown=` decide.
    """
    decision = _take_decisions(frame, interrupted)
    if reconciled is not None and not reconciled.is_error and not _is(reconciled.value, Unknown):
        if _is(reconciled.value, NotDone):
            return None
        return reconciled
    call, tool = interrupted.checked.call, interrupted.checked.tool
    if interrupted.checked.misfit:
        return await _ask(frame, interrupted, decision)
    if interrupted.may_repeat:
        return None
    match tool.unknown:
        case "tell":
            _log_unknown(frame, interrupted)
            return ToolResult(call.name, _OUTCOME_UNKNOWN, call.id, is_error=True)
        case "fail":
            _log_unknown(frame, interrupted)
            shown = json_text(interrupted.checked.arguments.shown)
            raise UnknownOutcomeError(
                f"It is not known whether `{call.name}` ran with {shown} "
                f"(call {interrupted.slot} of the run {frame.run.id}): it began, no result was "
                "recorded, and the tool says `unknown='fail'`. Find out, then resume the run with "
                "`unknown='ask'` on the tool: it asks, and a reply is the result."
            )
        case _:
            return await _ask(frame, interrupted, decision)


def _log_unknown(frame: Frame, interrupted: InterruptedCall) -> None:
    name = interrupted.checked.tool.name
    fields = {"run_id": frame.run.id, "tool": name, "path": interrupted.slot}
    _log.warning("It is not known whether %s ran.", name, extra=fields)


def _is(value: Any, kind: type) -> bool:
    """Whether `reconcile` returned this class or an instance of it."""
    return value is kind or isinstance(value, kind)


def _take_decisions(frame: Frame, interrupted: InterruptedCall) -> Entry | None:
    """Take the decisions on earlier starts of the call; returns the one on its last start."""
    journal, digest = frame.run.journal, f"unknown {interrupted.digest}"
    starts = len(interrupted.starts)
    latest: Entry | None = None
    for number in range(min(starts, 1), starts + 1):
        slot = interrupted.slot.decision(number)
        latest = journal.take_optional(slot, "decision", digest)
        if latest is not None and latest.digest != digest:  # made on other arguments
            latest = None
    return latest


async def _ask(
    frame: Frame, interrupted: InterruptedCall, entry: Entry | None
) -> ToolResult | Question | None:
    """The outcome of a person's decision, or the question if undecided.

    Each start of the call makes a new question.
    """
    run, bare = frame.run, _question(frame, interrupted)
    if entry is not None and entry.value.shown in {"", bare.digest}:
        run.tally.note(run.decisions, entry.value)
        return _outcome(interrupted, entry.value)
    # No decision, or one made for another version of the program.
    slot = interrupted.slot.decision(len(interrupted.starts))
    question = replace(bare, id=run.question_id(f"{slot} {bare.digest}"))
    decision = run.answers.get(question.id)
    tell = frame.tell_at(interrupted.slot)
    if decision is None:
        if question.kind == "unknown":
            _log_unknown(frame, interrupted)
        register(run, [question])
        if tell is not None:
            tell(events.QuestionAsked(question))
        return question
    digest = f"unknown {interrupted.digest}"
    await frame.write(Entry(slot, "decision", digest, decision, secrets_of(question)))
    run.decided(decision)
    if tell is not None:
        tell(events.Decided(question, decision.masked(question.secrets)))
    return _outcome(interrupted, decision)


def _outcome(interrupted: InterruptedCall, decision: Any) -> ToolResult | None:
    """What a decision makes of an interrupted call: its result, or None to run it."""
    call = interrupted.checked.call
    if decision.kind == "approve" and not interrupted.checked.misfit:
        return None
    if decision.kind == "reply":
        return ToolResult(call.name, decision.text, call.id, by_person=True)
    # A denial; also an edit made by hand, because the call that may have run is the one shown.
    if interrupted.starts:
        text = _OUTCOME_UNKNOWN
    else:
        text = _NOT_RUN
    if decision.text:
        text += f" A person says: {decision.text}"
    return ToolResult(call.name, text, call.id, is_error=True)


def _question(frame: Frame, interrupted: InterruptedCall) -> Question:
    """The question about an interrupted call, without its id."""
    checked, tool = interrupted.checked, interrupted.checked.tool
    # It has no schema, so it takes no edit: what may have run is the call as it was.
    kind: Literal["unknown", "migration"] = "unknown"
    if checked.misfit:
        kind = "migration"
        text = misfit_text(checked, began=bool(interrupted.starts))
    else:
        text = (
            f"{checked.call.name} may have run with args: {json_text(checked.arguments.shown)}. "
            "The call began, but no result was recorded. Run it (again)? Approve: run it. "
            "Reply: record your text as its result. Deny: leave it."
        )
    return Question(
        kind,
        text,
        checked.call.changed(args=checked.arguments.shown),
        path=frame.path,
        effect=tool.effect,
    )


# -- calls of a recorded answer


def recall_results(frame: Frame, act: RecallResults) -> list[ToolResult] | None:
    """The recorded results of a turn of calls; None if the calls are handled one by one.

    See `RecallResults`.
    """
    journal = frame.run.journal
    # With a budget, each call is counted, and its result may say how many are left. An execution
    # that goes on takes one answer by one, and notes what differs.
    if frame.budget is not None or not isinstance(journal, ClosedJournal):
        return None
    results = journal.take_results(frame.path, frame.acts, act.calls)
    if results is not None:
        frame.slot()  # the act that ran the calls
    return results


def recall_calls(frame: Frame, act: RecallCalls) -> list[bool | None]:
    """For each call of the answer, whether the earlier execution acted on it; None if that is open.

    See `RecallCalls`.
    """
    if frame.live:
        return [None] * len(act.calls)
    entries, is_over = frame.run.journal.turn(frame.path, frame.acts)
    turn = _Turn(act)
    turn.match(dict(entries))  # a finished call has two entries: its start, and then its result
    numbers = range(len(act.calls))
    if is_over:
        return [number in turn.matched for number in numbers]
    asked = _asked_calls(frame)
    answers: list[bool | None] = [None] * len(act.calls)
    for number, call in enumerate(act.calls):
        is_asked = call.id is not None and call.id in asked
        if is_asked or number in turn.matched:
            answers[number] = True
    return answers


def _asked_calls(frame: Frame) -> set[str | None]:
    """The ids of the calls in this frame that a person was asked about, without a decision yet."""
    run = frame.run
    decided = {entry.value.question_id for entry in run.journal.entries if entry.kind == "decision"}
    return {
        question.call.id
        for question in run.asked
        if question.path == frame.path and question.id not in decided
    }


class _Match(Struct):
    """A way to give the entries at some places to calls."""

    count: int = 0
    """How many places find a call."""
    similarity: int = 0
    call: int = -1
    """The number of the call that the first of these entries belong to; -1 for no match."""
    entries: tuple[Entry, ...] = ()
    rest: _Match | None = None
    """The matches of the later places."""


class _Turn:
    """Matches the calls of one answer to their journal entries, which do not number their call.

    Within a batch, both are in order.
    """

    def __init__(self, act: RecallCalls) -> None:
        self._calls = act.calls
        self._checked = act.checked or (None,) * len(act.calls)
        self.matched: set[int] = set()
        """The numbers of the calls that have entries."""
        self._ended: set[int] = set()
        self._edited: set[int] = set()

    @cached_property
    def _arguments(self) -> list[str | None]:
        """The arguments of each call as its digest has them; None for a call that does not fit.

        Made only if it is used: most providers give calls an id, which a result has, too.
        """
        arguments: list[str | None] = []
        for checked in self._checked:
            if checked is None:
                arguments.append(None)
            else:
                arguments.append(f" {json_text(checked.arguments.shown)}")
        return arguments

    def match(self, entries: dict[str, Entry]) -> None:
        """Match entries, by slot, to the calls of the turn."""
        in_order = sorted(
            ((Slot(slot).order, entry) for slot, entry in entries.items()), key=lambda pair: pair[0]
        )
        for _, batch in groupby(in_order, key=lambda pair: pair[0][0]):
            places = [
                (order[-1], tuple([entry for _, entry in about]))
                for order, about in groupby(batch, key=lambda pair: pair[0])
            ]
            self._match_batch(places)

    def _match_batch(self, places: list[tuple[int, tuple[Entry, ...]]]) -> None:
        """Match the entries of a batch, in the order of its calls.

        As many places as possible find a call, and of these ways the one with the most similar
        calls is chosen. The entries at place `n` cannot belong to the first `n` unfinished calls:
        each earlier place belongs to another call.
        """
        unfinished = [number for number in range(len(self._calls)) if number not in self._ended]
        end = len(self._calls)
        # `best[k]`: the best way for the places from this one on and the calls from `k` on.
        best = [_Match()] * (end + 1)
        for place, entries in reversed(places):
            later, best, similarity = best, best[:], self._similarity(entries)
            for number in reversed(range(end)):
                options = [best[number + 1], later[number]]
                if number in similarity and number not in unfinished[:place]:
                    rest = later[number + 1]
                    match = _Match(
                        rest.count + 1, rest.similarity + similarity[number], number, entries, rest
                    )
                    options.insert(0, match)
                # Of equal options the first, which takes the earliest call.
                best[number] = max(options, key=lambda option: (option.count, option.similarity))
        chosen: _Match | None = best[0]
        while chosen is not None and chosen.call >= 0:
            self._note(chosen.call, chosen.entries)
            chosen = chosen.rest

    def _note(self, number: int, entries: tuple[Entry, ...]) -> None:
        self.matched.add(number)
        for entry in entries:
            if _ends_call(entry):
                self._ended.add(number)
            elif entry.kind == "decision" and entry.value.kind == "edit":
                self._edited.add(number)

    def _similarity(self, entries: tuple[Entry, ...]) -> dict[int, int]:
        """The calls that these entries may belong to, each with a score of similarity."""
        # Only a result has the id of its call.
        ids = {entry.value.call_id for entry in entries if entry.kind == "result"} - {None}
        for number, call in enumerate(self._calls):
            if call.id in ids:
                return {number: 0}
        digest = entries[-1].digest
        named = [number for number in range(len(self._calls)) if self._has_name(digest, number)]
        candidates = [number for number in named if number not in self._ended]
        return {number: self._similarity_to(digest, number) for number in candidates or named}

    def _has_name(self, digest: str, number: int) -> bool:
        if names_call(digest, self._calls[number].name):
            return True
        # A model may write a tool's name in the form that providers accept.
        checked = self._checked[number]
        return checked is not None and names_call(digest, checked.tool.name)

    def _similarity_to(self, digest: str, number: int) -> int:
        """A score: the higher, the more similar the recorded call is to this one.

        Equal arguments as the tool takes them now count most; then an edit, as an edited call has
        other arguments; then arguments as the model wrote them.
        """
        arguments = self._arguments[number]
        if arguments is not None and digest.endswith(arguments):
            return 1000
        written = min(equal_arguments(digest, self._calls[number].args), 9)
        score = 10 * written
        if number in self._edited:
            score += 100
        if arguments is not None:
            score += 1
        return score


def _ends_call(entry: Entry) -> bool:
    """Whether this entry ends its call: a later one of the same tool belongs to another call."""
    if entry.kind == "decision":
        return entry.value.kind in {"deny", "reply"} or entry.digest.startswith("clarify ")
    return entry.kind == "result"


# -- programs in a `forward`


def lost_answers(journal: Journal, asking: Suspended) -> BaseException:
    """The reason why a replay ends before its journal: `asking`, or an error.

    It is an error if a `forward` called the asking program with other inputs than before: it would
    do so in each execution, call the model again, and lose the approvals of the last execution.
    """
    if not journal.unread:
        return asking
    recorded = journal.entries[: journal.recorded]
    for question in asking.questions:
        lost = _lost_by(question.path, journal, recorded)
        if lost is not None:
            entry, program = lost
            return ReplayMismatchError(
                entry.slot,
                f"{entry.kind} {entry.digest}",
                f"a call of `{program}` with other inputs",
            )
    return asking


def _lost_by(path: str, journal: Journal, recorded: list[Entry]) -> tuple[Entry, str] | None:
    """An unread answer of a program that this path calls with new inputs, and its name."""
    around = ""
    for segment in path.split("/")[:-1]:
        inside = f"{around}{segment}/"
        program, colon, _ = segment.partition(":")
        if colon and not any(entry.slot.startswith(inside) for entry in recorded):
            with_other_inputs = f"{around}{program}:"
            for entry in recorded:
                if entry.slot.startswith(with_other_inputs) and entry.slot in journal.unread:
                    return entry, program
        around = inside
    return None
