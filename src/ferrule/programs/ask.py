"""Asking a model for fields: one call, read; what cannot be read goes back to the model, then to the fallback adapter.  (Floor 5.)"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule import settings
from ferrule.adapters.chat import ChatAdapter
from ferrule.errors import AdapterParseError, ConfigurationError, Refused
from ferrule.lms.lm import as_model
from ferrule.values import event as events
from ferrule.values.act import Act, CallModel, Tell
from ferrule.values.exchange import NO_TOOLS, Capabilities, Declarations, FieldReader, Request, Response
from ferrule.values.record import Record

if TYPE_CHECKING:
    from ferrule.adapters.adapter import Adapter
    from ferrule.values.message import Messages
    from ferrule.values.signature import Signature

Asked = Generator[Act, Any, tuple[dict[str, Any], Response]]
_DEFAULT_ADAPTER = ChatAdapter()


class Asker(Record):
    """How one program asks during one run: fixed when it is called."""

    lm: Any
    adapter: Adapter
    config: Mapping[str, Any]
    """Sampling settings of this program and this call."""
    capabilities: Capabilities

    def request(
        self,
        signature: type[Signature],
        messages: Messages,
        *,
        tools: Declarations = NO_TOOLS,
        adapter: Adapter | None = None,
    ) -> Request:
        """A request in the adapter's shape."""
        shaping = adapter or self.adapter
        return shaping.request(signature, messages, tools=tools, settings=self.config, capabilities=self.capabilities)


def asker(lm: Any, config: Mapping[str, Any], own: Mapping[str, Any]) -> Asker:
    """Settle model, adapter and settings for a run: the call's own, then the program's, then the settings'."""
    here = settings.current()
    found = own.get("lm") or lm or here.lm
    if found is None:
        msg = (
            "No language model is set. Call `ferrule.configure(lm=LM('provider/model'))`, or give the program one: `program(lm=..., ...)`."
        )
        raise ConfigurationError(msg)
    model = as_model(found)
    merged: dict[str, Any] = {**config, **(own.get("config") or {})}
    return Asker(model, here.adapter or _DEFAULT_ADAPTER, merged, model.capabilities)


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
    `reader` what splits a streamed answer.
    Raises `AdapterParseError` when the answer could not be read after `adapter.repairs` repairs and one try with the fallback adapter; its
    cause is the first such error.
    """
    adapter = how.adapter
    first: AdapterParseError | None = None
    for attempt in range(1 + adapter.repairs):
        response = yield CallModel(request, how.lm, reader or partial(adapter.reader, signature))
        try:
            return _fields(adapter, signature, response, read), response
        except AdapterParseError as error:
            first = first or error
            yield Tell(events.AttemptFailed(str(error), attempt + 1))
            request = request.following(request.messages.then(*adapter.repair_messages(signature, response, error)))
    other = adapter.fallback
    if other is None or first is None:  # the second never: the loop ran at least once and did not return
        raise first or AssertionError
    again = how.request(signature, render(other), tools=request.tools, adapter=other)
    response = yield CallModel(again, how.lm, reader or partial(other.reader, signature))
    try:
        return _fields(other, signature, response, read), response
    except AdapterParseError as error:
        raise error from first


def _fields(
    adapter: Adapter, signature: type[Signature], response: Response, read: Callable[[Adapter, Response], dict[str, Any]] | None
) -> dict[str, Any]:
    if response.refusal and not response.text and not response.tool_calls:
        raise Refused(f"the model declined: {response.refusal}")
    return adapter.read(signature, response) if read is None else read(adapter, response)
