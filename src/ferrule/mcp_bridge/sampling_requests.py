"""Sampling: an MCP server asks for a completion of your model, within limits.

Nothing is sampled unless you pass `sample=sampling(lm)` to `MCPServer`: the texts are the server's,
and so is the use of the answer. The model gets no tools.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import MCPToolError, checks_keywords, shown
from ferrule.tools.mcp.safety import scrub
from ferrule.values.content.convert import content_text
from ferrule.values.content.parts import Audio, Content, Image, Part, Text, is_base64
from ferrule.values.conversation.exchange import Request
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ferrule.models.model import Model

    Approve = Callable[[dict[str, Any]], bool | Awaitable[bool]]

_STOPS = {"length": "maxTokens", "max_tokens": "maxTokens", "stop_sequence": "stopSequence"}


@checks_keywords
def sampling(
    lm: Model, *, max_calls: int = 10, max_tokens: int = 1000, approve: Approve | None = None
) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    """A hook for `sample=`.

    It answers at most `max_calls` times, each with at most `max_tokens`, whatever the server asks
    for. `approve(params)`, sync or async, returns whether to answer a request. A refused request
    fails on the server; if the request was the result of a call, the call raises `MCPToolError`.
    """
    calls_left = max_calls

    async def sample(params: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls_left
        if params.get("tools") or params.get("toolChoice"):
            raise _refused("it wants the model to have tools")
        if calls_left <= 0:
            raise _refused(f"its budget of {max_calls} answers is used up")
        calls_left -= 1
        if approve is not None:
            is_approved = approve(params)
            if inspect.isawaitable(is_approved):
                is_approved = await is_approved
            if not is_approved:
                raise _refused("no one approved it")
        response = await lm.acomplete(_request(params, max_tokens))
        return {
            "role": "assistant",
            "content": {"type": "text", "text": response.text or ""},
            "model": lm.name or "model",
            "stopReason": _STOPS.get(str(response.finish_reason), "endTurn"),
        }

    return sample


def _request(params: Mapping[str, Any], max_tokens: int) -> Request:
    messages = [_message(message) for message in params.get("messages") or ()]
    if params.get("systemPrompt"):
        messages.insert(0, Message("system", scrub(str(params["systemPrompt"]))))
    wanted: Any = params.get("maxTokens")
    if isinstance(wanted, int) and wanted > 0:
        max_tokens = min(wanted, max_tokens)
    settings: dict[str, Any] = {"max_tokens": max_tokens}
    if isinstance(params.get("temperature"), int | float):
        settings["temperature"] = params["temperature"]
    if params.get("stopSequences"):
        settings["stop"] = list(params["stopSequences"])
    return Request(Messages(messages), settings=settings)


def _message(form: Any) -> Message:
    message = cast("Mapping[str, Any]", form)
    content: Any = message.get("content")
    if isinstance(content, list):
        blocks = cast("list[Any]", content)
    else:
        blocks = [content]
    parts = tuple(_part(block) for block in blocks)
    merged: Content = parts
    if all(isinstance(part, Text) for part in parts):
        merged = content_text(parts)
    return Message("assistant" if message.get("role") == "assistant" else "user", merged)


def _part(block: Any) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text=scrub(text))
        case {"type": "image", "data": str(data), "mimeType": str(kind)} if is_base64(data):
            return Image(data=data, media_type=kind)
        case {"type": "audio", "data": str(data), "mimeType": str(kind)} if is_base64(data):
            return Audio(data=data, media_type=kind)
        case _:
            raise _refused(f"it sends content that a model cannot read: {shown(block, 80)}")


def _refused(why: str) -> MCPToolError:
    return MCPToolError(
        f"The server's request for a model was refused: {why}.", phase="sampling", may_have_run=None
    )
