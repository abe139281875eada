"""A round trip over OTLP/HTTP: what a collector reads is what was sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otel_collector import Collector

from ferrule import OTel, ReAct, context
from ferrule.testing import ScriptedLM

pytestmark = pytest.mark.integration


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_collector_reads_what_a_run_sent(collector: Collector) -> None:
    """Names, parents, kinds, attributes, metrics and events survive the wire."""

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    resource = Resource.create({"service.name": "sums"})
    spans = TracerProvider(resource=resource)
    spans.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces")),
    )
    metrics = MeterProvider(
        [PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{collector.url}/v1/metrics"))],
        resource=resource,
    )
    script = [
        {"name": "add", "args": {"a": 1, "b": 2}},
        {"name": "finish", "args": {"answer": "3"}},
    ]
    logs = LoggerProvider(resource=resource)
    logs.add_log_record_processor(
        BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{collector.url}/v1/logs")),
    )
    observer = OTel(
        tracer_provider=spans,
        meter_provider=metrics,
        logger_provider=logs,
        content="span_and_event",
    )
    with context(callbacks=[observer], lm=ScriptedLM(script)):
        ReAct("task -> answer", [add], native=True)(task="x")
    for provider in (spans, metrics, logs):
        provider.shutdown()
    found = collector.spans()
    assert set(found) == {"invoke_agent ReAct", "chat scripted", "execute_tool add"}
    run, call = found["invoke_agent ReAct"], found["execute_tool add"]
    assert (call.parent_span_id, call.trace_id) == (run.span_id, run.trace_id)
    assert (run.kind, found["chat scripted"].kind) == (1, 3)  # INTERNAL, CLIENT
    about = {each.key: each.value for each in call.attributes}
    assert about["gen_ai.tool.name"].string_value == "add"
    assert about["gen_ai.tool.call.arguments"].string_value == '{"a":1,"b":2}'
    assert {
        "gen_ai.client.operation.duration",
        "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration",
    } <= collector.metrics()
    first, second = collector.events()
    assert (first.event_name, first.trace_id) == (
        "gen_ai.client.inference.operation.details",
        run.trace_id,
    )
    [answer] = [each.value for each in second.attributes if each.key == "gen_ai.output.messages"]
    assert answer.array_value.values[0].WhichOneof("value") == "kvlist_value"  # in structured form
