"""A round trip over OTLP/HTTP: what a collector reads is what was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from ferrule import OTel, ReAct, ScriptedLM, context

pytestmark = pytest.mark.integration
KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Collector:
    """Takes what exporters post, and reads it back."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append(KINDS[self.path].FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self) -> dict[str, Any]:
        found = [each for each in self.received if isinstance(each, ExportTraceServiceRequest)]
        return {span.name: span for each in found for on in each.resource_spans for scope in on.scope_spans for span in scope.spans}

    def metrics(self) -> set[str]:
        found = [each for each in self.received if isinstance(each, ExportMetricsServiceRequest)]
        return {metric.name for each in found for on in each.resource_metrics for scope in on.scope_metrics for metric in scope.metrics}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_collector_reads_what_a_run_sent(collector: Collector) -> None:
    """O1-O3, O16: names, parents, kinds, attributes and metrics survive the wire."""

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    resource = Resource.create({"service.name": "sums"})
    spans = TracerProvider(resource=resource)
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces")))
    metrics = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{collector.url}/v1/metrics"))], resource=resource)
    script = [{"name": "add", "args": {"a": 1, "b": 2}}, {"name": "finish", "args": {"answer": "3"}}]
    with context(callbacks=[OTel(tracer_provider=spans, meter_provider=metrics, content=True)], lm=ScriptedLM(script)):
        ReAct("task -> answer", [add], native=True)(task="x")
    spans.shutdown()
    metrics.shutdown()
    found = collector.spans()
    assert set(found) == {"invoke_agent ReAct", "chat scripted", "execute_tool add"}
    run, call = found["invoke_agent ReAct"], found["execute_tool add"]
    assert (call.parent_span_id, call.trace_id) == (run.span_id, run.trace_id)
    assert (run.kind, found["chat scripted"].kind) == (1, 3)  # INTERNAL, CLIENT
    about = {each.key: each.value for each in call.attributes}
    assert about["gen_ai.tool.name"].string_value == "add"
    assert about["gen_ai.tool.call.arguments"].string_value == '{"a":1,"b":2}'
    assert {"gen_ai.client.operation.duration", "gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration"} <= collector.metrics()
