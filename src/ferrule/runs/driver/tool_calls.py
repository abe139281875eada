"""Run a batch of checked calls: start and result of each are journalled; results are in call order.

One call runs in place. Several run at once: async tools as tasks, sync tools in the bounded pool,
tools with `concurrent=False` one by one. Inside a pool worker everything runs in place, so that the
pool cannot wait for itself.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ferrule import events
from ferrule.acts import Suspended
from ferrule.concurrency import offload
from ferrule.encoding.encode import is_masked
from ferrule.errors import ConfirmationRequired, ToolError
from ferrule.record import replace
from ferrule.runs.driver.subprogram import (
    cannot_wait,
    close_frame,
    recount,
    refuse,
    refuse_over_limit,
)
from ferrule.runs.journal.entry import Entry
from ferrule.runs.observers import CallPlace, without_traces
from ferrule.settings import Scope, run_in, scope
from ferrule.tools.execution.run import arun_call, awaited_in, run_call
from ferrule.values.calls.call import ToolResult, failure
from ferrule.values.calls.context import key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ferrule.acts import CallTools
    from ferrule.observers import Observers
    from ferrule.runs.driver.recovery import CutOff
    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import CallQuestion, CheckedCall, ToolCall

    Live = tuple[int, str, str, CheckedCall]
    """A call to run: its index in the batch, its slot, its digest, and the call itself."""


def call_tools(frame: Frame, act: CallTools) -> Awaitable[list[ToolResult]]:
    """Run a batch; the results are in the order of the calls."""
    if len(act.calls) == 1 and frame.budget is None and frame.run.journal.is_first:
        checked = act.calls[0]
        if (
            checked.refused is None and not checked.misfit
        ):  # the usual turn, without the bookkeeping
            frame.live = True
            is_read = (
                frame.tell is not None or frame.run.journal.sink is not None
            )  # else few runs need the digest
            return _run(
                frame,
                frame.slot() + ".0",
                checked.digest if is_read else checked.question,
                checked,
            )
    return _run_batch(frame, act)


async def _run_batch(frame: Frame, act: CallTools) -> list[ToolResult]:
    results, live, left, refused = _sort(frame, act)
    for entry in refused:
        await frame.write(entry)
    waiting = await _settle(frame, left, results, live) if left else {}
    if len(live) == 1 and not waiting:
        at, slot, digest, checked = live[0]
        [results[at]] = await _run(frame, slot, digest, checked)
    elif live or waiting:
        await _run_together(frame, live, results, waiting)
    return results  # pyright: ignore[reportReturnType]  every result is set by now


async def _run_together(
    frame: Frame,
    live: list[Live],
    results: list[ToolResult | None],
    waiting: dict[int, Suspended],
) -> None:
    async def fill(at: int, slot: str, digest: str, checked: CheckedCall) -> None:
        try:
            [results[at]] = await _run(frame, slot, digest, checked)
        except Suspended as asking:  # the others continue: only this one waits
            waiting[at] = asking

    if frame.blocks:
        _fill_in_threads(live, lambda each: offload.run_blocking(fill(*each)))
    else:
        await _fill_in_tasks(frame, live, results, fill)
    if waiting:
        raise Suspended([question for at in sorted(waiting) for question in waiting[at].questions])


def _fill_in_threads(live: list[Live], fill: Callable[[Live], None]) -> None:
    if offload.in_worker():
        for each in live:
            fill(each)
        return
    futures = {
        offload.submit(work): work
        for work in [partial(fill, each) for each in live if each[3].tool.concurrent]
    }
    try:
        for each in live:
            if not each[3].tool.concurrent:
                fill(each)
        for future, work in futures.items():
            offload.result_or_run(future, work)
    except BaseException as error:
        begun = [future for future in futures if not future.cancel()]
        for future in (
            begun if isinstance(error, Exception) else ()
        ):  # an interrupt (Ctrl-C) does not wait
            future.exception()
        raise


async def _fill_in_tasks(
    frame: Frame,
    live: list[Live],
    results: list[ToolResult | None],
    fill: Callable[[int, str, str, CheckedCall], Awaitable[None]],
) -> None:
    import asyncio

    async def task(at: int, slot: str, digest: str, checked: CheckedCall) -> None:
        try:
            await fill(at, slot, digest, checked)
        except asyncio.CancelledError as error:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            # Raised by the tool itself: this call was not cancelled, but a task group would treat
            # it as done.
            result = failure(checked.call, error)
            await frame.write(Entry(slot, "result", digest, result))
            results[at] = _report(frame.tell and frame.tell.inside(slot), checked, digest, result)

    async def one_by_one() -> None:
        for each in live:
            if not each[3].tool.concurrent:
                await task(*each)

    # A `ToolStop` in one call ends the run: the group cancels the other calls and waits for them.
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(one_by_one())
            for each in live:
                if each[3].tool.concurrent:
                    group.create_task(task(*each))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


def _sort(
    frame: Frame,
    act: CallTools,
) -> tuple[list[ToolResult | None], list[Live], list[tuple[int, CutOff]], list[Entry]]:
    """Sort a batch: recorded results (None for others), calls to run, calls that a crash interrupted, and refusals to journal."""
    journal, slot = frame.run.journal, frame.slot()
    results: list[ToolResult | None] = []
    live: list[Live] = []
    left: list[tuple[int, CutOff]] = []
    refused: list[Entry] = []
    over = 0
    """How many calls an earlier execution refused. If the limit is higher now, `take_calls` counted them all the same."""
    allowed = len(act.calls) if frame.budget is None else frame.budget.take_calls(len(act.calls))
    for k, checked in enumerate(act.calls):
        at, digest = f"{slot}.{k}", checked.digest
        entry, cut_off = journal.take(at, "result", digest, checked.call.id), ()
        if entry is None:
            has_begun = journal.has_begun(at)
            if has_begun or journal.kept:
                cut_off = _begun_before(frame, at, digest, checked)
            if (
                cut_off and cut_off[-1].kind == "result"
            ):  # the result of an equal call, before the program changed
                refused.append(
                    entry := Entry(
                        at,
                        "result",
                        digest,
                        replace(cut_off[-1].value, call_id=checked.call.id),
                    ),
                )
            elif (
                k >= allowed and not cut_off and not has_begun
            ):  # a call that has begun is not refused: it may have run
                refused.append(entry := refuse_over_limit(at, digest, checked))
            elif checked.refused is not None and not cut_off and not has_begun:
                refused.append(entry := refuse(at, digest, checked, checked.refused))
        results.append(entry.value if entry is not None else None)
        if entry is not None:
            if checked.tool.is_program or journal.has(f"{at}.spent"):
                recount(frame, at)
            over += (
                frame.budget is not None
                and entry not in refused
                and entry.value == refuse_over_limit(at, digest, checked).value
            )
        elif checked.misfit or cut_off:
            from ferrule.runs.driver.recovery import (
                CutOff,
                as_begun,
            )  # late: few calls were cut off

            begun = as_begun(checked, cut_off[-1]) if cut_off else checked
            left.append((k, CutOff(at, begun.digest, begun, cut_off)))
        else:
            live.append((k, at, digest, checked))
    if frame.budget is not None and over > len(act.calls) - allowed:
        frame.budget.spend(tool_calls=len(act.calls) - allowed - over)
    frame.live = bool(live or left)
    return results, live, left, refused


def _begun_before(frame: Frame, slot: str, digest: str, checked: CheckedCall) -> tuple[Entry, ...]:
    """The starts of a call that an earlier execution left; or its result or start that a restart dropped; empty for a new call."""
    journal = frame.run.journal
    if checked.tool.is_program and not checked.misfit:
        found = journal.take_kept(digest)
        return (found,) if found is not None and found.kind == "result" else ()
    if (starts := journal.take_begun(slot, checked.tool.name)) and (
        checked.misfit or not journal.is_paused(slot)
    ):
        return starts
    found = journal.take_kept(digest)
    return (found,) if found is not None else ()


async def _settle(
    frame: Frame,
    left: list[tuple[int, CutOff]],
    results: list[ToolResult | None],
    live: list[Live],
) -> dict[int, Suspended]:
    """Settle the calls that an earlier execution left unfinished: each has a result now, joins `live`, or (returned) waits for a person."""
    from ferrule.runs.driver.recovery import reconcile_call, settle

    waiting: dict[int, Suspended] = {}
    for at, each in left:
        found: ToolResult | None = None
        call = reconcile_call(frame.run.id, each)
        if call is not None:
            place = CallPlace(
                frame.tell and frame.tell.inside(each.slot),
                each.checked.call.id or each.slot,
                frame.run.id,
                frame,
            )
            try:
                found = (
                    _invoke(place, None, call)
                    if frame.blocks
                    else await _ainvoke(place, None, call)
                )
            finally:
                place.over = True
        answer = await settle(frame, each, found)
        if isinstance(answer, ToolResult):
            for below in (
                "/",
                "?",
            ):  # acts of a program inside, and questions of an MCP server, are not replayed
                frame.run.journal.close_frame(f"{each.slot}{below}", unfinished=True)
            await frame.write(Entry(each.slot, "result", each.digest, answer))
            results[at] = _report(
                frame.tell and frame.tell.inside(each.slot),
                each.checked,
                each.digest,
                answer,
            )
        elif answer is None:
            live.append((at, each.slot, each.digest, each.checked))
        else:
            waiting[at] = Suspended([answer])
    live.sort(key=itemgetter(0))
    return waiting


async def _run(
    frame: Frame,
    slot: str,
    digest: str | CallQuestion,
    checked: CheckedCall,
) -> list[ToolResult]:
    """Run one call. Returns its result in a list, which is the answer to a turn of one call: wrapping it later would cost a coroutine."""
    if checked.tool.effect == "transactional":
        work = partial(_transact, frame, slot, digest, checked)
        return [
            work() if frame.blocks else await offload.run_or_cancel(work),
        ]  # it holds the database, so wait for it
    inputs = None
    if getattr(checked.tool, "mcp", None) is not None:
        from ferrule.runs.driver.elicitation import (
            open_inputs,
        )  # imported late, like `Database` below: few tools need it

        inputs = await open_inputs(frame, slot, checked.digest, checked)
    journal, entry, tell = (
        frame.run.journal,
        _claim(frame, slot, digest, checked),
        frame.tell and frame.tell.inside(slot),
    )
    if entry is not None:
        if (
            inputs is None or inputs.task is None
        ):  # a server's task began in an earlier execution, and continues
            journal.add(entry) if frame.blocks or journal.sink is None else await journal.aadd(
                entry,
            )
        if tell is not None:
            tell(events.CallStarted(_as_observed(checked, digest), checked.tool))
    place = CallPlace(
        tell,
        checked.call.id or slot,
        frame.run.id,
        frame,
        slot,
        checked,
        None,
        inputs,
    )
    result = await _perform(frame, checked, place)
    frame.check_alive()  # in the thread of an abandoned call: its result is discarded
    entry = Entry(slot, "result", digest, result)
    journal.add(entry) if frame.blocks or journal.sink is None else await journal.aadd(entry)
    return [_report(tell, checked, digest, result)]


async def _perform(frame: Frame, checked: CheckedCall, place: CallPlace) -> ToolResult:
    slot, database, inputs = place.slot, place.db, place.inputs
    inside = frame.tool_frame(slot, checked.tool.name, place) if checked.tool.is_program else None
    blocks = frame.blocks or database is not None  # a transaction has its own thread
    try:
        call = (
            checked
            if frame.budget is None or checked.tool.is_program
            else frame.budget.with_timeout(checked)
        )
        result = _invoke(place, inside, call) if blocks else await _ainvoke(place, inside, call)
        spent = (
            close_frame(frame, slot, inside, failed=result.is_error) if inside is not None else None
        )
        if spent is not None:
            await frame.run.journal.write(spent, blocks=blocks)
    except Suspended:
        if inputs is None or inputs.wanted is None:
            raise
        raise Suspended(await inputs.record()) from None
    except ConfirmationRequired as error:
        if error.run is None:
            raise
        raise cannot_wait(checked, error) from error
    finally:
        place.over = True
        if database is not None:
            database.end()
    return result


def _invoke(place: CallPlace, inside: Frame | None, checked: CheckedCall) -> ToolResult:
    # A copy of the caller's context: variables that the tool sets are discarded after the call.
    return copy_context().run(run_in, _scope_of_call(place, inside), run_call, checked)


def _ainvoke(place: CallPlace, inside: Frame | None, checked: CheckedCall) -> Awaitable[ToolResult]:
    context = copy_context()
    return awaited_in(
        context,
        context.run(run_in, _scope_of_call(place, inside), arun_call, checked),
    )


def _scope_of_call(place: CallPlace, inside: Frame | None) -> Scope:
    overrides, lm = scope().overrides, place.frame.lm
    return Scope(overrides if lm is None else {**overrides, "lm": lm}, inside, place)


def _transact(
    frame: Frame,
    slot: str,
    digest: str | CallQuestion,
    checked: CheckedCall,
) -> ToolResult:
    """Commit the tool's writes together with its result; if the tool fails, roll its writes back."""
    from ferrule.runs.driver.transaction import UNDONE, Database, transactions, warn_unused

    where = transactions(frame.run, checked.tool)
    entry, tell = _claim(frame, slot, digest, checked), frame.tell and frame.tell.inside(slot)
    if entry is not None:
        frame.run.journal.add(entry)
        if tell is not None:
            tell(events.CallStarted(_as_observed(checked, digest), checked.tool))

    def work(connection: Any) -> Entry:
        database = Database(connection)
        place = CallPlace(
            tell,
            checked.call.id or slot,
            frame.run.id,
            frame,
            slot,
            checked,
            database,
        )
        result = offload.run_blocking(_perform(frame, checked, place))
        if database.undone and not result.is_error:
            result = failure(checked.call, ToolError(UNDONE))
        if result.is_error:
            raise _Undone(result)
        if not database.is_used:
            warn_unused(checked.tool.name, frame.run.id)
        frame.check_alive()
        ended = Entry(slot, "result", digest, result)
        where(ended)
        return ended

    try:
        ended = where.transact(work)
    except _Undone as undone:
        result = undone.result
        frame.run.journal.add(Entry(slot, "result", digest, result))
    else:
        frame.run.journal.entries.append(ended)
        result = ended.value
    return _report(tell, checked, digest, result)


class _Undone(Exception):  # noqa: N818  leaves the transaction; never reaches the caller
    """The tool failed: its transaction must be rolled back."""

    def __init__(self, result: ToolResult) -> None:
        self.result = result


def _claim(
    frame: Frame,
    slot: str,
    digest: str | CallQuestion,
    checked: CheckedCall,
) -> Entry | None:
    """Claim a call, once per execution. Returns the entry that records its start, to be written before it runs.

    The entry holds the effect, unless it is `once`, and the key, if the tool receives one.
    """
    frame.check()
    tool, journal = checked.tool, frame.run.journal
    if not journal.is_first and tool.is_program and journal.has_begun(slot):
        return None  # the program inside continues where it stopped
    journal.dispatch(slot)
    if tool.takes_context or tool.reconcile is not None:
        key = key_of(frame.run.id, slot, tool.name, checked.arguments.shown)
        return Entry(slot, "begun", digest, {"key": key, "effect": tool.effect})
    return Entry(slot, "begun", digest, {"effect": tool.effect} if tool.effect != "once" else None)


def _as_observed(checked: CheckedCall, digest: str | CallQuestion) -> ToolCall:
    """The call as observers see it: secrets masked, as in the journal. The digest, which exists already, tells whether there are any."""
    return (
        checked.call.changed(args=checked.arguments.shown)
        if is_masked(digest) and checked.arguments.secrets
        else checked.call
    )


def _report(
    tell: Observers | None,
    checked: CheckedCall,
    digest: str | CallQuestion,
    result: ToolResult,
) -> ToolResult:
    if tell is not None:
        tell(events.CallFinished(_as_observed(checked, digest), result))
    if result.error is not None:
        without_traces(result.error)
    return result
