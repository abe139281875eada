from __future__ import annotations

import asyncio
from datetime import date, datetime
from typing import Annotated
from uuid import UUID

import pytest
from pydantic import Field, HttpUrl

from ferrule import InputField, OutputField, Predict, ReAct, Signature
from ferrule.testing.offline.model import AutoLM
from ferrule.values.conversation.exchange import (
    Capabilities,
    Declarations,
    Delta,
    Request,
    Response,
)
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "hi")]))


async def collected(stream) -> list:
    return [item async for item in stream]


def declared(*names: str, **properties) -> dict[str, dict]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        name: {
            "type": "function",
            "function": {"name": name, "description": "", "parameters": parameters},
        }
        for name in names
    }


def followed(lm, request: Request, turns: int = 10) -> list[Response]:
    """The model's turns, each call answered with text."""
    said = []
    for _ in range(turns):
        response = lm.complete(request)
        said.append(response)
        if not response.tool_calls or response.tool_calls[0].name == "finish":
            return said
        results = [Message("tool", "ok", tool_call_id=each.id) for each in response.tool_calls]
        request = request.following(request.messages.then(response.message(), *results))
    return said


def test_each_tool_is_called_once_and_then_an_answer_is_given():
    tools = Declarations(
        [
            *declared("add", a={"type": "integer", "minimum": 5}).values(),
            *declared("look", kind={"enum": ["x", "y"]}).values(),
        ],
    )
    turns = followed(AutoLM("the end"), Request(ASKED.messages, tools))
    assert [(each.name, each.args) for turn in turns for each in turn.tool_calls] == [
        ("add", {"a": 5}),
        ("look", {"kind": "x"}),
    ]
    assert len({each.id for turn in turns for each in turn.tool_calls}) == 2
    assert turns[-1].text == "the end"


def test_finish_is_called_last_with_its_outputs():
    finish = declared(
        "finish",
        answer={"type": "string"},
        score={"type": "number", "minimum": 2},
        kind={"enum": ["a", "b"]},
    )
    tools = Declarations([*finish.values(), *declared("look", "user_clarification").values()])
    turns = followed(AutoLM("yes"), Request(ASKED.messages, tools))
    assert [(each.name, each.args) for turn in turns for each in turn.tool_calls] == [
        ("look", {}),
        ("finish", {"answer": "yes", "score": 2, "kind": "a"}),
    ]
    mapped = AutoLM({"score": 9}).complete(Request(ASKED.messages, Declarations(finish.values())))
    assert mapped.tool_calls[0].args == {"answer": "text", "score": 9, "kind": "a"}


@pytest.mark.parametrize(
    "kind",
    [
        date,
        datetime,
        UUID,
        HttpUrl,
        Annotated[str, Field(pattern="^[a-z]{2}-[0-9]+$")],
        Annotated[str, Field(min_length=9, max_length=12)],
    ],
    ids=["date", "datetime", "uuid", "url", "pattern", "length"],
)
def test_an_output_that_takes_only_some_texts_gets_one_of_them(kind):
    """It got the text of every answer, "done", and no run ended."""
    signature = Signature(
        {
            "question": (str, InputField()),
            "when": (kind, OutputField()),
            "answer": (str, OutputField()),
        },
    )
    for program in (Predict(signature), ReAct(signature, [])):
        found = program(question="?", lm=AutoLM())
        assert found.answer == "done"
        assert str(found.when) != "done"


def test_without_tools_it_answers():
    assert AutoLM("x")("hi") == "x"
    assert AutoLM(capabilities=Capabilities(native_tools=False)).capabilities.native_tools is False
    assert list(AutoLM("a b").stream(ASKED))[:2] == [Delta("a "), Delta("b")]
    assert asyncio.run(collected(AutoLM("a").astream(ASKED)))[-1].text == "a"
    assert asyncio.run(AutoLM("a").acall("hi")) == "a"


def test_tool_choice_none_is_respected():
    request = Request(ASKED.messages, Declarations(declared("add").values()), tool_choice="none")
    assert AutoLM("x").complete(request).text == "x"
