"""Acts: all that a program can ask of its driver.

A program is a generator that yields acts and is sent their answers:

| act | asks for | is answered with |
|---|---|---|
| `CallModel` | one model call | `Response` |
| `CallTools` | a batch of checked calls | `list[ToolResult]`, in call order |
| `AskPerson` | decisions | `list[Decision]`, in question order |
| `Once` | a value that must be the same in a replay | that value |
| `Tell` | observers to be told | `None`; never journalled, silent in a replay |
| `Within` | limits for this program and all it calls | `None`; never journalled |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from ferrule.errors import FerruleError
from ferrule.values.record import Record

if TYPE_CHECKING:
    from ferrule.values.calls.call import CheckedCall
    from ferrule.values.confirmation.question import Question
    from ferrule.values.conversation.exchange import FieldReader, Request
    from ferrule.values.run.event import Event
    from ferrule.values.run.outcome import Prediction


class CallModel(Record):
    """Ask a model."""

    request: Request
    lm: Any
    """The model, anything that fits `lms.lm.Model`."""
    reader: Callable[[], FieldReader] | None = None
    """Makes what splits a streamed answer into fields; None tells text alone."""
    attempt: int = 1
    """Which try this is to get one answer that can be read."""


class CallTools(Record):
    """Run checked calls: at once where the tools allow it."""

    calls: tuple[CheckedCall, ...]


class AskPerson(Record):
    """Ask a person. Without an answer the run is suspended here."""

    questions: tuple[Question, ...]
    denials: tuple[str | None, ...] = ()
    """The reasons for which rules deny calls by now: nobody is asked about those any more. Empty where there are no rules."""


class Once(Record):
    """Compute a value now, and take it from the journal ever after: clocks, chance, reading what may change."""

    make: Callable[[], Any]
    name: str = "once"


class Tell(Record):
    """Let observers know."""

    event: Event


class Within(Record):
    """Keep to limits from here on: where one is reached, `LimitReachedError` is raised in place of a model's answer."""

    limits: Any
    """Anything that fits `runs.limits.Limits`."""


Act = CallModel | CallTools | AskPerson | Once | Tell | Within
Flow = Generator[Act, Any, "Prediction"]
"""A running program: yields acts, is sent their answers, returns its prediction."""


class Suspended(BaseException):
    """Unwinds a run when a question has no answer yet: no `except Exception` may stop it. `questions` are all that wait."""

    def __init__(self, questions: Sequence[Any]) -> None:
        self.questions = tuple(questions)
        super().__init__(f"waiting for {len(self.questions)} decisions")

    __reduce__ = FerruleError.__reduce__
