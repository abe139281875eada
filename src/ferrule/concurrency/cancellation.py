"""Tell an interrupt from an error of the code that raised it.

A `CancelledError` has two meanings. Either somebody cancelled the task that sees it; then the error
must propagate. Or the code awaited something else that was cancelled: a task that it started, a
future, a scope of its client library. Then the task itself was not cancelled, and the error is a
failure like any other. The type does not tell them apart, but the task does: it counts requests
to cancel it (`Task.cancelling`). A tool has a task of its own, which passes such a request on to
the task of its run (`pass_on_cancellation`).

Sync code belongs to no task. There, only ferrule's own wait for an awaitable raises a cancellation,
and marks it (`STOPPED`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Generator

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
    if in_task and is_task_cancelled():
        return True
    return STOPPED in error.args


@contextmanager
def raising_errors(called: str, *, in_task: bool) -> Generator[None]:
    """Raise a `RunError` for a cancellation that is an error of the code called in the block.

    So it ends a run as its failure, and `except Exception` catches it. `called` names that code.
    """
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, Exception) or is_interrupt(error, in_task=in_task)):
            raise RunError(
                f"{called} raised {error!r}, though nobody cancelled the run: it awaited a task, a "
                "future or a scope that was cancelled. Handle that where it is awaited."
            ) from error
        raise


def is_task_cancelled() -> bool:
    """Whether the current task was asked to cancel."""
    import asyncio

    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def pass_on_cancellation() -> None:
    """Cancel the current task, because a tool of its run cancelled the task of the tool.

    Raises `CancelledError`.
    """
    import asyncio

    task = asyncio.current_task()
    if task is not None:
        task.cancel()
        await asyncio.sleep(0)  # the cancellation is raised here, not at the next wait
