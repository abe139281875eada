"""Options of `OTel`, and the environment variables that set them where it is given none."""

from __future__ import annotations

import os
from typing import Any

from ferrule.errors import ConfigurationError, shown
from ferrule.telemetry.otel import names

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_PLACES = {
    "true": (True, False), "span_only": (True, False), "event_only": (False, True), "span_and_event": (True, True),
    "no_content": (False, False), "false": (False, False), "": (False, False),
}  # fmt: skip
"""Whether spans hold content, and whether events do, by the values of the variable."""


def captures(content: bool | str | None) -> tuple[bool, bool]:
    """Whether spans hold content, and whether events do."""
    if content is None:  # a value that is not known captures nothing
        return _PLACES.get(os.environ.get(_CAPTURE, "").strip().lower(), (False, False))
    one_of("content", content, (None, True, False, "span_only", "event_only", "span_and_event"))
    return _PLACES[str(content).lower()]


def is_latest(given: str | None) -> bool:
    """Whether the latest names are emitted."""
    if given is None:
        return "gen_ai_latest_experimental" in os.environ.get(_OPT_IN, "").split(",")
    return one_of("names", given, (names.SEMCONV_VERSION, "latest")) == "latest"


def one_of(name: str, value: Any, values: tuple[Any, ...]) -> Any:
    """The value of an option; raises `ConfigurationError` if it is not one of those."""
    if value not in values:
        raise ConfigurationError(
            f"`{name}` of `OTel` is one of {', '.join(map(repr, values))}; found {shown(value)}.",
        )
    return value
