"""The metrics. No id, argument or text of a user is an attribute, so their number stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.telemetry.otel import names
from ferrule.telemetry.otel.attributes import about_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.telemetry.otel.spans import OpenSpan
    from ferrule.values.conversation.exchange import Response, Usage

_COUNTED = ("input_tokens", "output_tokens", "cache_read.input_tokens")
"""The kinds of tokens that have a counter each under the latest names."""


class Metrics:
    """The instruments of one observer."""

    def __init__(self, meter: Any, *, latest: bool) -> None:
        def histogram(name: str, unit: str, buckets: tuple[float, ...], description: str) -> Any:
            return meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=buckets
            )

        seconds = names.DURATION_BUCKETS
        self._latest = latest
        self._models = histogram(names.MODEL_DURATION, "s", seconds, "Duration of model calls.")
        self._first_chunk = histogram(
            names.FIRST_CHUNK,
            "s",
            names.FIRST_CHUNK_BUCKETS,
            "Time to the first piece of a streamed answer.",
        )
        self._tools = histogram(names.TOOL_DURATION, "s", seconds, "Duration of tool calls.")
        self._agents = histogram(names.AGENT_DURATION, "s", seconds, "Duration of programs.")
        self._wait = histogram(
            names.QUESTION_WAIT, "s", names.WAIT_BUCKETS, "Time from a question to its decision."
        )
        self._waiting = meter.create_up_down_counter(
            names.RUNS_WAITING, "{run}", "Runs that wait for a person."
        )
        if latest:
            self._usage = {
                kind: meter.create_counter(
                    f"{names.LATEST_USAGE}.{kind}", "{token}", f"Tokens used: {kind}."
                )
                for kind in _COUNTED
            }
        else:
            self._tokens = histogram(
                names.TOKEN_USAGE, "{token}", names.TOKEN_BUCKETS, "Tokens of model calls."
            )

    def model(self, opened: OpenSpan, response: Response | None, error: str | None) -> None:
        """A model call ended."""
        common = opened.common_attributes
        if response is not None and response.answered_by is not None:
            common = {**common, **about_name(response.answered_by)}
        if response is not None and response.model is not None:
            common = {**common, names.RESPONSE_MODEL: response.model}
        self._models.record(opened.seconds, _with_error(common, error), opened.context)
        if opened.first_chunk_s is not None:
            self._first_chunk.record(opened.first_chunk_s, common, opened.context)
        if response is not None and response.usage.total_tokens:
            self._count(response.usage, common, opened.context)

    def _count(self, usage: Usage, common: Mapping[str, Any], context: Any) -> None:
        if not self._latest:
            sent = {**common, names.TOKEN_TYPE: "input"}
            received = {**common, names.TOKEN_TYPE: "output"}
            self._tokens.record(usage.input_tokens, sent, context)
            self._tokens.record(usage.output_tokens, received, context)
            return
        attributes = {**common, names.TOKEN_MODALITY: "unknown"}
        counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
        for kind, tokens in zip(_COUNTED, counts, strict=True):
            self._usage[kind].add(tokens, attributes, context)

    def tool(self, opened: OpenSpan, error: str | None) -> None:
        """A tool call ended."""
        self._tools.record(
            opened.seconds, _with_error(opened.common_attributes, error), opened.context
        )

    def program(self, opened: OpenSpan, error: str | None) -> None:
        """A program ended, or waits."""
        common = {names.OPERATION: "invoke_agent", names.AGENT_NAME: opened.name}
        self._agents.record(opened.seconds, _with_error(common, error), opened.context)

    def waits(self, change: int) -> None:
        """A run began to wait for a person, or goes on."""
        self._waiting.add(change)

    def decided(self, kind: str, waited_s: float) -> None:
        """A question was decided."""
        self._wait.record(waited_s, {"ferrule.question.kind": kind})


def _with_error(attributes: Mapping[str, Any], error: str | None) -> Mapping[str, Any]:
    if error is None:
        return attributes
    return {**attributes, names.ERROR_TYPE: error}
