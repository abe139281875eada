"""Options of `OTel`, and the environment variables that set them where it is given none."""

from __future__ import annotations

import os
from typing import Any

from ferrule.bridges.otel import names
from ferrule.errors import ConfigurationError, shown

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_ON_SPANS = frozenset({"TRUE", "SPAN_ONLY", "SPAN_AND_EVENT"})


def captures(content: bool | None) -> bool:
    """Whether spans hold content."""
    return os.environ.get(_CAPTURE, "").strip().upper() in _ON_SPANS if content is None else content


def is_latest(given: str | None) -> bool:
    """Whether the latest names are emitted."""
    if given is None:
        return "gen_ai_latest_experimental" in os.environ.get(_OPT_IN, "").split(",")
    return one_of("names", given, (names.SEMCONV_VERSION, "latest")) == "latest"


def one_of(name: str, value: Any, values: tuple[Any, ...]) -> Any:
    """The value of an option; raises `ConfigurationError` if it is not one of those."""
    if value not in values:
        raise ConfigurationError(f"`{name}` of `OTel` is one of {', '.join(map(repr, values))}; found {shown(value)}.")
    return value
