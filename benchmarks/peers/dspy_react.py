"""DSPy's `ReAct` (`make`) and `ReActV2` (`make_v2`), both with their default adapter, and a scripted engine, which DSPy 3.4 requires."""

from __future__ import annotations

import dspy
from dspy.lm15 import Message, Response, TextPart, Usage

from peers.script import ANSWER, QUESTION, Agent, fields

dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)


def make(model, tool, turns):
    return _agent(
        _lm(model, _react),
        dspy.ReAct("question -> answer: int", tools=[tool], max_iters=turns + 2),
    )


def make_v2(model, tool, turns):
    return _agent(
        _lm(model, _react_v2),
        dspy.ReActV2("question -> answer: int", tools=[tool], max_iters=turns + 2),
    )


def _agent(lm, program):
    program.set_lm(lm)

    async def arun() -> int:
        return (await program.acall(question=QUESTION)).answer

    return Agent(lambda: program(question=QUESTION).answer, arun)


def _lm(model, answer):
    if isinstance(model, str):
        return dspy.LM("openai/gpt-4o", api_base=model, api_key="x", cache=False)
    return dspy.LM(
        "script",
        engine=_Engine(model, answer),
        async_engine=_AsyncEngine(model, answer),
        cache=False,
    )


def _react(script):
    def write(calls):
        name, args = ("add", calls[0]) if calls else ("finish", {})
        return fields(next_thought="add", next_tool_name=name, next_tool_args=args)

    texts = [*script.texts(write), fields(reasoning="sum", answer=ANSWER)]
    return lambda request: texts[request.messages[-1].text.count("[[ ## observation_")]


def _react_v2(script):
    def write(args):
        calls = [{"name": "add", "args": each} for each in args] or [
            {"name": "submit", "args": {"answer": ANSWER}},
        ]
        return fields(next_thought="add", tool_calls={"tool_calls": calls})

    texts = script.texts(write)
    return lambda request: texts[max(0, (len(request.messages) - 2) // 2)]


class _Engine:
    def __init__(self, script, answer):
        self._answer = answer(script)

    def complete(self, request):
        usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2)
        message = Message.assistant([TextPart(self._answer(request))])
        return Response(id=None, model="script", message=message, finish_reason="stop", usage=usage)

    def stream(self, request):
        raise NotImplementedError

    def close(self):
        """Nothing to close."""


class _AsyncEngine(_Engine):
    async def complete(self, request):
        return super().complete(request)

    async def aclose(self):
        """Nothing to close."""


def describe(function):
    return dspy.Tool(function).args


def direct(function):
    return dspy.Tool(function)
