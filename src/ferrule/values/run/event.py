"""Events: what observers receive while a run executes.

Every event has a `run_id`, those of a nested run also a `parent_id`. Deltas may be lost or repeated over a resume; all others come once.
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
    """Base class of all events."""

    run_id: str = ""
    parent_id: str = ""
    """The run or tool call inside which this run was started; empty for an outermost run."""
    at: float = field(default=0.0, compare=False, repr=False)
    """When the event was sent, in seconds since 1970."""


class RunStarted(Event):
    """A program was called."""

    program: Any
    inputs: Mapping[str, Any]


class Resumed(Event):
    """A run continues after a replay; `trajectory` holds the replayed steps."""

    trajectory: Trajectory


class Migrated(Event):
    """A run goes on with another version of its program: what differs, each as it was recorded and as it is now. Also in the journal."""

    differs: Mapping[str, tuple[str, str]]


class ModelCalled(Event):
    """A request goes out. `call_id` names the call in the events that follow; `attempt` counts from 1."""

    call_id: str
    request: Request
    lm: Any
    attempt: int = 1


class Formatted(Event):
    """A request was rendered and goes out next. Holds counts only, no prompts or values."""

    request_id: str
    """The digest of `ModelCalled.request`."""
    attempt: int
    adapter: str
    messages: int
    tools: int


class ParseStarted(Event):
    """An adapter begins to parse an answer."""

    request_id: str
    attempt: int
    adapter: str
    calls: int
    """The number of native tool calls in the answer."""


class ParseFinished(Event):
    """An adapter has parsed an answer, or failed to (`error`)."""

    request_id: str
    attempt: int
    adapter: str
    calls: int
    outputs: tuple[str, ...] = ()
    """The names of the parsed outputs."""
    error: BaseException | None = None


class TextDelta(Event):
    """A piece of text that is neither a field's value nor a thought. docs/streaming.md says when it comes."""

    call_id: str
    text: str


class FieldDelta(Event):
    """A piece of one output field's value: of a text, or of the JSON of any other value.

    The pieces of one `call_id` join to the value; a later model call starts again.
    """

    call_id: str
    field: str
    text: str


class ThoughtDelta(Event):
    """A piece of the model's thoughts: a reasoning field, the provider's reasoning, `<think>` tags, or the text beside calls of `ReAct`."""

    call_id: str
    text: str


class CallDelta(Event):
    """A piece of a native tool call. The call may still be changed or refused before it runs; see `CallStarted`."""

    call_id: str
    index: int
    """Tells the calls of one answer apart: 0 for the first that began."""
    name: str
    """The tool's name, as far as it is known; complete when the arguments begin."""
    text: str
    """The next piece of the arguments' JSON text."""
    tool_call_id: str = ""
    """The provider's id, as far as it is known."""


class ModelAnswered(Event):
    """A model call ended: with a response, or with an error."""

    call_id: str
    response: Response | None = None
    error: BaseException | None = None


class ModelFellBack(Event):
    """A model of a `FallbackLM` failed, and the next one is asked."""

    model: str
    following: str
    """The name of the next model."""
    error: BaseException


class AttemptFailed(Event):
    """An answer could not be used: its streamed pieces are void, and the model is asked again."""

    reason: str
    attempt: int


class CallStarted(Event):
    """A tool call starts to run."""

    call: ToolCall


class CallProgress(Event):
    """A running tool reports its progress."""

    call_id: str
    message: str = ""
    done: float | None = None
    total: float | None = None


class CallFinished(Event):
    """A tool call ended, with or without an error."""

    call: ToolCall
    result: ToolResult


class QuestionAsked(Event):
    """A person must decide."""

    question: Question


class Decided(Event):
    """A question was decided: by a person, by a grant, by a policy, or because it expired (see `decision.via`)."""

    question: Question
    decision: Decision


class RuleUsed(Event):
    """A rule of a policy applied to a call: the call is allowed, needs a decision, or is denied."""

    call: ToolCall
    verdict: str
    rule: str
    """The rule as text."""


class StepFinished(Event):
    """One turn of a loop is complete."""

    index: int
    step: Step


class Custom(Event):
    """An event of a tool's or program's own."""

    name: str
    payload: Any = field(default=None)


class RunFinished(Event):
    """A run ended: with a prediction, with an error, or waiting for a person (neither)."""

    prediction: Prediction | None = None
    error: BaseException | None = None
    status: str = ""
    """The status of the run: `done`, `waiting`, `failed` or `cancelled`."""
