"""No library: JSON, pydantic's validation of the arguments, a list of messages, and a bare HTTP client."""

from __future__ import annotations

import asyncio
import inspect
import json

from pydantic import BaseModel, TypeAdapter

from peers.script import QUESTION, Agent, Script

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


class Arguments(BaseModel):
    a: int
    b: int


class Answer(BaseModel):
    answer: int


ARGUMENTS, TYPED = TypeAdapter(Arguments), TypeAdapter(Answer)


def make(model, tool, turns):
    del turns
    if isinstance(model, str):
        return Agent(None, _hosted(model, tool))
    if inspect.iscoroutinefunction(tool):
        return Agent(None, lambda: _arun(model, tool))
    return Agent(lambda: _run(model, tool), None)


def _messages_of(model: Script, turn: int) -> tuple[dict, list[dict]]:
    calls = [
        {
            "id": f"c{turn}_{i}",
            "type": "function",
            "function": {"name": "add", "arguments": json.dumps(args)},
        }
        for i, args in enumerate(model.calls(turn))
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}, calls


def _run(model, tool) -> int:
    messages = [{"role": "user", "content": QUESTION}]
    for turn in range(model.turns):
        message, calls = _messages_of(model, turn)
        messages.append(message)
        for call in calls:
            args = ARGUMENTS.validate_json(call["function"]["arguments"])
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": json.dumps(tool(args.a, args.b)),
                },
            )
    return TYPED.validate_json('{"answer": 42}').answer


async def _arun(model, tool) -> int:
    messages = [{"role": "user", "content": QUESTION}]
    for turn in range(model.turns):
        message, calls = _messages_of(model, turn)
        messages.append(message)
        checked = [ARGUMENTS.validate_json(call["function"]["arguments"]) for call in calls]
        running = [tool(args.a, args.b) for args in checked]
        results = [await running[0]] if len(running) == 1 else await asyncio.gather(*running)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}
            for call, result in zip(calls, results, strict=True)
        ]
    return TYPED.validate_json('{"answer": 42}').answer


def _hosted(url, tool):
    import httpx2

    client = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=100), timeout=60)

    async def arun() -> int:
        messages = [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": QUESTION},
        ]
        while True:
            response = await client.post(
                f"{url}/chat/completions",
                json={"model": "gpt-4o", "messages": messages, "tools": [TOOL]},
            )
            message = json.loads(response.content)["choices"][0]["message"]
            if not message.get("tool_calls"):
                return TYPED.validate_json(message["content"]).answer
            messages.append(message)
            for call in message["tool_calls"]:
                args = ARGUMENTS.validate_json(call["function"]["arguments"])
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": call["id"],
                        "content": str(await tool(args.a, args.b)),
                    },
                )

    return arun


def describe(function):
    """Pydantic's schema of the function's arguments."""
    return TypeAdapter(function).json_schema()


def direct(function):
    """A call checked by pydantic."""
    from pydantic import validate_call

    return validate_call(function)
