"""Resumes a run that waits for a person, in the ways that udspy's API offers.

A call raised `ConfirmationRequired`, which carries its run. With a person's response, the run gets
a decision and continues where it stopped: recorded answers and results are reused.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from ferrule.approval.direct_calls import asked_directly
from ferrule.approval.question import Question
from ferrule.errors import (
    ConfirmationRequired,
    DecisionError,
    InputError,
    LimitReachedError,
    RunError,
    checks_keywords,
    shown,
)
from ferrule.runs.decisions import decided_ids
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.run import Run
from ferrule.runs.store.fingerprint import program_fingerprint
from ferrule.runs.stream import EventStream
from ferrule.settings import with_settings_of_call
from ferrule.values.typed import plan_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import EllipsisType

    from ferrule.approval.question import Decision
    from ferrule.programs.calling import ProgramTypes
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.outcome import Prediction
    from ferrule.values.typed import D, S

    PersonsResponse = str | bool | Mapping[str, Any] | Decision


class ResumeState:
    """A run to resume, or the exception that carries it, with a person's response to its question.

    `response` is "yes", "no", a JSON object of changed arguments, or text for the model (see
    `Question.decide`). If it is left out, the decision already made on the question applies
    (`respond_to_confirmation`), or "yes" if there is none. `user_response` is udspy's name for it.

    Raises `DecisionError` for a response of None, such as that of a form without the field.
    """

    @checks_keywords
    def __init__(
        self,
        exception: Any,
        response: PersonsResponse | EllipsisType = ...,
        *,
        user_response: PersonsResponse | EllipsisType = ...,
    ) -> None:
        self._raised: ConfirmationRequired | None = None
        run = exception
        if isinstance(exception, ConfirmationRequired):
            self._raised = exception
            run = exception.run
        elif isinstance(exception, LimitReachedError):
            run = exception.run
        if not isinstance(run, Run):
            raise DecisionError(f"There is no run to resume: found {_what_has_no_run(exception)}.")
        if response is not ... and user_response is not ...:
            raise InputError(
                "A state takes one response: `user_response` is another name of `response`."
            )
        if response is ...:
            response = user_response
        if cast("Any", response) is None:
            raise DecisionError(
                "A response to a question was None, which neither approves nor denies: nothing was "
                'decided. Pass "yes", "no", changed arguments or text.'
            )
        self.run: Run = run
        # The response answers what the run asks now, whatever it asks when it is resumed.
        self._asked = self._raised
        if self._asked is None and run.pending:
            self._asked = run.confirmation()
        self._has_response = response is not ...
        self.response: PersonsResponse = "yes"
        if response is not ...:
            self.response = response

    @property
    def user_response(self) -> PersonsResponse:
        """`response`, under udspy's name."""
        return self.response

    @property
    def exception(self) -> ConfirmationRequired | None:
        """The exception with the question that the response answers; None if nothing is asked."""
        if self._raised is None and not self.run.pending:
            return None
        return self._asked

    @property
    def confirmation_id(self) -> str:
        """The id of the question; empty if the run asks nothing."""
        exception = self.exception
        return exception.confirmation_id if exception else ""

    @property
    def question(self) -> str:
        """The question's text; empty if the run asks nothing."""
        exception = self.exception
        return exception.question if exception else ""

    @property
    def tool_call(self) -> ToolCall | None:
        """The call that the question is about."""
        exception = self.exception
        return exception.tool_call if exception else None

    @property
    def context(self) -> dict[str, Any]:
        """The steps before the question as `trajectory`, and the inputs as `input_args`."""
        exception = self.exception
        return exception.context if exception else {}

    def decide(self) -> None:
        """Answer the question with the response.

        An equal second decision is ignored; a different one raises `DecisionError`.
        """
        if self._asked is None:
            return
        if not self._has_response and self._is_decided(self._asked.confirmation_id):
            return
        question = self._question_of(self._asked)
        self.run.answer(question.decide(self.response).signed(via="resume"))

    def _question_of(self, asked: ConfirmationRequired) -> Question:
        question_id = asked.confirmation_id
        for question in self.run.pending:
            if question.id == question_id:
                return question
        # It was decided before: the run accepts only an equal decision.
        was_reply = any(
            decision.question_id == question_id and decision.kind == "reply"
            for decision in self.run.decisions
        )
        kind = "clarify" if was_reply else "confirm"
        return Question(kind, asked.question, asked.tool_call, question_id)

    def _is_decided(self, question_id: str) -> bool:
        unused = decided_ids(self.run)
        if question_id in unused or (self._raised is None and unused):
            return True
        return self.run.tally.first(self.run.decisions, question_id) is not None


def _what_has_no_run(exception: Any) -> str:
    if not isinstance(exception, ConfirmationRequired):
        return shown(exception)
    if asked_directly(exception.confirmation_id) is not None:
        return (
            "a call that was made directly, outside any program: "
            "decide on it with `respond_to_confirmation` and call again"
        )
    return (
        "a `ConfirmationRequired` that a program raised itself, so that no run waits. A program "
        "asks with `ferrule.ask_person` in its `forward`, or gives an agent a tool that needs "
        "confirmation"
    )


def resume_program(program: Any, state: Any, inputs: Mapping[str, Any], deps: Any) -> Any:
    """Resume a run and return the prediction.

    Raises `ConfirmationRequired` with the next question, if there is one.
    """
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
    """The stream of events of a resumed run."""
    return EventStream(_decided_run(program, state, inputs, deps))


def _decided_run(program: Any, state: Any, inputs: Mapping[str, Any], deps: Any) -> Run:
    """The run of a `ResumeState` or of an error, or the run itself, with its decision recorded.

    Raises `DecisionError` for a decision that does not fit, `RunError` for another program's run,
    and `InputError` for inputs that differ from those at the start; inputs may be omitted. `limits`
    replace those of the run.
    """
    if not isinstance(state, ResumeState):
        state = ResumeState(state)
    run = state.run
    # A run made by `forward` has only the flow of this program.
    is_same = run.program is program or run.program.flow == program.flow
    if not is_same:
        if program_fingerprint(program) != program_fingerprint(run.program):
            raise RunError(
                f"The run {run.id} belongs to another program than this `{program.name}`: "
                "the signature or the tools differ."
            )
        run.program = program
    limits = None
    if "limits" in inputs and "limits" not in getattr(plan_of(program), "inputs", ()):
        limits = inputs["limits"]
        inputs = {name: value for name, value in inputs.items() if name != "limits"}
    for name, value in inputs.items():
        # First `is`: an array compares its elements.
        is_equal = name in run.inputs and (run.inputs[name] is value or run.inputs[name] == value)
        if not is_equal:
            raise InputError(
                f"A run resumes with the inputs it was started with; `{name}` is {shown(value)} "
                "now. Leave inputs out when resuming."
            )
    state.decide()
    run.goes_on(resumed=True, deps=deps, limits=limits)
    return run


@checks_keywords
def run_until_done(
    program: ProgramTypes[S, D],
    inputs: Mapping[str, Any] | None = None,
    *,
    decide: Callable[[Question], PersonsResponse | None],
    max_confirmations: int = 20,
    deps: D | None = None,
) -> Prediction[S]:
    """Run a program to its end and return the prediction; calls `decide` with each question.

    `decide` returns a decision (`question.approve()`), True or False, or a person's words ("yes",
    "no", changed arguments, text). After an empty line, a question about a call is asked again. If
    it returns None, or after `max_confirmations` questions, the run stays waiting, and
    `ConfirmationRequired`, which carries it, is raised.
    """
    run: Run[S] = cast("Any", program).bind(**_by_name(inputs)).start(deps=deps)
    confirmations = 0
    while run.status == "waiting":
        for question in run.pending:
            response = None
            if confirmations < max_confirmations:
                response = decide(question)
            if response is None:
                raise _undecided(run, question, confirmations, max_confirmations)
            confirmations += 1
            _answer(run, question, response)
        run.resume()
    return run.prediction


@with_settings_of_call
@checks_keywords
async def arun_until_done(
    program: ProgramTypes[S, D],
    inputs: Mapping[str, Any] | None = None,
    *,
    decide: Callable[[Question], PersonsResponse | Awaitable[PersonsResponse | None] | None],
    max_confirmations: int = 20,
    deps: D | None = None,
) -> Prediction[S]:
    """`run_until_done` on this event loop; `decide` may be async."""
    run: Run[S] = await cast("Any", program).bind(**_by_name(inputs)).astart(deps=deps)
    confirmations = 0
    while run.status == "waiting":
        for question in run.pending:
            response: Any = decide(question) if confirmations < max_confirmations else None
            if inspect.isawaitable(response):
                response = await response
            if response is None:
                raise _undecided(run, question, confirmations, max_confirmations)
            confirmations += 1
            _answer(run, question, response)
        await run.aresume()
    return run.prediction


def _by_name(inputs: Any) -> dict[str, Any]:
    if inputs is None or hasattr(inputs, "keys"):
        return dict(inputs or {})
    raise InputError(
        "`run_until_done` takes the inputs by name, as in {'question': 'x'}; "
        f"found {shown(inputs)}."
    )


def _undecided(run: Run, question: Question, confirmations: int, most: int) -> ConfirmationRequired:
    return ConfirmationRequired(
        question.text,
        confirmation_id=question.id,
        tool_call=question.call,
        run=run,
        context={"confirmations": confirmations, "max_confirmations": most},
        ways=question.ways,
    )


def _answer(run: Run, question: Question, response: PersonsResponse) -> None:
    is_blank = isinstance(response, str) and not response.strip()
    if is_blank and question.kind not in {"clarify", "input"}:
        return  # Enter alone decides nothing
    run.answer(question.decide(response).signed(via="run_until_done"))
