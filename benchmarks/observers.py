"""What observers cost a step: `python observers.py TURNS ROUNDS` prints one JSON line, CPU microseconds a step by observer.

The ways to observe take turns. OpenTelemetry has its SDK, and a span processor that drops what ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time

from ferrule import OTel, ReAct, Response, ScriptedLM, ToolCall, context, log_to

seen = 0


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def observe(event: object) -> None:
    global seen
    seen += 1


def main() -> None:
    turns, rounds = int(sys.argv[1]), int(sys.argv[2])

    def answer(request):
        turn = (len(request.messages) - 2) // 2
        if turn < turns:
            return Response(tool_calls=(ToolCall(name="add", args={"a": turn, "b": 1}, id=f"c{turn}"),))
        return Response(tool_calls=(ToolCall(name="finish", args={"answer": 42}, id="end"),))

    agent = ReAct("question -> answer: int", [add], native=True, max_iters=turns + 2, lm=ScriptedLM(by=answer))
    logger = logging.getLogger("observed")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    ways: dict[str, list] = {"none": [], "a function": [observe], "log_to": [log_to("observed")], "OTel, without an SDK": [OTel()]}
    with contextlib.suppress(ImportError):
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        provider = TracerProvider()
        provider.add_span_processor(SpanProcessor())
        ways["OTel, with its SDK"] = [OTel(tracer_provider=provider)]
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, callbacks in ways.items():
            with context(callbacks=callbacks):
                start = time.process_time()
                assert agent(question="q?").answer == 42
                if number:
                    taken[name].append(time.process_time() - start)
    assert seen > turns * rounds
    print(json.dumps({name: [1e6 * each / turns for each in times] for name, times in taken.items()}))


if __name__ == "__main__":
    main()
