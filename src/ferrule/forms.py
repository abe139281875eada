"""Values of a run as JSON data, for the journal and for events."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import asdict

from ferrule.approval.question import Decision, Question
from ferrule.encoding.encode import jsonable
from ferrule.errors import LMError
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.content.convert import marked_parts, read_marked
from ferrule.values.content.type import Type
from ferrule.values.conversation.exchange import Request, Response, Usage
from ferrule.values.outcome import Prediction, Step, Trajectory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from msgspec import Struct

FACTS = ("provider", "status", "request_id", "retry_after_s")
"""The details of a model error, in addition to its class and its text."""

_OF_RESPONSES = [name for name in Response.__struct_fields__ if name not in {"body", "answered_by"}]
_OF_RESULTS = [name for name in ToolResult.__struct_fields__ if name not in {"value", "error"}]
_in_response, _in_result = attrgetter(*_OF_RESPONSES), attrgetter(*_OF_RESULTS)


def form_of(value: Any) -> Any:
    """Any value of an event as JSON data. Leaves out what only this process can use: tools' values, providers' own answers."""
    if isinstance(value, BaseException):
        return error_facts(value)
    make = _FORMS.get(type(value))  # pyright: ignore[reportUnknownArgumentType]  of any value
    return make(value) if make is not None else _drawn(read_marked(jsonable(marked_parts(value))))


def call_form(call: ToolCall) -> dict[str, Any]:
    """A call, with all its fields."""
    form: dict[str, Any] = {"name": call.name, "args": call.args, "id": call.id}
    if call.intention is not None:
        form["intention"] = call.intention
    if call.fault is not None:
        form["fault"] = dataclasses.asdict(call.fault)
    if call.repairs:
        form["repairs"] = call.repairs
    return form


def response_form(response: Response) -> dict[str, Any]:
    """A response without the provider's raw answer; `usage` is a list of numbers."""
    values = zip(_OF_RESPONSES, _in_response(response), strict=True)
    form = {name: value for name, value in values if value is not None and value != ()}
    form["usage"] = list(response.usage.counts)
    if response.tool_calls:
        form["tool_calls"] = [call_form(call) for call in response.tool_calls]
    if response.others:
        form["others"] = [response_form(each) for each in response.others]
    return form


def usage_form(usage: Usage) -> dict[str, Any]:
    """Tokens by name, with the cost and the usage by model, if any. `Usage(**form)` reads it, once those parts are read."""
    form = {
        name: value
        for name, value in asdict(usage).items()
        if name != "by_model" and value is not None
    }
    if usage.by_model:
        form["by_model"] = {name: usage_form(each) for name, each in usage.by_model.items()}
    return form


def result_form(result: ToolResult) -> dict[str, Any]:
    """A result without the tool's value and its exception; `content` is unchanged."""
    values = zip(_OF_RESULTS, _in_result(result), strict=True)
    return {
        name: value
        for name, value in values
        if value is not None and value is not False and value != ()
    }


def error_facts(error: BaseException) -> dict[str, Any]:
    """The storable part of an error: its class, its text, and for a model error the provider's details."""
    kinds = type(error).__mro__
    known = next(
        (
            kind.__name__
            for kind in kinds
            if kind.__module__ == LMError.__module__ and issubclass(kind, LMError)
        ),
        None,
    )
    facts = (
        {name: value for name in FACTS if (value := getattr(error, name, None)) is not None}
        if known
        else {}
    )
    return {"type": known or type(error).__name__, "text": str(error), **facts}


def record_form(record: Struct) -> dict[str, Any]:
    """A decision or a question, by its fields."""
    form = {
        name: call_form(value) if isinstance(value, ToolCall) else value
        for name, value in asdict(record).items()
    }
    return jsonable(form)


def _drawn(value: Any) -> Any:
    """JSON data with its images and other parts in OpenAI's form."""
    if isinstance(value, Type):
        return jsonable(value.format()[0])
    if isinstance(value, dict):
        return {name: _drawn(each) for name, each in cast("dict[str, Any]", value).items()}
    return (
        [_drawn(each) for each in cast("Sequence[Any]", value)]
        if isinstance(value, (list, tuple))
        else value
    )


def _result(result: ToolResult) -> dict[str, Any]:
    return {**result_form(result), "content": _drawn(result.content)}


def _response(response: Response) -> dict[str, Any]:
    form = {name: each for name, each in response_form(response).items() if name != "extra"}
    return {**form, "usage": usage_form(response.usage)}


def _request(request: Request) -> dict[str, Any]:
    names = [each["function"]["name"] for each in request.tools]
    return {"digest": request.digest, "messages": len(request.messages), "tools": names}


def _step(step: Step) -> dict[str, Any]:
    return {
        "thought": step.thought,
        "calls": [call_form(each) for each in step.calls],
        "results": [_result(each) for each in step.results],
    }


def _trajectory(trajectory: Trajectory) -> list[Any]:
    return [_step(each) for each in trajectory.steps]


def _prediction(prediction: Prediction) -> dict[str, Any]:
    reason: str | None = prediction._reason  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  an output may have the name `reason`
    outputs = {name: form_of(each) for name, each in prediction.items()}
    return {"outputs": outputs, "reason": reason, "usage": usage_form(prediction.get_lm_usage())}


def _question(question: Question) -> dict[str, Any]:
    return {**record_form(question), "digest": question.digest}


_FORMS: Mapping[type, Any] = {
    ToolCall: call_form, ToolResult: _result, Response: _response, Request: _request, Step: _step, Trajectory: _trajectory,
    Prediction: _prediction, Question: _question, Decision: record_form,
}  # fmt: skip
