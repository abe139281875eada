"""Find the tool calls that a model wrote as text.

One door for all who read text: programs, adapters, streams, local models, `ToolCalls.from_text`.
`reader` does the work, `dialects` lists the forms. It is loaded on first use: programs that make
native calls need none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.encoding.written import split_digits
from ferrule.text_calls.offers import offers_of
from ferrule.text_calls.shapes import CallFault, unwritable

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Draft, OfferedTools

_SIGNS = frozenset("<[{(`")
"""Every form of a call has one of these."""


def find(text: str, tools: Any, *, thoughts: str | None = None) -> tuple[list[dict[str, Any]], str]:
    """The fields of the `ToolCall`s in a text, in order, and the rest of the text.

    The rest is all of the text if it holds no call. `tools` are tools, declarations in OpenAI's
    form or bare, or `Declarations`; only calls to these are found. `thoughts` are those that came
    beside the text: if there is no text, a call that ends them is taken, with the repair
    `from_thoughts`.

    The calls of a text run together or not at all: if one of them cannot be read, the result is
    one call with a fault.
    """
    offers = offers_of(tools)
    if not offers:
        return [], text
    if not text.strip() and thoughts:
        drafts = _rescued(thoughts, offers)
        return [_fields(draft) for draft in drafts], text
    if _SIGNS.isdisjoint(text):
        return [], text
    from ferrule.text_calls.reader import Reading

    reading = Reading(text, offers)
    reading.run()
    if reading.drafts:
        rest = _rest(text, reading.spans)
        return [_fields(draft) for draft in _together(reading, rest)], rest
    outside = _rest(text, reading.thoughts)
    if reading.thoughts and not outside.strip():
        start, end = reading.thoughts[-1]
        drafts = _rescued(text[start:end], offers)
        if drafts:
            return [_fields(draft) for draft in drafts], ""
    return [], text


def _rescued(thoughts: str, offers: OfferedTools) -> list[Draft]:
    """The calls that end the thoughts of a model that says nothing else."""
    from ferrule.text_calls.reader import Reading

    if _SIGNS.isdisjoint(thoughts):
        return []
    reading = Reading(thoughts, offers)
    reading.run()
    if not reading.drafts or reading.thoughts or any(draft.fault for draft in reading.drafts):
        return []
    if _rest(thoughts[reading.spans[-1][1] :], []):
        return []
    return [draft._replace(repairs=(*draft.repairs, "from_thoughts")) for draft in reading.drafts]


def _together(reading: Any, rest: str) -> list[Draft]:
    """The calls, or one with a fault if one of them cannot be read or the text is ambiguous."""
    drafts: list[Draft] = reading.drafts
    faulty = [draft for draft in drafts if draft.fault is not None]
    left_over = [closing for closing in reading.forms.arguments.closings if closing in rest]
    if reading.is_exhausted and not faulty:
        reason = f"the answer with the call of `{drafts[0].offer.name}` is too long to be read"
        fault = CallFault("invalid_tool_call_arguments", reason, json_text(drafts[0].args))
        faulty = [drafts[0]._replace(args={}, fault=fault)]
    if left_over and not faulty:
        reason = (
            f"the call of `{drafts[0].offer.name}` cannot be read: {left_over[0]!r} is there once "
            "more after the calls, so an argument may be cut; write that text in another way"
        )
        fault = CallFault("invalid_tool_call_arguments", reason, json_text(drafts[0].args))
        faulty = [drafts[0]._replace(args={}, fault=fault)]
    if not faulty:
        return drafts
    first = faulty[0]
    if len(drafts) > 1 and first.fault is not None:
        others = "; the other calls of this answer did not run either: write all of them again"
        fault = first.fault
        fault = CallFault(fault.code, fault.reason + others, fault.raw)
        first = first._replace(fault=fault)
    return [first]


def _fields(draft: Draft) -> dict[str, Any]:
    # Not a `ToolCall`: `values.calls.call` imports this module.
    if problem := unwritable(draft.args):
        fault = CallFault(
            "invalid_tool_call_arguments",
            f"the arguments of `{draft.offer.name}` {problem}",
            json_text(draft.args),
        )
        draft = draft._replace(args={}, fault=fault)
    args, written = split_digits(draft.args)
    return {
        "name": draft.offer.name,
        "args": args,
        "id": draft.call_id,
        "intention": draft.intention,
        "fault": draft.fault,
        "written": written,
        "repairs": tuple(dict.fromkeys(draft.repairs)),
    }


def _rest(text: str, spans: list[tuple[int, int]]) -> str:
    """The text between the calls, without the tags around them."""
    from ferrule.text_calls.marks import tag_pattern

    pieces: list[str] = []
    offset = 0
    for start, end in [*spans, (len(text), len(text))]:
        pieces.append(tag_pattern().sub(_without_markup, text[offset:start]).strip())
        offset = max(offset, end)
    return "\n".join([piece for piece in pieces if piece.strip("()`*") not in ("", "return")])


def _without_markup(found: Any) -> str:
    from ferrule.text_calls.marks import mark_of

    mark = mark_of(found[0])
    is_channel = mark.text.startswith("<|") and mark.word in (
        "start",
        "channel",
        "message",
        "imstart",
    )
    is_markup = mark.role in ("announces", "ends", "stops", "thought") or (
        mark.closes and mark.role in ("names", "separates")
    )
    return "" if is_markup or is_channel else found[0]
