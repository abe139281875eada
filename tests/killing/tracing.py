"""`python -m killing --otel`: OpenTelemetry's SDK is on in every process, and what they sent is
judged too.
"""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ferrule import OTel, configure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from killing.world import World

FLAG = "FERRULE_KILL_OTEL"
"""Set for the processes of runs that are traced."""
_TROUBLE = ("opentelemetry", "an observer failed")
"""What lines on standard error hold if the observer or the SDK is in trouble."""


def trace_into(world: World) -> None:
    """In a process of a run: send its spans to a file, a line for each."""
    if FLAG not in os.environ:
        return
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    warnings.simplefilter("always", RuntimeWarning)
    out = (world.place / "spans").open("a", buffering=1)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(
            ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n"),
        ),
    )
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    configure(callbacks=[OTel(tracer_provider=provider, meter_provider=meters)])


def untraced(world: World) -> Iterator[str]:
    """What is wrong with the trace of a run."""
    if FLAG not in os.environ:
        return
    errors = world.place / "stderr"
    for line in errors.read_text().splitlines() if errors.exists() else ():
        if any(word in line for word in _TROUBLE):
            yield line[:300]
    segments = [span for span in _spans(world) if "ferrule.run.segment" in span["attributes"]]
    if any(not span["links"] for span in segments if span["attributes"]["ferrule.run.segment"] > 1):
        yield "a later segment has no link to the one before"
    if sum(span["attributes"].get("ferrule.run.status") == "done" for span in segments) > 1:
        yield "the run was done twice"


def _spans(world: World) -> Iterator[dict[str, Any]]:
    file = world.place / "spans"
    for line in file.read_text().splitlines() if file.exists() else ():
        with suppress(ValueError):  # a line that its process was killed in
            yield json.loads(line)
