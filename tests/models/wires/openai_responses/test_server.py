from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_calls import json_values
from raw_server import begin, end, raw_server, reply
from wire_servers import serve
from wire_servers.openai_responses import answer, error_body, error_event, events, receive

from ferrule.encoding.encode import json_bytes
from ferrule.errors import (
    AuthenticationError,
    BadRequestError,
    ContextOverflowError,
    InputError,
    MissingContentError,
    RateLimitError,
    RefusalError,
    ScriptError,
    UnavailableError,
)
from ferrule.models.hosted import LM
from ferrule.models.model import BaseLM
from ferrule.models.wires.openai_responses import read, render
from ferrule.models.wires.openai_responses.stream import Assembly
from ferrule.net.errors import status_error
from ferrule.programs.react import ReAct
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import File, Image, Text
from ferrule.values.conversation.exchange import (
    Declarations,
    Delta,
    Request,
    Response,
    Shape,
    Usage,
)
from ferrule.values.conversation.message import Message, Messages

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = ToolCall(name="add", args={"a": 1}, id="call_1")
ENCRYPTED = {
    "type": "reasoning",
    "id": "rs_0",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "gAAA",
    "content": [],
}
KEPT = {
    "openai_responses": {
        "output": [
            ENCRYPTED,
            {"type": "message", "id": "msg_0", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "let me add", "annotations": []}]},
            {"type": "function_call", "id": "fc_0", "status": "completed", "arguments": '{"a":1}', "call_id": "call_1", "name": "add"},
        ],
    },
}  # fmt: skip


def sent(request: Request, **keywords) -> dict:
    return json.loads(render(request, **{"model": "m", "settings": {}, **keywords}))


# -- requests

REQUESTS = {
    "plain": Request(Messages([Message("user", "hi")])),
    "conversation": Request(
        Messages([
            Message("system", "Use tools."),
            Message("user", (Text(text="What is this?"), Image(url="https://example.com/a.png"), Image(data="AAAA"), File(data="AAAA", name="a.pdf"))),
            Message("assistant", "I add.", (CALL, CALL.with_id("call_2"))),
            Message("tool", "3", tool_call_id="call_1"),
            Message("tool", (Text(text="see"), Image(data="AAAA")), tool_call_id="call_2"),
            Message("assistant", "let me add", (CALL,), reasoning="hm", extra=KEPT),
            Message("tool", "3", tool_call_id="call_1"),
            Message("assistant", "One."),
            Message("assistant", "Two."),
            Message("user", "Thanks."),
        ]),
        Declarations([ADD]),
        {"type": "function", "function": {"name": "add"}},
        parallel=False,
        shape=Shape("json_schema", {"type": "object"}, "thing"),
        settings={"temperature": 0.5, "max_tokens": 3, "verbosity": "low", "reasoning_effort": "low"},
    ),
    "object": Request(Messages([Message("user", "hi")]), Declarations([ADD]), "required", shape=Shape("json_object")),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_was_sent_is_the_same_request_again(name):
    request = REQUESTS[name]
    found = receive(sent(request, stream=True), "/v1/responses")
    assert (found.model, found.stream) == ("m", True)
    assert list(found.request.messages) == list(request.messages)
    assert [message.extra for message in found.request.messages] == [
        message.extra for message in request.messages
    ]
    assert found.request.tools == request.tools
    for each in ("tool_choice", "parallel", "shape", "settings"):
        assert getattr(found.request, each) == getattr(request, each), each


def test_a_text_and_instructions_are_a_conversation():
    """The short forms that clients use."""
    found = receive(
        {
            "input": "hi",
            "instructions": "Be brief.",
            "reasoning": None,
            "text": None,
            "previous_response_id": None,
        },
        "/responses",
    )
    assert list(found.request.messages) == [Message("system", "Be brief."), Message("user", "hi")]
    assert (found.model, found.stream, found.request.settings) == (None, False, {})


def test_several_items_of_one_answer_are_one_message():
    """Reasoning between calls belongs to them."""
    second = {**ENCRYPTED, "id": "rs_1", "summary": []}
    items = [
        {"type": "message", "role": "user", "content": "hi"},
        ENCRYPTED,
        KEPT["openai_responses"]["output"][2],
        second,
    ]
    items += [{"type": "function_call", "name": "add", "arguments": "{}", "call_id": "call_2"}]
    user, said = receive({"input": items}, "/responses").request.messages
    assert (user.text, [call.id for call in said.tool_calls], said.reasoning) == (
        "hi",
        ["call_1", "call_2"],
        "hm",
    )
    assert sent(Request(Messages([user, said])))["input"] == items


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "`input`"),
        ({"input": []}, "empty"),
        ({"input": 3}, "`input`"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": "x"}]}, r"input\[1\]"),
        ({"input": [3]}, r"input\[0\]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, r"input\[0\]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, r"input\[0\]"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, r"input\[0\]"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, r"tools\[0\]"),
        ({"input": "x", "tools": [{"type": "function"}]}, r"tools\[0\]"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "x"}}}, "response_format"),
    ],
    ids=[
        "nothing", "empty", "number", "stored", "conversation", "reference", "no_item", "no_image", "no_file", "no_id",
        "web_search", "nameless", "no_schema",
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_with_its_place(body, words):
    with pytest.raises(InputError, match=words):
        receive(body, "/responses")


FIELDS = [
    "role",
    "content",
    "type",
    "call_id",
    "output",
    "name",
    "arguments",
    "summary",
    "encrypted_content",
]
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output"]) | json_values},
    optional={**dict.fromkeys(FIELDS[3:], json_values), "role": st.sampled_from(["user", "assistant", "system"]) | json_values,
              "content": json_values | st.lists(st.fixed_dictionaries({"type": st.sampled_from(["input_text", "input_image", "input_file"])},
                                                               optional=dict.fromkeys(["text", "image_url", "file_data"], json_values)), max_size=2)},
)  # fmt: skip
ASKED = st.dictionaries(
    st.sampled_from(
        [
            "tools",
            "tool_choice",
            "text",
            "reasoning",
            "instructions",
            "temperature",
            "parallel_tool_calls",
        ],
    ),
    json_values,
)


@given(ASKED, json_values | st.lists(ITEM | json_values, max_size=4))
def test_a_body_of_any_content_is_a_request_or_an_error_of_the_house(body, items):
    try:
        found = receive({**body, "input": items}, "/responses")
    except InputError:
        return
    assert isinstance(found.request, Request)


NAMES = st.text(st.characters(categories=["L", "Nd"], max_codepoint=0x2FF), min_size=1, max_size=8)
SAFE = st.from_regex("[a-zA-Z0-9_-]{1,64}", fullmatch=True)
CALLS = st.lists(
    st.builds(
        ToolCall,
        name=SAFE,
        args=st.dictionaries(NAMES, json_values, max_size=3),
        id=SAFE,
        fault=st.none()
        | st.builds(CallFault, st.just("invalid_tool_call_arguments"), NAMES, st.just("{half")),
    ).map(lambda call: call if call.fault is None else call.model_copy(update={"args": {}})),
    min_size=1,
    max_size=3,
)


@given(CALLS)
def test_any_calls_survive_the_way_to_a_server_and_back(calls):
    dumped = ToolCalls.model_validate(json.loads(ToolCalls(tool_calls=calls).model_dump_json()))
    [message] = receive(
        sent(Request(Messages([Message("assistant", "", tuple(dumped.tool_calls))]))),
        "/responses",
    ).request.messages
    assert [(each.name, each.args, each.id) for each in message.tool_calls] == [
        (each.name, each.args, each.id) for each in calls
    ]
    faults = [(each.fault.code, each.fault.raw) if each.fault else None for each in calls]
    assert [
        (each.fault.code, each.fault.raw) if each.fault else None for each in message.tool_calls
    ] == faults


# -- answers

ANSWERS = {
    "empty": Response(None, finish_reason="stop", usage=Usage(calls=1), model="m"),
    "empty_text": Response("", finish_reason="stop", usage=Usage(calls=1), model="m"),
    "text": Response("hi \ud800", finish_reason="length", usage=Usage(1, 2, 1, 1), model="m"),
    "own_word": Response("hi", finish_reason="steered", usage=Usage(1, 2, 1, 1), model="m"),
    "calls": Response(
        None,
        (CALL, ToolCall(name="b", id="2")),
        "hm",
        "tool_calls",
        usage=Usage(1, 2, 1, 1),
        model="m",
    ),
    "all": Response(
        "let me add",
        (CALL,),
        "hm",
        "tool_calls",
        usage=Usage(1, 2, 1, 1),
        model="m",
        extra=KEPT,
    ),
    "refusal": Response(None, refusal="no", finish_reason="stop", usage=Usage(calls=1), model="m"),
}


def streamed(*items: Delta | Response) -> tuple[list[Delta], Response]:
    assembly = Assembly()
    deltas = [delta for piece in events(items, model="m") for delta in assembly.feed(piece)]
    assert [*assembly.end()] == []
    return deltas, assembly.response()


@pytest.mark.parametrize("response", ANSWERS.values(), ids=ANSWERS.keys())
def test_what_is_written_is_read_again(response):
    assert read(json_bytes(answer(response, model="m"))) == response
    assert streamed(response)[1] == response
    assert (
        streamed(
            Delta("", response.reasoning or ""),
            *[Delta(each) for each in response.text or ""],
            response,
        )[1]
        == response
    )


@given(
    st.text(max_size=30) | st.none(),
    st.text(min_size=1, max_size=10) | st.none(),
    CALLS | st.just([]),
    st.booleans(),
    st.randoms(),
)
def test_any_answer_is_read_as_it_was_written(text, reasoning, calls, is_refused, random):
    """Whole and streamed, in any order of the pieces."""
    calls = [call for call in calls if call.fault is None]
    reason = "tool_calls" if calls else "stop"
    response = Response(
        text,
        tuple(calls),
        reasoning,
        reason,
        "no" if is_refused else None,
        Usage(3, 2, 1, 1),
        "m",
    )
    assert read(answer(response, model="m")) == response
    pieces = [*(Delta(each) for each in text or ""), *(Delta("", each) for each in reasoning or "")]
    random.shuffle(pieces)
    deltas, found = streamed(*pieces, response)
    assert [delta for delta in deltas if delta.call is None] == pieces
    assert [
        "".join(each.call.arguments for each in deltas if each.call and each.call.index == i)
        for i in range(len(calls))
    ] == [call.arguments_text for call in calls]
    assert found == response


def test_the_events_of_a_stream_are_numbered_and_end_with_the_whole():
    """Real clients keep count, and compare each item with the one they saw begin."""
    made = [
        json.loads(each.partition(b"data: ")[2])
        for each in events([Delta("a"), Delta("", "t"), ANSWERS["all"]], model="m")
    ]
    assert [each["sequence_number"] for each in made] == list(range(len(made)))
    assert [each["type"] for each in made[:2]] == ["response.created", "response.in_progress"]
    assert made[-1]["type"] == "response.completed"
    ends = {
        each["output_index"]: each["item"]
        for each in made
        if each["type"] == "response.output_item.done"
    }
    begun = {
        each["output_index"]: each["item"]
        for each in made
        if each["type"] == "response.output_item.added"
    }
    assert [*ends.values()] == made[-1]["response"]["output"]
    assert {place: (item["type"], item["id"]) for place, item in begun.items()} == {
        k: (v["type"], v["id"]) for k, v in ends.items()
    }
    assert [item["type"] for item in ends.values()] == ["message", "reasoning", "function_call"]


def test_reasoning_has_the_same_id_whole_and_in_every_event():
    """Real clients refuse an item that changes its id (openai 3.54)."""
    thought = {"openai_responses": {"output": [{**ENCRYPTED, "id": "rs_of_another_server"}]}}
    response = Response("a", reasoning="hm", finish_reason="stop", extra=thought)
    [whole, _] = answer(response, model="m")["output"]
    made = [
        json.loads(each.partition(b"data: ")[2])
        for each in events([Delta("", "hm"), response], model="m")
    ]
    ids = {
        each.get("item_id") or each["item"]["id"] for each in made if each.get("output_index") == 0
    }
    assert ids == {whole["id"]}


def test_what_was_begun_and_then_not_said_is_empty():
    """A model may take back what it streamed."""
    _, found = streamed(Delta("a", "t"), Response(None, (CALL,), finish_reason="tool_calls"))
    assert (found.text, found.reasoning, found.tool_calls) == (None, None, (CALL,))


def test_nothing_is_said_before_the_model_answers():
    """Until then the answer may still be a status."""

    def failing():
        raise RateLimitError("slow")
        yield

    with pytest.raises(RateLimitError):
        next(events(failing(), model="m"))


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
    "kind",
    [RateLimitError, UnavailableError, ContextOverflowError, RefusalError, BadRequestError],
)
def test_an_error_in_a_stream_is_the_same_error_again(kind):
    with pytest.raises(kind, match="said") as caught:
        list(Assembly().feed(error_event(error_body(kind("said"))[1])))
    assert type(caught.value) is kind


# -- from end to end


pytestmark = pytest.mark.usefixtures("retries_do_not_wait")


async def collected(stream) -> list:
    return [item async for item in stream]


QUESTION = Request(Messages([Message("user", "add")]), Declarations([ADD]))
WAYS = {
    "complete": lambda lm: lm.complete(QUESTION),
    "acomplete": lambda lm: asyncio.run(lm.acomplete(QUESTION)),
    "stream": lambda lm: list(lm.stream(QUESTION))[-1],
    "astream": lambda lm: asyncio.run(collected(lm.astream(QUESTION)))[-1],
}
ways = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS.keys())


@ways
@pytest.mark.parametrize("name", ["text", "calls", "all", "refusal"])
def test_a_served_model_answers_as_it_does_itself(ask, name):
    """Over a real connection."""
    with serve(ScriptedLM(by=lambda request: ANSWERS[name])) as served:
        answer = ask(served.lm(model="m", wire="openai_responses"))
        [body] = served.requests
    if answer.extra is not None:
        answer.extra.pop("author")
    assert answer == ANSWERS[name]
    assert (body["input"], body["tools"][0]["name"]) == (
        [{"type": "message", "role": "user", "content": "add"}],
        "add",
    )


class Adder(BaseLM):
    """Calls twice at once, then once, then finishes; thinks in a way that must come back."""

    def __init__(self) -> None:
        self.seen: list[Messages] = []

    def complete(self, request: Request) -> Response:
        self.seen.append(request.messages)
        turn = sum(1 for message in request.messages if message.role == "assistant")
        name = "add" if turn < 2 else "finish"
        args = (
            [{"a": turn, "b": k} for k in range(2 if turn == 0 else 1)]
            if turn < 2
            else [{"answer": 7}]
        )
        calls = tuple(
            ToolCall(name=name, args=each, id=f"call_{turn}_{k}") for k, each in enumerate(args)
        )
        thought = {**ENCRYPTED, "encrypted_content": f"gAAA{turn}"}
        return Response(
            f"turn {turn}",
            calls,
            "hm",
            "tool_calls",
            extra={"openai_responses": {"output": [thought]}},
        )


def add(a: int, b: int):
    """Add two integers."""
    return [f"{a + b}", Image(data="AAAA")] if b else a + b


def looped(wire: str, driver: str):
    model = Adder()
    with serve(model) as served:
        program = ReAct("question -> answer: int", [Tool(add)], native=True)
        lm = served.lm(wire=wire)
        prediction = (
            program(question="?", lm=lm)
            if driver == "sync"
            else asyncio.run(program.acall(question="?", lm=lm))
        )
        return prediction, served.bodies, model.seen


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_run_is_the_same_as_over_chat_completions(driver):
    """Prediction and trajectory; each request begins with the one before (L7)."""
    prediction, bodies, seen = looped("openai_responses", driver)
    other, _, _ = looped("openai_chat", driver)
    assert prediction == other
    assert dict(prediction.trajectory) == dict(other.trajectory)
    assert prediction.answer == 7
    assert all(
        later.startswith(earlier.removesuffix(b"]}") + b",") for earlier, later in pairwise(bodies)
    )
    assert [message.role for message in seen[-1]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
    ]
    kept = [
        message.extra["openai_responses"]["output"][0]["encrypted_content"]
        for message in seen[-1]
        if message.role == "assistant"
    ]
    assert kept == ["gAAA0", "gAAA1"]


FAILURES = {
    "500": (reply('{"error": {"message": "oops"}}', "500 Internal Server Error", x_request_id="req_1"), UnavailableError, 500, "oops"),
    "502_html": (reply("<html><title>502 Bad Gateway</title></html>", "502 x", x_request_id="req_1"), UnavailableError, 502, "Bad Gateway"),
    "429": (reply('{"error": {"message": "slow"}}', "429 x", x_request_id="req_1", retry_after="7"), RateLimitError, 429, "slow"),
    "401": (reply('{"error": {"message": "bad key", "code": "invalid_api_key"}}', "401 x", x_request_id="req_1"), AuthenticationError, 401, "bad"),
    "overflow": (
        reply('{"error": {"message": "Your input exceeds the context window", "code": "context_length_exceeded"}}', "400 x", x_request_id="req_1"),
        ContextOverflowError, 400, "exceeds",
    ),
    "unsupported": (
        reply('{"error": {"message": "Unsupported parameter", "param": "stop", "type": "invalid_request_error"}}', "400 x", x_request_id="req_1"),
        BadRequestError, 400, "Unsupported",
    ),
}  # fmt: skip


@ways
@pytest.mark.parametrize(("act", "kind", "status", "words"), FAILURES.values(), ids=FAILURES.keys())
def test_a_status_is_an_error_of_the_house(ask, act, kind, status, words):
    with raw_server(act) as server, pytest.raises(kind, match=words) as caught:
        ask(LM(server.base_url, model="m", wire="openai_responses", max_retries=0))
    assert type(caught.value) is kind
    assert (caught.value.provider, caught.value.status, caught.value.request_id) == (
        server.base_url.split("/")[2],
        status,
        "req_1",
    )
    assert caught.value.retry_after_s == (7.0 if status == 429 else None)


@ways
def test_a_page_in_place_of_an_answer_is_a_bad_request(ask):
    with (
        raw_server(reply("<html>Welcome", content_type="text/html")) as server,
        pytest.raises(BadRequestError, match="base URL"),
    ):
        ask(LM(server.base_url, model="m", wire="openai_responses"))


@ways
def test_an_answer_in_another_protocol_is_missing_content(ask):
    """A chat completion."""
    with raw_server(reply()) as server, pytest.raises(MissingContentError):
        ask(LM(server.base_url, model="m", wire="openai_responses"))


@pytest.mark.parametrize("finish", [end, None], ids=["ended", "cut"])
def test_a_stream_that_breaks_off_is_unavailable(finish):
    first, *_ = events([Response("x")], model="m")
    act = begin(first, *([end] if finish else [lambda connection: connection.close()]))
    with raw_server(act) as server, pytest.raises(UnavailableError):
        list(
            LM(server.base_url, model="m", wire="openai_responses", max_retries=0).stream(QUESTION),
        )


@ways
def test_a_served_model_that_fails_is_the_same_error(ask):
    with (
        serve(ScriptedLM([RateLimitError("slow"), ScriptError("x")])) as served,
        pytest.raises(RateLimitError, match="slow"),
    ):
        ask(served.lm(wire="openai_responses", max_retries=0))


def test_an_error_in_the_middle_of_a_stream_arrives():
    class Breaking(BaseLM):
        def stream(self, request):
            yield Delta("half")
            raise ContextOverflowError("long")

    with serve(Breaking()) as served:
        stream = served.lm(wire="openai_responses").stream(QUESTION)
        assert next(stream) == Delta("half")
        with pytest.raises(ContextOverflowError, match="long"):
            next(stream)
