"""Native calls or calls in text: which a model gets, and why, said once."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ferrule.errors import BadRequestError, LMError
from ferrule.models.model import BaseLM
from ferrule.values.record import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ferrule.programs.asking.ask import Asker
    from ferrule.values.conversation.exchange import Delta, Request, Response

_told: set[tuple[str, str]] = set()
_refusing: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The models that refused tools, by their `id`: a model of a user's own may not hash."""
_NOUN = r"(?:tool|function)s?(?:[ _-](?:use|usage|calls?|calling))?"
_TOOLS = rf"(?<![\w.-]){_NOUN}(?![\w\[-]|\.\w)"
# Compiled when a request is first refused: most programs see none.
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
"""What is about a part of calling tools. A model may refuse it and yet take tools."""


def calls_natively(how: Asker, wanted: bool | None) -> bool:
    """Whether tools are declared to the model: as the program wants, or by what the model can."""
    if wanted is not None:
        return wanted
    if not how.capabilities.native_tools:
        _tell(how, "its capabilities say that it takes no tool declarations")
    return how.capabilities.native_tools


def with_memory(how: Asker, wanted: bool | None) -> Asker:
    """The same, with a model that is not asked again what it refused, unless the program insists.

    The choice itself stays as it was: a journal holds the refusal, and must replay where nothing is remembered.
    """
    if wanted is None and _refusing.get(id(how.lm)) is how.lm:
        return replace(how, lm=_Remembering(how.lm))
    return how


class _Remembering(BaseLM):
    """A model that refused tools once: it does so again without being asked."""

    def __init__(self, lm: Any) -> None:
        self._lm = lm
        self.name = str(lm.name)
        self.capabilities = lm.capabilities

    def complete(self, request: Request) -> Response:
        return self._for(request).complete(request)

    async def acomplete(self, request: Request) -> Response:
        return await self._for(request).acomplete(request)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        return self._for(request).stream(request)

    def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        return self._for(request).astream(request)

    def _for(self, request: Request) -> Any:
        if request.tools:
            msg = f"`{self.name}` does not support tools: it said so before, and was not asked again"
            raise BadRequestError(msg)
        return self._lm


def refuses_tools(how: Asker, error: LMError) -> bool:
    """Whether the model was reached and takes no tool declarations, whatever its capabilities say; it is remembered."""
    if not isinstance(error, BadRequestError) or not re.search(
        _REFUSAL, re.sub(_NARROWER, "…", str(error), flags=re.IGNORECASE), re.IGNORECASE
    ):
        return False
    with suppress(TypeError):  # a class with `__slots__` may take no weak references: its models are asked again each time
        _refusing[id(how.lm)] = how.lm
    _tell(how, "it refused the declared tools", f" ({error})")
    return True


def _tell(how: Asker, reason: str, found: str = "") -> None:
    name = str(how.lm.name)
    if (name, reason) not in _told:
        import logging  # late: most runs have nothing to tell

        _told.add((name, reason))
        logging.getLogger("ferrule.programs").warning(
            "%s gets its tools in the text of the prompt: %s%s. `native=False` says so from the start, `native=True` insists.",
            name,
            reason,
            found,
        )
