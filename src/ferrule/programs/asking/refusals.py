"""Models that refuse tool declarations, or the format of an answer.

A model may refuse a request with tools, or with the format of its answer, although its capabilities
allow them; then the program lists its tools, or describes the form, in the prompt. This module
detects such models, remembers them for the process, and logs a warning once for each.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ferrule.errors import BadRequestError
from ferrule.models.model import BaseLM
from ferrule.models.turns import demands_alternation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ferrule.errors import LMError
    from ferrule.models.model import Model
    from ferrule.values.conversation.exchange import Delta, Request, Response

_warned: set[tuple[str, str]] = set()
_refusing: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The models that refused tools, by their `id`: a user's model may not be hashable."""
_refusing_formats: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The models that refused the format of an answer, in the same way."""

# The patterns below are compiled when a request is first refused: few programs need them. They
# follow the wording of Ollama (issue 11131), OpenAI, Groq, vLLM, llama.cpp, OpenRouter, xAI,
# Gemini, Novita and litellm.
_NOUN = r"(?:tool|function)s?(?:[ _-](?:use|usage|calls?|calling))?"
_TOOLS = rf"(?<![\w.-]){_NOUN}(?![\w\[-]|\.\w)"
_REFUSAL = (
    rf"(?:not|n't) support\w*\W+"
    rf"(?:(?:the|any|native|use|using|usage|of|following|param(?:eter)?s?)\W+)*{_TOOLS}"
    rf"|{_TOOLS}\W{{0,2}}(?: param(?:eter)?s?)?(?: (?:is|are))?"
    r"(?:n't| currently| not| yet| un)+ ?-?(?:support|enabled|available)"
    rf"|unsupported (?:param(?:eter)?|field|feature)s?(?:\(s\))?\W+{_TOOLS}"
    r"|no endpoints found that support tool|--enable-auto-tool-choice|--jinja"
)
_ASPECT = (
    "choice|results?|responses?|outputs?|messages?|search|types?|names?|ids?|schemas?"
    "|descriptions?|examples?"
)
_NARROWER = (
    rf"(?:parallel|strict|multiple|forced|nested|streaming|hosted|custom|built-?in)[ _-]{_NOUN}"
    rf"|(?<![\w-]){_NOUN}[ _-](?:{_ASPECT})"
    rf"|\b(?:in|for|inside|within|with) (?:the )?{_NOUN}|{_NOUN} with strict"
)
"""Phrases about one aspect of tool calling. A model that refuses it may still accept tools."""


def refuses_tools(lm: Any, error: LMError) -> bool:
    """Whether the error says that the model accepts no tool declarations; if so, remembers it."""
    if not isinstance(error, BadRequestError):
        return False
    words = re.sub(_NARROWER, "…", str(error), flags=re.IGNORECASE)
    # A chat template whose roles must alternate has no place for tool results.
    if not re.search(_REFUSAL, words, re.IGNORECASE) and not demands_alternation(error):
        return False
    # A class with `__slots__` may allow no weak references: its models are asked again every time.
    with suppress(TypeError):
        _refusing[id(lm)] = lm
    warn_of_text(lm, "it refused the declared tools", f" ({error})")
    return True


_FORMAT = re.compile(
    r"response[._ ]?format|json[_ ]?schema|text\.format|output[_ ]?(?:config|format)"
    r"|structured[_ ]?outputs?|response_?(?:json_?)?schema|response_?mime_?type|guided"
    r"|grammar",
    re.IGNORECASE,
)
"""How providers name the field of the format, in what they say about a request with it."""


def refuses_format(lm: Any, error: BadRequestError) -> bool:
    """Whether the error says that the model takes no format for its answer; if so, remembers it."""
    if not _FORMAT.search(str(error)):
        return False
    with suppress(TypeError):
        _refusing_formats[id(lm)] = lm
    form = "%s is asked for its outputs in the text of the prompt: it refused their format%s."
    log_once(lm, form, f" ({error})")
    return True


def reminded_of_format(model: Any) -> Any:
    """The model; if it refused a format before, a wrapper that refuses again, as `reminded`."""
    if _refusing_formats.get(id(model)) is not model:
        return model
    return _RefusingFormats(model)


def reminded(model: Model) -> Model:
    """The model; if it refused tools before, a wrapper that refuses them again without a request.

    The program still declares its tools first: a journal that holds the refusal must replay in a
    process that does not remember it.
    """
    if _refusing.get(id(model)) is not model:
        return model
    return _RefusingTools(model)


class _Refusing(BaseLM):
    """Wraps a model that refused a part of a request: refuses it again without a request."""

    def __init__(self, lm: Any) -> None:
        self._lm = self.wrapped = lm
        self.name = str(lm.name)
        self.capabilities = lm.capabilities

    def complete(self, request: Request) -> Response:
        return self._for(request).complete(request)

    def context_tokens(self) -> int | None:
        if not hasattr(self._lm, "context_tokens"):  # a user's model
            return self.capabilities.context_tokens
        return self._lm.context_tokens()

    async def acomplete(self, request: Request) -> Response:
        return await self._for(request).acomplete(request)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        return self._for(request).stream(request)

    def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        return self._for(request).astream(request)

    def _for(self, request: Request) -> Any:
        refused = self._refused(request)
        if refused:
            raise BadRequestError(
                f"`{self.name}` does not support {refused}: "
                "it said so before, and was not asked again"
            )
        return self._lm

    def _refused(self, request: Request) -> str:
        """The part of a request that the model refuses; empty if it has none."""
        raise NotImplementedError


class _RefusingTools(_Refusing):
    def _refused(self, request: Request) -> str:
        if request.tools:
            return "tools"
        return ""


class _RefusingFormats(_Refusing):
    def _refused(self, request: Request) -> str:
        if request.shape is not None:
            return "response_format"
        return ""


def warn_of_text(lm: Any, reason: str, details: str = "") -> None:
    """Log, once for each model, that its tools are listed in the prompt, with the reason."""
    form = (
        f"%s gets its tools in the text of the prompt: {reason}%s. "
        'Pass `calls="prompted"` to choose this, or `calls="native"` to force declarations.'
    )
    log_once(lm, form, details)


def log_once(lm: Any, form: str, details: str = "") -> None:
    """Log a warning once for each model. `form` has a place for its name and one for `details`."""
    name = str(lm.name)
    if (name, form) not in _warned:
        _warned.add((name, form))
        logging.getLogger("ferrule.programs").warning(form, name, details)
