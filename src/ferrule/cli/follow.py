"""Carrying a run to its end for a person who watches, and who is asked when it waits."""

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

Hear = Callable[["Event"], None]
Ask = Callable[["Question"], "Decision | None"]


def carry(program: Module, inputs: Mapping[str, Any], *, hear: Hear, ask: Ask | None = None) -> Run:
    """The run, as far as it went: `done`, `failed`, or `waiting` where there is nobody to ask or they gave no answer.

    Only interrupts are raised; how a run failed stands in `run.error`.
    """
    stream = program.stream(**inputs)
    run = stream.run
    while True:
        _heard_to_its_end(stream, hear)
        if run.status != "waiting" or ask is None:
            return run
        for question in run.pending:
            decision = ask(question)
            if decision is None:
                return run
            run.answer(decision)
        stream = EventStream(run)


def _heard_to_its_end(stream: EventStream, hear: Hear) -> None:
    try:
        for event in stream:
            hear(event)
    except BaseException as error:
        if error is stream.run.error and isinstance(error, Exception):
            return  # it stands in `run.error`, whoever reads the run
        raise
