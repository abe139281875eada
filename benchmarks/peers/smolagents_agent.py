"""smolagents' `ToolCallingAgent`. It is synchronous: concurrent agents need a thread each."""

from __future__ import annotations

from smolagents import Model, OpenAIModel, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction
from smolagents.monitoring import LogLevel

from peers.script import ANSWER, QUESTION, Agent


def make(model, tool, turns):
    used = (
        OpenAIModel("gpt-4o", api_base=model, api_key="x")
        if isinstance(model, str)
        else _Scripted(model)
    )

    class Add(Tool):
        name = "add"
        description = "Add two integers."
        inputs = {
            "a": {"type": "integer", "description": "first"},
            "b": {"type": "integer", "description": "second"},
        }
        output_type = "integer"

        def forward(self, a, b):
            return tool(a, b)

    def made():
        return ToolCallingAgent(
            tools=[Add()],
            model=used,
            max_steps=turns + 2,
            verbosity_level=LogLevel.OFF,
        )

    idle = []  # an agent keeps the memory of its run, so concurrent runs need one each

    def run() -> int:
        agent = idle.pop() if idle else made()
        answer = agent.run(QUESTION)
        idle.append(agent)
        return answer["answer"] if isinstance(answer, dict) else int(answer)

    return Agent(run, None)


class _Scripted(Model):
    def __init__(self, script):
        super().__init__()
        self._script = script

    def generate(self, messages, **keywords):
        turn = (
            len(messages) - 2
        ) // 3  # a step has three messages: the calls' text, the calls, and all results
        calls = [("add", args) for args in self._script.calls(turn)] or [
            ("final_answer", {"answer": ANSWER}),
        ]
        return ChatMessage(
            role="assistant",
            content="",
            tool_calls=[
                ChatMessageToolCall(
                    function=ChatMessageToolCallFunction(name=name, arguments=args),
                    id=f"c{turn}_{i}",
                    type="function",
                )
                for i, (name, args) in enumerate(calls)
            ],
        )


def describe(function):
    from smolagents import tool

    made = tool(function)
    return made.inputs
