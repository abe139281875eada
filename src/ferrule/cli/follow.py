"""Run a program to its end, show its events, and ask the person when it waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ferrule.runs.stream import EventStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.programs.module import Module
    from ferrule.runs.run import Run
    from ferrule.values.confirmation.question import Decision, Question
    from ferrule.values.run.event import Event

OnEvent = Callable[["Event"], None]
Ask = Callable[["Question"], "Decision | None"]


def follow_run(program: Module, inputs: Mapping[str, Any], *, on_event: OnEvent, ask: Ask | None = None) -> Run:
    """Run until the run is `done` or `failed`, or `waiting` without a decision. Raises only interrupts; `run.error` holds other errors."""
    stream = program.stream(**inputs)
    run = stream.run
    while True:
        _consume(stream, on_event)
        if run.status != "waiting" or ask is None:
            return run
        for question in run.pending:
            decision = ask(question)
            if decision is None:
                return run
            run.answer(decision)
        stream = EventStream(run)


def _consume(stream: EventStream, on_event: OnEvent) -> None:
    try:
        for event in stream:
            on_event(event)
    except BaseException as error:
        if error is stream.run.error and isinstance(error, Exception):
            return
        raise
