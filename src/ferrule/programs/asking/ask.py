"""Asking a model for fields: one call, read; what cannot be read goes back to the model, then to the fallback adapter."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule.adapters.chat import ChatAdapter
from ferrule.errors import AdapterParseError, ConfigurationError, InputError, RefusalError, ToolCallError, shown
from ferrule.models.model import as_model
from ferrule.programs.asking.options import config_of_call
from ferrule.values.conversation.exchange import NO_TOOLS, Capabilities, Declarations, FieldReader, Request, Response
from ferrule.values.record import Record
from ferrule.values.run import event as events
from ferrule.values.run.act import Act, CallModel, Conditions, ReadConditions, Tell

if TYPE_CHECKING:
    from ferrule.adapters.adapter import Adapter
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature

Asked = Generator[Act, Any, tuple[dict[str, Any], Response]]
_DEFAULT_ADAPTER = ChatAdapter(use_native_function_calling=None)
"""Where nobody chose an adapter, the model's capabilities choose between native calls and calls in text (E65)."""


class Asker(Record):
    """How one program asks during one run: fixed when it is called."""

    lm: Any
    adapter: Adapter
    config: Mapping[str, Any]
    """Sampling settings of this program and this call."""
    capabilities: Capabilities
    tool_choice: str | Mapping[str, Any] | None = None
    parallel: bool | None = None
    conditions: Conditions = Conditions()

    def request(
        self,
        signature: type[Signature],
        messages: Messages,
        *,
        tools: Declarations = NO_TOOLS,
        adapter: Adapter | None = None,
    ) -> Request:
        """A request in the adapter's shape. An adapter of a user may also give OpenAI's body of one; anything else is `invalid_request`."""
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


def asker(lm: Any, config: Mapping[str, Any], own: Mapping[str, Any]) -> Generator[Act, Any, Asker]:
    """Settle model, adapter and sampling settings for a run: the call's own come first, then the program's, then the settings'."""
    conditions: Conditions = (yield ReadConditions()) or Conditions()
    found = next((each for each in (own.get("lm"), lm, conditions.lm) if each is not None), None)
    if found is None:
        msg = (
            "No language model is set. Call `ferrule.configure(lm=LM('provider/model'))`, or give the program one: `program(lm=..., ...)`."
        )
        raise ConfigurationError(msg)
    model = as_model(found)
    merged: dict[str, Any] = {**config, **config_of_call(own.get("config"))}
    choice, parallel = merged.pop("tool_choice", None), merged.pop("parallel_tool_calls", None)
    return Asker(model, conditions.adapter or _DEFAULT_ADAPTER, merged, model.capabilities, choice, parallel, conditions)


def ask(
    how: Asker,
    signature: type[Signature],
    request: Request,
    render: Callable[[Adapter], Messages],
    *,
    read: Callable[[Adapter, Response], dict[str, Any]] | None = None,
    reader: Callable[[], FieldReader] | None = None,
) -> Asked:
    """Fields and the response they were read from.

    `request` is the rendered question; `render` makes its messages again for another adapter; `read` replaces `adapter.read`,
    `reader` what splits a streamed answer (only where somebody is told are answers streamed).
    Raises `AdapterParseError` when the answer could not be read after `adapter.repairs` repairs and one try with the fallback adapter; its
    cause is the first such error.
    """
    adapter, is_observed = how.adapter, how.conditions.is_observed
    native = len(request.tools) > 0
    first: AdapterParseError | None = None
    for attempt in range(1, 2 + adapter.repairs):
        if is_observed:
            yield _formatted(adapter, request, attempt)
        response = yield CallModel(request, how.lm, (reader or partial(adapter.reader, signature)) if is_observed else None, attempt)
        try:
            if is_observed:
                return (yield from _read_aloud(adapter, signature, request, response, read, attempt)), response
            return _fields(adapter, signature, response, read), response
        except AdapterParseError as error:
            first = first or error
            yield Tell(events.AttemptFailed(str(error), attempt))
            mending = adapter.repair_messages(signature, response, error, native=native)
            request = request.following(request.messages.then(*mending))
    other = adapter.fallback
    if other is None or first is None:  # the second never: the loop ran at least once and did not return
        raise first or AssertionError
    again = how.request(signature, render(other), tools=request.tools, adapter=other)
    attempt = 2 + adapter.repairs
    if is_observed:
        yield _formatted(other, again, attempt)
    response = yield CallModel(again, how.lm, (reader or partial(other.reader, signature)) if is_observed else None, attempt)
    try:
        if is_observed:
            return (yield from _read_aloud(other, signature, again, response, read, attempt)), response
        return _fields(other, signature, response, read), response
    except AdapterParseError as error:
        raise error from first


Reads = Callable[["Adapter", Response], dict[str, Any]] | None


def _formatted(adapter: Adapter, request: Request, attempt: int) -> Tell:
    return Tell(events.Formatted(request.digest, attempt, type(adapter).__name__, len(request.messages), len(request.tools)))


def _read_aloud(  # noqa: PLR0917  `_fields`, and what observers are told beside it
    adapter: Adapter, signature: type[Signature], request: Request, response: Response, read: Reads, attempt: int
) -> Generator[Act, Any, dict[str, Any]]:
    """`_fields`, with observers told of its beginning and, whatever comes of it, of its end."""
    name, calls = type(adapter).__name__, len(response.tool_calls)
    yield Tell(events.ParseStarted(request.digest, attempt, name, calls))
    try:
        fields = _fields(adapter, signature, response, read)
        outputs = tuple(fields)
    except BaseException as error:  # caught by name: `sys.exception()` may be one that the caller of the program is handling
        yield Tell(events.ParseFinished(request.digest, attempt, name, calls, (), error))
        raise
    yield Tell(events.ParseFinished(request.digest, attempt, name, calls, outputs))
    return fields


def _as_request(made: Any) -> Request:
    if isinstance(made, Request):
        return made
    from ferrule.models.wires.openai_chat.read_request import read_request

    try:
        return read_request(made)
    except InputError as error:
        msg = f"An adapter's `request` gives a `Request`, found {shown(made)}: {error}"
        raise ToolCallError("invalid_request", msg, raw=made) from error


def _fields(adapter: Adapter, signature: type[Signature], response: Response, read: Reads) -> dict[str, Any]:
    if response.refusal and not response.text and not response.tool_calls:
        raise RefusalError(f"the model declined: {response.refusal}")
    return adapter.read(signature, response) if read is None else read(adapter, response)
