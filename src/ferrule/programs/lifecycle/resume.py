"""Resumes a run that waits for a person, with the names of udspy's API.

In: the `ConfirmationRequired` that a call raised, which carries its run, and a person's response.
Out: the run with the decision on it, or its prediction. The run continues where it stopped:
recorded answers and results are reused.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from ferrule.approval.direct_calls import asked_directly
from ferrule.approval.question import Question
from ferrule.errors import ConfirmationRequired, DecisionError, InputError, RunError, shown
from ferrule.runs.decisions import decided_ids
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.run import Run
from ferrule.runs.store.fingerprint import program_fingerprint
from ferrule.runs.stream import EventStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ferrule.approval.question import Decision
    from ferrule.programs.calling import ProgramTypes
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.outcome import Prediction
    from ferrule.values.typed import D, S

    Said = str | bool | Mapping[str, Any] | Decision


class ResumeState:
    """A run to resume, or the exception that carries it, with a person's response to its question.

    `response` is "yes", "no", a JSON object of changed arguments, or text for the model (see
    `Question.decide`). None means the decision already made on the question
    (`respond_to_confirmation`), or "yes" if there is none. `user_response` is udspy's name for it.
    """

    def __init__(
        self,
        exception: Any,
        response: Said | None = None,
        *,
        user_response: Said | None = None,
    ) -> None:
        run = exception.run if isinstance(exception, ConfirmationRequired) else exception
        if not isinstance(run, Run):
            raise DecisionError(f"There is no run to resume: found {_what_has_no_run(exception)}.")
        if response is not None and user_response is not None:
            raise InputError(
                "A state takes one response: `user_response` is another name of `response`.",
            )
        said = response if response is not None else user_response
        self.run: Run = run
        self._raised: ConfirmationRequired | None = (
            exception if isinstance(exception, ConfirmationRequired) else None
        )
        self._has_response = said is not None
        self.response: Said = said if said is not None else "yes"

    @property
    def user_response(self) -> Said:
        """`response`, under udspy's name."""
        return self.response

    @property
    def exception(self) -> ConfirmationRequired | None:
        """The exception with the question that the response answers; None if the run asks nothing."""
        return self._raised or (self.run.confirmation() if self.run.pending else None)

    @property
    def confirmation_id(self) -> str:
        """The id of the question; empty if the run asks nothing."""
        return self.exception.confirmation_id if self.exception is not None else ""

    @property
    def question(self) -> str:
        """The question's text; empty if the run asks nothing."""
        return self.exception.question if self.exception is not None else ""

    @property
    def tool_call(self) -> ToolCall | None:
        """The call that the question is about."""
        return self.exception.tool_call if self.exception is not None else None

    @property
    def context(self) -> dict[str, Any]:
        """The steps before the question as `trajectory`, and the inputs as `input_args`."""
        return self.exception.context if self.exception is not None else {}

    def decide(self) -> None:
        """Answer the question with the response. An equal second decision is ignored; a different one raises `DecisionError`."""
        asked = self.confirmation_id
        if not self._has_response and self._is_decided(asked):
            return
        question = next((each for each in self.run.pending if each.id == asked), None)
        if (
            question is None and self._raised is not None
        ):  # decided before: only an equal decision is accepted
            kind = (
                "confirm"
                if not any(
                    each.question_id == asked and each.kind == "reply"
                    for each in self.run.decisions
                )
                else "clarify"
            )
            question = Question(kind, self._raised.question, self._raised.tool_call, asked)
        if question is not None:
            self.run.answer(question.decide(self.response).signed(via="resume"))

    def _is_decided(self, asked: str) -> bool:
        unused = decided_ids(self.run)
        if self._raised is None:
            return bool(unused)
        return asked in unused or self.run.tally.first(self.run.decisions, asked) is not None


def _what_has_no_run(found: Any) -> str:
    if not isinstance(found, ConfirmationRequired):
        return shown(found)
    if asked_directly(found.confirmation_id) is not None:
        return "a call that was made directly, outside any program: decide on it with `respond_to_confirmation` and call again"
    return (
        "a `ConfirmationRequired` that a program raised itself, so that no run waits. A program asks with `ferrule.ask_person` in its "
        "`forward`, or gives an agent a tool that needs confirmation; ferrule calls neither `asuspend` nor an overridden `aresume`"
    )


def resume_program(program: Any, state: Any, inputs: Mapping[str, Any], deps: Any) -> Any:
    """Resume a run and return the prediction. Raises `ConfirmationRequired` with the next question, if there is one."""
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


def _decided_run(program: Any, given: Any, inputs: Mapping[str, Any], deps: Any) -> Run:
    """The run of a `ResumeState`, a `ConfirmationRequired` or a run, with its decision recorded.

    Raises `DecisionError` for a decision that does not fit, `RunError` for another program's run,
    and `InputError` for inputs that differ from those at the start; inputs may be omitted.
    """
    state = given if isinstance(given, ResumeState) else ResumeState(given)
    run = state.run
    if (
        run.program is not program and run.program.flow != program.flow
    ):  # a run made by `forward` has only the flow of this program
        if program_fingerprint(program) != program_fingerprint(run.program):
            raise RunError(
                f"The run {run.id} belongs to another program than this `{program.name}`: the signature or the tools differ.",
            )
        run.program = program
    for name, value in inputs.items():
        if name not in run.inputs or (
            run.inputs[name] is not value and run.inputs[name] != value
        ):  # `is not`: an array compares elements
            msg = f"A run resumes with the inputs it was started with; `{name}` is {shown(value)} now. Leave inputs out when resuming."
            raise InputError(msg)
    state.decide()
    run.goes_on(resumed=True, deps=deps)
    return run


def run_until_done(
    program: ProgramTypes[S, D],
    inputs: Mapping[str, Any] | None = None,
    *,
    decide: Callable[[Question], Said | None],
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
    asked = 0
    while run.status == "waiting":
        for question in run.pending:
            asked += 1
            _answer(
                run,
                question,
                decide(question) if asked <= max_confirmations else None,
                asked,
                max_confirmations,
            )
        run.resume()
    return run.prediction


async def arun_until_done(
    program: ProgramTypes[S, D],
    inputs: Mapping[str, Any] | None = None,
    *,
    decide: Callable[[Question], Said | Awaitable[Said | None] | None],
    max_confirmations: int = 20,
    deps: D | None = None,
) -> Prediction[S]:
    """`run_until_done` on this event loop; `decide` may be async."""
    run: Run[S] = await cast("Any", program).bind(**_by_name(inputs)).astart(deps=deps)
    asked = 0
    while run.status == "waiting":
        for question in run.pending:
            asked += 1
            found: Any = decide(question) if asked <= max_confirmations else None
            _answer(
                run,
                question,
                await found if inspect.isawaitable(found) else found,
                asked,
                max_confirmations,
            )
        await run.aresume()
    return run.prediction


def _by_name(inputs: Any) -> dict[str, Any]:
    if inputs is None or hasattr(inputs, "keys"):
        return dict(inputs or {})
    raise InputError(
        f"`run_until_done` takes the inputs by name, as in {{'question': 'x'}}; found {shown(inputs)}.",
    )


def _answer(run: Run, question: Question, said: Said | None, asked: int, most: int) -> None:
    if said is None:
        context = {"confirmations": asked - 1, "max_confirmations": most}
        raise ConfirmationRequired(
            question.text,
            confirmation_id=question.id,
            tool_call=question.call,
            run=run,
            context=context,
        )
    if isinstance(said, str) and not said.strip() and question.kind not in {"clarify", "input"}:
        return  # Enter alone decides nothing
    run.answer(question.decide(said).signed(via="run_until_done"))
