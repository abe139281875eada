"""The cost of observers per step: `python observers.py TURNS ROUNDS` prints one JSON line, CPU microseconds per step by observer.

The observers take turns. OpenTelemetry's SDK exports to nowhere, in its own thread, whose CPU time
counts.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time

from ferrule import OTel, ReAct, Response, ToolCall, context, log_to
from ferrule.testing import ScriptedLM

seen = 0


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def observe(event: object) -> None:
    global seen
    seen += 1


def with_an_sdk() -> dict[str, list]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    class Nowhere(SpanExporter):
        def export(self, spans):
            return SpanExportResult.SUCCESS

    batches, unsampled = TracerProvider(), TracerProvider(sampler=ALWAYS_OFF)
    batches.add_span_processor(BatchSpanProcessor(Nowhere()))
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
    return {
        "OTel, not sampled": [OTel(tracer_provider=unsampled)],
        "OTel, not sampled, with metrics": [OTel(tracer_provider=unsampled, meter_provider=meters)],
        "OTel, with its SDK": [OTel(tracer_provider=batches)],
        "OTel, with its SDK and metrics": [OTel(tracer_provider=batches, meter_provider=meters)],
    }


def main() -> None:
    turns, rounds = int(sys.argv[1]), int(sys.argv[2])

    def answer(request):
        turn = (len(request.messages) - 2) // 2
        if turn < turns:
            return Response(
                tool_calls=(ToolCall(name="add", args={"a": turn, "b": 1}, id=f"c{turn}"),),
            )
        return Response(tool_calls=(ToolCall(name="finish", args={"answer": 42}, id="end"),))

    agent = ReAct(
        "question -> answer: int",
        [add],
        native=True,
        max_iters=turns + 2,
        lm=ScriptedLM(by=answer),
    )
    logger = logging.getLogger("observed")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    ways: dict[str, list] = {"none": [], "a function": [observe], "log_to": [log_to("observed")]}
    with contextlib.suppress(ImportError):
        import opentelemetry.trace  # noqa: F401

        ways["OTel, without an SDK"] = [OTel()]
        ways |= with_an_sdk()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, callbacks in ways.items():
            with context(callbacks=callbacks):
                start = time.process_time()
                assert agent(question="q?").answer == 42
                if number:
                    taken[name].append(time.process_time() - start)
    assert seen > turns * rounds
    print(
        json.dumps({name: [1e6 * each / turns for each in times] for name, times in taken.items()}),
    )


if __name__ == "__main__":
    main()
