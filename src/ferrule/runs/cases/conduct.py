"""`Conduct`: what a run did, for conditions on it: its calls in order, its questions, its cost.

The journal of a run is the best source, because it has the calls of programs that were called as
tools, those that code made, and people's decisions. A run has it, loaded or not, and so has the
prediction of a run. A bare `Trajectory` has only the steps of one program: conditions on what it
cannot know raise `ConfigurationError`, so that `never(...)` does not hold for want of a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.encoding.safe_text import one_line
from ferrule.errors import ConfigurationError, shown
from ferrule.runs.journal.spending import spent
from ferrule.runs.state import RunState
from ferrule.runs.story import story
from ferrule.values.calls.call import FROM_TEXT, ToolCall
from ferrule.values.conversation.exchange import Usage
from ferrule.values.outcome import Prediction, Trajectory, made_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ferrule.approval.question import Decision, Question
    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.story import Beat, CallBeat
    from ferrule.values.calls.call import ToolResult

_OF_THE_LOOP = frozenset({"finish", "run_code"})
"""Calls with which a model ends a run, or hands over code: the calls in that code count."""
_ANSWERS = frozenset({"approve", "edit", "deny", "reply"})
"""The kinds of decisions that answer a question. Cancelling a call is a decision, too."""
_MOST_CHARS = 100
"""Of a result, and of a reason."""


class MadeCall(Struct, frozen=True):
    """A call that a model, or its code, made in a run."""

    call: ToolCall
    """With the arguments with which it ran; if it did not run, those that the model wrote."""
    ran: bool | None
    """Whether its tool began. A call that did not fit, or was refused, did not run.

    None if the source does not tell whether a call that failed was refused or its tool raised."""
    outcome: str = ""
    """What came of it, in words: the result, or why it did not run."""
    asked: bool = False
    """Whether a person was asked about it."""
    depth: int = 0
    """How many programs, called as tools, are around it."""
    turn: int = 0
    """Calls with equal numbers followed from one answer of the model."""


class Conduct(Struct, frozen=True):
    """What a run did."""

    calls: tuple[MadeCall, ...]
    """The calls in the order of their starts. Those of a program called as a tool follow its call.
    """
    usage: Usage | None = None
    """None if the source does not tell."""
    knows_questions: bool = True
    """Whether the source tells which questions were asked."""


def conduct_of(source: Any) -> Conduct:
    """What a `Run`, a `Prediction` or a `Trajectory` says that a run did.

    Raises `ConfigurationError` for anything else.
    """
    if isinstance(source, Conduct):
        return source
    if isinstance(source, RunState):
        return conduct_in(source.journal.entries, source.pending)
    if isinstance(source, Prediction):
        return _of_prediction(cast("Prediction[Any]", source))
    if isinstance(source, Trajectory):
        return _of_trajectory(source, nothing_ran=False)
    raise ConfigurationError(
        "Conditions on calls judge a `Run`, a `Prediction` or a `Trajectory`; found "
        f"{shown(source)}."
    )


def conduct_in(entries: Iterable[Entry], waiting: Sequence[Question] = ()) -> Conduct:
    """What a journal says that its run did; `waiting` are its open questions."""
    entries = tuple(entries)
    calls = list(_calls_in(story(entries), depth=0))
    for question in waiting:
        _note_question(calls, question)
    return Conduct(tuple(calls), spent(entries))


def _calls_in(beats: Sequence[Beat], depth: int) -> Iterator[MadeCall]:
    for beat in beats:
        for call in beat.calls:
            is_of_loop = call.name in _OF_THE_LOOP and not call.slot  # no tool of this name ran
            if not is_of_loop:
                yield _made(call, depth, beat.first)
            yield from _calls_in(call.inside, depth + 1)


def _made(call: CallBeat, depth: int, turn: int) -> MadeCall:
    args = dict(call.args or call.written or {})
    repairs = (FROM_TEXT,) if call.is_rescued else ()
    tool_call = ToolCall.unchecked(
        call.name, args, call.call_id, repairs=repairs, confidence=call.confidence
    )
    ran = call.begun or (call.result is not None and not call.result.is_fault)
    return MadeCall(
        tool_call,
        ran,
        _outcome(call, ran=ran),
        any(_is_by_person(decision, call) for decision in call.decisions),
        depth,
        turn,
    )


def _is_by_person(decision: Decision, call: CallBeat) -> bool:
    is_result_from_outside = decision.kind == "reply" and call.waits
    if decision.kind not in _ANSWERS or is_result_from_outside:
        return False
    # A question that expired had been asked.
    return decision.via != "policy" and not decision.via.startswith("grant:")


def _outcome(call: CallBeat, *, ran: bool) -> str:
    if call.result is not None:
        return _result_text(call.result)
    if ran:
        return "no result yet"
    if call.is_refused:
        decision = call.decisions[-1]
        words = "denied" if decision.kind == "deny" else "answered in its place"
        return f"{words}: {_short(decision.text)}" if decision.text else words
    return f"not run: {_short(call.problem)}" if call.problem else "not run"


def _note_question(calls: list[MadeCall], question: Question) -> None:
    """Mark the call that an open question is about; it has no entry in the journal yet."""
    for number, made in enumerate(calls):
        if made.call.id is not None and made.call.id == question.call.id:
            calls[number] = replace(made, asked=True, outcome="waits for a person")
            return
    calls.append(MadeCall(question.call, False, "waits for a person", asked=True))


def _of_prediction(prediction: Prediction[Any]) -> Conduct:
    entries, trajectory = made_by(prediction)
    if entries:
        return conduct_in(entries)
    nothing_ran = entries is not None  # the journal was read, and no call is in it
    conduct = _of_trajectory(trajectory, nothing_ran=nothing_ran)
    return replace(conduct, usage=prediction.get_lm_usage())


def _of_trajectory(trajectory: Trajectory, *, nothing_ran: bool) -> Conduct:
    calls: list[MadeCall] = []
    for turn, step in enumerate(trajectory.steps):
        for number, call in enumerate(step.calls):
            if call.name == "run_code" and not nothing_ran:
                raise ConfigurationError(
                    "A trajectory does not have the calls that code made: judge the run or its "
                    "prediction instead."
                )
            if call.name in _OF_THE_LOOP:
                continue
            result = step.results[number] if number < len(step.results) else None
            ran = False if nothing_ran else _ran(result)
            outcome = "no result yet" if result is None else _result_text(result)
            calls.append(MadeCall(call, ran, outcome, turn=turn))
    return Conduct(tuple(calls), knows_questions=nothing_ran)


def _ran(result: ToolResult | None) -> bool | None:
    if result is None:
        return True
    if result.is_fault:
        return False
    if not result.is_error or result.error is not None:  # what the tool returned, or raised
        return True
    return None


def _result_text(result: ToolResult) -> str:
    text = _short(result.text)
    return f"error: {text}" if result.is_error else text


def _short(text: str) -> str:
    return one_line(text, _MOST_CHARS)
