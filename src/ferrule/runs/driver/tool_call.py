"""Execute one tool call: write down that it begins, run it, and write down its result.

The start is durable before the tool runs, and the result before the program sees it. So if the
process dies in between, the next execution knows that the call may have taken effect.

A transactional tool gets a transaction of the run's store instead: its writes and its result are
committed together, or not at all.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule import events
from ferrule.acts import Suspended
from ferrule.approval.cancellation import cancellation_id, cancelled_result
from ferrule.approval.question import Question
from ferrule.concurrency import offload
from ferrule.encoding.encode import is_masked
from ferrule.errors import (
    ConfirmationRequired,
    LimitReachedError,
    RunCancelledError,
    RunError,
    ToolError,
)
from ferrule.runs.cancelling import halt_calls
from ferrule.runs.driver.elicitation import open_inputs
from ferrule.runs.driver.halts import await_until_end, run_until_end
from ferrule.runs.driver.inner_programs import close_frame, spent_by_function
from ferrule.runs.driver.outside import ask_outside, delivered, hide_token, wait_entry
from ferrule.runs.driver.transaction import UNDONE, Database, transactions, warn_unused
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.recall import reads_untrusted
from ferrule.runs.life import CallPlace
from ferrule.runs.observers import OpenCall
from ferrule.runs.protocols import UnheardError
from ferrule.runs.state import saying
from ferrule.settings import Scope, run_in, scope
from ferrule.tools.execution.run import arun_call, awaited_in, run_call
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult, failure
from ferrule.values.calls.context import key_of
from ferrule.values.calls.later import Later
from ferrule.values.slot import Slot
from ferrule.values.tracebacks import without_traces

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from ferrule.approval.question import Decision
    from ferrule.runs.state import Frame, RunState


class PlacedCall(Struct, frozen=True):
    """A checked call with its place in the run."""

    slot: Slot
    digest: str
    """The digest of the call, made once: the tool and its arguments as text."""
    checked: CheckedCall
    starts: int = 0
    """How often it has begun."""

    @property
    def cancellation_id(self) -> str:
        """The id of the decision that cancels it."""
        return cancellation_id(self.slot, self.starts)


async def run_tool_call(frame: Frame, call: PlacedCall) -> ToolResult:
    """Run one call, and journal its start and its result."""
    tool, journal = call.checked.tool, frame.run.journal
    if journal.unread:
        waits = journal.take_optional(call.slot.later, "once", call.digest)
        if waits is not None:
            return await _take_delivery(frame, call, waits)
    if tool.effect == "transactional":
        work = partial(_transact, frame, call)
        if frame.blocks:
            return work()
        # The call holds the database, so a cancelled task waits for it.
        return await offload.run_or_cancel(work)
    inputs = None
    if getattr(tool, "mcp", None) is not None:
        inputs = await open_inputs(frame, call.slot, call.digest, call.checked)
    start = _claim(frame, call)
    # A server's task began in an earlier execution, and continues.
    is_task = inputs is not None and inputs.task is not None
    if start is not None and not is_task:
        call = replace(call, starts=call.starts + 1)  # a cancellation names the start that it ends
        await journal.write(start, blocks=frame.blocks)
    is_start = start is not None or tool.result != "function"
    with _reported(frame, call, is_start=is_start):
        place = _place_of(frame, call, inputs=inputs)
        performing = _perform_counted(frame, call, place)
        result = await _perform_unless_cancelled(frame, call, place, performing)
        entry = await _entry_of(frame, call, result, blocks=frame.blocks)
        frame.check_alive()  # in the thread of an abandoned call: its result is discarded
        entry = await write_end(frame, call, entry)
    return _end_or_wait(frame, call, entry)


async def write_end(frame: Frame, call: PlacedCall, entry: Entry) -> Entry:
    """Journal the end of a call, or that of its cancellation if one came before. Returns it."""
    run = frame.run
    if run.persistence is None and run.journal.sink is None:
        with saying.lock:  # no cancellation comes in between
            cancellation = run.answers.get(call.cancellation_id)
            if cancellation is None:
                run.journal.add(entry)
                return entry
    while True:
        cancellation = run.answers.get(call.cancellation_id)
        if cancellation is not None:
            entry = await _record_cancellation(frame, call, cancellation, entry)
        try:
            await run.journal.write(entry, blocks=frame.blocks)
        except UnheardError:  # perhaps a cancellation: it was read meanwhile
            continue
        return entry


async def _record_cancellation(
    frame: Frame, call: PlacedCall, cancellation: Decision, own: Entry | None = None
) -> Entry:
    """Journal the cancellation of a call; returns the entry with its result."""
    run, slot, digest = frame.run, call.slot, call.digest
    await frame.write(Entry(slot.cancellation, "decision", f"cancel {digest}", cancellation))
    run.decided(cancellation)
    return result_entry(frame, call, _cancelled(call, cancellation, own))


def _cancelled(call: PlacedCall, cancellation: Decision, own: Entry | None) -> ToolResult:
    returned: ToolResult | None = None
    if own is not None and own.kind == "result":
        returned = own.value
    return cancelled_result(call.checked.call, cancellation, call.checked.tool.effect, returned)


async def cancelled_before(frame: Frame, call: PlacedCall) -> ToolResult | None:
    """The result of a call that began in an earlier execution and was cancelled; None if not."""
    run, journal = frame.run, frame.run.journal
    recorded = journal.take_decision(call.slot.cancellation)
    cancellation = run.answers.get(call.cancellation_id)
    if recorded is None and cancellation is None:
        return None
    for below in ("/", "?"):
        journal.close_frame(f"{call.slot}{below}", unfinished=True)
    if recorded is not None:
        run.tally.note(run.decisions, recorded.value)
        entry = result_entry(frame, call, _cancelled(call, recorded.value, None))
    else:
        entry = await _record_cancellation(frame, call, cast("Decision", cancellation))
    await frame.write(entry)
    return report_result(frame, call, entry.value)


async def _take_delivery(frame: Frame, call: PlacedCall, waits: Entry) -> ToolResult:
    """Take the result of a call that waits for it from outside."""
    frame.check()
    with _reported(frame, call, is_start=False):
        result = await delivered(frame, call.slot, call.checked, waits)
        if isinstance(result, Question):
            raise Suspended([result])
        entry = await write_end(frame, call, result_entry(frame, call, result))
    return _end_call(frame, call, entry.value)


async def _entry_of(frame: Frame, call: PlacedCall, result: ToolResult, *, blocks: bool) -> Entry:
    """What to journal when a tool has returned: its result, or that the result comes later."""
    if isinstance(result.value, Later):
        waits = await wait_entry(
            frame, call.slot, call.digest, call.checked, result.value, blocks=blocks
        )
        if isinstance(waits, Entry):
            return waits
        result = waits
    return result_entry(frame, call, result)


def result_entry(frame: Frame, call: PlacedCall, result: ToolResult) -> Entry:
    """The record of a call's result, which says whether others may have written it.

    The record keeps that: another version of the program may say otherwise of the tool.
    """
    tool = call.checked.tool
    untrusted = tool.untrusted and not result.by_person
    if tool.is_program and not untrusted:
        untrusted = reads_untrusted(frame.run.journal.entries, call.slot.inside())
    if untrusted and not result.untrusted:
        result = replace(result, untrusted=True)
    return Entry(call.slot, "result", call.digest, result)


def _end_or_wait(frame: Frame, call: PlacedCall, entry: Entry) -> ToolResult:
    """End a call with the result that was journalled; raises `Suspended` if it comes later."""
    if entry.kind == "once":
        raise Suspended([ask_outside(frame, call.slot, entry)])
    return _end_call(frame, call, entry.value)


def report_result(frame: Frame, call: PlacedCall, result: ToolResult) -> ToolResult:
    """Send the result of a call to the observers, and return it."""
    if frame.tell is not None:
        frame.tell.inside(call.slot)(events.CallFinished(_as_observed(call), result))
    return _without_frames(result)


def _without_frames(result: ToolResult) -> ToolResult:
    """The result of a call as a run keeps it: its error holds no frames of callers."""
    if result.error is not None:
        without_traces(result.error)
    return result


async def invoke_reconcile(frame: Frame, call: PlacedCall, reconciling: CheckedCall) -> ToolResult:
    """Call the `reconcile=` of an interrupted call's tool."""
    tell = frame.tell_at(call.slot)
    place = CallPlace(tell, call.checked.call.id or call.slot, frame.run.id, frame)
    try:
        return await _invoke(place, None, reconciling, blocks=frame.blocks)
    finally:
        place.over = True


# -- one call


def _claim(frame: Frame, call: PlacedCall) -> Entry | None:
    """Claim a call, once per execution. Returns its start, to be journalled before it runs.

    The entry holds the id of the call, the effect, unless it is `once`, and the key, if the tool
    receives one. None for a program that an earlier execution began: it continues where it stopped.
    None, too, for a call that runs nothing here, because its result comes from outside: after a
    crash it may begin again.
    """
    frame.check()
    slot, checked, journal = call.slot, call.checked, frame.run.journal
    tool = checked.tool
    if tool.is_program and journal.has_begun(slot):
        return None
    journal.dispatch(slot)
    if tool.result != "function":
        return None
    value: dict[str, Any] = {}
    if tool.takes_context or tool.reconcile is not None:
        starter = frame.run.starter_of(slot)
        value["key"] = key_of(starter, slot, tool.name, checked.arguments.shown)
        value["effect"] = tool.effect
    elif tool.effect != "once":
        value["effect"] = tool.effect
    if checked.call.id:
        value["id"] = checked.call.id
    return Entry(slot, "begun", call.digest, value or None)


async def _perform(frame: Frame, call: PlacedCall, place: CallPlace) -> ToolResult:
    """Run the tool at its place. If the tool is a program, it gets a frame below the call."""
    slot, checked, database, inputs = call.slot, call.checked, place.db, place.inputs
    inside = None
    if checked.tool.is_program:
        inside = frame.tool_frame(slot, checked.tool.name, place)
    try:
        # A program inside has its own steps, each of which asks the budget for the time left.
        if frame.budget is not None and inside is None:
            checked = frame.budget.with_timeout(checked)
        # A transaction has its own thread.
        blocks = frame.blocks or database is not None
        result = await _invoke(place, inside, checked, blocks=blocks)
        if place.token:
            result = hide_token(result, place.token)
        if inside is not None:
            # No model can repair it: the run ends here, and goes on inside this program when it is
            # resumed with a larger limit. An agent that answers at a limit goes on without it.
            if isinstance(result.error, LimitReachedError) and not frame.answers_at_limit:
                raise result.error
            spent = close_frame(frame, slot, inside, failed=result.is_error)
            if spent is not None:
                await frame.run.journal.write(spent, blocks=blocks)
    except Suspended:
        if inputs is None or inputs.wanted is None:
            raise
        raise Suspended(await inputs.record()) from None
    except ConfirmationRequired as error:
        if error.run is None:
            raise
        raise _cannot_wait(checked, error) from error
    finally:
        place.over = True
        if database is not None:
            database.end()
    if any(run.untrusted for run in place.inner_runs.values()):
        result = replace(result, untrusted=True)
    return result


async def _perform_unless_cancelled(
    frame: Frame, call: PlacedCall, place: CallPlace, performing: Coroutine[Any, Any, ToolResult]
) -> ToolResult:
    """What a call does. One that is cancelled alone ends without a result of its own."""
    calls_at_work = frame.run.calls_at_work
    calls_at_work[call.slot] = place
    if frame.run.answers:  # a cancellation may have come since the call began
        halt_calls(frame.run)
    try:
        return await performing
    except (RunCancelledError, Suspended):
        if frame.run.cancelled or frame.run.answers.get(call.cancellation_id) is None:
            raise
        if call.checked.tool.is_program:
            frame.run.journal.close_frame(f"{call.slot}/", unfinished=True)
        return ToolResult(call.checked.call.name, "", call.checked.call.id, is_error=True)
    finally:
        calls_at_work.pop(call.slot, None)


async def _perform_counted(frame: Frame, call: PlacedCall, place: CallPlace) -> ToolResult:
    """`_perform`, and journal what other runs have spent that the function started.

    That is so however the function ends: a cut-off call has spent it, too.
    """
    try:
        result = await _perform(frame, call, place)
    except GeneratorExit:  # the garbage collector's; nothing can be awaited now
        raise
    except BaseException:
        with suppress(RunError):  # an abandoned call, or a store that fails
            await _record_spending(frame, place)
        raise
    await _record_spending(frame, place)
    return result


async def _record_spending(frame: Frame, place: CallPlace) -> None:
    if place.inner_runs:
        await frame.write(spent_by_function(place))


async def _invoke(
    place: CallPlace, inside: Frame | None, checked: CheckedCall, *, blocks: bool
) -> ToolResult:
    overrides, lm = scope().overrides, place.frame.lm
    if lm is not None:
        overrides = {**overrides, "lm": lm}
    inner_scope = Scope(overrides, inside, place)
    # A copy of the caller's context: variables that the tool sets are discarded after the call.
    context = copy_context()

    def run() -> ToolResult:
        return context.run(run_in, inner_scope, run_call, checked)

    async def arun() -> ToolResult:
        return await awaited_in(context, context.run(run_in, inner_scope, arun_call, checked))

    is_program = inside is not None  # it ends by itself, at its next act
    if blocks and is_program:
        return run()
    if blocks:
        return run_until_end(place.frame, place, run)
    if is_program:
        return await arun()
    return await await_until_end(place.frame, place, arun(), checked.tool.name)


def _place_of(frame: Frame, call: PlacedCall, *, db: Any = None, inputs: Any = None) -> CallPlace:
    tell = frame.tell_at(call.slot)
    call_id = call.checked.call.id or call.slot
    return CallPlace(
        tell,
        call_id,
        frame.run.id,
        frame,
        call.slot,
        call.checked,
        db,
        inputs,
        cancellation_id=call.cancellation_id,
    )


def _cannot_wait(checked: CheckedCall, error: ConfirmationRequired) -> RunError:
    """The error if a function called a program that waits.

    To resume it, the function would have to run a second time.
    """
    name = checked.tool.name
    return RunError(
        f"`{name}` called the program `{error.run.program.name}`, which waits for a person "
        f"({error.question!r}). A function cannot wait in its middle: its own code would run a "
        "second time. Give the agent the program itself as a tool: `tools=[program.as_tool()]`."
    )


# -- transactions


class _Undone(Exception):  # noqa: N818  leaves the transaction; never reaches the caller
    """The tool failed: its transaction must be rolled back."""

    def __init__(self, result: ToolResult) -> None:
        self.result = result


def _transact(frame: Frame, call: PlacedCall) -> ToolResult:
    """Commit the tool's writes together with its result; if the tool fails, roll them back."""
    checked, journal = call.checked, frame.run.journal
    sink = transactions(frame.run, checked.tool)
    start = _claim(frame, call)
    if start is not None:
        call = replace(call, starts=call.starts + 1)
        journal.add(start)
    spent: Entry | None = None

    def work(connection: Any) -> Entry:
        nonlocal spent
        database = Database(connection)
        place = _place_of(frame, call, db=database)
        try:
            # What it spent is journalled below, as a part of the transaction.
            performing = _perform(frame, call, place)
            result = offload.run_blocking(_perform_unless_cancelled(frame, call, place, performing))
        finally:
            if place.inner_runs:
                spent = spent_by_function(place)
        if database.undone and not result.is_error:
            result = failure(checked.call, ToolError(UNDONE))
        if result.is_error or frame.run.answers.get(call.cancellation_id) is not None:
            raise _Undone(result)
        if not database.is_used:
            warn_unused(checked.tool.name, frame.run.id)
        frame.check_alive()
        # The tool's writes are committed together with its result, or with its wait for one.
        entry = offload.run_blocking(_entry_of(frame, call, result, blocks=True))
        if entry.kind == "result" and entry.value.is_error:
            raise _Undone(entry.value)
        sink(entry)
        return entry

    with _reported(frame, call, is_start=start is not None):
        try:
            entry = sink.transact(work)
        except _Undone as undone:
            entry = offload.run_blocking(
                write_end(frame, call, result_entry(frame, call, undone.result))
            )
        except UnheardError:  # cancelled just now: its writes are undone
            failed = ToolResult(checked.call.name, "", checked.call.id, is_error=True)
            entry = offload.run_blocking(write_end(frame, call, result_entry(frame, call, failed)))
        else:
            journal.entries.append(entry)  # the transaction has stored it
        finally:
            if spent is not None:  # after the transaction: the journal may be in its database
                journal.add(spent)
    return _end_or_wait(frame, call, entry)


# -- observers


# Each call that observers saw start also ends for them, whatever ends it: a result, a cancellation,
# Ctrl-C, the end of the run while its thread still works. `open_calls` of the run has those that
# have not ended. The code that takes a call out of it sends the end, so there is one. A call inside
# which a question waits stays open: its end comes after the run has resumed.


@contextmanager
def _reported(frame: Frame, call: PlacedCall, *, is_start: bool) -> Generator[None]:
    """A call as observers see it: its start, and its end if it has no result."""
    if frame.tell is not None:
        observed = OpenCall(frame.tell.inside(call.slot), _as_observed(call))
        frame.run.open_calls[call.slot] = observed
        if is_start:
            observed.tell(events.CallStarted(observed.call, call.checked.tool))
    try:
        yield
    except Suspended:
        raise
    except BaseException as error:
        end_open_call(frame.run, call.slot, error)
        raise


def _end_call(frame: Frame, call: PlacedCall, result: ToolResult) -> ToolResult:
    """Send the result of a call to the observers, unless its end was sent; and return it."""
    was_open = frame.run.open_calls.pop(call.slot, None) is not None
    if was_open:
        return report_result(frame, call, result)
    return _without_frames(result)


def end_open_call(run: RunState, slot: str, error: BaseException) -> None:
    """Send the end of a call that has no result, once."""
    observed = run.open_calls.pop(slot, None)
    if observed is not None:
        observed.tell(events.CallFinished(observed.call, failure(observed.call, error)))


def _as_observed(call: PlacedCall) -> ToolCall:
    """The call as observers see it: secrets masked, as in the journal."""
    # The digest, which exists already, tells whether there are any.
    checked = call.checked
    if checked.arguments.secrets and is_masked(call.digest):
        return checked.call.changed(args=checked.arguments.shown)
    return checked.call
