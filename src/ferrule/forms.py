"""Values of a run as JSON data, for the journal and for events.

A form leaves out what only this process can use: the values that tools return, exceptions, and the
providers' raw answers. The journal and the events share these forms, so that what an observer
receives is what a store keeps.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from msgspec import NODEFAULT
from msgspec.structs import asdict, fields

from ferrule.approval.question import Decision, Question
from ferrule.encoding.encode import jsonable
from ferrule.errors import FerruleError, LimitReachedError, LMError
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.content.convert import marked_parts, read_marked
from ferrule.values.content.type import Type
from ferrule.values.conversation.exchange import Request, Response, Usage
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.provider_tools import ProviderCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Struct

FACTS = ("provider", "status", "request_id", "retry_after_s")
"""The details of a model error in an event, in addition to its class and its text."""

_RESPONSE_FIELDS = [
    name for name in Response.__struct_fields__ if name not in {"body", "answered_by"}
]
_RESULT_FIELDS = [name for name in ToolResult.__struct_fields__ if name not in {"value", "error"}]


def form_of(value: Any) -> Any:
    """Any value of an event as JSON data, with images and other parts in OpenAI's form."""
    match value:
        case BaseException():
            return error_facts(value)
        case ToolCall():
            return call_form(value)
        case ToolResult():
            return _drawn_result(value)
        case Response():
            return _event_response(value)
        case Request():
            return _event_request(value)
        case Step():
            return _step(value)
        case Trajectory():
            return [_step(step) for step in value.steps]
        case Prediction():
            return _prediction(cast("Prediction[Any]", value))
        case Question():
            return {**record_form(value), "digest": value.digest}
        case Decision():
            return record_form(value)
        case ProviderCall():
            return set_fields(value)
        case _:
            return _draw(read_marked(jsonable(marked_parts(value))))


def call_form(call: ToolCall) -> dict[str, Any]:
    """A call, with all its fields."""
    form: dict[str, Any] = {"name": call.name, "args": call.args, "id": call.id}
    if call.intention is not None:
        form["intention"] = call.intention
    if call.fault is not None:
        form["fault"] = dataclasses.asdict(call.fault)
    if call.repairs:
        form["repairs"] = call.repairs
    if call.confidence is not None:
        form["confidence"] = call.confidence
    if call.written is not None:
        form["written"] = call.written
    return form


def response_form(response: Response) -> dict[str, Any]:
    """A response without the provider's raw answer; `usage` is a list of numbers."""
    form: dict[str, Any] = {}
    for name in _RESPONSE_FIELDS:
        value = getattr(response, name)
        if value is not None and value != ():
            form[name] = value
    form["usage"] = list(response.usage.counts)
    if response.usage.provider_calls:
        form["usage_of_provider_tools"] = dict(response.usage.provider_calls)
    if response.provider_calls:
        form["provider_calls"] = [set_fields(call) for call in response.provider_calls]
    if response.citations:
        form["citations"] = [set_fields(citation) for citation in response.citations]
    if response.tool_calls:
        form["tool_calls"] = [call_form(call) for call in response.tool_calls]
    if response.others:
        form["others"] = [response_form(other) for other in response.others]
    return form


def set_fields(record: Struct) -> dict[str, Any]:
    """The fields of a record that do not have their defaults, by name."""
    form: dict[str, Any] = {}
    for option in fields(record):
        value = getattr(record, option.name)
        default = option.default
        if default is NODEFAULT and option.default_factory is not NODEFAULT:
            default = option.default_factory()
        if value != default:
            form[option.name] = value
    return form


def usage_form(usage: Usage) -> dict[str, Any]:
    """Tokens by name, with the cost and the usage by model, if any.

    `Usage(**form)` reads it, once the usage by model is read.
    """
    form = {
        name: value
        for name, value in asdict(usage).items()
        if name not in {"by_model", "provider_calls"} and value is not None
    }
    if usage.provider_calls:
        form["provider_calls"] = dict(usage.provider_calls)
    if usage.by_model:
        form["by_model"] = {
            model: usage_form(usage_of_model) for model, usage_of_model in usage.by_model.items()
        }
    return form


def result_form(result: ToolResult) -> dict[str, Any]:
    """A result without the tool's value and its exception; `content` is unchanged."""
    form: dict[str, Any] = {}
    for name in _RESULT_FIELDS:
        value = getattr(result, name)
        if value is not None and value is not False and value != ():
            form[name] = value
    return form


def error_facts(error: BaseException) -> dict[str, Any]:
    """An error for readers of events: its class, its text, and the details of two kinds.

    Those are a model error's, and the name and the value of a limit. A model error of a class that
    a user derived has the name of ferrule's class.
    """
    facts: dict[str, Any] = {"type": type(error).__name__, "text": str(error)}
    if isinstance(error, LimitReachedError):
        return {**facts, **error.facts}
    if not isinstance(error, LMError):
        return facts
    facts["type"] = our_class(error).__name__
    for name in FACTS:
        value = getattr(error, name, None)
        if value is not None:
            facts[name] = value
    return facts


def our_class(error: FerruleError) -> type[FerruleError]:
    """The class of `ferrule.errors` that an error has, or from which a user derived its class."""
    for error_class in type(error).__mro__:
        if error_class.__module__ == FerruleError.__module__:
            return cast("type[FerruleError]", error_class)
    return FerruleError


def record_form(record: Struct) -> dict[str, Any]:
    """A decision or a question as JSON data."""
    return jsonable(record_fields(record))


def record_fields(record: Struct) -> dict[str, Any]:
    """A decision or a question by its fields, to be written as JSON."""
    fields = asdict(record)
    for name, value in fields.items():
        if isinstance(value, ToolCall):
            fields[name] = call_form(value)
    return fields


def _draw(value: Any) -> Any:
    """JSON data with its images and other parts in OpenAI's form."""
    if isinstance(value, Type):
        return jsonable(value.format()[0])
    if isinstance(value, dict):
        return {name: _draw(member) for name, member in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_draw(item) for item in cast("Sequence[Any]", value)]
    return value


def _drawn_result(result: ToolResult) -> dict[str, Any]:
    return {**result_form(result), "content": _draw(result.content)}


def _event_response(response: Response) -> dict[str, Any]:
    # Tokens by name: a list of numbers, as in the journal, would need an explanation.
    form = {**response_form(response), "usage": usage_form(response.usage)}
    form.pop("usage_of_provider_tools", None)  # the usage has it
    form.pop("extra", None)
    form.pop("tokens", None)  # as long as the answer again; what follows from them is in the calls
    return form


def _event_request(request: Request) -> dict[str, Any]:
    """The request without its messages, which may be long and private."""
    tool_names = [declaration["function"]["name"] for declaration in request.tools]
    tool_names += [tool.name for tool in request.provider_tools]
    return {"digest": request.digest, "messages": len(request.messages), "tools": tool_names}


def _step(step: Step) -> dict[str, Any]:
    if step.said:
        return {"said": step.said}
    form: dict[str, Any] = {
        "thought": step.thought,
        "calls": [call_form(call) for call in step.calls],
        "results": [_drawn_result(result) for result in step.results],
    }
    if step.provider_calls:
        form["provider_calls"] = [set_fields(call) for call in step.provider_calls]
    if step.citations:
        form["citations"] = [set_fields(citation) for citation in step.citations]
    return form


def _prediction(prediction: Prediction[Any]) -> dict[str, Any]:
    # Not `prediction.reason`: an output may have this name.
    reason: str | None = prediction._reason  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    outputs = {name: form_of(value) for name, value in prediction.items()}
    return {"outputs": outputs, "reason": reason, "usage": usage_form(prediction.get_lm_usage())}
