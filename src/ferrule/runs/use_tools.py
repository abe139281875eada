"""A batch of checked calls, run: begun and result journalled for each, results in call order.  (Floor 4.)

One call runs where it is asked for. Several run at once: async tools as tasks, sync tools in the bounded pool; tools that say
`concurrent=False` run one after another. Inside a worker of the pool everything runs in place, so that the pool cannot wait for itself.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from ferrule import offload, settings
from ferrule.runs.journal import Entry
from ferrule.runs.observe import CallPlace
from ferrule.settings import Scope
from ferrule.tools.run_calls import arun_call, failure, run_call
from ferrule.values import event as events
from ferrule.values.jsonable import json_text

if TYPE_CHECKING:
    from ferrule.runs.state import Frame
    from ferrule.values.act import CallTools
    from ferrule.values.call import CheckedCall, ToolResult


def call_tools(frame: Frame, act: CallTools) -> list[ToolResult]:
    """Run a batch from this thread."""
    results, live = _recorded(frame, act)
    if len(live) == 1 or offload.in_worker():
        for at, slot, checked in live:
            results[at] = _run(frame, slot, checked)
    elif live:
        futures = [(at, offload.submit(partial(_run, frame, slot, checked))) for at, slot, checked in live if checked.tool.concurrent]
        for at, slot, checked in live:
            if not checked.tool.concurrent:
                results[at] = _run(frame, slot, checked)
        for at, future in futures:
            results[at] = future.result()
    return results  # pyright: ignore[reportReturnType]  every place is filled by now


async def acall_tools(frame: Frame, act: CallTools) -> list[ToolResult]:
    """Run a batch without blocking the loop."""
    results, live = _recorded(frame, act)
    if len(live) == 1:
        at, slot, checked = live[0]
        results[at] = await _arun(frame, slot, checked)
    elif live:
        await _arun_together(frame, live, results)
    return results  # pyright: ignore[reportReturnType]  every place is filled by now


async def _arun_together(frame: Frame, live: list[tuple[int, str, CheckedCall]], results: list[ToolResult | None]) -> None:
    import asyncio

    async def fill(at: int, slot: str, checked: CheckedCall) -> None:
        try:
            results[at] = await _arun(frame, slot, checked)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The tool itself raised it: nobody cancelled this call, and a task group would take it for done.
            results[at] = _ended(frame, slot, _digest(checked), checked, failure(checked.call, error))

    async def one_by_one() -> None:
        for at, slot, checked in live:
            if not checked.tool.concurrent:
                await fill(at, slot, checked)

    # A `ToolStop` in one call ends the run: the group cancels the others and waits for them, so that none is left behind.
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(one_by_one())
            for at, slot, checked in live:
                if checked.tool.concurrent:
                    group.create_task(fill(at, slot, checked))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


def _recorded(frame: Frame, act: CallTools) -> tuple[list[ToolResult | None], list[tuple[int, str, CheckedCall]]]:
    """Results that the journal has, with None for the others; and those others, each journalled as begun."""
    run, slot = frame.run, frame.slot()
    results: list[ToolResult | None] = []
    live: list[tuple[int, str, CheckedCall]] = []
    for k, checked in enumerate(act.calls):
        at = f"{slot}.{k}"
        entry = run.journal.take(at, "result", _digest(checked)) if run.journal.replaying else None
        results.append(entry.value if entry is not None else None)
        if entry is None:
            live.append((k, at, checked))
    return results, live


def _digest(checked: CheckedCall) -> str:
    return f"{checked.tool.name} {json_text(checked.arguments.shown)}"


def _run(frame: Frame, slot: str, checked: CheckedCall) -> ToolResult:
    run = frame.run
    digest = _begun(frame, slot, checked)
    result = copy_context().run(_in_scope, CallPlace(run.tell, checked.call.id or slot, run.id), checked)
    return _ended(frame, slot, digest, checked, result)


def _in_scope(place: CallPlace, checked: CheckedCall) -> ToolResult:
    # This is a copy of the caller's context: what is set in it, here or by the tool, is gone after the call.
    settings.enter(_scope(place))
    return run_call(checked)


async def _arun(frame: Frame, slot: str, checked: CheckedCall) -> ToolResult:
    run = frame.run
    digest = _begun(frame, slot, checked)
    with settings.entered(_scope(CallPlace(run.tell, checked.call.id or slot, run.id))):
        result = await arun_call(checked)
    return _ended(frame, slot, digest, checked, result)


def _scope(place: CallPlace) -> Scope:
    # No frame: a program that a tool calls is a run of its own.
    return Scope(settings.scope().overrides, None, place)


def _begun(frame: Frame, slot: str, checked: CheckedCall) -> str:
    digest = _digest(checked)
    frame.run.journal.add(Entry(slot, "begun", digest))
    if frame.run.tell is not None:
        frame.run.tell(events.CallStarted(checked.call))
    return digest


def _ended(frame: Frame, slot: str, digest: str, checked: CheckedCall, result: ToolResult) -> ToolResult:
    frame.run.journal.add(Entry(slot, "result", digest, result))
    if frame.run.tell is not None:
        frame.run.tell(events.CallFinished(checked.call, result))
    return result
