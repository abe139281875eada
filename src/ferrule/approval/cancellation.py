"""The cancellation of one call, as a decision of the kind `cancel`: how it is made and checked.

It comes from outside, as a message does (`message.py`): it has the same doors, is stored in the
same place, and is used once. It is about a call that has begun, so its id has the call's slot, and
how often the call had begun by then. A call that waits for a decision is cancelled by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ferrule.approval.question import Decision, check_author
from ferrule.encoding.encode import is_exact, json_text
from ferrule.encoding.safe_text import one_line
from ferrule.encoding.stored import parse_json
from ferrule.errors import DecisionError, shown
from ferrule.values.calls.call import ToolCall, ToolResult, to_result
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.approval.question import Question

_PREFIX = "cancel:"
_MOST_SHOWN = 80
"""Characters of a call in an error."""


class CallAtWork(Struct, frozen=True):
    """A call that has begun, and has no result yet."""

    slot: Slot
    call: ToolCall
    starts: int
    """How often it has begun: more than once after a crash."""

    @property
    def cancellation_id(self) -> str:
        """The id of the decision that cancels it."""
        return cancellation_id(self.slot, self.starts)


def cancellation_id(slot: str, starts: int) -> str:
    """The id of the decision that cancels the call at a slot, which has begun so often."""
    return f"{_PREFIX}{starts}:{slot}"


def is_cancellation(decision: Decision) -> bool:
    """Whether this cancels a call that has begun."""
    return decision.kind == "cancel" and decision.question_id.startswith(_PREFIX)


def slot_of(cancellation: Decision) -> str:
    """The slot of the call that it cancels."""
    return cancellation.question_id.removeprefix(_PREFIX).partition(":")[2]


def unsent_cancellation(result: Any, *, by: str = "", via: str = "api") -> Decision:
    """A cancellation without its call.

    Raises `DecisionError` for a result that is not JSON, and for an author that is not text.
    """
    author, source = check_author(by, via)
    text = ""
    if result is not None:
        if not is_exact(result):
            raise DecisionError(
                "The `result` of a cancelled call is a text or other JSON data, which the model "
                f"reads; found {shown(result)}."
            )
        text = json_text(result)
    return Decision(_PREFIX, "cancel", text, by=author, via=source)


def on_question(question: Question, cancellation: Decision) -> Decision:
    """The decision that cancels a call which waits for one."""
    by, via = cancellation.by, cancellation.via
    if question.kind == "result":
        return Decision(question.id, "cancel", cancellation.text, shown=question.digest).signed(
            by, via
        )
    if cancellation.text and question.kind != "input":
        content = to_result(question.call, parse_json(cancellation.text)).content
        return question.reply(str(content)).signed(by, via)
    return question.deny("The call was cancelled.").signed(by, via)


def on_call(call: CallAtWork, cancellation: Decision, *, at: float) -> Decision:
    """The cancellation of this call."""
    return replace(cancellation, question_id=call.cancellation_id, at=at)


def cancelled_result(
    call: ToolCall, cancellation: Decision, effect: str, own: ToolResult | None = None
) -> ToolResult:
    """What the model reads as the result of a cancelled call.

    Args:
        call: The call.
        cancellation: Its cancellation.
        effect: The effect of its tool.
        own: The result that the tool returned all the same, in time. It counts if the cancellation
            brings none.

    """
    if cancellation.text:
        result = to_result(call, parse_json(cancellation.text))
        return ToolResult(
            result.name, result.content, result.call_id, value=result.value, by_person=True
        )
    if own is not None and not own.is_error:
        return own
    text = "This call was cancelled before it had a result."
    if effect not in {"read", "transactional"}:
        text += " It is not known whether it was carried out."
    return ToolResult(call.name, text, call.id, is_error=True)


def named_call_at_work(
    call_id: Any, run_id: str, at_work: Sequence[CallAtWork], waiting: Iterable[Question]
) -> CallAtWork | Question:
    """The call at work, or the question with which a call waits, that an id names.

    The id is the model's, or the slot; of a question also its own. Raises `DecisionError` if there
    is no such call, or more than one.
    """
    questions = [question for question in waiting if call_id in {question.call.id, question.id}]
    if len(questions) == 1:
        return questions[0]
    calls = [work for work in at_work if call_id in {work.call.id, str(work.slot)}]
    if len(calls) == 1 and not questions:
        return calls[0]
    if calls or questions:
        places = ", ".join([call.slot for call in calls] + [asked.id for asked in questions])
        raise DecisionError(
            f"Several calls of the run {run_id!r} have the id {shown(call_id)}. Name one by its "
            f"place or its question: {places}."
        )
    names = ", ".join(map(_named, at_work)) or "none"
    raise DecisionError(
        f"No call with the id {shown(call_id)} is at work in the run {run_id!r}: it has not begun, "
        f"or it has ended. At work are: {names}."
    )


def _named(work: CallAtWork) -> str:
    return f"{work.call.id or work.slot} ({one_line(str(work.call.name), _MOST_SHOWN)})"
