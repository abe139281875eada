"""Acts: the requests that a program makes of its driver.

A program is a generator that yields acts and receives their answers. A test that answers acts by
hand may send None for `ReadConditions`, `CallCode`, `CheckDue`, `Tell` and `Within`.

The acts of every step are `MutableRecord`s, though nothing changes them: a frozen record takes
three times as long to make.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.errors import ConfigurationError, FerruleError, RunCancelledError, shown
from ferrule.record import MutableRecord, Record

if TYPE_CHECKING:
    from ferrule.approval.policy import Policy, Rule
    from ferrule.approval.question import Question
    from ferrule.events import Event
    from ferrule.values.calls.call import CheckedCall, ToolCall
    from ferrule.values.conversation.exchange import FieldReader, Request
    from ferrule.values.outcome import Prediction


class Conditions(MutableRecord):
    """The settings and the facts about the run that apply while a program executes."""

    lm: Any = None
    """The model in the settings."""
    adapter: Any = None
    """The adapter in the settings."""
    policy: Policy | None = None
    """The policy in the settings."""
    is_observed: bool = False
    """Whether any observer is attached. Only then are detailed events built, and answers streamed."""
    is_resumed: bool = False
    """Whether the journal holds answers that this execution has not asked for yet."""
    place: Hashable = None
    """Identifies the program inside its run, across executions in this process; None outside a run."""
    extra_tools: tuple[Any, ...] = ()
    """The tools passed to `Run.load`."""
    due: frozenset[str] = frozenset()
    """The names of the `CheckDue` and `Once` acts that a resumed run has recorded as due."""


class ReadConditions(MutableRecord):
    """Read the conditions of this execution, once at its start: answered with `Conditions`. Never journalled."""

    lm: Any = None
    """The model passed for this call only, if any. Programs that its tools call use it, too."""


class CallModel(MutableRecord):
    """Call a model: answered with its `Response`."""

    request: Request
    lm: Any
    """The model, anything that fits `models.model.Model`."""
    reader: Callable[[], FieldReader] | None = None
    """Makes the reader that splits a streamed answer into fields. With None, observers receive its text only."""
    attempt: int = 1
    """The number of this attempt to get an answer that can be parsed."""


class RuleCalls(Record):
    """Apply policies to calls before they run: answered with a list of `Rule | None` in call order, journalled where a rule applies.

    A resumed run keeps the rulings on which it acted.
    """

    calls: tuple[CheckedCall, ...]
    policies: tuple[Policy, ...]
    """The policies in force: that of the settings, and the program's own."""
    wish: Callable[[CheckedCall], Rule | None]
    """The tool's own rule, used if no policy has a rule for the call."""
    settled: tuple[bool, ...] | None = None
    """For each call, whether an earlier execution acted on it, or continued without it; None if unknown."""


class RecallCalls(Record):
    """Look up what an earlier execution did with the calls of a recorded answer. Never journalled.

    Answered with one value for each call: True if the call ran or a person was asked about it,
    False if neither happened and the program continued, None if the answer is new, or if the
    earlier execution ended there.
    """

    calls: tuple[ToolCall, ...]
    checked: tuple[CheckedCall | None, ...] = ()
    """Each call, checked against the present tools; None for one that does not fit. This distinguishes calls of one tool."""
    edited: bool = False
    """Whether the calls are as a person allowed them: then True means that a call ran, and False that the person was asked again."""


class CallTools(MutableRecord):
    """Run checked calls, at the same time if the tools allow it: answered with a list of `ToolResult`s in call order."""

    calls: tuple[CheckedCall, ...]


class AskPerson(Record):
    """Ask a person: answered with a list of `Decision`s in question order. The run waits until all questions are decided."""

    questions: tuple[Question, ...]
    denials: tuple[str | None, ...] = ()
    """For each question, the reason if a policy now denies the call: it is not asked. Empty if there are no policies."""


class Once(Record):
    """Compute a value once, and take it from the journal in a replay: the time, a random number, a search. Answered with the value."""

    make: Callable[[], Any]
    name: str = "once"


class CallCode(Record):
    """Call the user's functions, such as checks of an answer: answered with JSON data, which a replay takes from the journal.

    It does not change the numbers of other acts. Programs that the functions call are part of the
    run.
    """

    code: Callable[[Callable[..., Awaitable[Any]]], Coroutine[Any, Any, Any]]
    """Receives `call(function, *args, context=..., is_async=..., what=...)`, which calls a function, with a `Context` if it takes one."""
    name: str


class CheckDue(Record):
    """Check whether some work is due now, so that a replay repeats the work at the same place, and only there.

    Answered with the value of `is_due` (JSON), which is journalled only if it is true.
    """

    is_due: Callable[[], Any]
    name: str
    mark: str = "t"
    """One character. Two checks between the same two acts need different marks."""
    waits: bool = False
    """Whether `is_due` may wait for the network: an event loop then runs it in a thread."""


class Tell(MutableRecord):
    """Send an event to observers: answered with None. Never journalled, and not sent in a replay."""

    event: Event


class Within(Record):
    """Limit this program and everything that it calls: at a limit, a model call raises `LimitReachedError` instead of answering.

    Answered with None; never journalled.
    """

    limits: Any
    """Anything that fits `runs.limits.Limits`."""


Act = (
    ReadConditions
    | CallModel
    | RecallCalls
    | RuleCalls
    | CallTools
    | AskPerson
    | Once
    | CallCode
    | CheckDue
    | Tell
    | Within
)
Flow = Generator[Act, Any, "Prediction"]
"""A running program: yields acts, receives their answers, returns its prediction."""


class Suspended(BaseException):
    """Unwinds a run that waits for a person. A `BaseException`: no `except Exception` may stop it. `questions` are all that are open."""

    def __init__(self, questions: Sequence[Any]) -> None:
        self.questions = tuple(questions)
        super().__init__(f"waiting for {len(self.questions)} decisions")

    __reduce__ = FerruleError.__reduce__


def status_after(error: BaseException | None) -> Literal["done", "waiting", "failed", "cancelled"]:
    """The status of a program that ended with this error, or without one."""
    if error is None or isinstance(error, Suspended):
        return "done" if error is None else "waiting"
    return (
        "failed"
        if isinstance(error, Exception) and not isinstance(error, RunCancelledError)
        else "cancelled"
    )


def refuse_misuse(act: Any, error: Exception) -> None:
    """Raise `ConfigurationError` if the error was caused by an act with values of the wrong type."""
    from ferrule.approval.question import Question
    from ferrule.events import Event
    from ferrule.values.calls.call import CheckedCall
    from ferrule.values.conversation.exchange import Declarations, Request
    from ferrule.values.conversation.message import Message, Messages

    def are(kind: type, values: Any) -> bool:
        return isinstance(values, (list, tuple, Messages)) and all(
            isinstance(each, kind) for each in cast("list[Any]", values)
        )

    match act:
        case CallModel(request=Request(messages=Messages() as messages, tools=Declarations())) if (
            are(Message, messages)
        ):
            return
        case CallModel(request=found):
            fits, form = (
                False,
                "CallModel(Request(Messages([Message('user', text)]), tools=[tool.declaration]), lm)",
            )
        case CallTools(calls=found) | RuleCalls(calls=found):
            fits, form = are(CheckedCall, found), f"{type(act).__name__}((checked_call, ...))"
        case AskPerson(questions=found):
            fits, form = are(Question, found), "AskPerson((Question(...), ...))"
        case Once(make=found) | CheckDue(is_due=found) | CallCode(code=found):
            fits, form = callable(found), f"{type(act).__name__}(function, name)"
        case Within(limits=found):
            fits, form = hasattr(found, "wall_s"), "Within(Limits(...))"
        case Tell(event=found):
            fits, form = isinstance(found, Event), "Tell(event)"
        case _:
            return
    if not fits:
        raise ConfigurationError(f"Write the act as `{form}`; found {shown(found)}.") from error
