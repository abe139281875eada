"""A program called as a tool: it gets a frame of the same run, below the call, so that it can wait, be resumed and be counted.

In: a call that is about to run. Out: the frame for the program inside it and, when it ends, a
record of its spending at the slot of the call plus `.spent`: a replay uses only the result, and
does not execute the program again.

Also here: values that a run records once, with the programs that compute them, and the model
failures that a `forward` caught.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule import settings
from ferrule.concurrency import offload
from ferrule.encoding.encode import is_exact
from ferrule.errors import InputError, RunError, shown
from ferrule.runs.journal.entry import Entry
from ferrule.runs.limits import Budget
from ferrule.runs.observers import cancellable
from ferrule.runs.state import snapshot
from ferrule.settings import Scope
from ferrule.values.calls.call import ToolResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from ferrule.errors import ConfirmationRequired
    from ferrule.runs.state import Frame
    from ferrule.tools.definition.deps import ContextParameter
    from ferrule.values.calls.call import CheckedCall

T = TypeVar("T")


def close_frame(frame: Frame, slot: str, inside: Frame, *, failed: bool) -> Entry | None:
    """Close the frame of a program that returned. Returns its spending, to be journalled before the result; None if already journalled."""
    journal = frame.run.journal
    journal.close_frame(inside.path, unfinished=failed)
    if journal.take(f"{slot}.spent", "once", "spent") is not None:
        return None
    counted = inside.budget.spent() if inside.budget is not None else {}
    return Entry(f"{slot}.spent", "once", "spent", counted)


def recount(frame: Frame, slot: str) -> None:
    """Count, in a replay, the spending of a program whose result came from the journal."""
    journal, spent = frame.run.journal, f"{slot}.spent"
    entry = journal.take(spent, "once", "spent") if journal.has(spent) else None
    if entry is None:  # the call was refused and did not run
        return
    from ferrule.encoding.stored import reading

    with reading(f"The spending at {slot} of the journal"):
        counted: dict[str, Any] = {
            name: count for name, count in entry.value.items() if name != "usage"
        }  # in earlier versions' journals
        if frame.budget is not None:
            frame.budget.spend(**counted)


def refuse_over_limit(slot: str, digest: str, checked: CheckedCall) -> Entry:
    """The result of a call over the limit of tool calls. Journalled, because another execution may count in another order."""
    text = f"Call to `{checked.call.name}` was not run: the limit of tool calls is reached. Answer with what you know."
    return refuse(slot, digest, checked, text)


def refuse(slot: str, digest: str, checked: CheckedCall, text: str) -> Entry:
    """The result of a call that is not run: an error with this text."""
    return Entry(
        slot,
        "result",
        digest,
        ToolResult(checked.call.name, text, checked.call.id, is_error=True),
    )


def cannot_wait(checked: CheckedCall, error: ConfirmationRequired) -> RunError:
    """The error if a function called a program that waits: resuming would require running the function a second time."""
    name = checked.tool.name
    return RunError(
        f"`{name}` called the program `{error.run.program.name}`, which waits for a person ({error.question!r}). A function cannot wait in "
        f"its middle: its own code would run a second time. Give the agent the program itself as a tool: `tools=[program.as_tool()]`.",
    )


async def record(
    make: Callable[[], Any],
    name: str,
    *,
    blocks: bool,
    is_needed: bool = False,
) -> Any:
    """Compute a value once in a run and record it: see `once`. `blocks`: wait by blocking this thread, not on this event loop.

    `is_needed`: the program cannot go on without the value, so a journal that goes on without it
    belongs to another program.
    """
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        raise InputError(
            f"The name of a value of `once` is a word of letters, digits, `_` and `-`; found {shown(name)}.",
        )
    here = settings.scope()
    frame: Frame | None = here.frame
    if frame is None:
        return await _made(make, blocks=blocks)
    frame.check()
    journal, slot = frame.run.journal, frame.numbered(f"once:{name}")
    entry = journal.take(slot, "once", name) if is_needed or journal.has(slot) else None
    if entry is None:
        await keep_caught(frame, blocks=blocks)
        inside = frame.inner(
            f"{slot}/",
        )  # until there is a value, programs that the function calls are replayed, as in a tool
        inside.budget, inside.failures = Budget(outer=frame.budget), []
        try:
            with settings.entered(Scope(here.overrides, inside, here.call)):
                value = await _made(make, blocks=blocks)
            inside.failures = None  # the value replaces them
        finally:
            hand_up(inside)
        spent = close_frame(
            frame,
            slot,
            inside,
            failed=True,
        )  # `failed`: it need not call the same programs again
        if not is_exact(value):
            raise RunError(
                f"The value `{name}` of `once` is recorded as JSON, so it must be JSON data; found {shown(value)}.",
            )
        entry = Entry(slot, "once", name, snapshot(value))
        frame.live = True
        frame.check_alive()
        if spent is not None and inside.children:
            await journal.write(spent, blocks=blocks)
        await journal.write(entry, blocks=blocks)
    else:
        recount(frame, slot)
    return snapshot(entry.value)  # a copy, so that the program cannot change the record


async def call_code(
    frame: Frame,
    code: Callable[[Callable[..., Awaitable[Any]]], Coroutine[Any, Any, T]],
    name: str,
) -> T:
    """Call a user's functions once, in a frame of a run, and record the result. See `Once.runs_code`."""
    from ferrule.runs.driver.deps import with_context  # late: few programs have such functions

    blocks = frame.blocks

    async def call(
        function: Callable[..., Any],
        *args: Any,
        context: ContextParameter | None,
        is_async: bool,
        what: str,
    ) -> Any:
        settings.scope().frame.blocks = not is_async  # how the function itself waits
        named: Mapping[str, Any] = {}
        if context is not None:
            args, named = with_context(frame, context, what, args, named)
        work = partial(function, *args, **named)
        if is_async:
            return offload.run_async(cancellable(frame.life, work())) if blocks else await work()
        return work() if blocks else await offload.in_worker_thread(work)

    here, lm = (
        settings.scope(),
        {} if frame.lm is None else {"lm": frame.lm},
    )  # the model of this call, as for the program's tools
    make = (lambda: offload.run_blocking(code(call))) if blocks else partial(code, call)
    frame.failures = []
    try:
        with settings.entered(Scope({**here.overrides, **lm}, here.frame, here.call)):
            return await record(make, name, blocks=blocks, is_needed=True)
    finally:
        hand_up(frame)  # a `forward` around this program may catch them


async def _made(make: Callable[[], Any], *, blocks: bool) -> Any:
    found = make()
    if not hasattr(found, "__await__"):
        return found
    if blocks:
        getattr(found, "close", bool)()
        raise RunError(
            f"`once` does not await what its function returned, {shown(found)}. In an `aforward`, write `await ferrule.aonce(...)`.",
        )
    return await found


async def keep_caught(frame: Frame, *, blocks: bool, has_returned: bool = False) -> None:
    """Journal the model failures that plain Python caught in this frame, so that a replay fails there, too.

    The code has caught a failure when it goes on in the task or thread that saw it. Code in another
    one may not know of it yet.
    """
    if not frame.failures:
        return
    here, failures = _task_or_thread(), frame.failures
    caught = [entry for place, entry in failures if has_returned or place is here]
    frame.failures = [] if has_returned else [each for each in failures if each[0] is not here]
    for entry in caught:
        frame.check_alive()
        await frame.run.journal.write(entry, blocks=blocks)


def hand_up(frame: Frame) -> None:
    """Pass the failures that a frame did not catch to the frame around it."""
    failures, frame.failures, outer = frame.failures, None, frame.outer
    if failures and outer is not None and outer.failures is not None:
        here = _task_or_thread()
        outer.failures += [(here, entry) for _, entry in failures]


def _task_or_thread() -> Any:
    import asyncio  # late: sync programs do not need it
    import threading

    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return threading.current_thread()
