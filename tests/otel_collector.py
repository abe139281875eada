"""A collector for tests: takes what OTLP exporters post over HTTP, and reads it back."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


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
        return {
            span.name: span
            for each in found
            for on in each.resource_spans
            for scope in on.scope_spans
            for span in scope.spans
        }

    def events(self) -> list[Any]:
        """The log records of model calls."""
        found = [each for each in self.received if isinstance(each, ExportLogsServiceRequest)]
        return [
            record
            for each in found
            for on in each.resource_logs
            for scope in on.scope_logs
            for record in scope.log_records
        ]

    def metrics(self) -> set[str]:
        found = [each for each in self.received if isinstance(each, ExportMetricsServiceRequest)]
        return {
            metric.name
            for each in found
            for on in each.resource_metrics
            for scope in on.scope_metrics
            for metric in scope.metrics
        }
