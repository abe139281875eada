"""`Run`: one execution of a program as a value; and `execute`, which carries it as far as it goes.  (Floor 4.)

Executing a run again replays its journal into a fresh execution of the program and goes on where it stopped: at a question, an error, or
a cancellation.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule import offload, settings
from ferrule.errors import ConfirmationRequired, DecisionError, InputError, RunError, Suspended, shown
from ferrule.runs.driver import adrive, drive
from ferrule.runs.observe import Observers
from ferrule.runs.state import Frame, Program, RunState
from ferrule.settings import Scope
from ferrule.values import event as events
from ferrule.values.outcome import Trajectory
from ferrule.values.question import Decision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.values.act import Flow
    from ferrule.values.exchange import Usage


class Run(RunState):
    """One execution of one program. Made by `program.start(...)`.

    `status` is `running`, `waiting` (see `pending`), `done`, `failed` (see `error`) or `cancelled`.
    """

    __slots__ = ()

    @property
    def prediction(self) -> Any:
        """What the program returned. Raises the run's error if it failed, `ConfirmationRequired` if it waits."""
        if self.status == "done":
            return self.outcome
        if self.status == "waiting":
            raise self.confirmation()
        if self.error is not None:
            raise self.error
        msg = f"The run is {self.status}; it has no prediction yet."
        raise RunError(msg)

    @property
    def trajectory(self) -> Trajectory:
        """The steps so far."""
        found = getattr(self.outcome, "trajectory", None)
        return found if isinstance(found, Trajectory) else Trajectory(self.steps)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self.root.usage

    def confirmation(self) -> ConfirmationRequired:
        """The first pending question as the exception that a plain call raises."""
        first = self.pending[0]
        return ConfirmationRequired(first.text, confirmation_id=first.id, tool_call=first.call, run=self)

    def answer(self, decision: Decision) -> None:
        """Put one decision on a pending question. Raises `DecisionError` if there is no such question, or it is decided."""
        _refuse_malformed(decision)
        if decision.question_id in self.answers:
            msg = f"Question {decision.question_id!r} is decided already."
            raise DecisionError(msg)
        waiting = [question.id for question in self.pending]
        if decision.question_id not in waiting:
            msg = f"No question {decision.question_id!r} waits in this run; waiting are: {', '.join(waiting) or 'none'}."
            raise DecisionError(msg)
        self.answers[decision.question_id] = decision
        self.decisions.append(decision)

    def resume(self) -> Run:
        """Go on: replay what is journalled, then act. Returns this run, which may wait again."""
        execute(self)
        return self

    async def aresume(self) -> Run:
        """`resume` on this event loop."""
        await aexecute(self)
        return self

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.program.name}: {self.status}>"


def _refuse_malformed(decision: Any) -> None:
    # Whatever is accepted here is journalled: what the program could not use must not get that far.
    if not isinstance(decision, Decision):
        msg = f"A decision comes from a question: question.approve(), .deny(), .reply(text); found {shown(decision)}."
        raise DecisionError(msg)
    named = isinstance(decision.args, dict) and all(isinstance(name, str) for name in decision.args)
    if decision.kind not in {"approve", "edit", "deny", "reply"} or not isinstance(decision.text, str) or not named:
        msg = f"A decision has one of the four kinds, a text, and arguments by name; found {shown(decision)}."
        raise DecisionError(msg)


def execute(run: Run, *, observers: tuple[Any, ...] = (), wants_deltas: bool = False) -> None:
    """Carry a run as far as it goes in this thread. How it ended stands in `run.status`; only interrupts are raised."""
    here = _opened(run, observers, wants_deltas=wants_deltas)
    with settings.entered(here):
        try:
            outcome = perform(run.root, run.program, run.args, run.inputs)
            run.journal.finished()
        except BaseException as error:  # noqa: BLE001  recorded on the run; `prediction` raises it again
            _stopped(run, error)
        else:
            _done(run, outcome)


async def aexecute(run: Run, *, observers: tuple[Any, ...] = (), wants_deltas: bool = False) -> None:
    """`execute` on this event loop."""
    here = _opened(run, observers, wants_deltas=wants_deltas)
    with settings.entered(here):
        try:
            outcome = await aperform(run.root, run.program, run.args, run.inputs)
            run.journal.finished()
        except BaseException as error:  # noqa: BLE001  recorded on the run; `prediction` raises it again
            _stopped(run, error)
        else:
            _done(run, outcome)


def perform(frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Any:
    """Execute a program in a frame of a run."""
    if program.is_flow:
        return drive(frame, _flow(program, args, inputs))
    if program.is_only_async:
        return offload.run_async(program.aforward(*args, **inputs))
    return program.forward(*args, **inputs)


async def aperform(frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Any:
    """`perform` on this event loop; a program with a `forward` alone runs it in a worker thread."""
    if program.is_flow:
        return await adrive(frame, _flow(program, args, inputs))
    if program.is_async:
        return await program.aforward(*args, **inputs)
    return await offload.in_worker_thread(partial(program.forward, *args, **inputs))


def _flow(program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Flow:
    if args:
        msg = f"`{program.name}` takes its inputs by name, found {shown(args)}: write {program.name}(...)(name=value)."
        raise InputError(msg)
    return program.flow(**inputs)


def call_inside(frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Any:
    """Execute a program that another one, already running, calls: a child frame of the same run."""
    child = frame.child(program, args, inputs)
    try:
        with settings.entered(Scope(settings.scope().overrides, child)):
            return perform(child, program, args, inputs)
    finally:
        frame.left(child)


async def acall_inside(frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Any:
    """`call_inside` on this event loop."""
    child = frame.child(program, args, inputs)
    try:
        with settings.entered(Scope(settings.scope().overrides, child)):
            return await aperform(child, program, args, inputs)
    finally:
        frame.left(child)


def _opened(run: Run, observers: tuple[Any, ...], *, wants_deltas: bool) -> Scope:
    here = settings.current()
    outer = settings.scope().call
    # A program that a tool calls tells whoever listens to the tool's run.
    told = (*(outer.tell.each if outer is not None and outer.tell is not None else here.callbacks), *observers)
    tell = Observers(told, run_id=run.id, parent_id=outer.call_id if outer is not None else "") if told else None
    frame = run.begin(tell, wants_deltas=wants_deltas)
    if tell is not None and not run.journal.replaying:
        tell(events.RunStarted(run.program, run.inputs))
    return Scope(settings.frozen(here), frame)


def _done(run: Run, outcome: Any) -> None:
    run.done(outcome)
    if run.tell is not None:
        run.tell(events.RunFinished(prediction=outcome))


def _stopped(run: Run, error: BaseException) -> None:
    run.stopped(error)
    if run.tell is not None:
        run.tell(events.RunFinished(error=None if isinstance(error, Suspended) else error))
    if not isinstance(error, (Exception, Suspended)):
        raise error  # KeyboardInterrupt, CancelledError, SystemExit: the run is resumable, and the interrupt goes on
