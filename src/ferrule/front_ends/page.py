"""`Page`: the parts of a run that a chat page can show.

Each protocol is a subclass, which writes them as its own messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ferrule.errors import InputError, shown
from ferrule.forms import form_of
from ferrule.values.slot import innermost_call, is_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule import events
    from ferrule.approval.question import Decision, Question
    from ferrule.values.calls.call import ToolCall, ToolResult

UNUSED = "The model's answer could not be used, and this call did not run."


@dataclass(slots=True)
class ShownText:
    """A text or thought that is streaming, or has been streamed."""

    id: str
    program: str
    """The path of the program."""
    agent: str
    """The path of the innermost agent that a tool call started; empty outside all."""
    name: str | None
    """The output field; empty for text outside any field; None for a thought."""
    pieces: list[str] = field(default_factory=list[str])
    is_preamble: bool = False
    """Whether calls followed: the text is not the output."""

    @property
    def is_thought(self) -> bool:
        """Whether it is a thought, not a text."""
        return self.name is None


@dataclass(slots=True)
class ShownCall:
    """A tool call that the page shows."""

    id: str
    program: str
    agent: str
    name: str
    made_id: str | None
    """The id that the model gave the call."""
    number: int | None = None
    """If the call streams, its position among the calls of the answer: some servers give all of
    them the same id."""
    is_known: bool = False
    """Whether the page has the call from an earlier response."""
    streams: bool = True
    """Whether more of its arguments may come."""
    is_ready: bool = False
    """Whether its validated arguments were shown."""


def tool_call_id(run_id: str, program: str, call_id: str | None) -> str:
    """The id of a call on a page, unique in a conversation.

    The model's id may be repeated in another run or agent.
    """
    named_run = run_id.replace("%", "%25").replace("/", "%2F")  # the first `/` ends it
    return "/".join(filter(None, (named_run, program, call_id or "call")))


def run_of_call(shown_id: str) -> str:
    """The id of the run that made the call with this id: `tool_call_id` wrote it."""
    return shown_id.partition("/")[0].replace("%2F", "/").replace("%25", "%")


def question_id(run_id: str, question: Question) -> str:
    """The id of a question on a page. It names the run, to find it when the decision arrives."""
    return f"{run_id}:{question.id}"


def run_of(shown_id: str) -> str:
    """The id of the run that asked the question with this id.

    Raises `InputError` for an id that `question_id` did not make.
    """
    run_id, _, question = shown_id.rpartition(":")
    if not run_id or not question:
        raise InputError(
            "The id of a question names its run, as in the response that asked it; "
            f"found {shown(shown_id)}."
        )
    return run_id


def agent_path(path: str) -> str:
    """The path of the innermost program around `path` that a tool call started; empty for none."""
    call = innermost_call(path)
    if not call:
        return ""
    segments = path[len(call) + 1 :].split("/")
    for number, segment in enumerate(segments):
        if is_program(segment) and not segment.isdigit():
            return "/".join([call, *segments[: number + 1]])
    return ""


def present(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without those that are None."""
    return {name: value for name, value in fields.items() if value is not None}


class Page:
    """One response to a page. The narrator calls its methods, which add messages to `out`."""

    def __init__(self) -> None:
        self.run_id = ""
        self.out: list[dict[str, Any]] = []

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Add a message. Fields that are None are omitted."""
        self.out.append({"type": kind, **present(fields)})

    def set_time(self, time_s: float) -> None:
        """Set the time of the messages that follow, in seconds since 1970."""

    def begin(self) -> None:
        """Begin the response."""
        raise NotImplementedError

    def step(self, agent: str) -> None:
        """A model call begins."""

    def answered(self, event: events.ModelAnswered) -> None:
        """A model answered."""

    def enter(self, agent: str, outer: str, call_id: str | None) -> None:
        """A tool call started a program."""

    def leave(
        self, agent: str, status: str, prediction: Any, questions: Iterable[Question]
    ) -> None:
        """A program that a tool call started has ended, or waits for these decisions."""

    def open_text(self, text: ShownText) -> None:
        """A text or a thought begins."""
        raise NotImplementedError

    def add_text(self, text: ShownText, piece: str) -> None:
        """A text or a thought continues."""
        raise NotImplementedError

    def close_text(self, text: ShownText, *, is_void: bool) -> None:
        """A text or a thought ends. If it is void, another one replaces it."""
        raise NotImplementedError

    def replace_text(self, text: ShownText) -> None:
        """A text that has ended is void: another value of the output follows."""

    def open_call(self, call: ShownCall) -> None:
        """A call begins."""
        raise NotImplementedError

    def add_arguments(self, call: ShownCall, piece: str) -> None:
        """The next piece of a call's arguments, as JSON text."""
        raise NotImplementedError

    def end_arguments(self, call: ShownCall) -> None:
        """The model wrote all arguments of a call."""

    def ready(self, call: ShownCall, checked: ToolCall) -> None:
        """The arguments of a call were validated."""

    def settle(self, call: ShownCall, content: Any, *, is_error: bool) -> None:
        """A call has a result: a text, or parts in OpenAI's form."""
        raise NotImplementedError

    def deny(self, call: ShownCall, reason: str) -> None:
        """A person denied a call."""
        self.settle(call, reason or "The call was denied.", is_error=True)

    def ask(self, question: Question, call: ShownCall) -> None:
        """A person must decide on a call."""

    def custom(self, name: str, value: Any, agent: str) -> None:
        """A tool or a program sent its own event."""
        raise NotImplementedError

    def finish(
        self,
        ending: events.RunFinished,
        questions: Iterable[tuple[Question, ShownCall]],
        unsettled: list[str],
    ) -> None:
        """The run ended without an error, or waits for decisions."""
        raise NotImplementedError

    def fail(self, text: str, kind: str) -> None:
        """The run failed."""
        raise NotImplementedError


class Waiting(Protocol):
    """A run with questions, such as `Run`."""

    @property
    def id(self) -> str: ...  # noqa: D102  those of `Run`
    @property
    def pending(self) -> Iterable[Question]: ...  # noqa: D102
    @property
    def decisions(self) -> Sequence[Decision]: ...  # noqa: D102
    @property
    def awaited(self) -> Iterable[Question]: ...  # noqa: D102


def result_content(result: ToolResult) -> Any:
    """The result of a call: a text, or parts in OpenAI's form."""
    return form_of(result)["content"]
