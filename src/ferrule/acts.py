"""Acts: the requests that a program makes of its driver.

A program is a generator that yields acts and receives their answers. A test that answers acts by
hand may send None for `Tell`, `Within`, and for a `Once` that is `only_if_true` or `runs_code`.

Six acts are the language: `CallModel`, `CallTools`, `AskPerson`, `Once`, `Tell` and `Within`.
`Listen` reads messages to the run (docs/decisions/0024); a program with a loop of its own yields it
to take part. Three more, `RecallResults`, `RecallCalls` and `RuleCalls`, read what an earlier
execution did with a turn of calls; the built-in loop yields them, and a program of a user hardly
ever does (docs/decisions/0018).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from ferrule.approval.policy import Policy, Rule
from ferrule.approval.question import Decision, Question, Subject
from ferrule.errors import ConfigurationError, FerruleError, RunCancelledError, shown
from ferrule.events import Event
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult
from ferrule.values.conversation.exchange import Declarations, FieldReader, Request
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from ferrule.values.outcome import Prediction

__all__ = [
    "AskPerson",
    "CallModel",
    "CallTools",
    "Conditions",
    "Consent",
    "Listen",
    "Once",
    "RecallCalls",
    "RecallResults",
    "RuleCalls",
    "Tell",
    "Within",
]


class Conditions(Struct, frozen=True):
    """The settings and the facts about the run that apply while a program executes."""

    lm: Any = None
    """The model in the settings; or the one that replaces all models here (`Module.override`)."""
    is_lm_overridden: bool = False
    """Whether `lm` replaces all other models, also the program's own and that of the call."""
    adapter: Any = None
    """The adapter in the settings."""
    policy: Policy | None = None
    """The policy in the settings."""
    is_observed: bool = False
    """Whether any observer is attached.

    Only then are detailed events built, and answers streamed.
    """
    is_resumed: bool = False
    """Whether the journal holds answers that this execution has not asked for yet."""
    is_only_read: bool = False
    """Whether the run is only read: what its journal does not hold is not done."""
    place: Hashable = None
    """Identifies the program inside its run, across executions in this process.

    None outside a run.
    """
    extra_tools: tuple[Any, ...] = ()
    """The tools passed to `Run.load`."""
    due: frozenset[str] = frozenset()
    """The names of the `Once` acts whose values a resumed run has recorded."""
    listens: bool = False
    """Whether messages to the run (`Run.say`) are for this program: it may yield `Listen`."""


class CallModel(Struct):
    """Call a model: answered with its `Response`."""

    request: Request
    lm: Any
    """The model, anything that fits `models.model.Model`."""
    reader: Callable[[], FieldReader] | None = None
    """Makes the reader that splits a streamed answer into fields.

    With None, observers receive the text of the answer only.
    """
    attempt: int = 1
    """The number of this attempt to get an answer that can be parsed."""


class RuleCalls(Struct, frozen=True):
    """Apply policies to calls before they run.

    Answered with a list of `Rule | None` in call order, journalled where a rule applies. A resumed
    run keeps the rulings on which it acted.
    """

    calls: tuple[CheckedCall, ...]
    policies: tuple[Policy, ...]
    """The policies in force: that of the settings, and the program's own."""
    wish: Callable[[CheckedCall], Rule | None]
    """The tool's own rule, used if no policy has a rule for the call."""
    settled: tuple[bool, ...] | None = None
    """For each call, whether an earlier execution acted on it, or continued without it.

    None if unknown.
    """


class RecallResults(Struct, frozen=True):
    """Look up the results of a turn of calls in a run that is only read. Never journalled.

    Answered with one result for each call, if all of them ran without an error, a rule or a
    question. Else answered with None, and the program handles the calls one by one. It would find
    the same results, but check each call and apply the rules to it again.
    """

    calls: tuple[ToolCall, ...]


class RecallCalls(Struct, frozen=True):
    """Look up what an earlier execution did with the calls of a recorded answer. Never journalled.

    Answered with one value for each call: True if the call ran or a person was asked about it,
    False if neither happened and the program continued, None if the answer is new, or if the
    earlier execution ended there.
    """

    calls: tuple[ToolCall, ...]
    checked: tuple[CheckedCall | None, ...] = ()
    """Each call, checked against the present tools; None for one that does not fit.

    This distinguishes calls of one tool.
    """


class Consent(Struct):
    """The consent that a call needs before it runs: the decision on a question."""

    subject: Subject
    """What the question is about."""
    question: Callable[[], Question]
    """Makes the question. It is not called where a person decided on the question as it was shown:
    the run has it from then."""
    allow: Callable[[Decision, bool | None], Allowing]
    """What a decision makes of the call: the call to run; its result, if it does not run; or the
    question to ask in its place, if an edit does not fit.

    A generator, because functions of the user may have a say: it yields `Once` acts that run code.
    The second argument says whether the call ran after this decision in an earlier execution: False
    if the person was asked again, None if neither is known.
    """
    denial: str | None = None
    """The reason if a policy denies the call by now: it is not asked about."""
    decision: Decision | None = None
    """The decision that was used. The driver sets it, and `allowed`."""
    allowed: CheckedCall | None = None
    """The call as it was allowed; None if it did not run."""


class CallTools(Struct):
    """Run checked calls, at the same time if the tools allow it.

    Answered with a list of `ToolResult`s in call order.

    A call that needs consent is asked about once the others have run, and runs as soon as it is
    allowed, whatever else waits. The run waits until all calls have their results: the questions of
    these calls are then pending together with those of programs that are called here.
    """

    calls: tuple[CheckedCall, ...]
    consents: tuple[Consent | None, ...] = ()
    """For each call, the consent that it needs, or None; empty if no call needs one."""
    left: tuple[tuple[int, int] | None, ...] = ()
    """Set by the driver: for each call, how many calls of its tool are left, and of how many.

    None without such a limit; empty if no call of the batch has one."""

    def allowed(self, results: Sequence[ToolResult]) -> Iterator[tuple[CheckedCall, ToolResult]]:
        """The calls as they were allowed, each with its result; not those that were denied.

        `results` is what the act was answered with.
        """
        consents = self.consents or (None,) * len(self.calls)
        for checked, consent, result in zip(self.calls, consents, results, strict=True):
            if consent is None or consent.decision is None:
                yield checked, result
            elif consent.allowed is not None:
                yield consent.allowed, result


class AskPerson(Struct, frozen=True):
    """Ask a person: answered with a list of `Decision`s in question order.

    The run waits until all questions are decided.
    """

    questions: tuple[Question, ...]


class Once(Struct, frozen=True):
    """Compute a value once, and take it from the journal in a replay.

    Answered with the value, which must be JSON data.

    Use it for whatever may differ the next time: the time, a random number, a search.
    """

    make: Callable[..., Any]
    name: str = "once"
    only_if_true: bool = False
    """Whether only a true value is recorded, such as that a list of tools must be read again now.

    Such a value is found by its name at the next act, and does not change the numbers of other
    acts. A replay that finds none there answers False, so it repeats the work at the same position,
    and only there. Two such values between the same two acts need different names.
    """
    waits: bool = False
    """With `only_if_true`: whether `make` may wait for the network.

    An event loop then runs it in a thread.
    """
    rebuilds: bool = False
    """With `only_if_true`: whether `make` also brings something to its present state that no
    journal holds, such as an interpreter.

    A replay that finds no value then calls `make`, too, and answers False.
    """
    runs_code: bool = False
    """Whether `make` calls functions of the user, which check an answer, or choose the tools.

    Its value is a list of what they say, empty if nothing. Answered with None where a replay finds
    that the run went on without them: a version of the program had none.

    It is then a coroutine function, and receives `call(function, *args, context=...,
    is_async=..., what=...)`, which calls a function, with a `Context` if it takes one. Programs
    that the functions call are part of the run. This does not change the numbers of other acts,
    either.
    """


class Listen(Struct, frozen=True):
    """Read the messages that were said to the run: answered with `Said` events, in order.

    Each is answered once, to the first program that listens, and is then in the journal. A program
    in a loop listens before each request, and with `ends=True` when it has its answer. If there is
    a message then, it goes on. It tells each `Said` when its conversation has it, which adds it to
    the steps of the run. A test that answers acts by hand may send None.
    """

    ends: bool = False
    """Whether the program has its answer: then messages for after the answer come, too."""


class Tell(Struct):
    """Send an event to observers: answered with None.

    Never journalled, and not sent in a replay.
    """

    event: Event


class Within(Struct, frozen=True):
    """Set what applies to this program and everything that it calls.

    Answered with `Conditions`; never journalled.

    A program starts with `conditions = yield Within()`, to read the settings.
    """

    limits: Any = None
    """Anything that fits `runs.limits.Limits`: at a limit, a model call raises `LimitReachedError`
    instead of answering. None sets no limits."""
    lm: Any = ...
    """The model passed for this call only, which programs that its tools call use, too. None: the
    model of the settings; `...`: as before."""
    answers_at_limit: bool = False
    """Whether the program ends with an answer at a limit: if it handles `LimitReachedError`, it
    may call a model once more. A program that it calls as a tool then fails alone at a limit;
    otherwise it ends the run."""


Allowing = Generator[Once, Any, CheckedCall | ToolResult | Question]
"""What a decision makes of a call (`Consent.allow`)."""
Act = (
    CallModel
    | RecallResults
    | RecallCalls
    | RuleCalls
    | CallTools
    | AskPerson
    | Once
    | Listen
    | Tell
    | Within
)
Flow = Generator[Act, Any, "Prediction"]
"""A running program: yields acts, receives their answers, returns its prediction."""


class Suspended(BaseException):
    """Unwinds a run that waits for a person. `questions` are all that are open.

    A `BaseException`, so that no `except Exception` in a program or a tool stops it.
    """

    def __init__(self, questions: Sequence[Any]) -> None:
        self.questions = tuple(questions)
        super().__init__(f"waiting for {len(self.questions)} decisions")

    __reduce__ = FerruleError.__reduce__


def status_after(error: BaseException | None) -> Literal["done", "waiting", "failed", "cancelled"]:
    """The status of a program that ended with this error, or without one."""
    if error is None:
        return "done"
    if isinstance(error, Suspended):
        return "waiting"
    # Whatever is not an `Exception` (`KeyboardInterrupt`, asyncio's cancellation) comes from
    # outside the program.
    if isinstance(error, RunCancelledError) or not isinstance(error, Exception):
        return "cancelled"
    return "failed"


def refuse_misuse(act: Any, error: Exception) -> None:
    """Raise `ConfigurationError` if the error was caused by an act with values of the wrong type.

    Acts do not check their values when they are made, because every step makes several. The driver
    calls this after an act has failed.
    """

    def all_are(item_type: type, values: Any) -> bool:
        if not isinstance(values, (list, tuple, Messages)):
            return False
        return all(isinstance(value, item_type) for value in cast("list[Any]", values))

    name = type(act).__name__
    match act:
        case CallModel(request=value):
            is_valid = (
                isinstance(value, Request)
                and isinstance(value.tools, Declarations)
                and isinstance(value.messages, Messages)
                and all_are(Message, value.messages)
            )
            form = (
                "CallModel(Request(Messages([Message('user', text)]), "
                "tools=[tool.declaration]), lm)"
            )
        case CallTools(calls=value) | RuleCalls(calls=value):
            is_valid = all_are(CheckedCall, value)
            form = f"{name}((checked_call, ...))"
        case AskPerson(questions=value):
            is_valid = all_are(Question, value)
            form = "AskPerson((Question(...), ...))"
        case Once(make=value):
            is_valid = callable(value)
            form = f"{name}(function, name)"
        case Within(limits=value):
            is_valid = value is None or hasattr(value, "wall_s")
            form = "Within(Limits(...))"
        case Tell(event=value):
            is_valid = isinstance(value, Event)
            form = "Tell(event)"
        case _:
            return
    if not is_valid:
        raise ConfigurationError(f"Write the act as `{form}`; found {shown(value)}.") from error
