"""Going on with a run that waited for a person, under udspy's names.

In: what a plain call raised (`ConfirmationRequired`, which carries its run) and what a person said. Out: the run with that decision put on
it, ready to be executed; or the prediction. A run goes on where it stopped: nothing that is in its journal is asked or run again.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfirmationRequired, DecisionError, InputError, RunError, shown
from ferrule.runs.confirmation.decisions import decided
from ferrule.runs.run import Run, aexecute, execute
from ferrule.runs.store.document import fingerprint
from ferrule.runs.stream import EventStream
from ferrule.values.confirmation.question import Question

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ferrule.values.confirmation.question import Decision

    Said = str | bool | Mapping[str, Any] | Decision


class ResumeState:
    """What to go on with: what was raised (or the run itself), and what the person said to its question.

    `response` is "yes", "no", a JSON object of changed arguments, or text for the model (see `Question.decide`). Without one it is "yes";
    but for a run on which something is decided already nothing more is decided, and it goes on with that.
    """

    def __init__(self, exception: Any, response: Said | None = None) -> None:
        of = exception.run if isinstance(exception, ConfirmationRequired) else exception
        if not isinstance(of, Run):
            what = "a call that was made directly, outside any program: decide on it with `respond_to_confirmation` and call again"
            msg = f"There is no run to go on with: found {what if isinstance(exception, ConfirmationRequired) else shown(exception)}."
            raise DecisionError(msg)
        self.run = of
        self._raised: ConfirmationRequired | None = exception if isinstance(exception, ConfirmationRequired) else None
        self._is_said = response is not None
        self.response: Said = response if response is not None else "yes"

    @property
    def confirmation_id(self) -> str:
        """The question that the response is for; empty where the run asks nothing."""
        if self._raised is not None:
            return self._raised.confirmation_id
        return self.run.pending[0].id if self.run.pending else ""

    def decide(self) -> None:
        """Put the response on its question. The same one once more is passed over; raises `DecisionError` for another one."""
        if self._raised is None and not self._is_said and decided(self.run):
            return
        asked = self.confirmation_id
        question = next((each for each in self.run.pending if each.id == asked), None)
        if question is None and self._raised is not None:  # decided before: only the same again will do
            kind = "confirm" if not any(each.question_id == asked and each.kind == "reply" for each in self.run.decisions) else "clarify"
            question = Question(kind, self._raised.question, self._raised.tool_call, asked)
        if question is not None:
            self.run.answer(question.decide(self.response).signed(via="resume"))


def resumable(program: Any, given: Any, inputs: Mapping[str, Any]) -> Run:
    """The run of a `ResumeState` (or of what was raised, or a run) with its decision put.

    Raises `DecisionError` for a decision that does not fit, `RunError` for another program's run, `InputError` for other inputs than it
    was started with: they need not be given again.
    """
    state = given if isinstance(given, ResumeState) else ResumeState(given)
    run = state.run
    if run.program is not program:
        _refuse_other(program, run)
        run.program = program
    for name, value in inputs.items():
        if name not in run.inputs or run.inputs[name] != value:
            msg = f"A run goes on with the inputs it was started with; `{name}` is {shown(value)} now. Leave inputs out when resuming."
            raise InputError(msg)
    state.decide()
    run.goes_on(resumed=True)
    return run


def resume(program: Any, given: Any, inputs: Mapping[str, Any]) -> Any:
    """Go on, and return the prediction. Raises `ConfirmationRequired` with the next question, if there is one."""
    run = resumable(program, given, inputs)
    if run.status != "done":
        execute(run)
    return run.prediction


async def aresume(program: Any, given: Any, inputs: Mapping[str, Any]) -> Any:
    """`resume` on this event loop."""
    run = resumable(program, given, inputs)
    if run.status != "done":
        await aexecute(run)
    return run.prediction


def resume_stream(program: Any, given: Any, inputs: Mapping[str, Any]) -> EventStream:
    """The events of a run that goes on."""
    return EventStream(resumable(program, given, inputs))


def run_until_done(
    program: Any, inputs: Mapping[str, Any] | None = None, *, decide: Callable[[Question], Said | None], max_confirmations: int = 20
) -> Any:
    """Run a program to its end and return the prediction; `decide` is asked each question.

    It returns a decision (`question.approve()`), or what a person would say ("yes", "no", changed arguments, text); None leaves the run
    waiting. Raises `ConfirmationRequired`, which carries the run, when a question is left, or after `max_confirmations` of them.
    """
    run = program.bind(**(inputs or {})).start()
    asked = 0
    while run.status == "waiting":
        for question in run.pending:
            asked += 1
            said = decide(question) if asked <= max_confirmations else None
            if said is None:
                raise _left(run, question, asked, max_confirmations)
            run.answer(question.decide(said).signed(via="run_until_done"))
        run.resume()
    return run.prediction


async def arun_until_done(
    program: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    decide: Callable[[Question], Said | Awaitable[Said | None] | None],
    max_confirmations: int = 20,
) -> Any:
    """`run_until_done` on this event loop; `decide` may be async."""
    run = await program.bind(**(inputs or {})).astart()
    asked = 0
    while run.status == "waiting":
        for question in run.pending:
            asked += 1
            found: Any = decide(question) if asked <= max_confirmations else None
            said = await found if inspect.isawaitable(found) else found
            if said is None:
                raise _left(run, question, asked, max_confirmations)
            run.answer(question.decide(said).signed(via="run_until_done"))
        await run.aresume()
    return run.prediction


def _left(run: Run, question: Question, asked: int, most: int) -> ConfirmationRequired:
    context = {"confirmations": asked - 1, "max_confirmations": most}
    return ConfirmationRequired(question.text, confirmation_id=question.id, tool_call=question.call, run=run, context=context)


def _refuse_other(program: Any, run: Run) -> None:
    """Raise `RunError` where a program is not what the run was started with: another signature, other tools."""
    if fingerprint(program) != fingerprint(run.program):
        msg = f"The run {run.id} belongs to another program than this `{program.name}`: the signature or the tools differ."
        raise RunError(msg)
