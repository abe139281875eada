"""Results from outside: a call that has begun, and whose tool returned `Later`.

In: the wait of one call. Out: its result, or a waiting run. The call has no result yet: the
question that it waits with, of the kind `result`, is journalled at the slot of the call plus
`?later`, and the decision that brings the result at `?later.0`. The question is read from the
journal, not made again, so that a result reaches its call after the program has changed, too.

A result is a decision like a person's: it has the same doors and the same checks
(`approval/decisions.py`), so it is taken once, by whatever process it comes.
"""

from __future__ import annotations

from traceback import format_exception
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ferrule import events
from ferrule.approval.asking import tool_fingerprint
from ferrule.approval.cancellation import cancelled_result
from ferrule.approval.question import Decision, Question
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_json, reading
from ferrule.errors import ToolError
from ferrule.forms import record_form
from ferrule.runs.decisions import register, results_awaited
from ferrule.runs.driver.approval import decision_in_time, now
from ferrule.runs.journal.encode import read_question
from ferrule.runs.journal.entry import Entry
from ferrule.tools.definition.result_type import result_schema
from ferrule.values.calls.call import ToolResult, failure, to_result
from ferrule.values.calls.context import key_of
from ferrule.values.calls.later import Later
from ferrule.values.calls.secrets import STARS
from ferrule.values.content.parts import Text

if TYPE_CHECKING:
    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import CheckedCall
    from ferrule.values.content.parts import Content, Part
    from ferrule.values.slot import Slot

_NO_RESULT = "No result of this call comes."


async def wait_entry(
    frame: Frame, slot: Slot, digest: str, checked: CheckedCall, later: Later, *, blocks: bool
) -> Entry | ToolResult:
    """The entry of a call that waits for its result from outside.

    A failure if the key had its result before: a late repeat would then answer this call.
    """
    run, tool = frame.run, checked.tool
    args = checked.arguments.shown
    key = later.key or key_of(run.starter_of(slot), slot, tool.name, args)
    answered = {
        entry.value.question_id for entry in list(run.journal.entries) if entry.kind == "decision"
    }
    if any(question.id in answered for question in results_awaited(run.journal.entries, key)):
        return failure(
            checked.call,
            ToolError(
                f"The result for the key {key!r} came already in this run, for an earlier call. "
                "A key names one result: make it of `ctx.key`."
            ),
            is_raised=True,
        )
    expires_at = None
    if later.within_s is not None:
        expires_at = await now(frame, blocks=blocks) + later.within_s
    text = (
        f"{checked.call.name} with args: {json_text(args)} has begun, and waits for its result "
        f"from outside, with the key {key!r}."
    )
    if later.note:
        text = f"{later.note}\n{text}"
    question = Question(
        "result",
        text,
        checked.call.changed(args=args),
        run.question_id(slot.later),
        fingerprint=tool_fingerprint(tool),
        path=frame.path,
        expires_s=later.within_s,
        expires_at=expires_at,
        effect=tool.effect,
        description=tool.declaration["function"].get("description") or "",
        note=later.note,
        key=key,
        returns=result_schema(tool.func, tool.returns),
        by_page=tool.result == "page",
    )
    return Entry(slot.later, "once", digest, record_form(question))


def hide_token(result: ToolResult, token: str) -> ToolResult:
    """What a tool returned or raised, without the token of its `result_url`.

    The result is recorded, and shown to the model and to observers, who could then deliver it.
    """
    content, value, error = result.content, result.value, result.error
    if isinstance(value, Later):
        key, note = value.key.replace(token, STARS), value.note.replace(token, STARS)
        return replace(result, value=Later(key=key, note=note, within_s=value.within_s))
    if isinstance(content, str):
        shown: Content = content.replace(token, STARS)
    else:
        shown = tuple(_part_without(part, token) for part in content)
    if shown != content:
        value = None  # it holds the token, too, and may be anything
    if error is not None and token in "".join(format_exception(error)):
        error = ToolError(str(error).replace(token, STARS))
    return replace(result, content=shown, value=value, error=error)


def _part_without(part: Part, token: str) -> Part:
    if isinstance(part, Text):
        return Text(text=part.text.replace(token, STARS))
    return part


def ask_outside(frame: Frame, slot: Slot, entry: Entry) -> Question:
    """The question of a wait that is now in the journal, for the run that suspends."""
    question = read_question(entry.value)
    register(frame.run, [question])
    tell = frame.tell_at(slot)
    if tell is not None:
        tell(events.QuestionAsked(question))
    return question


async def delivered(
    frame: Frame, slot: Slot, checked: CheckedCall, entry: Entry
) -> ToolResult | Question:
    """The result that came for a waiting call, or its question if none has come."""
    run = frame.run
    with reading(f"The wait at {entry.slot} of the journal"):
        question = read_question(entry.value)
    place = slot.later.item(0)
    recorded = run.journal.take_decision(place)
    if recorded is not None:
        run.tally.note(run.decisions, recorded.value)
        return _result(checked, question, recorded.value)
    expired = ""
    if question.expires_s is not None:
        expired = f"{_NO_RESULT} It did not come within {question.expires_s:g} seconds."
    decision = await decision_in_time(frame, question, expired)
    if decision is None:
        register(run, [question])
        return question
    await frame.write(Entry(place, "decision", question.digest, decision))
    run.decided(decision)
    tell = frame.tell_at(slot)
    if tell is not None:
        tell(events.Decided(question, decision))
    return _result(checked, question, decision)


def _result(checked: CheckedCall, question: Question, decision: Decision) -> ToolResult:
    call = checked.call
    if decision.kind == "reply":
        return to_result(call, parse_json(decision.text))
    if decision.kind == "cancel":
        return cancelled_result(call, decision, checked.tool.effect)
    text = _NO_RESULT
    if decision.via == "expiry":
        text = decision.text
    elif decision.text and question.by_page:
        text += f" The page says: {decision.text}"
    elif decision.text:
        text += f" A person says: {decision.text}"
    return ToolResult(call.name, text, call.id, is_error=True, repairs=call.repairs)
