"""One execution of a run: from taking its lease to its end, and the cleanup after an interrupt.

In: a run that no process executes. Out: the same run; its status says whether it waits or has
ended. However an execution ends, even by Ctrl-C at any point, it has released the run's lease, and
the run can be executed again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ferrule import events
from ferrule.acts import Suspended
from ferrule.concurrency import offload
from ferrule.errors import RunCancelledError, RunError, StoreError
from ferrule.observers import Observers, observing
from ferrule.runs.driver.drive import perform
from ferrule.runs.limits import Budget
from ferrule.runs.observers import Execution, started
from ferrule.settings import Scope, current, enter, frozen, leave, restore_scope, scope

if TYPE_CHECKING:
    from ferrule.runs.observers import CallPlace
    from ferrule.runs.state import RunState

_IN_A_GROUP = (
    "A program in a task group (`asyncio.TaskGroup`) must ask a person, and the group cancelled its other tasks. "
    "Run programs at once with `await ferrule.gather(...)`: it lets the others end, and all their questions wait together."
)


def execute(
    run: RunState,
    *,
    observers: tuple[Any, ...] = (),
    wants_deltas: bool = False,
    is_silent: bool = False,
) -> None:
    """Execute a run in this thread until it ends or waits. The outcome is in `run.status`; only interrupts are raised.

    `is_silent`: send no events, because this replay only reads, and its events were sent before.
    Raises `RunError` if it cannot begin: it is executing or done, its store cannot be written, or
    another process holds it.
    """
    offload.run_blocking(
        _execute(run, observers, wants_deltas=wants_deltas, is_silent=is_silent, blocks=True),
    )


async def aexecute(
    run: RunState,
    *,
    observers: tuple[Any, ...] = (),
    wants_deltas: bool = False,
) -> None:
    """`execute` on this event loop."""
    await _execute(run, observers, wants_deltas=wants_deltas, is_silent=False, blocks=False)


async def _execute(
    run: RunState,
    observers: tuple[Any, ...],
    *,
    wants_deltas: bool,
    is_silent: bool,
    blocks: bool,
) -> None:
    run.goes_on()
    outside = scope()
    if not is_silent:
        _check_deps(run, outside.call)
    execution, is_leased = Execution(outside.call), False
    try:
        await _run_to_rest(
            run,
            execution,
            observers,
            wants_deltas=wants_deltas,
            is_silent=is_silent,
            blocks=blocks,
        )
    except BaseException as error:
        # Release whatever it still holds: an interrupt may have come between two steps, or while
        # another one was handled.
        try:
            is_leased = run.persistence is not None and run.persistence.holds(execution)
            if run.executing is execution or (
                is_leased and run.status == "running" and not isinstance(error, Exception)
            ):
                run.stopped(error)
            execution.over = True
            await _rest(
                run,
                execution,
                in_thread=is_leased and not blocks and not isinstance(error, GeneratorExit),
            )
        finally:  # plain assignments: no further interrupt comes between
            if run.executing is execution:
                run.executing = None
            if is_leased and run.persistence is not None:
                run.persistence.lease = None
        if not isinstance(
            error,
            GeneratorExit,
        ):  # the garbage collector may raise it in any context
            restore_scope(outside)
        raise


def _check_deps(run: RunState, outer: CallPlace | None) -> None:
    """Raise `ConfigurationError` if the program lacks its `deps`. A run that a tool starts without `deps` gets those of the tool's run."""
    if run.deps is None and outer is not None and outer.frame is not None:
        run.deps = outer.frame.deps
    if run.program.is_flow:
        find = getattr(run.program, "tool_users", None)
        for user in find() if find is not None else ():
            if user.toolbox.servers or user.toolbox.asks_deps or user.output_validators:
                break
        else:
            return
    from ferrule.runs.driver.deps import check_program_deps  # late: most runs have no such tool

    check_program_deps(run.program, run.deps)


async def _run_to_rest(
    run: RunState, execution: Execution, observers: tuple[Any, ...], *, wants_deltas: bool, is_silent: bool, blocks: bool,
) -> None:  # fmt: skip
    if run.persistence is not None and blocks:
        run.persistence.open(execution)
    elif run.persistence is not None:
        await offload.run_or_cancel(partial(run.persistence.open, execution))
    here = _begin(run, execution, observers, wants_deltas=wants_deltas, is_silent=is_silent)
    token = enter(here)  # if an interrupt comes before `try`, `_execute` restores the former scope
    try:
        try:
            if run.tell is not None:
                await _open_for_observers(run, run.tell, blocks=blocks)
            outcome = await perform(here.frame, run.program, run.args, run.inputs, blocks=blocks)
            # The program's code may have caught this error and returned something: the run has
            # failed all the same.
            failed = run.journal.mismatch or (
                run.persistence.broken if run.persistence is not None else None
            )
            if failed is not None:
                raise failed
            if run.cancelled:
                raise RunCancelledError(f"The run {run.id} was cancelled.")
            run.journal.check_finished()
        except BaseException as error:  # noqa: BLE001  recorded on the run; `prediction` raises it again
            found: BaseException = error
            if isinstance(error, Suspended) and run.journal.replaying:
                from ferrule.runs.resume import lost_answers  # late, as in `drive.py`

                found = lost_answers(run.journal, error)
            elif (
                isinstance(error, BaseExceptionGroup)
                and cast("BaseExceptionGroup[Any]", error).subgroup(Suspended) is not None
            ):
                found = RunError(_IN_A_GROUP)
            run.stopped(found)
        else:
            run.done(outcome)
        if (
            run.journal.drift and run.status in {"waiting", "done"} and not is_silent
        ):  # a resume that failed at once leaves no trace
            with suppress(
                StoreError,
            ):  # if it fails, the next execution finds the differences again
                await run.journal.note_migration(blocks=blocks)
        try:
            if run.persistence is not None:
                await _rest(
                    run,
                    execution,
                    in_thread=not blocks and not isinstance(run.error, GeneratorExit),
                )
        finally:
            _announce_end(run)
    finally:
        leave(token)


async def _rest(run: RunState, execution: Execution, *, in_thread: bool) -> None:
    try:
        if in_thread:
            await offload.run_or_cancel(partial(_release, run, execution))
    finally:
        _release(run, execution)  # here, if no thread did it


def _begin(
    run: RunState,
    execution: Execution,
    observers: tuple[Any, ...],
    *,
    wants_deltas: bool,
    is_silent: bool,
) -> Scope:
    here = current()
    outer: CallPlace | None = execution.outer
    # A program called by a tool reports to the observers of the tool's run.
    told = (
        ()
        if is_silent
        else (
            *(outer.tell.each if outer is not None and outer.tell is not None else here.callbacks),
            *observers,
        )
    )
    told = observing(told) if told else told
    tell = (
        Observers(told, run_id=run.id, name=run.program.name, outer=outer, earlier=run.tell)
        if told
        else None
    )
    frame = run.begin(execution, tell, wants_deltas=wants_deltas)
    run.prices = here.prices
    if here.limits is not None:
        frame.budget = Budget(here.limits, frame.budget)
    return Scope(frozen(here), frame)


async def _open_for_observers(run: RunState, tell: Observers, *, blocks: bool) -> None:
    event, before = started(run.program, run.args, run.inputs), run.notes
    run.notes = tell.open_run(event, before)
    if run.notes != before and run.persistence is not None:
        run.persistence.note() if blocks else await offload.run_or_cancel(run.persistence.note)
    if not run.journal.replaying:
        tell(event)


def _release(run: RunState, execution: Execution) -> None:
    """Write the run's state to its store, if it has one, and release the lease."""
    if run.persistence is None:
        return
    try:
        run.persistence.close(execution)
    except StoreError as error:
        # Every answer is on disk, but not the final status. So the run looks crashed to the store,
        # and resuming it reaches the same end.
        if not run.is_interrupted:
            run.error, run.status = run.error or error, "failed"


def _announce_end(run: RunState) -> None:
    error = run.error
    if run.tell is not None:
        run.tell.inside("")(
            events.RunFinished(
                prediction=run.outcome if run.status == "done" else None,
                error=error,
                status=run.status,
            ),
        )
    if error is not None and run.is_interrupted:
        raise error  # KeyboardInterrupt, CancelledError, SystemExit: the run is resumable, and the interrupt propagates
