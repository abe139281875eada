"""The event of a model call: a log record of OpenTelemetry that holds its content, for those who keep content apart from spans."""

from __future__ import annotations

import json
from time import time_ns
from typing import TYPE_CHECKING, Any, cast

from ferrule.bridges.otel import names
from ferrule.bridges.otel.content import sendable

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTENT = (names.SYSTEM_INSTRUCTIONS, names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.TOOL_DEFINITIONS)


class OperationDetails:
    """Emits the events. Their attributes are those of the span, and the content in structured form, as the convention asks of events."""

    def __init__(self, api: Any, logger: Any) -> None:
        self._api = api
        self._logger = logger

    @property
    def is_wanted(self) -> bool:
        """Whether the SDK takes such events now."""
        return self._logger.enabled(event_name=names.OPERATION_DETAILS, severity_number=self._api.INFO)

    def emit(self, context: Any, attributes: Mapping[str, Any]) -> None:
        """Emit the event of one call; `context` has its span."""
        content = {name: _structured(attributes[name]) for name in _CONTENT if name in attributes}
        record = self._api.LogRecord(
            timestamp=time_ns(), context=context, severity_number=self._api.INFO, event_name=names.OPERATION_DETAILS,
            attributes={**attributes, **content},
        )  # fmt: skip
        self._logger.emit(record)


def _structured(text: str) -> Any:
    return _sendable(json.loads(text)) if "\\ud" in text else json.loads(text)


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        return {sendable(key): _sendable(each) for key, each in cast("dict[str, Any]", value).items()}
    return [_sendable(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value
