"""Find the tool calls that a model wrote as text.

The forms are not tied to models. A tag, a special token, a fence or a line of its own announces a
call. The call itself is JSON, a name followed by JSON, Python, or tags. The weaker the
announcement, the better the arguments must fit the tool: mentioning a tool does not call it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.text_calls.offers import offers_of
from ferrule.text_calls.scan import Scan
from ferrule.text_calls.shapes import CallFault, unwritable
from ferrule.text_calls.tags import TAG, ends_calls, tag_of

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Draft

_NAMESPACE = "]<]minimax[>["
_NAMESPACE_OF_TAG = re.compile(re.escape(_NAMESPACE) + r"(?=<|\s*\Z)")
"""A prefix that models of one family write before each tag. It has no meaning of its own."""
_MARKUP = frozenset({"call", "close", "stop"})
_CHANNELS = frozenset({"channel", "start", "message", "constrain", "startofturn", "startheaderid"})


def find(text: str, tools: Any) -> tuple[list[dict[str, Any]], str]:
    """The fields of the `ToolCall`s in a text, in order, and the rest of the text (all of it if there is no call).

    `tools` are tools, declarations in OpenAI's form or bare, or `Declarations`. Only calls to these
    are found.
    """
    offers = offers_of(tools)
    if not offers or not text:
        return [], text
    if _NAMESPACE in text:
        text = _NAMESPACE_OF_TAG.sub("", text)
    scan = Scan(text, offers)
    scan.run()
    if not scan.drafts:
        return [], text
    return [_fields(each) for each in scan.drafts], _rest(text, scan.spans)


def _fields(draft: Draft) -> dict[str, Any]:
    # Not a `ToolCall`: `values.calls.call` imports this module.
    if problem := unwritable(draft.args):
        fault = CallFault(
            "invalid_tool_call_arguments",
            f"the arguments of `{draft.offer.name}` {problem}",
            json_text(draft.args),
        )
        draft = draft._replace(args={}, fault=fault)
    return {
        "name": draft.offer.name,
        "args": draft.args,
        "id": draft.call_id,
        "intention": draft.intention,
        "fault": draft.fault,
        "repairs": tuple(dict.fromkeys(draft.repairs)),
    }


def _rest(text: str, spans: list[tuple[int, int]]) -> str:
    """The text between the calls, without the tags around them."""
    pieces: list[str] = []
    at = 0
    for start, end in [*spans, (len(text), len(text))]:
        pieces.append(TAG.sub(_without_markup, text[at:start]).strip())
        at = max(at, end)
    return "\n".join([each for each in pieces if each.strip("()`*") not in ("", "return")])


def _without_markup(found: re.Match[str]) -> str:
    tag = tag_of(found[0])
    is_markup = tag.kind in _MARKUP and (tag.kind != "close" or ends_calls(tag))
    return "" if is_markup or (tag.stem in _CHANNELS and found[0].startswith("<|")) else found[0]
