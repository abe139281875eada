"""Models that take no tool declarations, and answers that hold calls as text: found out, remembered, and logged once for each model.

A request with tools may be refused whatever the model's capabilities say; then the program lists its tools in the prompt.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ferrule.errors import BadRequestError
from ferrule.models.model import BaseLM
from ferrule.models.turns import demands_alternation
from ferrule.values.calls.call import ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from ferrule.errors import LMError
    from ferrule.models.model import Model
    from ferrule.values.conversation.exchange import Delta, Request, Response

_warned: set[tuple[str, str]] = set()
_refusing: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The models that refused tools, by their `id`: a user's model may not be hashable."""
_NOUN = r"(?:tool|function)s?(?:[ _-](?:use|usage|calls?|calling))?"
_TOOLS = rf"(?<![\w.-]){_NOUN}(?![\w\[-]|\.\w)"
# Compiled when a request is first refused: few programs need it.
# As Ollama (issue 11131), OpenAI, Groq, vLLM, llama.cpp, OpenRouter, xAI, Gemini, Novita and litellm word it.
_REFUSAL = (
    rf"(?:not|n't) support\w*\W+(?:(?:the|any|native|use|using|usage|of|following|param(?:eter)?s?)\W+)*{_TOOLS}"
    rf"|{_TOOLS}\W{{0,2}}(?: param(?:eter)?s?)?(?: (?:is|are))?(?:n't| currently| not| yet| un)+ ?-?(?:support|enabled|available)"
    rf"|unsupported (?:param(?:eter)?|field|feature)s?(?:\(s\))?\W+{_TOOLS}"
    r"|no endpoints found that support tool|--enable-auto-tool-choice|--jinja"
)
_ASPECT = r"choice|results?|responses?|outputs?|messages?|search|types?|names?|ids?|schemas?|descriptions?|examples?"
_NARROWER = (
    rf"(?:parallel|strict|multiple|forced|nested|streaming|hosted|custom|built-?in)[ _-]{_NOUN}"
    rf"|(?<![\w-]){_NOUN}[ _-](?:{_ASPECT})|\b(?:in|for|inside|within|with) (?:the )?{_NOUN}|{_NOUN} with strict"
)
"""Phrases about one aspect of tool calling. A model may refuse that and yet take tools."""


def refuses_tools(lm: Any, error: LMError) -> bool:
    """Whether the error says that the model takes no tool declarations, whatever its capabilities say. The model is remembered."""
    if not isinstance(error, BadRequestError):
        return False
    words = re.sub(_NARROWER, "…", str(error), flags=re.IGNORECASE)
    # A template whose roles must alternate has no place for results of tools.
    if not re.search(_REFUSAL, words, re.IGNORECASE) and not demands_alternation(error):
        return False
    with suppress(TypeError):  # a class with `__slots__` may allow no weak references: its models are asked again each time
        _refusing[id(lm)] = lm
    warn_of_text(lm, "it refused the declared tools", f" ({error})")
    return True


def reminded(model: Model) -> Model:
    """The model; if it refused tools before, one that refuses them again without a request.

    The program's choice itself stays: a journal holds the refusal, and must replay in a process that does not remember it.
    """
    return _RefusingTools(model) if _refusing.get(id(model)) is model else model


class _RefusingTools(BaseLM):
    """A model that refused tools once: it refuses them again without a request."""

    def __init__(self, lm: Any) -> None:
        self._lm = lm
        self.name = str(lm.name)
        self.capabilities = lm.capabilities

    def complete(self, request: Request) -> Response:
        return self._for(request).complete(request)

    def context_tokens(self) -> int | None:
        lm: Any = self._lm
        return lm.context_tokens() if hasattr(lm, "context_tokens") else self.capabilities.context_tokens  # models of users may not

    async def acomplete(self, request: Request) -> Response:
        return await self._for(request).acomplete(request)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        return self._for(request).stream(request)

    def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        return self._for(request).astream(request)

    def _for(self, request: Request) -> Any:
        if request.tools:
            raise BadRequestError(f"`{self.name}` does not support tools: it said so before, and was not asked again")
        return self._lm


def calls_in_text(lm: Any, text: str | None, tools: Iterable[Any]) -> tuple[tuple[ToolCall, ...], str]:
    """The calls of offered tools that a model wrote as text, in the form it was trained on; and the rest of the text.

    A server that does not parse the calls of its model sends them as the text of the answer. A call that the text only quotes is not found.
    """
    from ferrule.values.calls.text.find import find  # late: few answers need it

    found, rest = find(text, tools) if text else ([], "")
    if found:
        log_once(lm, _CALLS_AS_TEXT, "")
    return tuple([ToolCall.unchecked(**fields) for fields in found]), rest


def warn_of_text(lm: Any, reason: str, found: str = "") -> None:
    """Log, once for each model, that its tools are listed in the prompt, and why."""
    form = f"%s gets its tools in the text of the prompt: {reason}%s."
    form += ' Pass `calls="prompted"` to choose this, or `calls="native"` to force declarations.'
    log_once(lm, form, found)


_CALLS_AS_TEXT = "%s wrote its calls as text, and they were read.%s A server that can parse calls may need an option for it."


def log_once(lm: Any, form: str, found: str) -> None:
    """Log a warning once for each model."""
    name = str(lm.name)
    if (name, form) not in _warned:
        import logging  # late: most runs log nothing here

        _warned.add((name, form))
        logging.getLogger("ferrule.programs").warning(form, name, found)
