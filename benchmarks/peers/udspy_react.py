"""udspy's `ReAct`."""

from __future__ import annotations

import itertools
import json

import udspy
from openai.types.chat import ChatCompletion
from udspy.lm.base import LM
from udspy.lm.openai import OpenAILM

from peers.script import ANSWER, QUESTION, Agent

COUNT = itertools.count()


class Question(udspy.Signature):
    """Answer the question."""

    question: str = udspy.InputField()
    answer: int = udspy.OutputField()


def make(model, tool, turns):
    udspy.settings.configure(
        lm=_Scripted(model) if not isinstance(model, str) else OpenAILM("x", model, "gpt-4o"),
    )
    idle = []  # an agent keeps the state of its run, so concurrent runs need one each

    def program():
        return idle.pop() if idle else udspy.ReAct(Question, [_tool(tool)], max_iters=turns + 2)

    def run() -> int:
        agent = program()
        answer = agent(question=QUESTION).answer
        idle.append(agent)
        return int(answer)

    async def arun() -> int:
        agent = program()
        answer = (await agent.aforward(question=QUESTION)).answer
        idle.append(agent)
        return int(answer)

    return Agent(run, arun)


def _tool(function):
    return udspy.Tool(function, name=function.__name__, description=function.__doc__)


class _Scripted(LM):
    model = "script"

    def __init__(self, script):
        self._script = script

    async def acomplete(self, messages, **keywords):
        turn = messages[-1]["content"].count('"observation":')
        calls = self._script.calls(turn)
        if calls:
            text = json.dumps(
                {"next_thought": "add", "next_tool_name": "add", "next_tool_args": calls[0]},
            )
        elif turn == self._script.turns:
            text = '{"next_thought": "done", "next_tool_name": "finish", "next_tool_args": {}}'
        else:
            text = f'{{"reasoning": "sum", "answer": {ANSWER}}}'
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
        }
        return ChatCompletion.model_validate(
            {
                "id": f"x{next(COUNT)}",
                "object": "chat.completion",
                "created": 1,
                "model": "script",
                "choices": [choice],
            },
        )


def describe(function):
    return _tool(function).parameters


def direct(function):
    return _tool(function)
