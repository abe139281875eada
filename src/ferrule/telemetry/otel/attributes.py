"""Attributes of spans, from models, requests, answers and tools. Nothing here is content."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ferrule.errors import ToolTimeoutError
from ferrule.telemetry.otel import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.values.calls.call import ToolResult
    from ferrule.values.conversation.exchange import Request, Response

_PORTS = {"http": 80, "https": 443}


def about_model(lm: Any) -> dict[str, Any]:
    """What a sampler may look at: the operation, the provider, the model, the server."""
    found: dict[str, Any] = {
        names.OPERATION: "chat",
        **about_name(str(getattr(lm, "name", type(lm).__name__))),
    }
    url = getattr(lm, "url", None)
    if isinstance(url, str):
        parts = urlsplit(url)
        if parts.hostname:
            found[names.SERVER_ADDRESS] = parts.hostname
            found[names.SERVER_PORT] = parts.port or _PORTS.get(parts.scheme, 443)
    return found


def about_name(name: str) -> dict[str, Any]:
    """The provider and the model of a name such as `openai/gpt-5`."""
    provider, slash, model = name.partition("/")
    return {
        names.PROVIDER: names.PROVIDER_NAMES.get(provider, provider),
        names.REQUEST_MODEL: model if slash else name,
    }


def about_request(lm: Any, request: Request) -> dict[str, Any]:
    """The settings of a request: those of the call over those of the model."""
    own: Any = getattr(lm, "settings", None)
    settings: Mapping[str, Any] = (
        {**own, **request.settings} if own and isinstance(own, Mapping) else request.settings
    )
    found: dict[str, Any] = {names.OUTPUT_TYPE: "json"} if request.shape is not None else {}
    if settings:
        for key, (name, kind) in names.SETTINGS.items():
            value = settings.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found[name] = kind(value)
        if isinstance(n := settings.get("n"), int) and n != 1:
            found[names.CHOICE_COUNT] = n
        stop = settings.get("stop")
        if isinstance(stop, (str, list, tuple)):
            found[names.STOP_SEQUENCES] = (
                [stop]
                if isinstance(stop, str)
                else [str(each) for each in cast("Sequence[object]", stop)]
            )
    return found


def about_answer(response: Response) -> dict[str, Any]:
    """What an answer says of itself."""
    usage = response.usage
    found: dict[str, Any] = (
        {} if response.answered_by is None else about_name(response.answered_by)
    )  # one of several models
    if usage.total_tokens:
        found[names.INPUT_TOKENS], found[names.OUTPUT_TOKENS] = (
            usage.input_tokens,
            usage.output_tokens,
        )
        if usage.cached_tokens:
            found[names.CACHE_READ_TOKENS] = usage.cached_tokens
        if usage.cache_write_tokens:
            found[names.CACHE_WRITE_TOKENS] = usage.cache_write_tokens
        if usage.reasoning_tokens:
            found[names.REASONING_TOKENS] = usage.reasoning_tokens
    if response.finish_reason is not None:
        found[names.FINISH_REASONS] = [
            response.finish_reason,
            *(each.finish_reason or "" for each in response.others),
        ]
    if response.model is not None:
        found[names.RESPONSE_MODEL] = response.model
    if response.cost is not None:
        found[names.COST] = response.cost
    raw = response.raw
    if raw is None:
        return found
    own_id: Any = (
        cast("Any", raw).get("id", cast("Any", raw).get("responseId"))
        if isinstance(raw, Mapping)
        else getattr(raw, "id", None)
    )  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(own_id, str):
        found[names.RESPONSE_ID] = own_id
    return found


def about_usage(spent: Sequence[float]) -> dict[str, Any]:
    """What a program spent; no cost if that of one answer is unknown, which is NaN."""
    if not spent:
        return {}
    found: dict[str, Any] = {}
    if spent[0] or spent[1]:
        found[names.INPUT_TOKENS], found[names.OUTPUT_TOKENS] = int(spent[0]), int(spent[1])
    if spent[2]:
        found[names.CACHE_READ_TOKENS] = int(spent[2])
    if not isnan(spent[3]):
        found[names.COST] = spent[3]
    return found


def about_tool(name: str, tool: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is the same for all calls of a tool; the method, too, by which an MCP server is called. First what metrics have as well."""
    is_remote = getattr(tool, "mcp", None) is not None
    facts = {
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: name,
        names.TOOL_TYPE: "extension" if is_remote else "function",
    }
    found: dict[str, Any] = {**facts}
    if is_remote:
        found[names.MCP_METHOD] = "tools/call"
    if tool is not None:
        found[names.TOOL_DESCRIPTION], found[names.EFFECT] = (
            tool.declaration["function"].get("description", ""),
            tool.effect,
        )
    return facts, found


def about_session(tool: Any) -> dict[str, Any]:
    """The connection to the MCP server of a tool, read after each call: a call may have reconnected."""
    caller = getattr(getattr(tool, "func", None), "caller", None)
    found = {
        names.MCP_VERSION: getattr(caller, "protocol_version", None),
        names.MCP_SESSION: getattr(caller, "session_id", None),
    }
    return {name: value for name, value in found.items() if isinstance(value, str) and value}


def error_type(error: BaseException) -> str:
    """The class of an error; `timeout` for a tool's time limit."""
    return "timeout" if isinstance(error, ToolTimeoutError) else type(error).__name__


def error_of_result(result: ToolResult) -> str | None:
    """Why a call failed: the class of what its tool raised, `timeout`, or `tool_error` where the result is an error."""
    if not result.is_error:
        return None
    return "tool_error" if result.error is None else error_type(result.error)
