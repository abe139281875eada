"""What observers are told while a run goes on.

Every event carries `run_id`; those of a nested run also `parent_id`. Deltas may be lost or repeated over a resume; all else comes once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.values.record import Changing, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.values.calls.call import ToolCall, ToolResult
    from ferrule.values.confirmation.question import Decision, Question
    from ferrule.values.conversation.exchange import Request, Response
    from ferrule.values.run.outcome import Prediction, Step, Trajectory


class Event(Changing, kw_only=True):
    """The root of all events."""

    run_id: str = ""
    parent_id: str = ""
    """The run, or the tool call, inside which this run was started; empty for an outermost one."""


class RunStarted(Event):
    """A program was called."""

    program: Any
    inputs: Mapping[str, Any]


class Resumed(Event):
    """A run goes on after a replay; `trajectory` is what the replay brought back."""

    trajectory: Trajectory


class ModelCalled(Event):
    """A request goes out. `call_id` names the call in the events that follow; `attempt` counts from 1."""

    call_id: str
    request: Request
    lm: Any
    attempt: int = 1


class Formatted(Event):
    """A request was made and goes out next. Counts only: neither prompts nor values stand in it."""

    request_id: str
    """The request's digest, as `ModelCalled.request` has it."""
    attempt: int
    adapter: str
    messages: int
    tools: int


class ParseStarted(Event):
    """An adapter begins to read an answer."""

    request_id: str
    attempt: int
    adapter: str
    calls: int
    """How many native tool calls the answer has."""


class ParseFinished(Event):
    """An adapter has read an answer, or could not: told on every path."""

    request_id: str
    attempt: int
    adapter: str
    calls: int
    outputs: tuple[str, ...] = ()
    """The names of what was read."""
    error: BaseException | None = None


class TextDelta(Event):
    """A piece of the model's text, as it came."""

    call_id: str
    text: str


class FieldDelta(Event):
    """A piece of one output field's value."""

    call_id: str
    field: str
    text: str


class ThoughtDelta(Event):
    """A piece of what the model thinks: a reasoning field, or a provider's reasoning text."""

    call_id: str
    text: str


class ModelAnswered(Event):
    """A model call ended: with a response, or with an error."""

    call_id: str
    response: Response | None = None
    error: BaseException | None = None


class AttemptFailed(Event):
    """An answer could not be used; what was streamed of it is void, and the model is asked again."""

    reason: str
    attempt: int


class CallStarted(Event):
    """A tool call starts to run."""

    call: ToolCall


class CallProgress(Event):
    """A running tool tells how far it is."""

    call_id: str
    message: str = ""
    done: float | None = None
    total: float | None = None


class CallFinished(Event):
    """A tool call ended, well or not."""

    call: ToolCall
    result: ToolResult


class QuestionAsked(Event):
    """A person must decide."""

    question: Question


class Decided(Event):
    """A question was decided: by a person, by a grant, or because its time was over (see `decision.via`)."""

    question: Question
    decision: Decision


class RuleUsed(Event):
    """A policy spoke of a call: it is allowed, asked about, or denied."""

    call: ToolCall
    verdict: str
    rule: str
    """The rule as text."""


class StepFinished(Event):
    """One turn of a loop is complete."""

    index: int
    step: Step


class Custom(Event):
    """Whatever a tool or a program wants to say to its observers."""

    name: str
    payload: Any = field(default=None)


class RunFinished(Event):
    """A run ended: with a prediction, with an error, or waiting for a person (neither)."""

    prediction: Prediction | None = None
    error: BaseException | None = None
