"""One agent step in process: `python steps.py PEER STEPS REPEATS` prints one JSON line.

Every peer runs the same thing: a scripted model that answers at once asks for STEPS calls of `add(a, b)`, then gives a typed answer. The
model costs nothing, so the figure is the cost of the framework: rendering, parsing, validating, running the tool, recording. The result and
the number of tool calls are checked after the clock stops.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 0


def add(a: int, b: int) -> int:
    """Add two integers."""
    global CALLS
    CALLS += 1
    return a + b


async def add_async(a: int, b: int) -> int:
    """Add two integers."""
    return add(a, b)


def floor(steps: int) -> Callable[[], None]:
    """No framework: JSON, pydantic validation of the arguments, a list of messages."""
    from pydantic import TypeAdapter, create_model

    arguments = TypeAdapter(create_model("Arguments", a=(int, ...), b=(int, ...)))
    answer = TypeAdapter(create_model("Answer", answer=(int, ...)))

    def run() -> None:
        messages = [{"role": "user", "content": "q?"}]
        for i in range(steps):
            call = {"id": f"c{i}", "type": "function", "function": {"name": "add", "arguments": f'{{"a": {i}, "b": 1}}'}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            checked = arguments.validate_json(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(add(checked.a, checked.b))})
        assert answer.validate_json('{"answer": 42}').answer == 42

    return run


def _ferrule(steps: int, *, native: bool, asynchronous: bool) -> Callable[[], None]:
    from ferrule import ReAct, Response, ScriptedLM, Tool, ToolCall, configure

    def native_answer(request):
        i = (len(request.messages) - 2) // 2
        if i < steps:
            return Response(tool_calls=(ToolCall(name="add", args={"a": i, "b": 1}, id=f"c{i}"),))
        return Response(tool_calls=(ToolCall(name="finish", args={"answer": 42}, id="end"),))

    def text_answer(request):
        i = len(request.messages) - 2
        name, args = ("add", f'{{"a": {i}, "b": 1}}') if i < steps else ("finish", '{"answer": 42}')
        head = f"[[ ## next_thought ## ]]\nadd\n\n[[ ## next_tool_name ## ]]\n{name}\n\n"
        return Response(f"{head}[[ ## next_tool_args ## ]]\n{args}\n\n[[ ## completed ## ]]")

    configure(lm=ScriptedLM(by=native_answer if native else text_answer))
    tool = Tool(add_async if asynchronous else add, "add")
    agent = ReAct("question -> answer: int", tools=[tool], max_iters=steps + 2, native=native)

    runner = asyncio.Runner()  # one event loop for all runs, as in a server: making one is no part of a step

    def run() -> None:
        prediction = runner.run(agent.acall(question="q?")) if asynchronous else agent(question="q?")
        assert prediction.answer == 42
        assert len(prediction.trajectory.steps) == steps + 1

    return run


def ferrule_native(steps: int) -> Callable[[], None]:
    return _ferrule(steps, native=True, asynchronous=False)


def ferrule_text(steps: int) -> Callable[[], None]:
    return _ferrule(steps, native=False, asynchronous=False)


def ferrule_native_async(steps: int) -> Callable[[], None]:
    return _ferrule(steps, native=True, asynchronous=True)


def ferrule_text_async(steps: int) -> Callable[[], None]:
    return _ferrule(steps, native=False, asynchronous=True)


def smolagents(steps: int) -> Callable[[], None]:
    from smolagents import Model, Tool, ToolCallingAgent
    from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction
    from smolagents.monitoring import LogLevel

    class Script(Model):
        made = 0

        def generate(self, messages, **keywords):
            i, self.made = self.made, self.made + 1
            name, arguments = ("add", {"a": i, "b": 1}) if i < steps else ("final_answer", {"answer": 42})
            if i == steps:
                self.made = 0
            function = ChatMessageToolCallFunction(name=name, arguments=arguments)
            return ChatMessage(
                role="assistant", content="", tool_calls=[ChatMessageToolCall(function=function, id=f"c{i}", type="function")]
            )

    class Add(Tool):
        name = "add"
        description = "Add two integers."
        inputs = {"a": {"type": "integer", "description": "first"}, "b": {"type": "integer", "description": "second"}}
        output_type = "integer"

        def forward(self, a, b):
            return add(a, b)

    agent = ToolCallingAgent(tools=[Add()], model=Script(), max_steps=steps + 2, verbosity_level=LogLevel.OFF)

    def run() -> None:
        assert agent.run("q?") == 42

    return run


PEERS = {each.__name__: each for each in (floor, ferrule_native, ferrule_text, ferrule_native_async, ferrule_text_async, smolagents)}


def measure(peer: str, steps: int, repeats: int) -> dict[str, object]:
    """Medians over `repeats` runs, in microseconds a step."""
    global CALLS
    started = time.perf_counter()
    run = PEERS[peer](steps)
    run()
    setup_s = time.perf_counter() - started
    CALLS = 0
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(repeats):
        cpu_from, wall_from = time.process_time(), time.perf_counter()
        run()
        wall.append(time.perf_counter() - wall_from)
        cpu.append(time.process_time() - cpu_from)
    assert steps * repeats == CALLS, (CALLS, steps, repeats)
    return {
        "peer": peer,
        "steps": steps,
        "cpu_us_a_step": round(1e6 * statistics.median(cpu) / steps, 1),
        "wall_us_a_step": round(1e6 * statistics.median(wall) / steps, 1),
        "setup_s": round(setup_s, 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
