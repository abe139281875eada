"""The driver: the only code that calls models, tools and people for a program.

`perform` executes a program in a frame of a run: a `forward` as plain Python, a flow by `drive`,
which takes each act and sends its answer. A live answer is journalled before the program sees it; a
recorded one is returned silently. `frame.blocks` says how the steps wait: by blocking this thread,
or by awaiting.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule import events
from ferrule.acts import (
    Act,
    AskPerson,
    CallModel,
    CallTools,
    Conditions,
    Flow,
    Listen,
    Once,
    RecallCalls,
    RecallResults,
    RuleCalls,
    Suspended,
    Tell,
    Within,
    refuse_misuse,
    status_after,
)
from ferrule.concurrency import offload
from ferrule.concurrency.cancellation import raising_errors
from ferrule.errors import InputError, LimitReachedError, LMError, RunError, shown
from ferrule.models.calls_in_text import note_structured_calls
from ferrule.runs.driver.approval import answer_questions, rule_calls
from ferrule.runs.driver.deps import for_forward
from ferrule.runs.driver.inner_programs import hand_up, keep_caught, recount
from ferrule.runs.driver.model_call import call_model
from ferrule.runs.driver.once import answer_once
from ferrule.runs.driver.tool_calls import call_tools
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import ClosedJournal
from ferrule.runs.journal.recall import entries_with_calls, said_event
from ferrule.runs.journal.spending import spent_below
from ferrule.runs.life import cancellable
from ferrule.runs.limits import Budget
from ferrule.runs.observers import OpenCall, started
from ferrule.runs.resume import recall_calls, recall_results
from ferrule.runs.steering import untaken_messages
from ferrule.settings import Scope, entered, lm_override_of, overriding, scope
from ferrule.values.calls.secrets import masked_call
from ferrule.values.masked import masked_step
from ferrule.values.outcome import Prediction, Step
from ferrule.values.slot import Slot, is_own_program

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from ferrule.approval.question import Decision
    from ferrule.observers import Observers
    from ferrule.runs.protocols import Persistence, Program
    from ferrule.runs.state import Frame, RunState
    from ferrule.values.calls.secrets import Secrets
    from ferrule.values.conversation.exchange import Response


_POLL_S = 0.01
_SAID = "said"
"""The digest of an entry with a message to the run."""


# -- executing a program


def perform(
    frame: Frame,
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    blocks: bool,
) -> Coroutine[Any, Any, Any]:
    """Execute a program in a frame of a run.

    `blocks` says how it waits: in this thread, or on this event loop. On an event loop, a program
    with only a `forward` runs in a worker thread. A program inside a run reports its start and its
    end; that of the run itself is reported by `execution.py`.
    """
    if frame.tell is None or frame.outer is None:
        return _perform_program(frame, program, args, inputs, blocks=blocks)
    return _perform_observed(frame, program, args, inputs, blocks=blocks)


def perform_as_tool(program: Any, inputs: Mapping[str, Any]) -> Any:
    """Execute a program called as a tool.

    In the frame that the driver made for this call, otherwise as a direct call.
    """
    inside = _scope_inside_call()
    if inside is None:
        return program(**inputs)
    with entered(inside):
        return offload.run_blocking(perform(inside.frame, program, (), inputs, blocks=True))


async def aperform_as_tool(program: Any, inputs: Mapping[str, Any]) -> Any:
    """`perform_as_tool` on this event loop."""
    inside = _scope_inside_call()
    if inside is None:
        return await program.acall(**inputs)
    with entered(inside):
        return await perform(inside.frame, program, (), inputs, blocks=False)


def _scope_inside_call() -> Scope | None:
    here = scope()
    if here.call is None or here.frame is None:
        return None
    return Scope(here.overrides, here.frame)


async def _perform_observed(
    frame: Frame,
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    blocks: bool,
) -> Any:
    tell = cast("Observers", frame.tell).inside(frame.path)
    if frame.live:
        tell(started(program, args, inputs))
    outcome, failure = None, None
    try:
        outcome = await _perform_program(frame, program, args, inputs, blocks=blocks)
    except BaseException as error:
        failure = error
        raise
    else:
        return outcome
    finally:
        if frame.is_told:
            error = failure
            if isinstance(failure, Suspended):  # waiting is a status, not an error
                error = None
            tell(events.RunFinished(prediction=outcome, error=error, status=status_after(failure)))


async def _perform_program(
    frame: Frame,
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    blocks: bool,
) -> Any:
    outer, journal = frame.outer, frame.run.journal
    # In a replay, the entries of this program may be anywhere in the journal.
    first = 0
    if not journal.unread:
        first = len(journal.entries)
    frame.is_flow = program.is_flow
    lm = lm_override_of(program)
    own_lm: AbstractContextManager[Any] = nullcontext()
    if lm is not None:
        frame.lm_override = lm
        own_lm = overriding({**scope().overrides, "lm": lm})
    # All code of the user that a program calls is called in here: its models, its functions.
    with raising_errors(f"Code that `{program.name}` called", in_task=not blocks), own_lm:
        if outer is not None:
            await keep_caught(outer, blocks=blocks)
        if program.is_flow:
            frame.blocks = blocks
            outcome = await drive(frame, _flow(program, args, inputs))
        else:
            outcome = await _perform_forward(frame, program, args, inputs, blocks=blocks)
    if outer is None or not isinstance(cast("object", outcome), Prediction):
        return outcome
    # A prediction has the spending of its program. It is summed when it is read.
    entries = journal.entries
    span = slice(first, len(entries))
    usage = partial(spent_below, entries, frame.path, span)
    return outcome.counted(usage, entries_with_calls(entries[span], frame.path))


def _flow(program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Flow:
    if args:
        raise InputError(
            f"`{program.name}` takes its inputs by name, found {shown(args)}: "
            f"write {program.name}(...)(name=value)."
        )
    flow = program.flow(**inputs)
    if not hasattr(flow, "throw"):
        raise RunError(
            f"`flow` of `{program.name}` returned {shown(flow)}, which is not a generator: write "
            "it as a generator that yields acts, or as a `forward` in plain Python."
        )
    return flow


async def _perform_forward(
    frame: Frame,
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    blocks: bool,
) -> Any:
    """Call `forward` or `aforward`; journals the model failures that its code caught."""
    frame.check()
    # Blocking, a program with both methods uses `forward`; on an event loop, its `aforward`.
    if blocks:
        frame.blocks = not program.is_only_async
    else:
        frame.blocks = not program.is_async
    frame.failures = []
    try:
        method = "forward" if frame.blocks else "aforward"
        args, inputs = for_forward(frame, program, method, args, inputs)
        if not blocks and program.is_async:
            outcome = await _aforward(frame, program, args, inputs)
        elif not blocks:
            work = partial(program.forward, *args, **inputs)
            outcome = await offload.in_worker_thread(work)
        elif program.is_only_async:
            coroutine = _aforward(frame, program, args, inputs)
            outcome = offload.run_async(cancellable(frame.life, coroutine))
        else:
            outcome = program.forward(*args, **inputs)
        await keep_caught(frame, blocks=blocks, has_returned=True)
    finally:
        hand_up(frame)
    return outcome


async def _aforward(
    frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]
) -> Any:
    """Call `aforward`.

    If it must wait for a person, programs that run at the same time without `gather` end first, or
    they would be cut off.
    """
    try:
        return await program.aforward(*args, **inputs)
    except Suspended:
        while frame.active:  # noqa: ASYNC110  a program may end in another thread
            await asyncio.sleep(_POLL_S)
        raise


# -- driving a flow


class _Failure(Struct):
    """A failed model call, to raise in the flow.

    It is journalled only if the flow handles it: otherwise a resumed run calls the model again.
    """

    entry: Entry
    is_recorded: bool

    @property
    def error(self) -> Exception:
        if self.entry.kind == "limit":
            return LimitReachedError(**self.entry.value)
        return self.entry.value


async def drive(frame: Frame, flow: Flow) -> Any:
    """Run a flow to its end; raises `Suspended` if a question has no answer."""
    answer: Any = None
    act: Act | None = None
    failure: _Failure | None = None
    try:
        while True:
            frame.check()
            is_over, outcome = False, None
            try:
                if failure is None:
                    act = flow.send(answer)
                else:
                    act = flow.throw(failure.error)
            except StopIteration as end:
                is_over, outcome = True, end.value
            if failure is not None and not failure.is_recorded:  # the flow handled it
                await frame.write(failure.entry)
            answer = failure = None
            if is_over:
                return outcome
            if isinstance(act, CallModel):
                answer, failure = await _call_model(frame, act)
            else:
                answer = await _answer(frame, cast("Act", act))
    except (AttributeError, TypeError) as error:
        refuse_misuse(act, error)  # only now, so that valid acts cost no time
        raise
    finally:
        flow.close()
        if failure is not None and not failure.is_recorded:
            frame.failures = [(None, failure.entry)]
            hand_up(frame)


async def _answer(frame: Frame, act: Act) -> Any:
    """The answer to any act but `CallModel`."""
    match act:
        case CallTools():
            return await call_tools(frame, act)
        case Tell(event):
            _tell(frame, event)
            return None
        case Once():
            return await answer_once(frame, act)
        case Listen():
            return await _listen(frame, act)
        case Within(limits, lm, answers_at_limit):
            # Limits with which the run was resumed replace those of its program.
            is_replaced = frame.outer is None and frame.run.limits is not None
            if limits is not None and not is_replaced:
                frame.budget = Budget(limits, frame.budget)
            if lm is not ... and frame.lm_override is None:
                frame.lm = lm
            if answers_at_limit:
                frame.answers_at_limit = True
            return _conditions(frame)
        case AskPerson():
            decisions = await answer_questions(frame, act)
            frame.live = not frame.run.journal.unread
            return decisions
        case RuleCalls():
            return await rule_calls(frame, act)
        case RecallResults():
            return recall_results(frame, act)
        case RecallCalls():
            return recall_calls(frame, act)
        case _:  # flows of users yield anything
            hint = ""
            if isinstance(act, GeneratorType):
                hint = ": write `yield from` before a generator"
            raise RunError(
                f"A flow yields acts, such as `CallModel(...)`; found {shown(act)}{hint}."
            )


async def _call_model(frame: Frame, act: CallModel) -> tuple[Response | None, _Failure | None]:
    """The recorded or live answer of a model, or the failure of the call."""
    slot = frame.slot()
    if not frame.path:  # the run's own program, not one inside it
        frame.run.latest_messages = act.request.messages
    if act.request.secrets:
        frame.run.secrets = {**frame.run.secrets, **act.request.secrets}
    if frame.lm_override is not None and not _asks(act.lm, frame.lm_override):
        act = replace(act, lm=frame.lm_override)  # a flow with a model of its own
    journal = frame.run.journal
    if slot in journal.spending:
        recount(frame, slot)
    if isinstance(journal, ClosedJournal) and journal.keeps_requests:
        journal.requests[slot] = act.lm, act.request
    entry = journal.take(slot, "model", act.request)
    frame.live = entry is None
    if entry is not None:
        return _recorded_answer(frame, act, entry)
    failure = _refuse_over_limit(frame, slot, act)
    if failure is not None:
        return None, failure
    try:
        response = await call_model(frame, slot, act)
    except LMError as error:
        return None, _Failure(Entry(slot, "failure", act.request, error), is_recorded=False)
    if frame.last_calls > 0:
        frame.last_calls -= 1
    return response, None


def _asks(lm: Any, asked: Any) -> bool:
    """Whether a model is this one, or wraps it."""
    while lm is not asked:
        lm = getattr(lm, "wrapped", None)
        if lm is None:
            return False
    return True


def _recorded_answer(
    frame: Frame, act: CallModel, entry: Entry
) -> tuple[Response | None, _Failure | None]:
    if entry.kind == "limit":
        _allow_last_call(frame)
    if entry.kind in {"failure", "limit"}:
        return None, _Failure(entry, is_recorded=True)
    if frame.last_calls > 0:
        frame.last_calls -= 1
    if frame.budget is not None:
        frame.budget.count_response(entry.value, act.lm)
    note_structured_calls(act.lm, entry.value, frame.run.structured_callers)
    return entry.value, None


def _refuse_over_limit(frame: Frame, slot: Slot, act: CallModel) -> _Failure | None:
    """The failure for a reached limit, in place of a live answer.

    A program that answers at a limit has one call left.
    """
    if frame.budget is None or frame.last_calls > 0:
        return None
    error = frame.budget.reached()
    if error is None:
        return None
    _allow_last_call(frame)
    return _Failure(Entry(slot, "limit", act.request, error.facts), is_recorded=False)


def _allow_last_call(frame: Frame) -> None:
    # Only once: if the program does not end then, every further call fails with the limit.
    if frame.answers_at_limit and frame.last_calls < 0:
        frame.last_calls = 1


def _tell(frame: Frame, event: events.Event) -> None:
    if isinstance(event, events.StepFinished):
        if frame.budget is not None:
            frame.budget.spend(steps=1)
        _note_step(frame, event.step)
    if isinstance(event, events.Said):
        _note_step(frame, Step(said=event.text))
        return  # observers got it when it was taken
    if frame.tell is None or not frame.is_told:
        return
    tell = frame.tell
    if isinstance(event, (events.CallStarted, events.CallFinished)):
        # A call that the program carries out itself, with acts: it has a place of its own.
        slot = Slot.of_own_call(frame.path, event.call.id)
        tell = tell.inside(slot)
        if isinstance(event, events.CallStarted):
            frame.run.open_calls[slot] = OpenCall(tell, event.call)
        else:
            frame.run.open_calls.pop(slot, None)
    tell(_masked(event, frame.run.secrets))


def _note_step(frame: Frame, step: Step) -> None:
    journal = frame.run.journal
    if not frame.path:
        frame.run.steps.append(step)
        if isinstance(journal, ClosedJournal):
            journal.note_step()
    elif isinstance(journal, ClosedJournal):
        journal.steps.setdefault(frame.path, []).append(step)


def _masked(event: events.Event, secrets: Secrets) -> events.Event:
    """An event of a program as people see it: with stars for what a model wrote of secrets."""
    match event:
        case events.StepFinished(step=step) if secrets:
            return replace(event, step=masked_step(step, secrets))
        case events.CallRefused(call=call) if secrets:
            return replace(event, call=masked_call(call, secrets))
        case _:
            return event


def _conditions(frame: Frame) -> Conditions:
    run = frame.run
    overrides = scope().overrides  # inside a run, these are all settings
    is_resumed = bool(run.journal.unread)
    due: frozenset[str] = frozenset()
    if is_resumed:
        due = run.journal.once_names
    lm, is_lm_overridden = overrides["lm"], frame.lm_override is not None
    if is_lm_overridden:  # whatever a block inside a tool has set
        lm = frame.lm_override
    return Conditions(
        lm=lm,
        is_lm_overridden=is_lm_overridden,
        adapter=overrides["adapter"],
        policy=overrides["policy"],
        is_observed=run.tell is not None and run.tell.has_details,
        is_resumed=is_resumed,
        is_only_read=run.journal.is_closed,
        # With the run's key, because runs in two stores may have the same id.
        place=(run.key, frame.path),
        extra_tools=run.extra_tools,
        due=due,
        listens=run.journal.may_bring_messages and _listens(frame),
    )


# -- messages to the run


def _listens(frame: Frame) -> bool:
    """Whether messages to the run are for this program: no other program with a loop is around it.

    A message is for the agent that a person talks to, not for one that it uses as a tool.
    """
    if not frame.path:
        return True
    if not is_own_program(frame.path):
        return False
    outer = frame.outer
    while outer is not None:
        if outer.is_flow:
            return False
        outer = outer.outer
    return True


async def _listen(frame: Frame, act: Listen) -> tuple[events.Said, ...]:
    """The messages that were said to the run since its last step, in order.

    Each is journalled at the place of the next act: the first at `3~said.0`. So a replay gives it
    to the program at the same place, and it is used once: the entry that records it takes it out
    of the store. A replay takes no new message before its end, because what is recorded after it,
    in any program of the run, does not follow from that message.
    """
    run, journal = frame.run, frame.run.journal
    has_news = _has_news(run)
    if not (journal.unread or has_news) or not _listens(frame):
        return ()  # as before most steps
    messages: list[Decision] = []
    if journal.unread:
        messages = _take_recorded(frame)
    if has_news and journal.is_past and not journal.is_closed:
        if run.persistence is None:
            run.heard = run.said
        elif run.persistence.has_news:
            await _read_news(frame, run.persistence)
        if run.answers:
            messages += await _take_new(frame, act)
    return tuple(map(said_event, messages))


def _has_news(run: RunState) -> bool:
    """Whether a message may have come that no program of the run has got."""
    if run.answers:
        return True
    if run.persistence is None:
        return run.said != run.heard
    return run.persistence.has_news


def _place_of_messages(frame: Frame) -> Slot:
    """Where messages are recorded before the next act: from there, they are counted from 0."""
    place = Slot.of_value(frame.path, frame.acts, _SAID)
    if frame.messages_before != place:
        frame.messages_before, frame.messages = place, 0
    return place


def _take_recorded(frame: Frame) -> list[Decision]:
    run, place = frame.run, _place_of_messages(frame)
    taken: list[Decision] = []
    while True:
        recorded = run.journal.take_decision(place.item(frame.messages))
        if recorded is None:
            return taken
        frame.messages += 1
        taken.append(recorded.value)
        run.tally.note(run.decisions, recorded.value)


async def _take_new(frame: Frame, act: Listen) -> list[Decision]:
    run, place = frame.run, _place_of_messages(frame)
    taken: list[Decision] = []
    for message in untaken_messages(run, ends=act.ends):
        if not run.journal.claim(message.question_id):
            continue  # another branch has it
        slot = place.item(frame.messages)
        frame.messages += 1
        frame.live, run.goes_on_at_end = True, False
        await frame.write(Entry(slot, "decision", _SAID, message))
        run.decided(message)
        taken.append(message)
        tell = frame.tell_at(slot)
        if tell is not None:
            tell(said_event(message))
    return taken


async def _read_news(frame: Frame, persistence: Persistence) -> None:
    """Read the messages that came to the store."""
    if frame.blocks:
        persistence.hear()
    else:
        await offload.run_or_cancel(persistence.hear)
