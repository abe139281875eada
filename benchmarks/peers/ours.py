"""ferrule: native calls (`make`) and calls in text (`make_text`), with or without a store."""

from __future__ import annotations

from contextlib import contextmanager

import ferrule
from ferrule import LM, MemoryStore, ReAct, Response, SQLiteStore, Tool, ToolCall
from ferrule.testing import ScriptedLM
from peers.script import ANSWER, QUESTION, Agent, fields


def make(model, tool, turns, *, store=None, native=True):
    if isinstance(model, str):
        lm = LM("openai/gpt-4o", base_url=model, api_key="x", timeout_s=60)
    else:
        lm = ScriptedLM(by=_native(model) if native else _text(model))
    agent = ReAct(
        "question -> answer: int",
        tools=[Tool(tool, "add")],
        lm=lm,
        max_iters=turns + 2,
        native=native,
    )

    def run() -> int:
        prediction = (
            agent(question=QUESTION)
            if store is None
            else agent.start(store=store, question=QUESTION).prediction
        )
        assert len(prediction.trajectory.steps) == turns + 1
        return prediction.answer

    async def arun() -> int:
        prediction = await agent.acall(question=QUESTION)
        assert len(prediction.trajectory.steps) == turns + 1
        return prediction.answer

    return Agent(run, arun)


def make_text(model, tool, turns):
    return make(model, tool, turns, native=False)


def _native(script):
    def answer(request):
        turn = script.turn(len(request.messages) - 2)
        calls = tuple(
            ToolCall(name="add", args=args, id=f"c{turn}_{i}")
            for i, args in enumerate(script.calls(turn))
        )
        return Response(
            tool_calls=calls or (ToolCall(name="finish", args={"answer": ANSWER}, id="end"),),
        )

    return answer


def _text(script):
    def write(calls):
        name, args = ("add", calls[0]) if calls else ("finish", {"answer": ANSWER})
        return fields(next_thought="add", next_tool_name=name, next_tool_args=args)

    texts = script.texts(write)
    return lambda request: Response(texts[len(request.messages) - 2])


@contextmanager
def saver(name, place):
    """A store, as a context manager that closes it."""
    match name:
        case "memory":
            store = MemoryStore()
        case "sqlite":
            store = SQLiteStore(place)
        case _:
            store = ferrule.PostgresStore(place)
    try:
        yield store
    finally:
        if name != "memory":
            store.close()


def describe(function):
    return Tool(function).parameters


def direct(function):
    return Tool(function)
