"""Whose text is read for tool calls.

A model may write a call as text, in the form that it was trained on, and a server that does not
parse this form sends it as the text of the answer. Reading such calls rescues the answer. It also
is a risk: a text may repeat a call that a web page contains, and no reader can always tell a
repeated call from one that the model makes. So a text is read only where a call may come that way.
For a request that declares tools:

- A hosted provider that is known by its name answers with structured calls: it is never read.
- Neither is an answer that is constrained to valid calls.
- Any other model (a server at an address, a model of the user) is read until it has made one
  structured call in the run: from then on it is known to make them.

If no tools are declared, the prompt asks for calls in the text, and it is read. `text_calls` of a
model overrides all of this.

The driver calls `with_calls` for each answer before it records it. So a replay takes the calls
from the journal and decides nothing again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.models.fallback import FallbackLM
from ferrule.models.model import check_text_calls
from ferrule.values.calls.confidence import with_confidence
from ferrule.values.calls.offered import calls_in_answer, calls_in_text, under_offered_names

if TYPE_CHECKING:
    from collections.abc import MutableSet

    from ferrule.models.model import TextCalls
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.conversation.exchange import Request, Response

_warned: set[str] = set()
"""The names of the models whose rescued calls were logged."""


def reads_prompted_calls(lm: Any) -> bool:
    """Whether to read calls in other forms than the one that the prompt asks for.

    This is about requests that declare no tools. Of several models (`FallbackLM`), the strictest
    decides: which one answered is not recorded, and a replay must decide the same.
    """
    model = _unwrapped(lm)
    if isinstance(model, FallbackLM):
        return all(map(reads_prompted_calls, model.models))
    return option_of(model) != "never"


def option_of(lm: Any) -> TextCalls | None:
    """The option `text_calls` of a model, checked: a model of a user has it as an attribute."""
    return check_text_calls(getattr(_unwrapped(lm), "text_calls", None))


def is_hosted(lm: Any) -> bool:
    """Whether a provider that is known by its name serves the model."""
    return bool(getattr(_unwrapped(lm), "is_hosted", False))


def with_calls(
    lm: Any, request: Request, response: Response, structured: MutableSet[str]
) -> Response:
    """An answer to declared tools, with its calls as they are offered.

    Args:
        lm: The model that was asked.
        request: The request, with its declarations.
        response: The answer, as it came.
        structured: The names of the models that made a structured call in this run. The name of
            this model is added if its answer has one.

    """
    tools = request.tools
    if not tools:
        return response
    if response.tool_calls:
        note_structured_calls(lm, response, structured)
        calls = under_offered_names(response.tool_calls, tools)
        if calls == response.tool_calls:
            return response
        return replace(response, tool_calls=calls)
    if request.tool_choice == "none" or not _reads(lm, request, response, structured):
        return response
    calls, rest = _calls_of(request, response)
    if not calls:
        return response
    calls = with_confidence(calls, response.tokens)
    _warn_once(_name_of(lm))
    return replace(response, text=rest or None, tool_calls=calls)


def note_structured_calls(lm: Any, response: Response, structured: MutableSet[str]) -> None:
    """Note that a model made a structured call, if this answer has one. For a replay, too."""
    name = response.answered_by or _name_of(lm)
    if name in structured or all(call.is_rescued for call in response.tool_calls):
        return
    structured.add(name)


def _calls_of(request: Request, response: Response) -> tuple[tuple[ToolCall, ...], str]:
    """The calls in the text of an answer, and the text without them."""
    text = response.text or ""
    outside = text
    if text and request.form is not None:
        outside = request.form.outside(text)
    if outside == text:
        return calls_in_answer(text, response.reasoning, request.tools)
    calls, _ = calls_in_text(outside, request.tools)
    return calls, text  # with the fields of a complete answer


def _reads(lm: Any, request: Request, response: Response, structured: MutableSet[str]) -> bool:
    model = _answering(lm, response.answered_by)
    option = option_of(model)
    if option in {"never", "always"}:
        return option == "always"
    if option is None:
        is_constrained = request.shape is not None and request.shape.kind == "call"
        if is_constrained or is_hosted(model):
            return False
    # A replayed answer of a `FallbackLM` does not say which of its models made the calls.
    name = _name_of(lm)
    return structured.isdisjoint({name, response.answered_by or name})


def _name_of(lm: Any) -> str:
    return str(getattr(lm, "name", ""))


def _answering(lm: Any, name: str | None) -> Any:
    """The model itself; of several, the one with this name, which answered."""
    lm = _unwrapped(lm)
    if isinstance(lm, FallbackLM):
        for model in lm.models:
            if model.name == name:
                return _answering(model, name)
    return lm


def _unwrapped(lm: Any) -> Any:
    """The model inside ferrule's own wrappers, which pass requests on."""
    while type(lm).__module__.startswith("ferrule.") and getattr(lm, "_lm", None) is not None:
        lm = lm._lm  # noqa: SLF001  a wrapper's model
    return lm


def _warn_once(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        logging.getLogger("ferrule.models").warning(
            "%s wrote its calls as text, and they were read. "
            "A server that can parse calls may need an option for it.",
            name,
        )
