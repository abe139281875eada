"""The driver's waits for code that may hang: a tool, a model.

All of them pass here, so that a call, or a run, ends at once (`concurrency/halting.py` has the
rule). What a halt leaves behind has no result: the journal says that it began, but not how it
ended, as after a crash.

Programs are not waited for here, but step by step: each of their own waits ends.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.concurrency.cancellation import STOPPED
from ferrule.concurrency.deadline import NEVER
from ferrule.concurrency.halting import (
    HaltedError,
    await_until_halted,
    cancelled_when_halted,
    run_until_halted,
)
from ferrule.errors import RunCancelledError
from ferrule.runs.life import CallPlace, Execution, halts_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ferrule.runs.state import Frame

R = TypeVar("R")


def run_until_end(frame: Frame, life: Execution | CallPlace, work: Callable[[], R]) -> R:
    """Do work that may hang, from sync code, until it ends or `life` does.

    Raises `RunCancelledError` for work that was left behind.
    """
    if _stays_here(frame, life):
        return work()
    return run_effectless(frame, life, work)


def run_effectless(frame: Frame, life: Execution | CallPlace, work: Callable[[], R]) -> R:
    """`run_until_end` for work without effects, such as the code of a model between two calls.

    It never runs in this thread, where it may be deep in code that is not Python's: Ctrl-C would
    not reach it.
    """
    try:
        return run_until_halted(work, halts_of(life))
    except HaltedError:
        raise ended_error(frame, life) from None


async def await_until_end(
    frame: Frame, life: Execution | CallPlace, work: Awaitable[R], name: str = ""
) -> R:
    """`run_until_end` on this event loop."""
    grace_s = execution_of(life).grace_s
    if grace_s is None:
        grace_s = NEVER
    try:
        return await await_until_halted(work, halts_of(life), grace_s=grace_s, name=name)
    except HaltedError:
        raise ended_error(frame, life) from None


async def await_effectless(frame: Frame, life: Execution | CallPlace, request: Awaitable[R]) -> R:
    """Await what has no effect, such as a request to a model: a halt cancels it at once.

    It is awaited in place, not in a task of its own: every step has one.
    """
    try:
        return await cancelled_when_halted(request, halts_of(life))
    except HaltedError:
        raise ended_error(frame, life) from None


def _stays_here(frame: Frame, life: Execution | CallPlace) -> bool:
    """Whether work is done in this thread, because nothing can leave it behind.

    That is so without a bound of the grace; and if nobody else can end this run, because it is in
    memory, and the main thread executes it: there, Ctrl-C reaches the work.
    """
    if execution_of(life).grace_s is None:
        return True
    if frame.run.persistence is not None:
        return False
    return threading.current_thread() is threading.main_thread()


def execution_of(life: Any) -> Execution:
    """The innermost execution around a call; or the execution itself."""
    while type(life) is not Execution:
        life = life.outer
    return life


def ended_error(frame: Frame, life: Any) -> BaseException:
    """The error for a wait that a halt ended: the run's cancellation, or an interrupt of it."""
    if frame.run.cancelled:
        return RunCancelledError(f"The run {frame.run.id} was cancelled.")
    while life is not None:
        if isinstance(life, CallPlace):
            if life.halt.is_set:
                return RunCancelledError(f"The call {life.call_id!r} was cancelled.")
        elif life.halt.is_set:
            break
        life = life.outer
    return asyncio.CancelledError(STOPPED)
