from __future__ import annotations

import pytest

from ferrule.encoding.encode import json_bytes
from ferrule.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigurationError,
    ContextOverflowError,
    FerruleError,
    InputError,
    RateLimitError,
    RefusalError,
    ScriptError,
    UnavailableError,
)
from ferrule.models.wires.openai_chat import read
from ferrule.net.errors import status_error
from ferrule.testing.server.openai_chat import answer, error_body
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.conversation.exchange import Response, Usage

ANSWERS = {
    "empty": Response(),
    "text": Response("hi \ud800", finish_reason="length", usage=Usage(1, 2, 1, 1)),
    "calls": Response(
        None,
        (ToolCall(name="a", args={"x": [1]}, id="1"), ToolCall(name="b", id="2")),
        "hm",
        "tool_calls",
    ),
    "refusal": Response(None, refusal="no", finish_reason="stop"),
    "fault": Response(
        None,
        (ToolCall(name="a", id="1", fault=CallFault("invalid_tool_call_arguments", "x", "{half")),),
    ),
}


@pytest.mark.parametrize("response", ANSWERS.values(), ids=ANSWERS.keys())
def test_what_is_written_is_read_again(response):
    found = read(json_bytes(answer(response, model="m")))
    assert (found.text, found.reasoning, found.refusal) == (
        response.text,
        response.reasoning,
        response.refusal,
    )
    assert [(call.name, call.args, call.id) for call in found.tool_calls] == [
        (call.name, call.args, call.id) for call in response.tool_calls
    ]
    assert [call.fault is None for call in found.tool_calls] == [
        call.fault is None for call in response.tool_calls
    ]
    assert found.finish_reason == response.finish_reason or (
        "tool_calls" if response.tool_calls else "stop"
    )
    assert found.usage.total_tokens == response.usage.total_tokens


@pytest.mark.parametrize(
    "kind",
    [
        RateLimitError,
        UnavailableError,
        AuthenticationError,
        ContextOverflowError,
        RefusalError,
        BadRequestError,
    ],
)
def test_an_error_that_was_sent_is_the_same_error_again(kind):
    status, body = error_body(kind("said"))
    error, _ = status_error(status, {}, json_bytes(body))
    assert type(error) is kind
    assert "said" in str(error)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("x"), 400),
        (ScriptError("x"), 500),
        (FerruleError("x"), 500),
        (UnavailableError("x", status=529), 529),
        (ConfigurationError("x"), 400),
    ],
    ids=range(5),
)
def test_errors_have_a_status(error, status):
    assert error_body(error)[0] == status
