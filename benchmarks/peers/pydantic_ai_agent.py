"""pydantic-ai's `Agent`."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from peers.script import ANSWER, QUESTION, Agent


class Answer(BaseModel):
    answer: int


def make(model, tool, turns):
    del turns
    if isinstance(model, str):
        used = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=model, api_key="x"))
    else:
        used = FunctionModel(_script(model))
    agent = PydanticAgent(used, output_type=Answer, tools=[tool])
    unlimited = UsageLimits(request_limit=None)

    def run() -> int:
        return agent.run_sync(QUESTION, usage_limits=unlimited).output.answer

    async def arun() -> int:
        return (await agent.run(QUESTION, usage_limits=unlimited)).output.answer

    return Agent(run, arun)


def _script(script):
    async def answer(messages, info):
        calls = [ToolCallPart("add", args) for args in script.calls(len(messages) // 2)]
        return ModelResponse(parts=calls or [ToolCallPart("final_result", {"answer": ANSWER})])

    return answer


def describe(function):
    return Tool(function).tool_def.parameters_json_schema
