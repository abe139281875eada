"""One execution of a run: from taking its lease to its end, and the cleanup after an interrupt.

In: a run that no process executes. Out: the same run; its status says whether it waits or has
ended. However an execution ends, even by Ctrl-C at any point, it has released the run's lease, and
the run can be executed again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, structs

from ferrule import events
from ferrule.acts import Suspended
from ferrule.concurrency import offload
from ferrule.errors import RunCancelledError, RunError, StoreError
from ferrule.observers import Observers, observing
from ferrule.runs.driver.deps import check_program_deps
from ferrule.runs.driver.drive import perform
from ferrule.runs.driver.tool_call import end_open_call
from ferrule.runs.governing import Governing
from ferrule.runs.life import Execution
from ferrule.runs.limits import Budget
from ferrule.runs.observers import started
from ferrule.runs.resume import lost_answers
from ferrule.settings import Scope, Settings, current, enter, leave, restore_scope, scope

if TYPE_CHECKING:
    from ferrule.runs.life import CallPlace
    from ferrule.runs.state import RunState

_IN_A_GROUP = (
    "A program in a task group (`asyncio.TaskGroup`) must ask a person, and the group cancelled "
    "its other tasks. Run programs at once with `await ferrule.gather(...)`: it lets the others "
    "end, and all their questions wait together."
)


def execute(
    run: RunState,
    *,
    observers: tuple[Any, ...] = (),
    wants_deltas: bool = False,
    is_silent: bool = False,
) -> None:
    """Execute a run in this thread until it ends or waits.

    The outcome is in `run.status`; only interrupts are raised.

    Args:
        run: The run.
        observers: Observers of this execution, besides those of the settings.
        wants_deltas: Stream the models' answers.
        is_silent: Send no events: this replay only reads, and its events were sent before.

    Raises:
        RunError: It cannot begin: it is executing or done, its store cannot be written, or another
            process holds it.

    """
    options = _Options(observers, wants_deltas, is_silent, blocks=True)
    offload.run_blocking(_execute(run, options))


async def aexecute(
    run: RunState, *, observers: tuple[Any, ...] = (), wants_deltas: bool = False
) -> None:
    """`execute` on this event loop."""
    await _execute(run, _Options(observers, wants_deltas, is_silent=False, blocks=False))


class _Options(Struct, frozen=True):
    """The options of one execution."""

    observers: tuple[Any, ...]
    wants_deltas: bool
    is_silent: bool
    blocks: bool
    """Whether it waits by blocking its thread, or on its event loop."""
    settings: Settings = Settings()
    """The settings of this execution, with those that govern the run."""


async def _execute(run: RunState, options: _Options) -> None:
    """Execute a run, and clean up even after an interrupt.

    An interrupt (Ctrl-C, a cancellation) may come between any two steps, or while another one is
    handled. So whatever is still held is found out here, not remembered.
    """
    run.goes_on()
    outside = scope()
    if not options.is_silent:
        _check_deps(run, outside.call)
    settings = current()
    if run.governing is None:
        run.governing = Governing.of(settings)
    options = structs.replace(options, settings=run.governing.within(settings))
    execution = Execution(outside.call, grace_s=options.settings.grace_s)
    is_leased = False
    try:
        await _run_to_rest(run, execution, options)
    except BaseException as error:
        # The garbage collector raises it, in any context.
        is_collected = isinstance(error, GeneratorExit)
        try:
            is_leased = run.persistence is not None and run.persistence.holds(execution)
            is_cut_off = is_leased and run.status == "running" and not isinstance(error, Exception)
            if run.executing is execution or is_cut_off:
                run.stopped(error)
            execution.over = True
            in_thread = is_leased and not options.blocks and not is_collected
            await _release_in(run, execution, in_thread=in_thread)
        finally:  # plain assignments: no further interrupt comes between
            if run.executing is execution:
                run.executing = None
            if is_leased and run.persistence is not None:
                run.persistence.lease = None
        if not is_collected:
            restore_scope(outside)
        raise


def _check_deps(run: RunState, outer: CallPlace | None) -> None:
    """Raise `ConfigurationError` if the program lacks its `deps`.

    A run that a tool starts without `deps` gets those of the tool's run.
    """
    if run.deps is None and outer is not None and outer.frame is not None:
        run.deps = outer.frame.deps
    if run.program.is_flow and not _may_need_deps(run.program):
        return
    check_program_deps(run.program, run.deps)


def _may_need_deps(program: Any) -> bool:
    tool_users = getattr(program, "tool_users", None)
    if tool_users is None:
        return False
    return any(
        user.toolbox.servers
        or user.toolbox.asks_deps
        or user.output_validators
        or user.choices.functions
        for user in tool_users()
    )


async def _run_to_rest(run: RunState, execution: Execution, options: _Options) -> None:
    """Take the lease, execute the program, write the run's state, and give the lease back."""
    blocks = options.blocks
    if run.persistence is not None:
        if blocks:
            run.persistence.open(execution)
        else:
            await offload.run_or_cancel(partial(run.persistence.open, execution))
    is_over = await _perform_once(run, execution, options)
    while not is_over:  # a message came while the run ended: replay it, and go on
        is_over = await _perform_once(run, execution, options, goes_on=True)


async def _perform_once(
    run: RunState, execution: Execution, options: _Options, *, goes_on: bool = False
) -> bool:
    """Execute the program to its end; returns whether the run is now at rest.

    If it `goes_on`, its observers see no new start: they have not seen an end.
    """
    blocks = options.blocks
    here = _begin(run, execution, options, goes_on=goes_on)
    # If an interrupt comes before `try`, `_execute` restores the former scope.
    token = enter(here)
    try:
        try:
            if run.tell is not None and not goes_on:
                await _open_for_observers(run, run.tell, blocks=blocks)
            args, inputs = run.inputs_to_perform()
            outcome = await perform(here.frame, run.program, args, inputs, blocks=blocks)
            _raise_hidden_error(run)
        except BaseException as error:  # noqa: BLE001  recorded; `prediction` raises it again
            run.stopped(_reason_of_end(run, error))
        else:
            if not run.done(outcome):
                return False
        if run.journal.drift and run.status in {"waiting", "done"} and not options.is_silent:
            # A resume that failed at once leaves no trace. If this write fails, the next execution
            # finds the differences again.
            with suppress(StoreError):
                await run.journal.note_migration(blocks=blocks)
        try:
            if run.persistence is not None:
                in_thread = not blocks and not isinstance(run.error, GeneratorExit)
                await _release_in(run, execution, in_thread=in_thread)
        finally:
            if run.executing is None:
                _announce_end(run)
    finally:
        leave(token)
    return run.executing is None


def _raise_hidden_error(run: RunState) -> None:
    """Raise an error that ends the run, though the program's code caught it and returned."""
    if run.journal.mismatch is not None:
        raise run.journal.mismatch
    if run.persistence is not None and run.persistence.broken is not None:
        raise run.persistence.broken
    if run.cancelled:
        raise RunCancelledError(f"The run {run.id} was cancelled.")
    run.journal.check_finished()


def _reason_of_end(run: RunState, error: BaseException) -> BaseException:
    if isinstance(error, Suspended) and run.journal.unread:
        return lost_answers(run.journal, error)
    if _has_suspended(error):
        return RunError(_IN_A_GROUP)
    return error


def _has_suspended(error: object) -> bool:
    """Whether a task group ended because a program in it must ask a person."""
    if not isinstance(error, BaseExceptionGroup):
        return False
    return cast("BaseExceptionGroup[Any]", error).subgroup(Suspended) is not None


def _begin(run: RunState, execution: Execution, options: _Options, *, goes_on: bool) -> Scope:
    here = options.settings
    outer: CallPlace | None = execution.outer
    observers: tuple[Any, ...] = ()
    if not options.is_silent:
        # A program called by a tool reports to the observers of the tool's run.
        inherited = here.callbacks
        if outer is not None and outer.tell is not None:
            inherited = outer.tell.observers
        observers = (*inherited, *options.observers)
    tell: Observers | None = None
    if goes_on:
        tell = run.tell
    elif observers:
        observers = tuple(observing(observers))
    if observers and not goes_on:
        name = run.program.name
        tell = Observers(observers, run_id=run.id, name=name, outer=outer, earlier=run.tell)
    frame = run.begin(execution, tell, wants_deltas=options.wants_deltas)
    if goes_on:
        execution.over = run.resuming = False
    run.goes_on_at_end = goes_on
    run.prices = here.prices
    limits = here.limits
    if run.limits is not None:
        limits = run.limits
    if limits is not None:
        frame.budget = Budget(limits, frame.budget)
    # All settings are fixed: a later `configure` does not change them.
    return Scope(structs.asdict(here), frame)


async def _open_for_observers(run: RunState, tell: Observers, *, blocks: bool) -> None:
    origin = ""
    if run.forked_from is not None:
        origin = run.forked_from.run_id
    event = started(run.program, run.args, run.inputs, run.about, forked_from=origin)
    notes = run.notes
    run.notes = tell.open_run(event, notes)
    if run.notes != notes and run.persistence is not None:
        if blocks:
            run.persistence.note()
        else:
            await offload.run_or_cancel(run.persistence.note)
    if run.is_new_fork or not run.journal.unread:
        tell(event)


async def _release_in(run: RunState, execution: Execution, *, in_thread: bool) -> None:
    try:
        if in_thread:
            await offload.run_or_cancel(partial(_release, run, execution))
    finally:
        _release(run, execution)  # here, if no thread did it


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
    if run.status != "waiting":
        # Their threads may still work: an interrupt does not wait for them.
        why = error or RunCancelledError(f"The run {run.id} is {run.status}.")
        for slot in tuple(run.open_calls):
            end_open_call(run, slot, why)
    if run.tell is not None:
        prediction = None
        if run.status == "done":
            prediction = run.outcome
        finished = events.RunFinished(prediction=prediction, error=error, status=run.status)
        run.tell.inside("")(finished)
    if error is not None and run.is_interrupted:
        # KeyboardInterrupt, CancelledError, SystemExit: the run is resumable, and the interrupt
        # propagates.
        raise error
