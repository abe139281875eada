"""The two drivers: the only code that calls models, tools and people for a program.

`drive` and `adrive` carry a flow: act in, answer out. They differ only in how they wait; what they know of acts is shared. A live answer is
journalled before the program sees it; a recorded one is handed back without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from ferrule import settings
from ferrule.errors import LimitReachedError, LMError
from ferrule.runs.budget import Budget
from ferrule.runs.confirmation.policy import rule_calls
from ferrule.runs.driver.model_call import aanswered, acomplete, answered, complete
from ferrule.runs.driver.questions import decisions
from ferrule.runs.driver.tool_calls import acall_tools, call_tools
from ferrule.runs.journal.journal import Entry
from ferrule.values.record import Changing
from ferrule.values.run import event as events
from ferrule.values.run.act import (
    Act,
    AskPerson,
    CallModel,
    CallTools,
    CheckDue,
    Conditions,
    Flow,
    Once,
    ReadConditions,
    RuleCalls,
    Tell,
    Within,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.runs.state import Frame
    from ferrule.values.conversation.exchange import Response


_LAST_CALLS = 4
"""An extracting call, one to repair its answer and one more, and one by the fallback adapter."""


class _Finished(Changing):
    """The flow returned."""

    value: Any


class _Failure(Changing):
    """A model call that failed, on its way into the flow. Journalled only if the flow knows what to do: else a resumed run asks again."""

    entry: Entry
    recorded: bool


def drive(frame: Frame, flow: Flow) -> Any:
    """Carry a flow to its end in this thread; raises `Suspended` where a question has no answer."""
    answer: Any = None
    try:
        while True:
            act = _next(frame, flow, answer)
            if type(answer) is _Failure and not answer.recorded:
                frame.run.journal.add(answer.entry)
            if type(act) is CallModel:
                slot, digest, answer = _recorded(frame, act)
                if answer is None:
                    try:
                        answer = answered(frame, slot, digest, act, complete(frame, slot, act))
                    except LMError as error:
                        answer = _Failure(Entry(slot, "failure", digest, error), recorded=False)
            elif type(act) is CallTools:
                answer = call_tools(frame, act)
            elif type(act) is Tell:
                answer = _tell(frame, act.event)
            elif type(act) is Once:
                entry = _once(frame, act)
                if frame.live:
                    frame.run.journal.add(entry)
                answer = entry.value
            elif type(act) is RuleCalls or type(act) is CheckDue:
                answer, entry, told = _beside(frame, act)
                if entry is not None:
                    frame.run.journal.add(entry)
                _tell_all(frame, told)
            elif type(act) is _Finished:
                return act.value
            else:
                answer = _at_once(frame, act)  # pyright: ignore[reportArgumentType]  those above are dealt with
    finally:
        flow.close()


async def adrive(frame: Frame, flow: Flow) -> Any:
    """Carry a flow to its end on this event loop; raises `Suspended` where a question has no answer."""
    answer: Any = None
    try:
        while True:
            act = _next(frame, flow, answer)
            if type(answer) is _Failure and not answer.recorded:
                await frame.run.journal.aadd(answer.entry)
            if type(act) is CallModel:
                slot, digest, answer = _recorded(frame, act)
                if answer is None:
                    try:
                        answer = await aanswered(frame, slot, digest, act, await acomplete(frame, slot, act))
                    except LMError as error:
                        answer = _Failure(Entry(slot, "failure", digest, error), recorded=False)
            elif type(act) is CallTools:
                answer = await acall_tools(frame, act)
            elif type(act) is Tell:
                answer = _tell(frame, act.event)
            elif type(act) is Once:
                entry = _once(frame, act)
                if frame.live:
                    await frame.run.journal.aadd(entry)
                answer = entry.value
            elif type(act) is RuleCalls or type(act) is CheckDue:
                answer, entry, told = _beside(frame, act)
                if entry is not None:
                    await frame.run.journal.aadd(entry)
                _tell_all(frame, told)
            elif type(act) is _Finished:
                return act.value
            else:
                answer = _at_once(frame, act)  # pyright: ignore[reportArgumentType]  those above are dealt with
    finally:
        flow.close()


def _next(frame: Frame, flow: Flow, answer: Any) -> Act | _Finished:
    """Hand the flow its answer and get its next act; `StopIteration` from anything but the flow itself is not mistaken for its end."""
    frame.check()
    try:
        return _thrown(flow, answer) if type(answer) is _Failure else flow.send(answer)
    except StopIteration as end:
        return _Finished(end.value)


def _thrown(flow: Flow, failure: _Failure) -> Act:
    return flow.throw(failure.entry.value if failure.entry.kind == "failure" else LimitReachedError(**failure.entry.value))


def _recorded(frame: Frame, act: CallModel) -> tuple[str, str, Response | _Failure | None]:
    """The act's slot and digest, and what the journal answers, if it does."""
    slot = frame.slot()
    digest = act.request.digest
    if not frame.path:
        frame.run.said = act.request.messages
    entry = frame.run.journal.take(slot, "model", digest)
    frame.live = entry is None
    if entry is None:
        return slot, digest, None if frame.budget is None else _over_limit(frame, slot, digest)
    if entry.kind == "failure":
        return slot, digest, _Failure(entry, recorded=True)
    if entry.kind == "limit":
        _making_an_end(frame)
        return slot, digest, _Failure(entry, recorded=True)
    if frame.last_calls > 0:
        frame.last_calls -= 1
    frame.add_usage(entry.value.usage)
    if frame.budget is not None:
        frame.budget.answered(entry.value)
    return slot, digest, entry.value


def _over_limit(frame: Frame, slot: str, digest: str) -> _Failure | None:
    """A limit that is reached, in place of a live answer. A program that goes on from it has a few calls left, to make an end."""
    if frame.last_calls > 0:
        frame.last_calls -= 1
        return None
    error = frame.budget.reached() if frame.budget is not None else None
    if error is None:
        return None
    _making_an_end(frame)
    return _Failure(Entry(slot, "limit", digest, {"name": error.name, "limit": error.limit}), recorded=False)


def _making_an_end(frame: Frame) -> None:
    if frame.last_calls < 0:  # once: a program that does not make an end is told of the limit at every call from then on
        frame.last_calls = _LAST_CALLS


def _once(frame: Frame, act: Once) -> Entry:
    """The value, recorded or made now; then the frame is live, and it is to be written."""
    slot = frame.slot()
    entry = frame.run.journal.take(slot, "once", act.name)
    frame.live = entry is None
    return entry if entry is not None else Entry(slot, "once", act.name, act.make())


def _tell(frame: Frame, event: events.Event) -> None:
    if type(event) is events.StepFinished:
        if frame.budget is not None:
            frame.budget.spend(steps=1)
        if not frame.path:
            frame.run.steps.append(event.step)
    # Live here, though another branch may still be replayed; or replayed to the end.
    if frame.tell is not None and (frame.live or not frame.run.journal.replaying):
        frame.tell(event)


def _beside(frame: Frame, act: RuleCalls | CheckDue) -> tuple[Any, Entry | None, Sequence[events.Event]]:
    """The answer, the entry to write for it, and the events to tell after that. Its slot stands beside the acts and moves none of them."""
    if isinstance(act, RuleCalls):
        return rule_calls(frame, act)
    journal, slot = frame.run.journal, f"{frame.path}{frame.acts}t"
    if journal.replaying:
        if journal.has(slot):
            return journal.take(slot, "once", act.name) is not None, None, ()
        if journal.ahead(frame.path, frame.acts) is not None:
            return False, None, ()
    return (True, Entry(slot, "once", act.name), ()) if act.is_due() else (False, None, ())


def _tell_all(frame: Frame, told: Sequence[events.Event]) -> None:
    if frame.tell is not None:
        for event in told:
            frame.tell(event)


def _conditions(frame: Frame) -> Conditions:
    run, setting = frame.run, settings.setting
    is_observed, is_resumed = run.tell is not None, run.journal.replaying
    place = (run.key, frame.path)  # the key, as ids may be equal in two stores
    return Conditions(setting("lm"), setting("adapter"), setting("policy"), is_observed, is_resumed, place, run.extra_tools)


def _at_once(frame: Frame, act: ReadConditions | AskPerson | Within) -> Any:
    """Acts that are answered without waiting."""
    match act:
        case ReadConditions():
            return _conditions(frame)
        case AskPerson():
            found = decisions(frame, act)
            frame.live = not frame.run.journal.replaying
            return found
        case Within(limits):
            frame.budget = Budget(limits, frame.budget)
            return None
        case _:
            assert_never(act)
