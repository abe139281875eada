"""Answer `CallTools`: a batch of checked calls, with the results in call order.

Each call of the batch is in one of five states: it waits for a person's consent, or was denied it
(`approval.py`); its result is recorded; an earlier execution left it without a result
(`runs/resume.py`); it is refused, by a limit or by its tool's provider; or it is live, and runs
(`tool_call.py`).

No person is asked about a call that a limit refuses whatever they answer. Calls that wait for a
decision take no place in a limit, because they may be denied: several may wait for the last one.

A call that a person allowed runs with those that need no consent, also if others wait. Its place is
its number in the batch, so the order in which people decide does not matter.

One live call runs in place. Several run at once: async tools as tasks, sync tools in the bounded
pool, tools with `concurrent=False` one by one. Inside a worker of the pool everything runs in
place, so that the pool cannot wait for itself.
"""

from __future__ import annotations

import asyncio
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ferrule.acts import Suspended
from ferrule.concurrency import offload
from ferrule.concurrency.cancellation import pass_on_cancellation
from ferrule.errors import LimitReachedError, RunCancelledError
from ferrule.runs.driver.approval import OpenQuestion, ask_now, find_consent
from ferrule.runs.driver.inner_programs import recount
from ferrule.runs.driver.tool_call import (
    PlacedCall,
    cancelled_before,
    invoke_reconcile,
    report_result,
    result_entry,
    run_tool_call,
    write_end,
)
from ferrule.runs.journal.entry import Entry
from ferrule.runs.resume import InterruptedCall, as_begun, reconcile_call, settle
from ferrule.values.calls.call import CheckedCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ferrule.acts import CallTools
    from ferrule.runs.limits import Budget
    from ferrule.runs.state import Frame
    from ferrule.values.slot import Slot

_OVER_LIMIT = (
    "Call to `{name}` was not run: the limit of tool calls is reached. Answer with what you know."
)
_OVER_LIMIT_OF_TOOL = (
    "Call to `{name}` was not run: all calls of it that this run may make are used. Go on without "
    "it."
)


_Live = tuple[int, PlacedCall]
"""A call to run, with its position in the batch."""


class _Batch(Struct):
    """The calls of one act, by what is left to do with each."""

    results: list[ToolResult | None]
    """The results by position; None for a call that has none yet."""
    open: dict[int, OpenQuestion] = field(default_factory=dict[int, OpenQuestion])
    """The calls whose question has no decision, by position."""
    live: list[_Live] = field(default_factory=list[_Live])
    interrupted: list[tuple[int, InterruptedCall]] = field(
        default_factory=list[tuple[int, InterruptedCall]]
    )
    begun: list[_Live] = field(default_factory=list[_Live])
    """The calls without a result that an earlier execution began."""
    refusals: list[Entry] = field(default_factory=list[Entry])
    """Results of calls that do not run, to be journalled."""
    waiting: dict[int, Suspended] = field(default_factory=dict[int, Suspended])
    """The calls that wait for a person, by position."""
    reached: list[LimitReachedError] = field(default_factory=list[LimitReachedError])
    """The limits that programs called as tools have reached."""
    cancelled: list[RunCancelledError] = field(default_factory=list[RunCancelledError])
    """What ended calls whose run, or the call around them, was cancelled."""


async def call_tools(frame: Frame, act: CallTools) -> list[ToolResult]:
    """Run a batch; the results are in the order of the calls."""
    act_slot = frame.slot()
    batch = _Batch([None] * len(act.calls))
    allowed = await _find_allowed(frame, act_slot, act, batch)
    _sort(frame, act_slot, act, allowed, batch)
    if batch.open:
        _refuse_open(frame, act_slot, act, batch)
    for refusal in batch.refusals:
        await frame.write(refusal)
    await _end_cancelled(frame, batch)
    if batch.interrupted:
        await _settle_interrupted(frame, batch)
    if len(batch.live) == 1 and not batch.waiting and not batch.open:
        [(number, call)] = batch.live
        batch.results[number] = await run_tool_call(frame, call)
    elif batch.live or batch.waiting or batch.open:
        await _run_together(frame, batch)
    return batch.results  # pyright: ignore[reportReturnType]  every result is set by now


# -- sorting


async def _find_allowed(
    frame: Frame, act_slot: Slot, act: CallTools, batch: _Batch
) -> list[tuple[int, CheckedCall]]:
    """The calls that may run, with their positions; the others have a result, or are open."""
    if not act.consents:
        return list(enumerate(act.calls))
    allowed: list[tuple[int, CheckedCall]] = []
    for number, (checked, consent) in enumerate(zip(act.calls, act.consents, strict=True)):
        if consent is None:
            allowed.append((number, checked))
            continue
        outcome = await find_consent(frame, act_slot.item(number), consent)
        if isinstance(outcome, CheckedCall):
            allowed.append((number, outcome))
        elif isinstance(outcome, ToolResult):
            batch.results[number] = outcome
        else:
            batch.open[number] = outcome
    return allowed


def _sort(
    frame: Frame,
    act_slot: Slot,
    act: CallTools,
    calls: list[tuple[int, CheckedCall]],
    batch: _Batch,
) -> None:
    """Sort the calls that may run, by what is left to do with each."""
    journal = frame.run.journal
    count = _Count(frame.budget, len(calls))
    left: list[tuple[int, PlacedCall, bool]] = []
    for number, checked in calls:
        slot = act_slot.item(number)
        call = PlacedCall(slot, checked.digest, checked, journal.starts(slot))
        entry = journal.take(slot, "result", call.digest, checked.call.id)
        # A program without a result replays its answers, which are counted one by one.
        is_counted_inside = entry is None and checked.tool.is_program
        if slot in journal.spending and not is_counted_inside:
            recount(frame, slot)
        if entry is not None:
            batch.results[number] = entry.value
            count.note_result(number, call, entry.value)
            continue
        # A call that waits for its result from outside has begun, even if nothing ran here.
        waits = slot.later in journal.unread
        left.append((number, call, waits))
        if waits or call.starts:
            count.note_begun(number, call)
    # Only now: a call may begin if those that began before, wherever they are, leave room for it.
    for number, call, waits in left:
        # A call that has begun is not refused: it may have run.
        if not waits and not call.starts:
            refusal = count.begin(number, call)
            if refusal is not None:
                batch.results[number] = refusal.value
                batch.refusals.append(refusal)
                continue
        _sort_unfinished(frame, batch, number, call, waits=waits)
    count.settle()
    if any(count.left.values()):
        act.left = tuple([count.left.get(number) for number in range(len(act.calls))])
    frame.live = bool(batch.live or batch.interrupted)
    if len(calls) < len(batch.results) and not journal.unread:
        frame.live = True  # a decision may be new


def _refuse_open(frame: Frame, act_slot: Slot, act: CallTools, batch: _Batch) -> None:
    """Refuse the calls without a decision for which the limits have no place left.

    A question of the model itself (`clarify`) is asked at any limit: its answer is its result.
    """
    journal = frame.run.journal
    for number, to_ask in list(batch.open.items()):
        slot, checked = act_slot.item(number), act.calls[number]
        call = PlacedCall(slot, checked.digest, checked, 0)
        refusal: Entry | None = None
        if slot in journal.unread:
            refusal = journal.take(slot, "result", call.digest, checked.call.id)
        elif to_ask.question.kind == "confirm" and frame.budget is not None:
            refusal = _refusal_before_asking(frame.budget, call)
            if refusal is not None:
                batch.refusals.append(refusal)
        if refusal is not None:
            batch.results[number] = refusal.value
            del batch.open[number]


def _refusal_before_asking(budget: Budget, call: PlacedCall) -> Entry | None:
    """The result of a call that could not run now if it were approved, or None."""
    name = call.checked.call.name
    if not budget.has_place():
        return _refusal(call, _OVER_LIMIT.format(name=name))
    if not budget.has_place_of(call.checked.tool.name):
        return _refusal(call, _OVER_LIMIT_OF_TOOL.format(name=name))
    return None


def _sort_unfinished(
    frame: Frame, batch: _Batch, number: int, call: PlacedCall, *, waits: bool
) -> None:
    """Sort a call without a result that may run: it is live, or an earlier execution left it."""
    checked, slot = call.checked, call.slot
    starts: tuple[Entry, ...] = ()
    if call.starts:
        batch.begun.append((number, call))
        starts = _interrupted_starts(frame, slot, checked)
    # The world sends a result once: it reaches its call even if that no longer fits its tool.
    if not starts and (waits or not checked.misfit):
        batch.live.append((number, call))
        return
    same = checked
    if starts:
        same = as_begun(checked, starts[-1])
    batch.interrupted.append((number, InterruptedCall(slot, same.digest, same, starts)))


class _Count:
    """Counts the calls of a batch against the limits: of all calls, and of single tools."""

    def __init__(self, budget: Budget | None, wanted: int) -> None:
        self._budget = budget
        self._wanted = wanted
        self._allowed = wanted
        if budget is not None:
            self._allowed = budget.take_calls(wanted)
        self._free = self._allowed
        """How many calls may begin now: those that began before count first."""
        self._refused = 0
        """Calls over a limit, in this execution or an earlier one."""
        self.left: dict[int, tuple[int, int] | None] = {}
        """By position, how many calls of the tool are left, and of how many."""

    def note_result(self, number: int, call: PlacedCall, result: ToolResult) -> None:
        """Count a call with a recorded result."""
        if result.is_error and result in _refusals_over_limits(call):
            self._refused += 1
            return
        self.note_begun(number, call)

    def note_begun(self, number: int, call: PlacedCall) -> None:
        """Count a call that an earlier execution began."""
        self._free -= 1
        if self._budget is not None and call.checked.refused is None:
            self.left[number] = self._budget.take_tool(call.checked.tool.name)

    def begin(self, number: int, call: PlacedCall) -> Entry | None:
        """Count a call that begins; or the result of one that may not.

        It is journalled, because another execution may count in another order.
        """
        checked, budget = call.checked, self._budget
        if self._free <= 0:
            self._refused += 1
            return _refusal(call, _OVER_LIMIT.format(name=checked.call.name))
        if checked.refused is None and budget is not None:
            left = budget.take_tool(checked.tool.name)
            if left is not None and left[0] < 0:
                budget.spend(tools={checked.tool.name: -1})
                self._refused += 1
                return _refusal(call, _OVER_LIMIT_OF_TOOL.format(name=checked.call.name))
            self.left[number] = left
        self._free -= 1
        if checked.refused is not None:
            return _refusal(call, checked.refused)
        return None

    def settle(self) -> None:
        """Give back what was counted for calls that did not run.

        Those over the limit of their tool, and those that an earlier execution refused under a
        lower limit.
        """
        unused = self._refused - (self._wanted - self._allowed)
        if self._budget is not None and unused > 0:
            self._budget.spend(tool_calls=-unused)


def _interrupted_starts(frame: Frame, slot: Slot, checked: CheckedCall) -> tuple[Entry, ...]:
    """The starts of a call that an earlier execution left; empty for one that continues."""
    if checked.tool.is_program and not checked.misfit:
        return ()  # the program inside continues where it stopped
    journal = frame.run.journal
    starts = journal.take_begun(slot, checked.tool.name)
    if journal.is_paused(slot) and not checked.misfit:
        return ()
    return starts


def _refusals_over_limits(call: PlacedCall) -> list[ToolResult]:
    """The results of a call over a limit. They name no number: a resumed run has other limits."""
    texts = (_OVER_LIMIT, _OVER_LIMIT_OF_TOOL)
    return [_refusal(call, text.format(name=call.checked.call.name)).value for text in texts]


def _refusal(call: PlacedCall, text: str) -> Entry:
    """The result of a call that is not run: an error with this text."""
    asked = call.checked.call
    result = ToolResult(asked.name, text, asked.id, is_error=True)
    return Entry(call.slot, "result", call.digest, result)


# -- calls that an earlier execution left


async def _end_cancelled(frame: Frame, batch: _Batch) -> None:
    """End the calls that were cancelled while they ran in an earlier execution, or since."""
    for number, call in batch.begun:
        result = await cancelled_before(frame, call)
        if result is None:
            continue
        batch.results[number] = result
        batch.live = [live for live in batch.live if live[0] != number]
        batch.interrupted = [left for left in batch.interrupted if left[0] != number]


async def _settle_interrupted(frame: Frame, batch: _Batch) -> None:
    """Settle interrupted calls: each then has a result, is live, or waits for a person."""
    for number, interrupted in batch.interrupted:
        call = PlacedCall(
            interrupted.slot, interrupted.digest, interrupted.checked, len(interrupted.starts)
        )
        reconciled: ToolResult | None = None
        reconciling = reconcile_call(frame.run.id, interrupted)
        if reconciling is not None:
            reconciled = await invoke_reconcile(frame, call, reconciling)
        outcome = await settle(frame, interrupted, reconciled)
        if outcome is None:
            batch.live.append((number, call))
        elif isinstance(outcome, ToolResult):
            # Acts of a program inside, and questions of an MCP server, are not replayed.
            for below in ("/", "?"):
                frame.run.journal.close_frame(f"{call.slot}{below}", unfinished=True)
            entry = await write_end(frame, call, result_entry(frame, call, outcome))
            batch.results[number] = report_result(frame, call, entry.value)
        else:
            batch.waiting[number] = Suspended([outcome])
    batch.live.sort(key=itemgetter(0))


# -- running at once


async def _run_together(frame: Frame, batch: _Batch) -> None:
    async def run(live: _Live) -> None:
        number, call = live
        try:
            batch.results[number] = await run_tool_call(frame, call)
        except Suspended as asking:  # the others continue: only this one waits
            batch.waiting[number] = asking
        except LimitReachedError as reached:  # the others continue: they may have taken effect
            batch.reached.append(reached)
        except RunCancelledError as cancelled:  # the others end, too: each has its grace
            batch.cancelled.append(cancelled)

    if frame.blocks:
        _run_in_threads(batch.live, lambda live: offload.run_blocking(run(live)))
    else:
        await _run_in_tasks(batch.live, run)
    if batch.cancelled:
        raise batch.cancelled[0]
    # Only now: the time in which a person must decide begins when the run has nothing else to do.
    for number, to_ask in batch.open.items():
        batch.waiting[number] = Suspended([await ask_now(frame, to_ask)])
    if batch.waiting:
        raise Suspended(
            [
                question
                for number in sorted(batch.waiting)
                for question in batch.waiting[number].questions
            ]
        )
    if batch.reached:
        raise batch.reached[0]


def _run_in_threads(calls: list[_Live], run: Callable[[_Live], None]) -> None:
    if offload.in_worker():
        for live in calls:
            run(live)
        return
    futures: dict[Any, Callable[[], None]] = {}
    for live in calls:
        if _is_concurrent(live):
            work = partial(run, live)
            futures[offload.submit(work)] = work
    try:
        for live in calls:
            if not _is_concurrent(live):
                run(live)
        for future, work in futures.items():
            offload.result_or_run(future, work)
    except BaseException as error:
        begun = [future for future in futures if not future.cancel()]
        if isinstance(error, Exception):  # an interrupt (Ctrl-C) does not wait
            for future in begun:
                future.exception()
        raise


async def _run_in_tasks(
    calls: list[_Live], run: Callable[[_Live], Coroutine[Any, Any, None]]
) -> None:
    async def one_by_one() -> None:
        for live in calls:
            if not _is_concurrent(live):
                await run(live)

    # A `ToolStop` in one call ends the run: the group cancels the other calls and waits for them.
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one_by_one())]
            for live in calls:
                if _is_concurrent(live):
                    tasks.append(group.create_task(run(live)))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    for task in tasks:
        if task.cancelled():  # in one call; the group passes over that
            if task.cancelling():
                await pass_on_cancellation()
            task.result()  # raises its cancellation


def _is_concurrent(live: _Live) -> bool:
    return live[1].checked.tool.concurrent
