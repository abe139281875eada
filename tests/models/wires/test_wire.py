"""One form for any provider's answer."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule import Tool
from ferrule.encoding.encode import json_bytes
from ferrule.errors import LMError, MissingContentError
from ferrule.models.model import as_model
from ferrule.models.wires.any_answer import response_of
from ferrule.models.wires.streamed import assembly
from ferrule.models.wires.wire import wire
from ferrule.values.conversation.exchange import Declarations, Delta, Request, Response
from ferrule.values.conversation.message import Message, Messages

ARGS = '{"a": 1}'
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": ARGS}}
CHAT = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}


def as_objects(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{name: as_objects(each) for name, each in value.items()})
    return [as_objects(each) for each in value] if isinstance(value, list) else value


NO_COSTS: list[Any] = [
    float("nan"),
    float("inf"),
    -1,
    -0.5,
    10**400,
    1e300,
    True,
    "1",
    [1],
    {"total_cost": float("nan")},
    {"total_cost": 10**400},
]


@pytest.mark.parametrize(
    "usage",
    [
        *({"cost": each} for each in NO_COSTS),
        {"cost_in_usd_ticks": -1},
        {"cost_in_usd_ticks": 10**400},
    ],
)
def test_a_cost_that_cannot_be_one_is_unknown(usage):
    """NaN would exceed no limit, and a stored run that holds it could not be read again."""
    assert response_of({"choices": [{"message": CHAT}], "usage": usage}).cost is None


class Dumped(BaseModel):
    choices: list[dict[str, Any]]
    unset: str | None = None


CALLS: dict[str, Any] = {
    "chat": {"choices": [{"message": CHAT, "finish_reason": "tool_calls"}]},
    "chat, deprecated": {"choices": [{"message": {"content": None, "function_call": {"name": "add", "arguments": ARGS}}}]},
    "chat, of two the first": {"choices": [{"message": CHAT}, {"message": {"content": "other"}}]},
    "a message": CHAT,
    "a pydantic model": Dumped(choices=[{"message": CHAT}]),
    "responses": {"output": [{"type": "function_call", "call_id": "c", "name": "add", "arguments": ARGS}], "status": "completed"},
    "anthropic": {"type": "message", "content": [{"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}], "stop_reason": "tool_use"},
    "gemini": {"candidates": [{"content": {"parts": [{"functionCall": {"name": "add", "args": {"a": 1}}}]}, "finishReason": "STOP"}]},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_every_provider_are_the_same(name: str) -> None:
    """As dicts and as objects; `raw` keeps what it came from (E28)."""
    for answer in (
        CALLS[name],
        as_objects(CALLS[name]) if isinstance(CALLS[name], dict) else CALLS[name],
    ):
        before = copy.deepcopy(answer)
        found = response_of(answer)
        assert [(call.name, call.args, call.fault) for call in found.tool_calls] == [
            ("add", {"a": 1}, None),
        ]
        assert found.text in {None, ""}
        assert found.raw
        assert answer == before


DIGITS = '{"price": 3.10, "rates": [1e3, 2.5]}'
BODIES: dict[str, str] = {
    "openai_chat": '{"choices": [{"message": {"tool_calls": [{"function": {"name": "quote", "arguments": ARGS}}]}}]}',
    "openai_responses": '{"output": [{"type": "function_call", "name": "quote", "arguments": ARGS}]}',
    "anthropic": '{"content": [{"type": "tool_use", "name": "quote", "input": ARGS}]}',
    "gemini": '{"candidates": [{"content": {"parts": [{"functionCall": {"name": "quote", "args": ARGS}}]}}]}',
}  # fmt: skip
STREAMS: dict[str, list[str]] = {
    "openai_chat": [
        '{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "quote", "arguments": TEXT}}]}}]}',
        '{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}',
    ],
    "anthropic": [
        '{"type": "message_start", "message": {"type": "message", "content": []}}',
        '{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "quote", "input": {}}}',
        '{"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": TEXT}}',
        '{"type": "content_block_stop", "index": 0}',
        '{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}',
        '{"type": "message_stop"}',
    ],
    "gemini": [
        '{"candidates": [{"content": {"parts": [{"functionCall": {"name": "quote", "args": ARGS}}]}, "finishReason": "STOP"}]}',
    ],
}  # fmt: skip


def _quotes(response: Response) -> None:
    [call] = response.tool_calls
    assert call.args == {"price": 3.1, "rates": [1000.0, 2.5]}
    assert type(call.args["price"]) is float
    assert call.arguments_text == '{"price":3.10,"rates":[1e3,2.5]}'
    assert "WrittenFloat" not in str([type(value) for value in _leaves(response.raw)])


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("arguments", [DIGITS, json.dumps(DIGITS)], ids=["object", "text"])
def test_arguments_keep_the_digits_of_their_numbers(name: str, arguments: str) -> None:
    _quotes(wire(name).read(BODIES[name].replace("ARGS", arguments).encode()))


@pytest.mark.parametrize("name", STREAMS)
def test_streamed_arguments_keep_the_digits_of_their_numbers(name: str) -> None:
    events = [
        event.replace("ARGS", DIGITS).replace("TEXT", json.dumps(DIGITS)) for event in STREAMS[name]
    ]
    stream = assembly(name, Request(Messages()))
    body = "".join(f"data: {event}\n\n" for event in events).encode()
    for _ in (*stream.feed(body), *stream.end()):
        pass
    _quotes(stream.response())


TEXTS: dict[str, Any] = {
    "text": "hi",
    "a message": {"role": "assistant", "content": "hi"},
    "chat": {"choices": [{"message": {"content": "hi", "tool_calls": []}}]},
    "responses": {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
    },
    "anthropic": {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"},
    "gemini": {"candidates": [{"content": {"parts": [{"text": "hi"}]}}]},
    "a response": Response("hi"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_every_provider_is_the_same(name: str) -> None:
    found = response_of(TEXTS[name])
    assert (found.text, found.tool_calls) == ("hi", ())


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        [],
        {},
        {"choices": []},
        {"choices": [{}]},
        {"output": []},
        {"content": []},
        {"x": 1},
    ],
    ids=range(9),
)
def test_what_holds_no_answer_is_tagged(answer: Any) -> None:
    with pytest.raises(MissingContentError) as raised:
        response_of(answer)
    assert (raised.value.code, raised.value.raw) == ("missing_content", answer)


def test_calls_that_are_no_list_are_kept_and_marked() -> None:
    [call] = response_of(
        {"choices": [{"message": {"content": "hi", "tool_calls": "add(1)"}}]},
    ).tool_calls
    assert call.fault is not None
    assert (call.fault.code, call.fault.raw) == ("invalid_tool_calls", '"add(1)"')


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "content",
                    "tool_calls",
                    "candidates",
                    "output",
                    "parts",
                    "type",
                ],
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(junk)
def test_any_answer_is_a_response_or_an_error_of_the_house(answer: Any) -> None:
    with suppress(LMError):
        assert isinstance(response_of(answer), Response)


def test_a_users_model_may_return_its_providers_answer() -> None:
    class Own:
        def complete(self, request: Any) -> Any:
            del request
            return as_objects(CALLS["chat"])

    found = as_model(Own()).complete(Request(Messages([Message("user", "q")])))
    assert [call.name for call in found.tool_calls] == ["add"]


DECLARED: dict[str, Any] = {
    "without properties": {"type": "object"},
    "of any integers": {"type": "object", "additionalProperties": {"type": "integer"}},
    "a reference": {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}},
}
TOLD = {
    "openai_chat": lambda body: body["tools"][0]["function"]["parameters"],
    "openai_responses": lambda body: body["tools"][0]["parameters"],
    "anthropic": lambda body: body["tools"][0]["input_schema"],
}


@pytest.mark.parametrize("wire", TOLD)
@pytest.mark.parametrize("schema", DECLARED.values(), ids=DECLARED.keys())
def test_a_wire_adds_to_a_declaration_only_what_its_provider_demands(
    wire: str,
    schema: dict[str, Any],
) -> None:
    """OpenAI: 400 "object schema missing properties"; Anthropic: `input_schema.type` is required."""
    made = Tool("t", "d", lambda **given: given, schema)
    demanded = {"type": "object"} if wire == "anthropic" else {"type": "object", "properties": {}}
    request = Request(Messages([Message("user", "hi")]), Declarations([made.declaration]))
    body = json.loads(
        import_module(f"ferrule.models.wires.{wire}.encode").render(
            request, model="m", settings={}
        ),
    )
    assert TOLD[wire](body) == {**demanded, **schema}
    assert made.declaration["function"]["parameters"] == schema


def _streamed(wire: str, *events: dict[str, Any]) -> tuple[list[Delta], Response]:
    reader = assembly(wire, Request(Messages([Message("user", "hi")])))
    body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    return [*reader.feed(body), *reader.end()], reader.response()


def _of_chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def _of_claude(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


CUT = ("so \ud83c", "\udf0d!")
"""A text that was cut in the middle of a character."""
CUT_STREAMS: dict[str, list[dict[str, Any]]] = {
    "openai_chat": [
        *[_of_chat(reasoning_content=each) for each in CUT],
        *[_of_chat(content=each) for each in CUT],
        _of_chat(
            tool_calls=[
                {
                    "index": 0,
                    "id": "c",
                    "function": {"name": "add", "arguments": '{"a": "' + CUT[0]},
                },
            ],
        ),
        _of_chat(tool_calls=[{"index": 0, "function": {"arguments": CUT[1] + '"}'}}]),
        _of_chat("tool_calls"),
    ],
    "openai_responses": [
        *[
            {"type": "response.reasoning_text.delta", "output_index": 0, "delta": each}
            for each in CUT
        ],
        *[{"type": "response.output_text.delta", "output_index": 1, "delta": each} for each in CUT],
        {
            "type": "response.output_item.added",
            "output_index": 2,
            "item": {"type": "function_call", "call_id": "c", "name": "add"},
        },
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 2,
            "delta": '{"a": "' + CUT[0],
        },
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 2,
            "delta": CUT[1] + '"}',
        },
        {"type": "response.completed", "response": {"status": "completed"}},
    ],
    "anthropic": [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
        *[_of_claude(0, type="thinking_delta", thinking=each) for each in CUT],
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text"}},
        *[_of_claude(1, type="text_delta", text=each) for each in CUT],
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "c", "name": "add"},
        },
        _of_claude(2, type="input_json_delta", partial_json='{"a": "' + CUT[0]),
        _of_claude(2, type="input_json_delta", partial_json=CUT[1] + '"}'),
        {"type": "message_stop"},
    ],
    "gemini": [
        *[
            {"candidates": [{"content": {"parts": [{"text": each, "thought": True}]}}]}
            for each in CUT
        ],
        *[{"candidates": [{"content": {"parts": [{"text": each}]}}]} for each in CUT],
        {
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {"functionCall": {"id": "c", "name": "add", "args": {"a": "so 🌍!"}}},
                        ],
                    },
                },
            ],
        },
        {"candidates": [{"finishReason": "STOP"}]},
    ],
}


@pytest.mark.parametrize("wire", CUT_STREAMS)
def test_a_character_that_was_cut_in_two_is_whole(wire: str) -> None:
    """A server that cuts text by UTF-16 sends its halves in two events (openclaw, pull request
    115536).
    """
    deltas, response = _streamed(wire, *CUT_STREAMS[wire])
    assert (response.text, response.reasoning, response.tool_calls[0].args) == (
        "so 🌍!",
        "so 🌍!",
        {"a": "so 🌍!"},
    )
    assert (
        "".join(each.text for each in deltas)
        == "".join(each.reasoning for each in deltas)
        == "so 🌍!"
    )
    assert json.loads("".join(each.call.arguments for each in deltas if each.call)) == {
        "a": "so 🌍!",
    }
    for each in deltas:
        repr(each).encode()
    json_bytes(response.extra)


def test_half_a_character_stays_where_nothing_follows_it() -> None:
    """Streamed and whole, the text is the same."""
    call = {"index": 0, "id": "c", "function": {"name": "add", "arguments": '{"a": "' + CUT[0]}}
    deltas, response = _streamed(
        "openai_chat",
        _of_chat(content=CUT[0]),
        _of_chat(tool_calls=[call]),
        _of_chat("length"),
    )
    assert "".join(each.text for each in deltas) == response.text == CUT[0]
    assert (
        "".join(each.call.arguments for each in deltas if each.call)
        == response.tool_calls[0].arguments_text
    )
