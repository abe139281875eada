"""Resuming a run that waits for a person, under udspy's names.

In: the `ConfirmationRequired` that a call raised, which carries its run, and a person's response. Out: the run with the decision on it, or
its prediction. The run continues where it stopped: recorded answers and results are reused.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfirmationRequired, DecisionError, InputError, RunError, shown
from ferrule.runs.confirmation.decisions import decided_ids
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.run import Run
from ferrule.runs.store.fingerprint import program_fingerprint
from ferrule.runs.stream import EventStream
from ferrule.values.confirmation.question import Question

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ferrule.values.confirmation.question import Decision

    Said = str | bool | Mapping[str, Any] | Decision


class ResumeState:
    """A run to resume, or the exception that carries it, and a person's response to its question.

    `response` is "yes", "no", a JSON object of changed arguments, or text for the model (see `Question.decide`). None means "yes", unless
    the run already has a decision that it has not used.
    """

    def __init__(self, exception: Any, response: Said | None = None) -> None:
        run = exception.run if isinstance(exception, ConfirmationRequired) else exception
        if not isinstance(run, Run):
            what = "a call that was made directly, outside any program: decide on it with `respond_to_confirmation` and call again"
            msg = f"There is no run to resume: found {what if isinstance(exception, ConfirmationRequired) else shown(exception)}."
            raise DecisionError(msg)
        self.run: Run = run
        self._raised: ConfirmationRequired | None = exception if isinstance(exception, ConfirmationRequired) else None
        self._has_response = response is not None
        self.response: Said = response if response is not None else "yes"

    @property
    def confirmation_id(self) -> str:
        """The id of the question that the response answers; empty if the run asks nothing."""
        if self._raised is not None:
            return self._raised.confirmation_id
        return self.run.pending[0].id if self.run.pending else ""

    def decide(self) -> None:
        """Put the response on its question. An equal second decision is ignored; a different one raises `DecisionError`."""
        if self._raised is None and not self._has_response and decided_ids(self.run):
            return
        asked = self.confirmation_id
        question = next((each for each in self.run.pending if each.id == asked), None)
        if question is None and self._raised is not None:  # decided before: only an equal decision is accepted
            kind = "confirm" if not any(each.question_id == asked and each.kind == "reply" for each in self.run.decisions) else "clarify"
            question = Question(kind, self._raised.question, self._raised.tool_call, asked)
        if question is not None:
            self.run.answer(question.decide(self.response).signed(via="resume"))


def resume_program(program: Any, state: Any, inputs: Mapping[str, Any], deps: Any) -> Any:
    """Resume, and return the prediction. Raises `ConfirmationRequired` with the next question, if there is one."""
    run = _decided_run(program, state, inputs, deps)
    if run.status != "done":
        execute(run)
    return run.prediction


async def aresume_program(program: Any, state: Any, inputs: Mapping[str, Any], deps: Any) -> Any:
    """`resume_program` on this event loop."""
    run = _decided_run(program, state, inputs, deps)
    if run.status != "done":
        await aexecute(run)
    return run.prediction


def resume_stream(program: Any, state: Any, inputs: Mapping[str, Any], deps: Any) -> EventStream:
    """The events of a run that is resumed."""
    return EventStream(_decided_run(program, state, inputs, deps))


def _decided_run(program: Any, given: Any, inputs: Mapping[str, Any], deps: Any) -> Run:
    """The run of a `ResumeState`, a `ConfirmationRequired` or a run, with its decision.

    Raises `DecisionError` for a decision that does not fit, `RunError` for another program's run, and `InputError` for inputs that differ
    from those at the start; inputs may be left out.
    """
    state = given if isinstance(given, ResumeState) else ResumeState(given)
    run = state.run
    if run.program is not program and run.program.flow != program.flow:  # a run of `forward` is of this flow alone
        if program_fingerprint(program) != program_fingerprint(run.program):
            raise RunError(f"The run {run.id} belongs to another program than this `{program.name}`: the signature or the tools differ.")
        run.program = program
    for name, value in inputs.items():
        if name not in run.inputs or run.inputs[name] != value:
            msg = f"A run resumes with the inputs it was started with; `{name}` is {shown(value)} now. Leave inputs out when resuming."
            raise InputError(msg)
    state.decide()
    run.goes_on(resumed=True, deps=deps)
    return run


def run_until_done(
    program: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    decide: Callable[[Question], Said | None],
    max_confirmations: int = 20,
    deps: Any = None,
) -> Any:
    """Run a program to its end and return the prediction; `decide` is called with each question.

    It returns a decision (`question.approve()`) or a person's words ("yes", "no", changed arguments, text); with None the run stays
    waiting. Raises `ConfirmationRequired`, which carries the run, for a question without a decision or after `max_confirmations`.
    """
    run = program.bind(**(inputs or {})).start(deps=deps)
    asked = 0
    while run.status == "waiting":
        for question in run.pending:
            asked += 1
            _answer(run, question, decide(question) if asked <= max_confirmations else None, asked, max_confirmations)
        run.resume()
    return run.prediction


async def arun_until_done(
    program: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    decide: Callable[[Question], Said | Awaitable[Said | None] | None],
    max_confirmations: int = 20,
    deps: Any = None,
) -> Any:
    """`run_until_done` on this event loop; `decide` may be async."""
    run = await program.bind(**(inputs or {})).astart(deps=deps)
    asked = 0
    while run.status == "waiting":
        for question in run.pending:
            asked += 1
            found: Any = decide(question) if asked <= max_confirmations else None
            _answer(run, question, await found if inspect.isawaitable(found) else found, asked, max_confirmations)
        await run.aresume()
    return run.prediction


def _answer(run: Run, question: Question, said: Said | None, asked: int, most: int) -> None:
    if said is None:
        context = {"confirmations": asked - 1, "max_confirmations": most}
        raise ConfirmationRequired(question.text, confirmation_id=question.id, tool_call=question.call, run=run, context=context)
    run.answer(question.decide(said).signed(via="run_until_done"))
