"""LangGraph, through LangChain's `create_agent`, which the documentation recommends for agents; with or without a checkpointer."""

from __future__ import annotations

import os
import uuid

os.environ["LANGSMITH_TRACING"] = "false"

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool as langchain_tool
from pydantic import BaseModel

from peers.script import ANSWER, QUESTION, Agent


class Answer(BaseModel):
    """The answer."""

    answer: int


def make(model, tool, turns, *, store=None):
    if isinstance(model, str):
        from langchain_openai import ChatOpenAI

        used = ChatOpenAI(model="gpt-4o", base_url=model, api_key="x", use_responses_api=False)
    else:
        used = _Scripted(script=model)
    agent = create_agent(
        used,
        tools=[langchain_tool(tool)],
        response_format=ToolStrategy(Answer),
        checkpointer=store,
    )
    asked = {"messages": [("user", QUESTION)]}

    def settings():
        return {"recursion_limit": 4 * turns + 20, "configurable": {"thread_id": uuid.uuid4().hex}}

    async def arun() -> int:
        return (await agent.ainvoke(asked, settings()))["structured_response"].answer

    return Agent(lambda: agent.invoke(asked, settings())["structured_response"].answer, arun)


def saver(name, place):
    """A checkpointer, as a context manager."""
    if name == "memory":
        from contextlib import nullcontext

        from langgraph.checkpoint.memory import InMemorySaver

        return nullcontext(InMemorySaver())
    if name == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        return SqliteSaver.from_conn_string(place)
    from langgraph.checkpoint.postgres import PostgresSaver

    return PostgresSaver.from_conn_string(place)


class _Scripted(BaseChatModel):
    script: object

    @property
    def _llm_type(self):
        return "script"

    def bind_tools(self, tools, **keywords):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **keywords):
        turn = self.script.turn(len(messages) - 1)
        calls = [
            {"name": "add", "args": args, "id": f"c{turn}_{i}"}
            for i, args in enumerate(self.script.calls(turn))
        ]
        message = AIMessage(
            "",
            tool_calls=calls or [{"name": "Answer", "args": {"answer": ANSWER}, "id": "end"}],
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages, stop=None, run_manager=None, **keywords):
        return self._generate(messages)


def describe(function):
    return langchain_tool(function).tool_call_schema.model_json_schema()


def direct(function):
    made = langchain_tool(function)
    return lambda **arguments: made.invoke(arguments)
