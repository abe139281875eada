"""Content as the conventions' JSON: messages, instructions, declarations, arguments, results.

It is made only where a user asks for it. Of a conversation that grows, a span holds the messages
that no earlier span has, so that the thousandth request costs what the tenth did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text
from ferrule.telemetry.otel import names
from ferrule.values.conversation.exchange import Response
from ferrule.values.conversation.message import Message
from ferrule.values.masked import masked_response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ferrule.values.calls.call import ToolResult
    from ferrule.values.calls.secrets import Secrets
    from ferrule.values.content.parts import Content as MessageContent
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.message import Messages

_LONGEST_BYTES = 32 * 1024
"""Collectors drop or cut longer attributes, and then the JSON in them is broken."""
_SHORTER = (16_000, 4_000, 1_000, 200, 40)
"""How many characters of each text are left, tried in this order until the whole fits."""
_LEFT_OUT: Any = object()
_CONTENT = (
    names.SYSTEM_INSTRUCTIONS,
    names.INPUT_MESSAGES,
    names.OUTPUT_MESSAGES,
    names.TOOL_DEFINITIONS,
)
"""What an event has in structured form."""
_REASONS = {"tool_calls": "tool_call"}
"""Reasons for the end of an answer that have another name in the convention."""
_MODALITIES = {"file": "document"}
"""What media are called that have another name in the convention."""


class ContentAttributes:
    """Makes the attributes that hold content."""

    def __init__(self, redact: Callable[[str, Any], Any] | None, *, is_whole: bool) -> None:
        self._redact = redact
        self._is_whole = is_whole

    def value(self, name: str, value: Any) -> dict[str, Any]:
        """One attribute; none if `redact` raises."""
        redacted = self._redacted(name, value)
        if redacted is _LEFT_OUT:
            return {}
        return {name: _fitting(redacted)}

    def text(self, name: str, text: str) -> str | None:
        """A plain text; None if `redact` raises."""
        redacted = self._redacted(name, text)
        if redacted is _LEFT_OUT:
            return None
        return _sendable(_shortened(str(redacted), _SHORTER[0]))

    def _redacted(self, name: str, value: Any) -> Any:
        if self._redact is None:
            return value
        try:
            return self._redact(name, json.loads(json_text(value)))
        except Exception:  # noqa: BLE001  the user's code: what it cannot redact must not be sent
            return _LEFT_OUT

    def of_request(
        self, request: Request, seen: tuple[int, Any]
    ) -> tuple[dict[str, Any], tuple[int, Any]]:
        """The attributes of a request, and what spans have seen of its conversation by then.

        `seen` is what they had before: the number of messages, and the last of them.
        """
        messages = request.messages
        if self._is_whole:
            since = 0
        else:
            since = _continued_from(messages, seen)
        new = [_masked(message, request.secrets) for message in messages[since:]]
        attributes: dict[str, Any] = {names.SINCE: since}
        system = [part for message in new if message.role == "system" for part in _parts(message)]
        if system:
            attributes |= self.value(names.SYSTEM_INSTRUCTIONS, system)
        others = [_message(message) for message in new if message.role != "system"]
        attributes |= self.value(names.INPUT_MESSAGES, others)
        if len(request.tools) and not since:
            definitions = [{"type": "function", **tool["function"]} for tool in request.tools]
            attributes |= self.value(names.TOOL_DEFINITIONS, definitions)
        last = messages[-1] if len(messages) else None
        return attributes, (len(messages), last)

    def of_response(self, response: Response) -> dict[str, Any]:
        """The attribute of an answer: a message for each of several."""
        answers = [_answer(answer) for answer in (response, *response.others)]
        return self.value(names.OUTPUT_MESSAGES, answers)

    def of_result(self, result: ToolResult) -> dict[str, Any]:
        """The attribute of a tool's result."""
        return self.value(names.TOOL_RESULT, _shown(result.content))


class OperationDetails:
    """Emits the event of a model call: a log record with its content.

    It is for those who keep content apart from spans. Its attributes are those of the span, and the
    content in structured form, as the convention asks of events.
    """

    def __init__(self, api: Any, logger: Any) -> None:
        self._api = api
        self._logger = logger

    @property
    def is_wanted(self) -> bool:
        """Whether the SDK takes such events now."""
        return self._logger.enabled(
            event_name=names.OPERATION_DETAILS, severity_number=self._api.INFO
        )

    def emit(self, context: Any, attributes: Mapping[str, Any]) -> None:
        """Emit the event of one call; `context` has its span."""
        content = {name: _structured(attributes[name]) for name in _CONTENT if name in attributes}
        record = self._api.LogRecord(
            timestamp=time_ns(),
            context=context,
            severity_number=self._api.INFO,
            event_name=names.OPERATION_DETAILS,
            attributes={**attributes, **content},
        )
        self._logger.emit(record)


def _continued_from(messages: Messages, seen: tuple[int, Any]) -> int:
    """How many messages of a conversation earlier spans hold: 0 if it is not the one they saw."""
    count, last = seen
    if 0 < count <= len(messages) and messages[count - 1] is last:
        return count
    return 0


def _sendable(text: str) -> str:
    """A text without lone surrogates: they have no UTF-8, and OTLP exporters raise for them."""
    return text.encode("utf-8", "replace").decode()


def _answer(response: Response) -> dict[str, Any]:
    reason = response.finish_reason or "stop"
    return {**_message(response.message()), "finish_reason": _REASONS.get(reason, reason)}


def _message(message: Message) -> dict[str, Any]:
    return {"role": message.role, "parts": _parts(message)}


def _masked(message: Message, secrets: Secrets) -> Message:
    """A message with stars for what its calls, and calls in its text, have of secrets."""
    # In text, the steps of an agent are messages of the user.
    if not secrets or message.role not in {"assistant", "user"}:
        return message
    text = None
    if isinstance(message.content, str):
        text = message.content
    answer = Response(text, message.tool_calls, message.reasoning)
    shown = masked_response(answer, secrets)
    content = message.content
    if shown.text is not None:
        content = shown.text
    return Message(message.role, content, shown.tool_calls, reasoning=shown.reasoning or "")


def _parts(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        response = _shown(message.content)
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": response}]
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if not isinstance(message.content, str):
        parts += map(_part, message.content)
    elif message.content:
        parts.append({"type": "text", "content": message.content})
    for call in message.tool_calls:
        parts.append(
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.args}
        )
    return parts


def _part(part: Any) -> dict[str, Any]:
    text = getattr(part, "text", None)
    if isinstance(text, str):
        return {"type": "text", "content": text}
    data, url = getattr(part, "data", None), getattr(part, "url", None)
    kind = type(part).__name__.lower()
    described: dict[str, Any] = {"type": kind, "mime_type": getattr(part, "media_type", None)}
    if isinstance(data, str):
        # A part of a type of its own: the convention's part for bytes would have to hold them.
        described["size_bytes"] = len(data) * 3 // 4 - data[-2:].count("=")
    elif isinstance(url, str) and not url.startswith("data:"):
        described |= {"type": "uri", "modality": _MODALITIES.get(kind, kind), "uri": url}
    return described


def _shown(content: MessageContent) -> Any:
    if isinstance(content, str):
        return content
    return [_part(part) for part in content]


def _fitting(value: Any) -> str:
    """A value as JSON text of at most 32 KiB: its texts are shortened, and say so."""
    text = json_text(value)
    size = len(text.encode())
    if size <= _LONGEST_BYTES:
        return text
    for longest in _SHORTER:
        text = json_text(_shortened(value, longest))
        if len(text.encode()) <= _LONGEST_BYTES:
            return text
    return json_text([{"type": "cut", "content": f"[cut: {size} bytes]"}])


def _shortened(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        if len(value) <= longest:
            return value
        return f"{value[:longest]}[cut: {len(value)} characters]"
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: _shortened(inner, longest) for key, inner in items}
    if isinstance(value, (list, tuple)):
        return [_shortened(item, longest) for item in cast("Sequence[Any]", value)]
    return value


def _structured(text: str) -> Any:
    value = json.loads(text)
    if "\\ud" in text:  # an escape of a surrogate, perhaps a lone one
        return _sendable_json(value)
    return value


def _sendable_json(value: Any) -> Any:
    if isinstance(value, str):
        return _sendable(value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {_sendable(key): _sendable_json(inner) for key, inner in items}
    if isinstance(value, list):
        return [_sendable_json(item) for item in cast("list[Any]", value)]
    return value
