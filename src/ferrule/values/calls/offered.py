"""Calls of offered tools: found in a text, and under the names that were offered.

Everything that takes calls from a model's answer takes them through this module: the driver from
an answer to declared tools, adapters and `ReAct` from an answer to a prompt, local models from what
they generate. So a call that was read from text is always marked, and a name always means the same
tool. (`ToolCalls.from_text` marks nothing: its caller says that the text holds calls.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.text_calls.find import find
from ferrule.text_calls.offers import offers_of
from ferrule.values.calls.call import FROM_TEXT, ToolCall
from ferrule.values.calls.wire_name import own_name

if TYPE_CHECKING:
    from collections.abc import Sequence


def calls_in_text(text: str, tools: Any) -> tuple[tuple[ToolCall, ...], str]:
    """The calls of offered tools that a model wrote as text, and the text without them.

    Each call has the repair `FROM_TEXT`. `tools` are tools, or their declarations.
    """
    calls: list[ToolCall] = []
    found, rest = find(text, tools)
    for fields in found:
        call = ToolCall.unchecked(**fields)
        calls.append(call.changed(repairs=(FROM_TEXT, *call.repairs)))
    return tuple(calls), rest


def holds_calls(tools: Any, text: str) -> bool:
    """Whether a text holds calls of offered tools."""
    return bool(calls_in_text(text, tools)[0])


def calls_in_answer(
    text: str | None, thoughts: str | None, tools: Any
) -> tuple[tuple[ToolCall, ...], str]:
    """The calls in an answer whose thoughts are apart, and its text without them.

    If there is no text, a call that ends the thoughts is taken: servers that separate thoughts
    cannot always tell where they end. No other call in thoughts is made.
    """
    if text and not text.isspace():
        return calls_in_text(text, tools)
    if not thoughts or "</think" in thoughts.lower():
        return (), ""  # a tag within the thoughts would end them for the reader
    calls, _ = calls_in_text(f"<think>{thoughts}</think>", tools)
    return calls, ""


def under_offered_names(calls: Sequence[ToolCall], tools: Any) -> tuple[ToolCall, ...]:
    """The calls, each with the name of the tool that it means.

    Models and servers add prefixes, numbers and tags to names: `functions.add`, `add:0`,
    `add<|channel|>commentary`. A name that is offered as it is always wins. One that means no
    tool, or several, stays as it is: the model then reads which tools there are.
    """
    offers = offers_of(tools)
    renamed: list[ToolCall] = []
    for call in calls:
        # A special token ends a name that its server did not cut off: `add<|channel|>commentary`.
        offer = offers.get(call.name) or offers.get(call.name.partition("<|")[0])
        # A declaration has the name on the wire. The tool's own name is as good: the toolbox knows
        # both, and people and policies know the second.
        if offer is None or call.name == offer.name or call.name == own_name(offer.name):
            renamed.append(call)
        else:
            renamed.append(call.changed(name=offer.name))
    return tuple(renamed)
