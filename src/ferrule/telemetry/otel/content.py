"""Content as the conventions' JSON: messages, instructions, declarations, arguments, results. Only where it is asked for.

Of a conversation that grows, a span holds the messages that no span before it has: the thousandth
request costs what the tenth did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text
from ferrule.telemetry.otel import names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Content as MessageContent
    from ferrule.values.conversation.exchange import Request, Response
    from ferrule.values.conversation.message import Message

_LONGEST_BYTES = 32 * 1024
_SHORTER = (16_000, 4_000, 1_000, 200, 40)
"""How many characters of a text are left, as far as needed."""
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
        found = self._redacted(name, value)
        return {} if found is _LEFT_OUT else {name: _fitting(found)}

    def text(self, name: str, text: str) -> str | None:
        """A plain text; None if `redact` raises."""
        found = self._redacted(name, text)
        return None if found is _LEFT_OUT else _sendable(_shortened(str(found), _SHORTER[0]))

    def _redacted(self, name: str, value: Any) -> Any:
        try:
            return (
                value if self._redact is None else self._redact(name, json.loads(json_text(value)))
            )
        except Exception:  # noqa: BLE001  the user's code: what it cannot redact must not be sent
            return _LEFT_OUT

    def of_request(
        self,
        request: Request,
        seen: tuple[int, Any],
    ) -> tuple[dict[str, Any], tuple[int, Any]]:
        """The attributes of a request, and how much of its conversation spans hold by then. `seen` is how much they held before."""
        messages = request.messages
        count, last = seen
        since = (
            count
            if not self._is_whole and 0 < count <= len(messages) and messages[count - 1] is last
            else 0
        )
        new = messages[since:]
        found: dict[str, Any] = {names.SINCE: since}
        system = [part for message in new if message.role == "system" for part in _parts(message)]
        if system:
            found |= self.value(names.SYSTEM_INSTRUCTIONS, system)
        found |= self.value(
            names.INPUT_MESSAGES,
            [_message(message) for message in new if message.role != "system"],
        )
        if len(request.tools) and not since:
            found |= self.value(
                names.TOOL_DEFINITIONS,
                [{"type": "function", **each["function"]} for each in request.tools],
            )
        return found, (len(messages), messages[-1] if len(messages) else None)

    def of_response(self, response: Response) -> dict[str, Any]:
        """The attribute of an answer: a message for each of several."""
        return self.value(
            names.OUTPUT_MESSAGES,
            [_answer(each) for each in (response, *response.others)],
        )

    def of_result(self, result: ToolResult) -> dict[str, Any]:
        """The attribute of a tool's result."""
        return self.value(names.TOOL_RESULT, _shown(result.content))


class OperationDetails:
    """Emits the event of a model call: a log record with its content, for those who keep content apart from spans.

    Its attributes are those of the span, and the content in structured form, as the convention asks
    of events.
    """

    def __init__(self, api: Any, logger: Any) -> None:
        self._api = api
        self._logger = logger

    @property
    def is_wanted(self) -> bool:
        """Whether the SDK takes such events now."""
        return self._logger.enabled(
            event_name=names.OPERATION_DETAILS,
            severity_number=self._api.INFO,
        )

    def emit(self, context: Any, attributes: Mapping[str, Any]) -> None:
        """Emit the event of one call; `context` has its span."""
        content = {name: _structured(attributes[name]) for name in _CONTENT if name in attributes}
        record = self._api.LogRecord(
            timestamp=time_ns(), context=context, severity_number=self._api.INFO, event_name=names.OPERATION_DETAILS,
            attributes={**attributes, **content},
        )  # fmt: skip
        self._logger.emit(record)


def _sendable(text: str) -> str:
    """A text without lone surrogates: they have no UTF-8, and OTLP exporters raise for them."""
    return text.encode("utf-8", "replace").decode()


def _answer(response: Response) -> dict[str, Any]:
    reason = response.finish_reason or "stop"
    return {**_message(response.message()), "finish_reason": _REASONS.get(reason, reason)}


def _message(message: Message) -> dict[str, Any]:
    return {"role": message.role, "parts": _parts(message)}


def _parts(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [
            {
                "type": "tool_call_response",
                "id": message.tool_call_id,
                "response": _shown(message.content),
            },
        ]
    parts: list[dict[str, Any]] = (
        [{"type": "reasoning", "content": message.reasoning}] if message.reasoning else []
    )
    if isinstance(message.content, str):
        parts += [{"type": "text", "content": message.content}] if message.content else []
    else:
        parts += map(_part, message.content)
    return [
        *parts,
        *(
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.args}
            for call in message.tool_calls
        ),
    ]


def _part(part: Any) -> dict[str, Any]:
    text = getattr(part, "text", None)
    if isinstance(text, str):
        return {"type": "text", "content": text}
    data, url = getattr(part, "data", None), getattr(part, "url", None)
    kind = type(part).__name__.lower()
    about: dict[str, Any] = {"type": kind, "mime_type": getattr(part, "media_type", None)}
    if isinstance(
        data,
        str,
    ):  # a part of a type of its own, because one of the convention's for bytes holds them
        about["size_bytes"] = len(data) * 3 // 4 - data[-2:].count("=")
    elif isinstance(url, str) and not url.startswith("data:"):
        about |= {"type": "uri", "modality": _MODALITIES.get(kind, kind), "uri": url}
    return about


def _shown(content: MessageContent) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _fitting(value: Any) -> str:
    """A value as JSON text of at most 32 KiB: its texts are shortened, and say so."""
    text = json_text(value)
    size = len(text.encode())
    for longest in _SHORTER if size > _LONGEST_BYTES else ():
        text = json_text(_shortened(value, longest))
        if len(text.encode()) <= _LONGEST_BYTES:
            return text
    return (
        text
        if size <= _LONGEST_BYTES
        else json_text([{"type": "cut", "content": f"[cut: {size} bytes]"}])
    )


def _shortened(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return (
            value if len(value) <= longest else f"{value[:longest]}[cut: {len(value)} characters]"
        )
    if isinstance(value, Mapping):
        return {
            key: _shortened(each, longest) for key, each in cast("Mapping[Any, Any]", value).items()
        }
    if isinstance(value, (list, tuple)):
        return [_shortened(each, longest) for each in cast("Sequence[Any]", value)]
    return value


def _structured(text: str) -> Any:
    return _sendable_json(json.loads(text)) if "\\ud" in text else json.loads(text)


def _sendable_json(value: Any) -> Any:
    if isinstance(value, str):
        return _sendable(value)
    if isinstance(value, dict):
        return {
            _sendable(key): _sendable_json(each)
            for key, each in cast("dict[str, Any]", value).items()
        }
    return (
        [_sendable_json(each) for each in cast("list[Any]", value)]
        if isinstance(value, list)
        else value
    )
