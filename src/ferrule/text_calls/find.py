"""Find the tool calls that a model wrote as text.

One door for all who read text: programs, adapters, streams, local models, `ToolCalls.from_text`.
`reader` does the work, `dialects` lists the forms. They are loaded on first use: programs that make
native calls need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.encoding.written import split_digits
from ferrule.text_calls.drafts import Effort, faulty, unwritable
from ferrule.text_calls.offers import offers_of

if TYPE_CHECKING:
    import re

    from ferrule.text_calls.drafts import Draft
    from ferrule.text_calls.offers import OfferedTools
    from ferrule.text_calls.reader import Reading

_SHOWN = 2_000
"""How much of a text that was not read is shown with the fault."""
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
        drafts = _rescued(thoughts, offers, Effort(len(thoughts)))
        return [_fields(draft) for draft in drafts], text
    effort = Effort(len(text))
    reading = _read(text, offers, effort)
    if reading is None:
        return [], text
    given_up = _given_up(reading, offers)
    if given_up is not None:
        return [_fields(given_up)], text
    if reading.drafts:
        rest = _rest(text, reading.spans)
        return [_fields(draft) for draft in _together(reading, rest)], rest
    if reading.thoughts and not _rest(text, reading.thoughts):
        start, end = reading.thoughts[-1]
        drafts = _rescued(text[start:end], offers, effort)
        if drafts:
            return [_fields(draft) for draft in drafts], ""
    return [], text


def _read(text: str, offers: OfferedTools, effort: Effort) -> Reading | None:
    if _SIGNS.isdisjoint(text):
        return None
    from ferrule.text_calls.reader import Reading

    reading = Reading(text, offers, effort)
    reading.run()
    return reading


def _rescued(thoughts: str, offers: OfferedTools, effort: Effort) -> list[Draft]:
    """The calls that end the thoughts of a model that says nothing else."""
    reading = _read(thoughts, offers, effort)
    if reading is None or not reading.drafts or reading.thoughts or reading.unread:
        return []
    if any(draft.fault for draft in reading.drafts):
        return []
    if _rest(thoughts[reading.spans[-1][1] :], []):
        return []
    return [draft._replace(repairs=(*draft.repairs, "from_thoughts")) for draft in reading.drafts]


def _given_up(reading: Reading, offers: OfferedTools) -> Draft | None:
    """A call with a fault, if the reader gave up before the end, and calls may be in the rest.

    Only a text that was written to be hard to read comes to that.
    """
    if not reading.unread:
        return None
    offer = offers.mentioned(reading.unread)
    if reading.drafts:
        offer = reading.drafts[0].offer
    if offer is None:
        return None
    reason = (
        f"the answer is too long to be read, and may hold a call of `{offer.name}` in its last "
        f"{len(reading.unread)} characters: make the call again, without other text"
    )
    return faulty(offer, reason, reading.unread[:_SHOWN])


def _together(reading: Reading, rest: str) -> list[Draft]:
    """The calls, or one with a fault if one of them cannot be read or the text is ambiguous."""
    first = reading.drafts[0]
    name = first.offer.name
    for draft in reading.drafts:
        if draft.fault is not None and len(reading.drafts) == 1:
            return [draft]
        if draft.fault is not None:
            others = "; the other calls of this answer did not run either: write all of them again"
            return [draft.faulty(draft.fault.reason + others, draft.fault.raw)]
    for closing in reading.forms.arguments.closings:
        if closing in rest:
            reason = (
                f"the call of `{name}` cannot be read: {closing!r} is there once more after the "
                "calls, so an argument may be cut; write that text in another way"
            )
            return [first.faulty(reason, json_text(first.args))]
    return reading.drafts


def _fields(draft: Draft) -> dict[str, Any]:
    # Not a `ToolCall`: `values.calls.call` imports this room.
    if problem := unwritable(draft.args):
        reason = f"the arguments of `{draft.offer.name}` {problem}"
        draft = draft.faulty(reason, json_text(draft.args))
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
    from ferrule.text_calls.marks import TAG

    pieces: list[str] = []
    offset = 0
    for start, end in [*spans, (len(text), len(text))]:
        pieces.append(TAG.sub(_without_markup, text[offset:start]).strip())
        offset = max(offset, end)
    return "\n".join([piece for piece in pieces if piece.strip("()`*") not in ("", "return")])


def _without_markup(tag: re.Match[str]) -> str:
    from ferrule.text_calls.marks import mark_of

    mark = mark_of(tag[0])
    is_header = mark.word in ("start", "channel", "message", "imstart")
    is_markup = mark.role in ("announces", "ends", "stops", "thought")
    if is_markup or (is_header and mark.text.startswith("<|")):
        return ""
    if mark.closes and mark.role in ("names", "separates"):
        return ""
    return tag[0]
