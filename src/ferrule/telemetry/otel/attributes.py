"""Attributes of spans, from models, requests, answers and tools. Nothing here is content."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ferrule.encoding.encode import json_text
from ferrule.errors import ToolTimeoutError
from ferrule.telemetry.otel import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.values.calls.call import ToolResult
    from ferrule.values.conversation.exchange import Request, Response

_CONVENTIONS = {"user": names.USER_ID, "conversation": names.CONVERSATION_ID}
"""Metadata of a run with a name in the conventions."""
_PORTS = {"http": 80, "https": 443}


def about_model(lm: Any) -> dict[str, Any]:
    """The operation, the provider, the model and the server: what a sampler may look at."""
    name = str(getattr(lm, "name", type(lm).__name__))
    attributes: dict[str, Any] = {names.OPERATION: "chat", **about_name(name)}
    url = getattr(lm, "url", None)
    if isinstance(url, str):
        parts = urlsplit(url)
        if parts.hostname:
            attributes[names.SERVER_ADDRESS] = parts.hostname
            attributes[names.SERVER_PORT] = parts.port or _PORTS.get(parts.scheme, 443)
    return attributes


def about_name(name: str) -> dict[str, Any]:
    """The provider and the model of a name such as `openai/gpt-5`."""
    provider, slash, model = name.partition("/")
    if not slash:
        model = name
    return {
        names.PROVIDER: names.PROVIDER_NAMES.get(provider, provider),
        names.REQUEST_MODEL: model,
    }


def about_run(metadata: Mapping[str, Any], title: str) -> dict[str, Any]:
    """What a run was started with: its title and metadata, and what conventions call some of it.

    `user` is also `user.id`, and `conversation` is also `gen_ai.conversation.id`.
    """
    attributes: dict[str, Any] = {}
    if title:
        attributes[names.RUN_TITLE] = title
    for name, value in metadata.items():
        # Attributes are scalars; everything else is its JSON.
        if isinstance(value, (str, bool, int, float)):
            attributes[names.RUN_METADATA + name] = value
        else:
            attributes[names.RUN_METADATA + name] = json_text(value)
    for name, convention in _CONVENTIONS.items():
        if isinstance(metadata.get(name), (str, int)):
            attributes[convention] = str(metadata[name])
    return attributes


def about_request(lm: Any, request: Request) -> dict[str, Any]:
    """The settings of a request: those of the call over those of the model."""
    attributes: dict[str, Any] = {}
    if request.shape is not None:
        attributes[names.OUTPUT_TYPE] = "json"
    settings: Mapping[str, Any] = request.settings
    model_settings: Any = getattr(lm, "settings", None)
    if model_settings and isinstance(model_settings, Mapping):
        settings = {**model_settings, **request.settings}
    if not settings:
        return attributes
    for key, (name, kind) in names.SETTINGS.items():
        value = settings.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            attributes[name] = kind(value)
    count = settings.get("n")
    if isinstance(count, int) and count != 1:
        attributes[names.CHOICE_COUNT] = count
    stop = settings.get("stop")
    if isinstance(stop, str):
        attributes[names.STOP_SEQUENCES] = [stop]
    elif isinstance(stop, (list, tuple)):
        attributes[names.STOP_SEQUENCES] = [
            str(sequence) for sequence in cast("Sequence[object]", stop)
        ]
    return attributes


def about_answer(response: Response) -> dict[str, Any]:
    """What an answer says about itself."""
    attributes: dict[str, Any] = {}
    if response.answered_by is not None:  # one of several models
        attributes |= about_name(response.answered_by)
    usage = response.usage
    if usage.total_tokens:
        attributes[names.INPUT_TOKENS] = usage.input_tokens
        attributes[names.OUTPUT_TOKENS] = usage.output_tokens
        if usage.cached_tokens:
            attributes[names.CACHE_READ_TOKENS] = usage.cached_tokens
        if usage.cache_write_tokens:
            attributes[names.CACHE_WRITE_TOKENS] = usage.cache_write_tokens
        if usage.reasoning_tokens:
            attributes[names.REASONING_TOKENS] = usage.reasoning_tokens
    if response.finish_reason is not None:
        other_reasons = [other.finish_reason or "" for other in response.others]
        attributes[names.FINISH_REASONS] = [response.finish_reason, *other_reasons]
    if response.model is not None:
        attributes[names.RESPONSE_MODEL] = response.model
    if response.cost is not None:
        attributes[names.COST] = response.cost
    response_id = _id_of(response.raw)
    if isinstance(response_id, str):
        attributes[names.RESPONSE_ID] = response_id
    return attributes


def _id_of(raw: Any) -> Any:
    """The id that a provider gave its answer: decoded JSON of ours, or an object of a client."""
    if isinstance(raw, Mapping):
        answer = cast("Mapping[str, Any]", raw)
        return answer.get("id", answer.get("responseId"))  # the latter is Gemini's
    return getattr(raw, "id", None)


def about_usage(spent: Sequence[float]) -> dict[str, Any]:
    """What a program spent; no cost if that of one answer is unknown, which is NaN."""
    if not spent:
        return {}
    input_tokens, output_tokens, cached_tokens, cost = spent
    attributes: dict[str, Any] = {}
    if input_tokens or output_tokens:
        attributes[names.INPUT_TOKENS] = int(input_tokens)
        attributes[names.OUTPUT_TOKENS] = int(output_tokens)
    if cached_tokens:
        attributes[names.CACHE_READ_TOKENS] = int(cached_tokens)
    if not isnan(cost):
        attributes[names.COST] = cost
    return attributes


def about_tool(name: str, tool: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of all calls of a tool: those of metrics, and those of spans.

    Those of spans include those of metrics. Only a tool of an MCP server has the method that calls
    it.
    """
    is_remote = getattr(tool, "mcp", None) is not None
    on_metrics = {
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: name,
        names.TOOL_TYPE: "extension" if is_remote else "function",
    }
    on_spans: dict[str, Any] = {**on_metrics}
    if is_remote:
        on_spans[names.MCP_METHOD] = "tools/call"
    if tool is not None:
        on_spans[names.TOOL_DESCRIPTION] = tool.declaration["function"].get("description", "")
        on_spans[names.EFFECT] = tool.effect
    return on_metrics, on_spans


def about_session(tool: Any) -> dict[str, Any]:
    """The connection to the MCP server of a tool, read after each call, which may reconnect."""
    caller = getattr(getattr(tool, "func", None), "caller", None)
    session = {
        names.MCP_VERSION: getattr(caller, "protocol_version", None),
        names.MCP_SESSION: getattr(caller, "session_id", None),
    }
    return {name: value for name, value in session.items() if isinstance(value, str) and value}


def error_type(error: BaseException) -> str:
    """The class of an error; `timeout` for a tool's time limit."""
    if isinstance(error, ToolTimeoutError):
        return "timeout"
    return type(error).__name__


def error_of_result(result: ToolResult) -> str | None:
    """Why a call failed; None if it did not.

    That is the class of what its tool raised, `timeout`, or `tool_error` if the tool returned an
    error, as MCP servers do.
    """
    if not result.is_error:
        return None
    if result.error is None:
        return "tool_error"
    return error_type(result.error)
