"""Events, which observers receive while a run executes.

`Observers` adds the run and the place to each event. A resume may lose or repeat deltas; every
other event is sent once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from ferrule.approval.question import Decision, Question
from ferrule.forms import form_of
from ferrule.record import PartlyCompared
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.provider_tools import ProviderCall
from ferrule.values.slot import is_branch_or_value
from ferrule.values.typed import plan_of

__all__ = [
    "AttemptFailed",
    "CallDelta",
    "CallFinished",
    "CallProgress",
    "CallRefused",
    "CallStarted",
    "Compacted",
    "Custom",
    "Decided",
    "Event",
    "FieldDelta",
    "Formatted",
    "Migrated",
    "ModelAnswered",
    "ModelCalled",
    "ModelFellBack",
    "ParseFinished",
    "ParseStarted",
    "Preamble",
    "ProviderCallFinished",
    "ProviderCallStarted",
    "QuestionAsked",
    "Resumed",
    "RuleUsed",
    "RunFinished",
    "RunStarted",
    "Said",
    "ServerUnavailable",
    "StepFinished",
    "TextDelta",
    "ThoughtDelta",
]


_VERSION = 1
"""The version of `as_json()`.

It changes when a field or an event type is removed or changes its meaning, not when one is added.
"""


_WHEN_AND_WHERE = frozenset({"root_id", "at", "path", "depth", "number"})
"""Filled in by `Observers`. Not part of what an event says, so that tests can compare events."""


class Event(PartlyCompared, Struct, kw_only=True):
    """Base class of all events."""

    _not_compared = _not_shown = _WHEN_AND_WHERE

    _kind_of_work = ""
    """The end of the span's id for an adapter's work in a run, which shares the place of an act."""
    run_id: str = ""
    parent_id: str = ""
    """The tool call inside which this program was started; empty outside one."""
    root_id: str = ""
    """The `run_id` of the outermost run.

    The same as `run_id`, unless a tool of a run started this one.
    """
    at: float = 0.0
    """When the event was sent, in seconds since 1970."""
    path: str = ""
    """The place in the run.

    `1.0/sub/2` is act 2 of the program `sub`, which call 0 of act 1 started. Empty for the run
    itself.
    """
    depth: int = 0
    """The number of programs around the event's own program: 0 for the program that was called."""
    number: int = 0
    """Counts the events of a run from 0, while its `Run` is in memory.

    A run loaded from a store starts again at 0.
    """

    @property
    def type(self) -> str:
        """The name of the event's class, such as `RunStarted`."""
        return type(self).__name__

    def as_json(self) -> dict[str, Any]:
        """The event as JSON data: `version`, `type` and all fields.

        See docs/reference/events.md for the form.

        It contains what a store would keep of the run: the digest of a request instead of its
        messages, names of models and programs, errors as type and text. Images are in OpenAI's
        form; secrets stay masked.
        """
        spans = {"span_id": self.span_id, "parent_span_id": self.parent_span_id}
        return {
            "version": _VERSION,
            "type": self.type,
            **spans,
            **{name: form_of(value) for name, value in self._shown().items()},
        }

    @property
    def span_id(self) -> str:
        """Identifies the event's subject.

        A program, a model call, a tool call, an adapter's work. Unique; equal at start and end.
        """
        return f"{self.root_id}/{self.path}{self._work}".rstrip("/")

    @property
    def _work(self) -> str:
        # A direct call of an adapter has a place of its own, and its events have no request.
        if getattr(self, "request_id", ""):
            return self._kind_of_work
        return ""

    @property
    def parent_span_id(self) -> str:
        """The `span_id` of the enclosing program or tool call; empty for the outermost program."""
        if not self.path:
            return self.root_id if self._work else ""
        *places, last = self.path.split("/")
        # Work before the first act of a program has the program's own place, which ends with its
        # name.
        if self._work and not last.replace(".", "").isdigit():
            places.append(last)
        # A branch, and a function of `once` or of a check, are not programs and have no span.
        while places and is_branch_or_value(places[-1]):
            places.pop()
        return "/".join((self.root_id, *places))

    def _shown(self) -> dict[str, Any]:
        return asdict(self)


def _name(value: Any) -> str:
    """The name of a program or a model."""
    return getattr(value, "name", type(value).__name__)


class RunStarted(Event):
    """A program was called: the run's own, or (with a `depth`) one inside it."""

    program: Any
    inputs: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the run was started with; empty for a program inside it."""
    title: str = ""
    """What the run was started with; empty for a program inside it."""
    forked_from: str = ""
    """The id of the run that this one is a fork of (`Run.fork`); empty for most runs."""

    def _shown(self) -> dict[str, Any]:
        # Without the options of the call, such as `lm` and `config`, which may hold a key.
        plan = plan_of(self.program)
        fields = self.inputs if plan is None else plan.inputs
        inputs = {name: value for name, value in self.inputs.items() if name in fields}
        return {**asdict(self), "program": _name(self.program), "inputs": inputs}


class Resumed(Event):
    """A run continues after a replay; `trajectory` holds the replayed steps."""

    trajectory: Trajectory
    program: Any = None

    def _shown(self) -> dict[str, Any]:
        return {**asdict(self), "program": _name(self.program)}


class Migrated(Event):
    """A run continues with another version of its program.

    `differs` has the recorded and the present values. Also journalled.
    """

    differs: Mapping[str, tuple[str, str]]


class ModelCalled(Event):
    """A request is sent.

    `call_id` identifies the call in the events that follow; `attempt` counts from 1.
    """

    call_id: str
    request: Request
    lm: Any
    attempt: int = 1

    def _shown(self) -> dict[str, Any]:
        return {**asdict(self), "lm": _name(self.lm)}


class Formatted(Event):
    """A request was rendered and is sent next. Contains counts only, no prompts or values."""

    _kind_of_work = "/format"
    request_id: str
    """The digest of `ModelCalled.request`; empty for a direct call of `adapter.format`."""
    attempt: int
    adapter: str
    messages: int
    tools: int


class ParseStarted(Event):
    """An adapter begins to parse an answer."""

    _kind_of_work = "/parse"
    request_id: str
    """The digest of the request; empty for a direct call of `adapter.parse`."""
    attempt: int
    adapter: str
    calls: int
    """The number of native tool calls in the answer."""


class ParseFinished(Event):
    """An adapter has parsed an answer, or failed to (`error`)."""

    _kind_of_work = "/parse"
    request_id: str
    attempt: int
    adapter: str
    calls: int
    outputs: tuple[str, ...] = ()
    """The names of the parsed outputs."""
    error: BaseException | None = None


class TextDelta(Event):
    """A piece of text that is neither a field's value nor a thought.

    See docs/how-to/agents/streaming.md for when it is sent.
    """

    call_id: str
    text: str


class FieldDelta(Event):
    """A piece of one output field's value: of a text, or of the JSON of any other value.

    The pieces of one `call_id` join to the value; a later model call and `Preamble` start again.
    """

    call_id: str
    field: str
    text: str


class ThoughtDelta(Event):
    """A piece of the model's thoughts.

    A reasoning field, the provider's reasoning, or `<think>` tags.
    """

    call_id: str
    text: str


class Preamble(Event):
    """The text of an answer so far is not the output: calls follow it, or the output itself.

    The pieces of `field` with this `call_id` are void. A page that shows them as the answer moves
    `text`, such as "I'll look that up.", to a place of its own, before the calls.
    """

    call_id: str
    field: str
    """The field of the pieces so far; empty if they were `TextDelta`s."""
    text: str
    """What the model said. Empty if nothing remains: the pieces were thoughts, or come again."""


class CallDelta(Event):
    """A piece of a native tool call.

    The call may still be changed or refused before it runs; see `CallStarted`.
    """

    call_id: str
    index: int
    """Distinguishes the calls of one answer: 0 for the first that began."""
    name: str
    """The tool's name, as far as it is known; complete when the arguments begin."""
    text: str
    """The next piece of the arguments' JSON text."""
    tool_call_id: str = ""
    """The provider's id, as far as it is known."""


class ProviderCallStarted(Event):
    """The model's provider begins to run a tool of its own, such as a web search.

    Without a stream, it comes with the answer, like `ProviderCallFinished`.
    """

    call_id: str
    """The model call in which it happens."""
    call: ProviderCall
    """Without its result, and perhaps without its arguments."""


class ProviderCallFinished(Event):
    """A call of a provider's tool ended, with or without an error."""

    call_id: str
    call: ProviderCall


class ModelAnswered(Event):
    """A model call ended: with a response, or with an error."""

    call_id: str
    response: Response | None = None
    error: BaseException | None = None


class ModelFellBack(Event):
    """A model of a `FallbackLM` failed, and the next one is called."""

    model: str
    following: str
    """The name of the next model."""
    error: BaseException


class AttemptFailed(Event):
    """An answer could not be used: discard its streamed pieces.

    The model is called again, unless this was the last attempt.
    """

    reason: str
    attempt: int


class CallRefused(Event):
    """A call does not run: it names no tool, or its arguments do not fit.

    `result` tells the model why.
    """

    call: ToolCall
    result: ToolResult


class CallStarted(Event):
    """A tool call starts to run."""

    _not_compared = _not_shown = _WHEN_AND_WHERE | {"tool"}

    call: ToolCall
    tool: Any = None
    """The tool. Not in the JSON, and None for an event read from a journal."""

    def _shown(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "tool"}


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
    """A question was decided.

    By a person, by a grant, by a policy, or because it expired (see `decision.via`).
    """

    question: Question
    decision: Decision


class Said(Event, kw_only=False):
    """A message to the run (`Run.say`) was read: the next request has it."""

    text: str
    by: str = ""
    """Who said it, if known."""
    via: str = ""
    """Where it was said: `api`, `cli`, `page`, or a caller's word."""


class RuleUsed(Event):
    """A rule of a policy applied to a call: the call is allowed, needs a decision, or is denied."""

    call: ToolCall
    verdict: str
    rule: str
    """The rule as text."""


class Compacted(Event):
    """A conversation was too long for the model's context, or nearly so.

    From the next request on, its older parts are left out.
    """

    strategy: str
    """`shorten`, `drop` or `summarize`."""
    before: int
    """The estimated tokens of the next request without the compaction."""
    after: int
    """The estimated tokens of that request with the compaction."""
    steps: int
    """The number of dropped steps. The trajectory keeps them."""
    messages: int
    """The number of dropped messages and turns of the `History`."""
    summary: str = ""
    """The summary that replaces them."""
    problem: str = ""
    """With the strategy `summarize`, why there is no summary."""


class ServerUnavailable(Event):
    """An MCP server could not be connected and is left out.

    Or it could not list its tools between two steps, and keeps its last list.
    """

    server: str
    error: BaseException


class StepFinished(Event):
    """A step of an agent is complete."""

    index: int
    step: Step


class Custom(Event):
    """An event that a tool or a program sends with `emit_event`."""

    name: str
    payload: Any = field(default=None)


class RunFinished(Event):
    """A run, or a program inside it, ended.

    With a prediction, with an error, or waiting for a person (neither).

    With `depth` 0, it is the run itself that ended.
    """

    prediction: Prediction | None = None
    error: BaseException | None = None
    status: str = ""
    """The status of the run: `done`, `waiting`, `failed` or `cancelled`."""
