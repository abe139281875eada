"""The OpenAI Agents SDK, with chat completions and without tracing."""

from __future__ import annotations

import json

from agents import Agent as OpenAIAgent
from agents import OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.usage import Usage
from openai import AsyncOpenAI
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic import BaseModel

from peers.script import ANSWER, QUESTION, Agent

set_tracing_disabled(disabled=True)


class Answer(BaseModel):
    answer: int


def make(model, tool, turns):
    hosted = isinstance(model, str)
    used = (
        OpenAIChatCompletionsModel("gpt-4o", AsyncOpenAI(base_url=model, api_key="x"))
        if hosted
        else _Scripted(model)
    )
    agent = OpenAIAgent(
        name="adder",
        instructions="Use tools.",
        tools=[function_tool(tool)],
        model=used,
        output_type=Answer,
    )

    def run() -> int:
        return Runner.run_sync(agent, QUESTION, max_turns=turns + 2).final_output.answer

    async def arun() -> int:
        return (await Runner.run(agent, QUESTION, max_turns=turns + 2)).final_output.answer

    return Agent(run, arun)


class _Scripted(Model):
    def __init__(self, script):
        self._script = script

    async def get_response(self, system_instructions, input, *args, **keywords):
        turn = 0 if isinstance(input, str) else (len(input) - 1) // (2 * self._script.at_once)
        calls = self._script.calls(turn)
        if calls:
            output = [
                ResponseFunctionToolCall(
                    arguments=json.dumps(args),
                    call_id=f"c{turn}_{i}",
                    name="add",
                    type="function_call",
                )
                for i, args in enumerate(calls)
            ]
        else:
            text = ResponseOutputText(
                annotations=[],
                text=f'{{"answer": {ANSWER}}}',
                type="output_text",
            )
            output = [
                ResponseOutputMessage(
                    id="m",
                    role="assistant",
                    status="completed",
                    type="message",
                    content=[text],
                ),
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args, **keywords):
        raise NotImplementedError


def describe(function):
    return function_tool(function).params_json_schema
