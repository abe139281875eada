"""Asks a model for fields: one call, parsed; an answer that cannot be parsed goes back to the model, then to the fallback adapter.

Here stand also the choices that come before a question: which model, adapter and settings, and whether tools are declared to the model
(native calls) or listed in the prompt (calls in text).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ferrule.adapters.chat import ChatAdapter
from ferrule.errors import AdapterParseError, BadRequestError, ConfigurationError, InputError, RefusalError, ToolCallError, shown
from ferrule.models.model import BaseLM, as_model
from ferrule.models.turns import demands_alternation
from ferrule.programs.asking.keywords import config_of_call
from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.text.find import find
from ferrule.values.conversation.exchange import NO_TOOLS, Capabilities, Declarations, FieldReader, Request, Response
from ferrule.values.record import Record
from ferrule.values.run import event as events
from ferrule.values.run.act import Act, CallModel, Conditions, ReadConditions, Tell
from ferrule.values.signatures.compiled import InvalidOutputsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ferrule.adapters.adapter import Adapter
    from ferrule.errors import LMError
    from ferrule.values.conversation.exchange import Delta
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature

Answering = Generator[Act, Any, tuple[dict[str, Any], Response]]
_Read = Callable[["Adapter", Response], dict[str, Any]] | None
_UNPARSED = "output that does not match the expected"
"""As llama.cpp's server words it, with status 500: it parses its model's calls, and this one it could not."""
_NO_ANSWER = Response()
_DEFAULT_ADAPTER = ChatAdapter(use_native_function_calling=None)
"""For settings without an adapter: the model's capabilities choose between native calls and calls in text."""


class Asker(Record):
    """How one program asks during one run: fixed when the program is called."""

    lm: Any
    adapter: Adapter
    config: Mapping[str, Any]
    """Sampling settings of this program and this call."""
    capabilities: Capabilities
    tool_choice: str | Mapping[str, Any] | None = None
    parallel: bool | None = None
    conditions: Conditions = Conditions()

    def request(
        self, signature: type[Signature], messages: Messages, *, tools: Declarations = NO_TOOLS, adapter: Adapter | None = None
    ) -> Request:
        """A request in the adapter's shape.

        A user's adapter may also return the body of an OpenAI chat request; anything else raises `ToolCallError` (`invalid_request`).
        """
        made: Any = (adapter or self.adapter).request(
            signature,
            messages,
            tools=tools,
            tool_choice=self.tool_choice,
            parallel=self.parallel,
            settings=self.config,
            capabilities=self.capabilities,
        )
        return made if type(made) is Request else _as_request(made)


def make_asker(lm: Any, config: Mapping[str, Any], own: Mapping[str, Any], *, native: bool | None) -> Generator[Act, Any, Asker]:
    """Choose model, adapter and sampling settings for a run: the call's own (`own`) first, then the program's, then the settings'.

    `native` is the program's choice between native calls and calls in text. If it made none, a model that refused tools before is not
    sent them again.
    """
    conditions: Conditions = (yield ReadConditions(own.get("lm"))) or Conditions()
    found = next((each for each in (own.get("lm"), lm, conditions.lm) if each is not None), None)
    if found is None:
        msg = (
            "No language model is set. Call `ferrule.configure(lm=LM('provider/model'))`, or give the program one: `program(lm=..., ...)`."
        )
        raise ConfigurationError(msg)
    model = as_model(found)
    merged: dict[str, Any] = {**config, **config_of_call(own.get("config"))}
    choice, parallel = merged.pop("tool_choice", None), merged.pop("parallel_tool_calls", None)
    if native is None and _refusing.get(id(model)) is model:
        # The choice itself stays: a journal holds the refusal, and must replay in a process that does not remember it.
        model = _RefusingTools(model)
    return Asker(model, conditions.adapter or _DEFAULT_ADAPTER, merged, model.capabilities, choice, parallel, conditions)


def ask_model(
    asker: Asker,
    signature: type[Signature],
    request: Request,
    render: Callable[[Adapter], Messages],
    *,
    read: _Read = None,
    reader: Callable[[Adapter], FieldReader] | None = None,
) -> Answering:
    """Fields, and the response they were parsed from.

    `request` is the rendered question; `render` makes its messages again for another adapter; `read` replaces `adapter.read`; `reader`
    splits a streamed answer into fields.
    Raises `AdapterParseError` when the answer could not be parsed after `adapter.repairs` repairs and one try with the fallback adapter;
    its cause is the first such error.
    """
    adapter, is_observed = asker.adapter, asker.conditions.is_observed
    last = 2 + adapter.repairs
    first: AdapterParseError | None = None
    for attempt in range(1, last + 1):
        if attempt == last:
            if adapter.fallback is None:
                break
            adapter = adapter.fallback
            request = asker.request(signature, render(adapter), tools=request.tools, adapter=adapter)
        if is_observed:
            name = type(adapter).__name__
            yield Tell(events.Formatted(request.digest, attempt, name, len(request.messages), len(request.tools)))
        make = (partial(reader, adapter) if reader else partial(adapter.reader, signature)) if is_observed else None
        act = CallModel(request, asker.lm, make, attempt)
        response = _NO_ANSWER
        try:
            response = yield from _call(act, adapter)
            if is_observed:
                return (yield from _parse_observed(adapter, signature, request, response, read, attempt)), response
            return _parse(adapter, signature, response, read), response
        except AdapterParseError as error:
            if attempt == last:
                raise error from first
            first = first or error
            yield Tell(events.AttemptFailed(str(error), attempt))
            repair = adapter.repair_messages(signature, response, error, native=len(request.tools) > 0)
            request = request.following(request.messages.then(*repair))
    raise first or AssertionError  # the first: the loop ran at least once and did not return


def _call(act: CallModel, adapter: Adapter) -> Generator[Act, Any, Response]:
    """The answer; raises `AdapterParseError` if the server could not parse what its model wrote."""
    try:
        return (yield act)
    except BadRequestError as error:
        if _UNPARSED not in str(error):
            raise
        problem = "the server could not parse it: it does not have the form in which this model writes calls"
        code = "invalid_tool_calls" if act.request.tools else "invalid_outputs"
        raise AdapterParseError(type(adapter).__name__, "", [("", problem)], code=code) from error


def _parse_observed(  # noqa: PLR0917  `_parse`, and what its events say
    adapter: Adapter, signature: type[Signature], request: Request, response: Response, read: _Read, attempt: int
) -> Generator[Act, Any, dict[str, Any]]:
    """`_parse`, with events for its beginning and, on every path, its end."""
    name, calls = type(adapter).__name__, len(response.tool_calls)
    yield Tell(events.ParseStarted(request.digest, attempt, name, calls))
    try:
        fields = _parse(adapter, signature, response, read)
        outputs = tuple(fields)
    except BaseException as error:  # by name: `sys.exception()` may be one that the caller of the program is handling
        yield Tell(events.ParseFinished(request.digest, attempt, name, calls, (), error))
        raise
    yield Tell(events.ParseFinished(request.digest, attempt, name, calls, outputs))
    return fields


def _parse(adapter: Adapter, signature: type[Signature], response: Response, read: _Read) -> dict[str, Any]:
    if response.refusal and not response.text and not response.tool_calls:
        raise RefusalError(f"the model declined: {response.refusal}")
    return adapter.read(signature, response) if read is None else read(adapter, response)


def validated(
    validate: Callable[[dict[str, Any]], dict[str, Any]], adapter: Adapter, response: Response, outputs: dict[str, Any]
) -> dict[str, Any]:
    """The outputs as the validators leave them; raises `AdapterParseError` with what they object to, for the model to correct."""
    try:
        return validate(outputs)
    except InvalidOutputsError as error:
        raise AdapterParseError(type(adapter).__name__, response.text or "", error.problems, parsed=outputs) from error


def _as_request(made: Any) -> Request:
    if isinstance(made, Request):
        return made
    from ferrule.models.wires.openai_chat.read_request import read_request  # late: only a user's adapter returns a body

    try:
        return read_request(made)
    except InputError as error:
        msg = f"An adapter's `request` returns a `Request`, found {shown(made)}: {error}"
        raise ToolCallError("invalid_request", msg, raw=made) from error


# -- native calls, or calls in text ------------------------------------------------------------------------------

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


def calls_natively(asker: Asker, wanted: bool | None) -> bool:
    """Whether tools are declared to the model: as the program wants, else by the model's capabilities."""
    if wanted is not None:
        return wanted
    if not asker.capabilities.native_tools:
        _warn(asker, "its capabilities say that it takes no tool declarations")
    return asker.capabilities.native_tools


def refuses_tools(asker: Asker, error: LMError) -> bool:
    """Whether the error says that the model takes no tool declarations, whatever its capabilities say. The model is remembered."""
    if not isinstance(error, BadRequestError):
        return False
    words = re.sub(_NARROWER, "…", str(error), flags=re.IGNORECASE)
    # A template whose roles must alternate has no place for results of tools.
    if not re.search(_REFUSAL, words, re.IGNORECASE) and not demands_alternation(error):
        return False
    with suppress(TypeError):  # a class with `__slots__` may allow no weak references: its models are asked again each time
        _refusing[id(asker.lm)] = asker.lm
    _warn(asker, "it refused the declared tools", f" ({error})")
    return True


class _RefusingTools(BaseLM):
    """A model that refused tools once: it refuses them again without a request."""

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
            raise BadRequestError(f"`{self.name}` does not support tools: it said so before, and was not asked again")
        return self._lm


def calls_in_text(asker: Asker, text: str | None, tools: Iterable[Any]) -> tuple[tuple[ToolCall, ...], str]:
    """The calls of offered tools that a model wrote as text, in the form it was trained on; and the rest of the text.

    A server that does not parse the calls of its model sends them as the text of the answer. A call that the text only quotes is not found.
    """
    found, rest = find(text, tools) if text else ([], "")
    if found:
        _log_once(asker, _CALLS_AS_TEXT, "")
    return tuple([ToolCall.unchecked(**fields) for fields in found]), rest


def _warn(asker: Asker, reason: str, found: str = "") -> None:
    form = f"%s gets its tools in the text of the prompt: {reason}%s. `native=False` says so from the start, `native=True` insists."
    _log_once(asker, form, found)


_CALLS_AS_TEXT = "%s wrote its calls as text, and they were read.%s A server that can parse calls may need an option for it."


def _log_once(asker: Asker, form: str, found: str) -> None:
    """Log a warning once for each model."""
    name = str(asker.lm.name)
    if (name, form) not in _warned:
        import logging  # late: most runs log nothing here

        _warned.add((name, form))
        logging.getLogger("ferrule.programs").warning(form, name, found)
