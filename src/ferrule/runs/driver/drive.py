"""The driver: the only code that calls models, tools and people for a program.

`perform` executes a program in a frame of a run: a `forward` as plain Python, a flow by `drive`,
which takes each act and sends its answer. A live answer is journalled before the program sees it; a
recorded one is returned silently. `frame.blocks` says how the steps wait: by blocking this thread,
or by awaiting.
"""

from __future__ import annotations

from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast

from ferrule import events
from ferrule.acts import (
    Act,
    AskPerson,
    CallModel,
    CallTools,
    Conditions,
    Flow,
    Once,
    RecallCalls,
    RuleCalls,
    Suspended,
    Tell,
    Within,
    refuse_misuse,
    status_after,
)
from ferrule.concurrency import offload
from ferrule.errors import InputError, LimitReachedError, LMError, RunError, shown
from ferrule.record import MutableRecord
from ferrule.runs.driver.model_call import call_model
from ferrule.runs.driver.subprogram import call_code, hand_up, keep_caught
from ferrule.runs.driver.tool_calls import call_tools
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.spending import spent_below
from ferrule.runs.limits import Budget
from ferrule.runs.observers import cancellable, started
from ferrule.settings import Scope, entered, scope
from ferrule.values.outcome import Prediction

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from ferrule.observers import Observers
    from ferrule.runs.protocols import Program
    from ferrule.runs.state import Frame
    from ferrule.values.conversation.exchange import Response


_NONE_DUE: frozenset[str] = frozenset()
_LOOKS_AGAIN_S = 0.01
_OVER: Any = object()
"""In place of an act: the flow returned."""
_LAST_CALLS = 4
"""Model calls that a program may make after a limit: an extraction, two repairs of its answer, and one with the fallback adapter."""


class _Failure(MutableRecord):
    """A failed model call, to raise in the flow. Journalled only if the flow handles it: otherwise a resumed run calls the model again."""

    entry: Entry
    recorded: bool

    @property
    def error(self) -> Exception:
        return (
            self.entry.value
            if self.entry.kind == "failure"
            else LimitReachedError(**self.entry.value)
        )


def perform(
    frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any], *, blocks: bool,
) -> Coroutine[Any, Any, Any]:  # fmt: skip
    """Execute a program in a frame of a run. `blocks` says how it waits: in this thread, or on this event loop.

    On an event loop, a program with only a `forward` runs in a worker thread. A program inside a
    run reports its start and its end.
    """
    work = _perform_program if frame.tell is None or frame.outer is None else _perform_observed
    return work(frame, program, args, inputs, blocks=blocks)


async def _perform_observed(
    frame: Frame,
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    blocks: bool,
) -> Any:
    tell, journal = cast("Observers", frame.tell).inside(frame.path), frame.run.journal
    if frame.live:
        tell(started(program, args, inputs))
    found, failed = None, None
    try:
        found = await _perform_program(frame, program, args, inputs, blocks=blocks)
    except BaseException as error:
        failed = error
        raise
    else:
        return found
    finally:
        if frame.live or not journal.replaying:
            error = failed if not isinstance(failed, Suspended) else None
            tell(events.RunFinished(prediction=found, error=error, status=status_after(failed)))


async def _perform_program(
    frame: Frame,
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    blocks: bool,
) -> Any:
    outer, journal = frame.outer, frame.run.journal
    if outer is not None and outer.failures:
        await keep_caught(outer, blocks=blocks)
    since = (
        0 if journal.replaying else len(journal.entries)
    )  # the entries that a replay has yet to read may be anywhere
    if program.is_flow:
        frame.blocks = blocks
        found = await drive(frame, _flow(program, args, inputs))
    else:
        frame.check()
        frame.blocks = not (program.is_only_async if blocks else program.is_async)
        frame.failures = []
        try:
            found = await _perform_forward(frame, program, args, inputs, blocks=blocks)
            await keep_caught(frame, blocks=blocks, has_returned=True)
        finally:
            hand_up(frame)
    return found if outer is None else _counted(found, frame, since)


def _counted(found: Any, frame: Frame, since: int) -> Any:
    """The result of a program inside a run. If it is a prediction, add the spending of this program to it."""
    if not isinstance(cast("object", found), Prediction):
        return found
    entries = frame.run.journal.entries
    return found.counted(partial(spent_below, entries, frame.path, slice(since, len(entries))))


async def _perform_forward(
    frame: Frame,
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    blocks: bool,
) -> Any:
    from ferrule.runs.driver.deps import for_forward  # late: few programs have a `forward`

    args, inputs = for_forward(
        frame,
        program,
        "forward" if frame.blocks else "aforward",
        args,
        inputs,
    )
    if not blocks:
        forward = partial(program.forward, *args, **inputs)
        return await (
            _aforward(frame, program, args, inputs)
            if program.is_async
            else offload.in_worker_thread(forward)
        )
    if program.is_only_async:
        return offload.run_async(cancellable(frame.life, _aforward(frame, program, args, inputs)))
    return program.forward(*args, **inputs)


async def _aforward(
    frame: Frame,
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
) -> Any:
    """Call `aforward`. If it must wait for a person, programs running beside it without `gather` end first, or they would be cut off."""
    try:
        return await program.aforward(*args, **inputs)
    except Suspended:
        import asyncio  # late: sync tools do not need it

        while frame.active:  # noqa: ASYNC110  a program may end in another thread
            await asyncio.sleep(_LOOKS_AGAIN_S)
        raise


def perform_as_tool(program: Any, inputs: Mapping[str, Any]) -> Any:
    """Execute a program called as a tool: in the frame that the driver made for this call, otherwise as a direct call."""
    inside = _inside_call()
    if inside is None:
        return program(**inputs)
    with entered(inside):
        return offload.run_blocking(perform(inside.frame, program, (), inputs, blocks=True))


async def aperform_as_tool(program: Any, inputs: Mapping[str, Any]) -> Any:
    """`perform_as_tool` on this event loop."""
    inside = _inside_call()
    if inside is None:
        return await program.acall(**inputs)
    with entered(inside):
        return await perform(inside.frame, program, (), inputs, blocks=False)


def _inside_call() -> Scope | None:
    here = scope()
    return (
        Scope(here.overrides, here.frame)
        if here.call is not None and here.frame is not None
        else None
    )


def _flow(program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Flow:
    if args:
        raise InputError(
            f"`{program.name}` takes its inputs by name, found {shown(args)}: write {program.name}(...)(name=value).",
        )
    flow = program.flow(**inputs)
    if not hasattr(flow, "throw"):
        cure = "write it as a generator that yields acts, or as a `forward` in plain Python"
        raise RunError(
            f"`flow` of `{program.name}` returned {shown(flow)}, which is no generator: {cure}.",
        )
    return flow


async def drive(frame: Frame, flow: Flow) -> Any:
    """Run a flow to its end; raises `Suspended` if a question has no answer."""
    answer: Any = None
    act: Act | None = None
    found: Any = None
    failure: _Failure | None = None
    try:
        while True:
            frame.check()
            try:
                act = flow.send(answer) if failure is None else flow.throw(failure.error)
            except StopIteration as end:
                act, found = _OVER, end.value
            if failure is not None:
                if not failure.recorded:
                    await frame.write(failure.entry)
                answer = failure = None
            if type(act) is CallModel:
                slot, answer, failure = _recorded(frame, act)
                if answer is None and failure is None:
                    try:
                        answer = await call_model(frame, slot, act)
                    except LMError as error:
                        failure = _Failure(
                            Entry(slot, "failure", act.request, error),
                            recorded=False,
                        )
            elif type(act) is CallTools:
                answer = await call_tools(frame, act)
            elif type(act) is Tell:
                answer = _tell(frame, act.event)
            elif type(act) is Once:
                answer = await _once(frame, act)
            elif act is _OVER:
                return found
            else:
                answer = await _answer(frame, act)  # pyright: ignore[reportArgumentType]  the others are handled above
    except (AttributeError, TypeError) as error:
        refuse_misuse(act, error)  # only now, so that valid acts cost no time
        raise
    finally:
        flow.close()
        if failure is not None and not failure.recorded:
            frame.failures = [(None, failure.entry)]
            hand_up(frame)


def _recorded(frame: Frame, act: CallModel) -> tuple[str, Response | None, _Failure | None]:
    """The act's slot, and the recorded answer or failure, if any."""
    slot = frame.slot()
    if not frame.path:
        frame.run.latest_messages = act.request.messages
    entry = frame.run.journal.take(slot, "model", act.request)
    frame.live = entry is None
    if entry is None:
        return slot, None, None if frame.budget is None else _over_limit(frame, slot, act)
    if entry.kind == "failure":
        return slot, None, _Failure(entry, recorded=True)
    if entry.kind == "limit":
        _allow_last_calls(frame)
        return slot, None, _Failure(entry, recorded=True)
    if frame.last_calls > 0:
        frame.last_calls -= 1
    if frame.budget is not None:
        frame.budget.count_response(entry.value, act.lm)
    return slot, entry.value, None


def _over_limit(frame: Frame, slot: str, act: CallModel) -> _Failure | None:
    """The failure for a reached limit, in place of a live answer. A program that handles it has a few calls left to finish."""
    if frame.last_calls > 0:
        frame.last_calls -= 1
        return None
    error = frame.budget.reached() if frame.budget is not None else None
    if error is None:
        return None
    _allow_last_calls(frame)
    return _Failure(
        Entry(slot, "limit", act.request, {"name": error.name, "limit": error.limit}),
        recorded=False,
    )


def _allow_last_calls(frame: Frame) -> None:
    if (
        frame.last_calls < 0
    ):  # only once: if the program does not finish then, every further call fails with the limit
        frame.last_calls = _LAST_CALLS


async def _once(frame: Frame, act: Once) -> Any:
    if act.runs_code:
        return await call_code(frame, act.make, act.name)
    if act.only_if_true:
        return await _once_if_true(frame, act)
    slot = frame.slot()
    entry = frame.run.journal.take(slot, "once", act.name)
    frame.live = entry is None
    if entry is None:
        entry = Entry(slot, "once", act.name, act.make())
        await frame.write(entry)
    return entry.value


async def _once_if_true(frame: Frame, act: Once) -> Any:
    """Answer a `Once` whose value is recorded only if it is true.

    Its slot names the next act's position, but is not among the acts, whose slots it must not
    shift: whether such a value is asked for at all may depend on the state of a server, say.
    """
    journal, slot = frame.run.journal, f"{frame.path}{frame.acts}~{act.name}"
    if journal.replaying:
        if journal.has(slot):
            entry = journal.take(slot, "once", act.name)
            return entry is not None and entry.value
        if journal.ahead(frame.path, frame.acts) is not None:
            return False
    if act.waits and not frame.blocks:
        value = await offload.in_worker_thread(act.make)
    else:
        value = act.make()
    if value:
        frame.live = True
        await frame.write(Entry(slot, "once", act.name, value))
    return value


def _tell(frame: Frame, event: events.Event) -> None:
    if type(event) is events.StepFinished:
        if frame.budget is not None:
            frame.budget.spend(steps=1)
        if not frame.path:
            frame.run.steps.append(event.step)
    # This frame is live, though another branch may still be replaying; or the replay has ended.
    if frame.tell is not None and (frame.live or not frame.run.journal.replaying):
        frame.tell(event)


async def _answer(
    frame: Frame,
    act: RecallCalls | RuleCalls | AskPerson | Within,
) -> Any:
    match act:  # acts that few programs use are imported late
        case RecallCalls():
            from ferrule.runs.driver.migration import recall_calls

            return recall_calls(frame, act)
        case RuleCalls():
            from ferrule.runs.confirmation.policy import rule_calls

            return await rule_calls(frame, act)
        case AskPerson():
            from ferrule.runs.driver.questions import decide

            found = await decide(frame, act)
            frame.live = not frame.run.journal.replaying
            return found
        case Within(limits, lm):
            if limits is not None:
                frame.budget = Budget(limits, frame.budget)
            if lm is not ...:
                frame.lm = lm
            return _conditions(frame)
        case _:  # pyright: ignore[reportUnnecessaryComparison]  flows of users yield anything
            hint = (
                ": write `yield from` before a generator" if isinstance(act, GeneratorType) else ""
            )
            raise RunError(
                f"A flow yields acts, such as `CallModel(...)`; found {shown(act)}{hint}.",
            )


def _conditions(frame: Frame) -> Conditions:
    run = frame.run
    is_observed, is_resumed = run.tell is not None and run.tell.has_details, run.journal.replaying
    due = (
        frozenset([entry.digest for entry in run.journal.entries if entry.kind == "once"])
        if is_resumed
        else _NONE_DUE
    )
    place = (run.key, frame.path)  # the key, because runs in two stores may have the same id
    here = scope().overrides  # inside a run, these are all settings
    return Conditions(
        here["lm"],
        here["adapter"],
        here["policy"],
        is_observed,
        is_resumed,
        place,
        run.extra_tools,
        due,
    )
