"""`advance`: executes one segment of a stored run, until it pauses or ends.

A worker, or the task of any other engine, calls it. It is idempotent: the store
decides whether there is work, and which process does it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.concurrency.halting import cancel_once
from ferrule.concurrency.offload import background_loop, put, run_or_cancel
from ferrule.concurrency.pool import Errand
from ferrule.encoding.stored import parse_object
from ferrule.errors import (
    ConfigurationError,
    ReplayMismatchError,
    RunError,
    RunTakenError,
    StoreError,
    checks_keywords,
    shown,
)
from ferrule.runs.protocols import RunStatus, check_store
from ferrule.runs.run import Run
from ferrule.runs.store.fingerprint import differences
from ferrule.runs.store.listing import head_of
from ferrule.runs.store.stored_run import StoredRun
from ferrule.settings import with_settings_of_call

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.concurrency.pool import ThreadPool
    from ferrule.runs.protocols import Program, Store, Stored

Advanced = RunStatus | Literal["taken"]

_ENDED = ("done", "failed", "cancelled")
_GRACE_S = 1.0
"""How long an interrupted segment may go on in its thread.

After that, its run is put back into the queue anyway.
"""


@checks_keywords
def advance(
    store: Store,
    run_id: str,
    programs: Program | Iterable[Program],
    *,
    any_version: bool = False,
    deps: Any = None,
) -> Advanced:
    """Execute a stored run until it ends or waits.

    It continues a run that is queued, whose question is decided or has expired, or whose process
    died. If two calls for one run happen at once, one executes it and the other returns `"taken"`.
    An interrupt (Ctrl-C or a cancelled task) puts the run back into the queue.

    Args:
        store: The store of the run.
        run_id: The id of the run.
        programs: The program of the run is chosen from these by its name and its fingerprint. If
            none fits, the run stays unchanged, and `ferrule runs --stuck` lists it with the reason.
        any_version: If no program has the fingerprint, take one with the name: the run continues
            with it, as after `Run.load`.
        deps: The value that tools find in `Context.deps`.

    Returns:
        The run's status now, or `"taken"`.

    Raises:
        StoreError: There is no such run, or the store fails.

    """
    run, status = _ready(store, run_id, programs, any_version, deps)
    if run is None:
        return status
    return _resume(store, run)


@with_settings_of_call
@checks_keywords
async def aadvance(
    store: Store,
    run_id: str,
    programs: Program | Iterable[Program],
    *,
    any_version: bool = False,
    deps: Any = None,
) -> Advanced:
    """`advance` on an event loop. Sync tools run in threads."""
    run, status = await run_or_cancel(lambda: _ready(store, run_id, programs, any_version, deps))
    if run is None:
        return status
    return await _aresume(store, run)


async def advance_in_thread(
    threads: ThreadPool,
    store: Store,
    run_id: str,
    programs: Program | Iterable[Program],
    *,
    any_version: bool = False,
    deps: Any = None,
) -> Advanced:
    """`advance` for a worker's event loop, in one of these threads.

    Async programs and tools run on the background loop. When cancelled, it
    cancels the run's async tools and puts the run back into the queue. A thread that is blocked, by
    a tool or a model call, is abandoned: its later writes are refused.

    If code of the run exits (`sys.exit()`, or `KeyboardInterrupt`, which the signals of a worker
    do not raise), the run fails, and this raises `RunError`: the exit itself would end the event
    loop, and so the work on all other runs.
    """
    segment = _segment_in_thread(threads, store, run_id, programs, any_version, deps)
    try:
        return await segment
    except (KeyboardInterrupt, SystemExit) as interrupt:
        raise RunError(
            f"The run {run_id} failed: its code exited with {interrupt!r}. "
            "Let tools and programs raise an `Exception` instead."
        ) from interrupt


async def _segment_in_thread(
    threads: ThreadPool,
    store: Store,
    run_id: str,
    programs: Program | Iterable[Program],
    any_version: bool,
    deps: Any,
) -> Advanced:
    loaded: list[Run] = []

    def segment() -> Advanced | None:
        run, status = _ready(store, run_id, programs, any_version, deps)
        if run is None:
            return status
        cast("StoredRun", run.persistence).requeues_exits = False
        loaded.append(run)
        if run.program.is_async:
            return None
        return _resume(store, run)

    working = put(threads, segment, asyncio.get_running_loop().create_future())
    try:
        status = await asyncio.shield(working)
    except asyncio.CancelledError:
        await _interrupt(working, loaded)
        raise
    if status is not None:
        return status
    errand = Errand(partial(_aresume, store, loaded[0]), background_loop())
    ended = asyncio.wrap_future(errand.future)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        errand.cancel()
        await asyncio.wait((ended,))
        raise


async def _interrupt(working: asyncio.Future[Any], loaded: list[Run]) -> None:
    # Retrieve the error: the caller gets the cancellation.
    working.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    for run in loaded:
        execution = run.executing  # read once: the thread may end it meanwhile
        if execution is None:
            continue
        execution.halt.set(_GRACE_S / 2)
        for task in execution.stop():
            with suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(cancel_once, task)
    await asyncio.wait((working,), timeout=_GRACE_S)
    if not working.done():
        for run in loaded:
            await run_or_cancel(cast("StoredRun", run.persistence).give_up)


def _resume(store: Store, run: Run) -> Advanced:
    try:
        run.resume()
    except (ConfigurationError, RunError) as error:
        return _refused(store, run.id, error)
    return run.status


async def _aresume(store: Store, run: Run) -> Advanced:
    try:
        await run.aresume()
    except (ConfigurationError, RunError) as failed:
        error = failed
        return await run_or_cancel(lambda: _refused(store, run.id, error))
    return run.status


def _ready(
    store: Store, run_id: str, programs: Program | Iterable[Program], any_version: bool, deps: Any
) -> tuple[Run | None, Advanced]:
    """The run, loaded with its program, and its status.

    None instead of the run if there is nothing to do.
    """
    check_store(store)
    stored = store.load(run_id)
    status, head = cast("RunStatus", stored.status), head_of(stored)
    if status in _ENDED:
        return None, status
    if status == "waiting" and not _is_decided(stored, head) and not _is_expired(store, head):
        return None, status
    run: Run | None = None
    program, why = _choose(head, programs, any_version=any_version)
    if program is not None:
        try:
            run = Run._of(  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                stored, store, program, deps=deps
            )
        except ReplayMismatchError as error:
            why = str(error)
    if run is None:
        if store.summary(run_id).leased:
            return None, "taken"
        store.put_off(run_id, why)
        return None, status
    assert isinstance(run.persistence, StoredRun)  # noqa: S101  set by `load`
    run.persistence.requeues = True
    return run, status


def _choose(
    head: dict[str, Any], candidates: Program | Iterable[Program], *, any_version: bool
) -> tuple[Program | None, str]:
    """The program of a run; or None, and the reason why none fits."""
    if not isinstance(head.get("program"), str):
        raise StoreError(f"This is not the head of a run: found {shown(head)}.")
    programs: list[Any] = [candidates]
    if hasattr(candidates, "__iter__"):
        programs = list(cast("Iterable[Any]", candidates))
    named = [program for program in programs if program.name == head["program"]]
    names = sorted({program.name for program in programs})
    why = f"No worker has its program `{head['program']}`; there are: {', '.join(names) or 'none'}."
    for program in named:
        differing = differences(head.get("fingerprint"), program)
        if not differing:
            return program, ""
        what, (then, now) = next(iter(differing.items()))
        why = (
            f"No worker has this version of its program `{program.name}`: "
            f"{what} was {then}, is {now}."
        )
    if named and any_version:
        return named[0], ""
    return None, why


def _refused(store: Store, run_id: str, error: Exception) -> Advanced:
    """Handle an error from before the first act.

    Returns the status if another process was faster; otherwise notes or raises the error.
    """
    if isinstance(error, RunTakenError):
        return "taken"
    summary = store.summary(run_id)
    if isinstance(error, ConfigurationError):  # nothing was executed
        store.put_off(run_id, str(error))
    elif summary.leased:
        return "taken"
    elif summary.status not in _ENDED:
        raise error
    return cast("RunStatus", summary.status)


def _is_decided(stored: Stored, head: dict[str, Any]) -> bool:
    """Whether a pending question has a decision.

    Decisions on questions that a newer version no longer asks do not count.
    """
    decided = {parse_object(text, "a decision").get("question_id") for text in stored.decisions}
    return any(question.get("id") in decided for question in head.get("questions", ()))


def _is_expired(store: Store, head: dict[str, Any]) -> bool:
    ends = [
        question["expires_at"]
        for question in head.get("questions", ())
        if question.get("expires_at") is not None
    ]
    return bool(ends) and min(ends) < store.now()
