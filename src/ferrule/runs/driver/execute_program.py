"""A program, executed in a frame of a run: as a flow by the drivers, or as the plain Python that it is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule import settings
from ferrule.concurrency import offload
from ferrule.errors import InputError, shown
from ferrule.runs.driver.drive import drive
from ferrule.runs.observers import cancellable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.runs.protocols import Program
    from ferrule.runs.state import Frame
    from ferrule.values.run.act import Flow


def perform(frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Any:
    """Execute a program in a frame of a run."""
    frame.check()
    if program.is_flow:
        frame.blocks = True
        return offload.run_blocking(drive(frame, _flow(program, args, inputs)))
    if program.is_only_async:
        return offload.run_async(cancellable(frame.life, program.aforward(*args, **inputs)))
    return program.forward(*args, **inputs)


async def aperform(frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Any:
    """`perform` on this event loop; a program with a `forward` alone runs it in a worker thread."""
    frame.check()
    if program.is_flow:
        frame.blocks = False
        return await drive(frame, _flow(program, args, inputs))
    if program.is_async:
        return await program.aforward(*args, **inputs)
    return await offload.in_worker_thread(partial(program.forward, *args, **inputs))


def perform_as_tool(program: Any, inputs: Mapping[str, Any]) -> Any:
    """Execute a program that is called as a tool: in the frame that the driver made for this call, else as a direct call of the program."""
    inside = _inside_call()
    if inside is None:
        return program(**inputs)
    with settings.entered(inside):
        return perform(inside.frame, program, (), inputs)


async def aperform_as_tool(program: Any, inputs: Mapping[str, Any]) -> Any:
    """`perform_as_tool` on this event loop."""
    inside = _inside_call()
    if inside is None:
        return await program.acall(**inputs)
    with settings.entered(inside):
        return await aperform(inside.frame, program, (), inputs)


def _inside_call() -> settings.Scope | None:
    here = settings.scope()
    return settings.Scope(here.overrides, here.frame) if here.call is not None and here.frame is not None else None


def _flow(program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Flow:
    if args:
        raise InputError(f"`{program.name}` takes its inputs by name, found {shown(args)}: write {program.name}(...)(name=value).")
    return program.flow(**inputs)
