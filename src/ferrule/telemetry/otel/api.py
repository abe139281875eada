"""The parts of `opentelemetry-api` that we use. Only this module imports it, for an `OTel`."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ferrule.errors import importing


def own_version() -> str:
    """The version of ferrule, as the scope of its spans and metrics."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ferrule")
    except PackageNotFoundError:  # run from source, or from one file that was made of it
        return "0"


def load_api() -> Any:
    """The functions and classes of the API; raises `ConfigurationError` if it is not installed."""
    with importing("`OTel()` needs the OpenTelemetry API: pip install 'ferrule[otel]'."):
        from opentelemetry import _logs, baggage, context, metrics, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    # The classes of the global providers before there is an SDK: the API has a public name for that
    # of spans only.
    proxy_meters = getattr(
        import_module("opentelemetry.metrics._internal"),
        "_ProxyMeterProvider",
        metrics.NoOpMeterProvider,
    )
    proxy_loggers = getattr(
        import_module("opentelemetry._logs._internal"),
        "ProxyLoggerProvider",
        _logs.NoOpLoggerProvider,
    )
    propagator = TraceContextTextMapPropagator()

    def span_context(carrier: dict[str, str]) -> Any:
        return trace.get_current_span(
            propagator.extract(carrier, context.Context())
        ).get_span_context()

    return SimpleNamespace(
        SpanKind=trace.SpanKind,
        Link=trace.Link,
        ERROR=trace.StatusCode.ERROR,
        attach=context.attach,
        get_current=context.get_current,
        create_key=context.create_key,
        set_value=context.set_value,
        set_span_in_context=trace.set_span_in_context,
        without_baggage=baggage.clear,
        inject=propagator.inject,
        span_context=span_context,
        get_tracer_provider=trace.get_tracer_provider,
        get_meter_provider=metrics.get_meter_provider,
        LogRecord=_logs.LogRecord,
        INFO=_logs.SeverityNumber.INFO,
        get_logger_provider=_logs.get_logger_provider,
        no_loggers=(proxy_loggers, _logs.NoOpLoggerProvider),
        no_tracers=(trace.ProxyTracerProvider, trace.NoOpTracerProvider),
        no_meters=(proxy_meters, metrics.NoOpMeterProvider),
    )
