"""Tell an interrupt from an error of the code that raised it.

A `CancelledError` has two meanings. Either somebody cancelled the task that sees it; then the error
must propagate. Or the code awaited something else that was cancelled: a task that it started, a
future, a scope of its client library. Then the task itself was not cancelled, and the error is a
failure like any other. The type does not tell them apart, but the task does: it counts requests
to cancel it (`Task.cancelling`).

Sync code belongs to no task. There, only ferrule's own wait for an awaitable raises a cancellation,
and marks it (`STOPPED`).
"""

from __future__ import annotations

from typing import Any, cast

STOPPED = "The execution that waits for this was stopped."
"""The message of the cancellation that sync code sees."""


def is_interrupt(error: BaseException, *, in_task: bool) -> bool:
    """Whether an exception must go on through the code that called a function.

    False for an error of the function itself. `in_task`: the function ran in the current task;
    otherwise, it was called from sync code.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[Any]", error).exceptions
        return any(is_interrupt(member, in_task=in_task) for member in members)
    import asyncio  # late: sync programs do not need it

    if not isinstance(error, asyncio.CancelledError):
        return True
    if in_task:
        return is_task_cancelled()
    return STOPPED in error.args


def is_task_cancelled() -> bool:
    """Whether the current task was asked to cancel."""
    import asyncio

    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
