"""What an `OTel` observer sent, for tests: finished spans as trees, metrics, and one observer over
a real SDK.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ferrule import OTel


class Sent:
    """An observer, and what it sent."""

    def __init__(self, *, sampler: Any = None, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.log_exporter = InMemoryLogRecordExporter()
        self.loggers = LoggerProvider()
        self.loggers.add_log_record_processor(SimpleLogRecordProcessor(self.log_exporter))
        providers = {
            "tracer_provider": self.provider,
            "meter_provider": self.meters,
            "logger_provider": self.loggers,
        }
        self.observer = OTel(**{**providers, **options})

    @property
    def spans(self) -> list[ReadableSpan]:
        """Finished spans, in the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.spans if span.name == name]
        return found

    def tree(self) -> list[Any]:
        """`[name, child, ...]` for each root, calls of one turn by name."""
        return tree(self.spans)

    @property
    def events(self) -> list[Any]:
        """Log records of model calls, in the order in which they ended."""
        return [each.log_record for each in self.log_exporter.get_finished_logs()]

    def points(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        data = self.reader.get_metrics_data()
        scopes: Iterable[Any] = (
            [scope for each in data.resource_metrics for scope in each.scope_metrics]
            if data is not None
            else ()
        )
        return {
            metric.name: list(metric.data.data_points)
            for scope in scopes
            for metric in scope.metrics
        }


def tree(spans: list[ReadableSpan]) -> list[Any]:
    inside: dict[int | None, list[ReadableSpan]] = {}
    known = {span.context.span_id for span in spans if span.context is not None}
    for span in spans:
        around = (
            span.parent.span_id
            if span.parent is not None and span.parent.span_id in known
            else None
        )
        inside.setdefault(around, []).append(span)

    def shown(span: ReadableSpan) -> Any:
        below = [shown(each) for each in inside.get(span.context.span_id, ())]
        return [span.name, *below] if below else span.name

    return [shown(span) for span in inside.get(None, ())]
