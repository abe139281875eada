from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise

import pytest
from agent_script import native_step, text_step
from hypothesis import given
from hypothesis import strategies as st
from raw_server import begin, end, raw_server, reply
from wire_servers import serve
from wire_servers.anthropic import answer, error_body, error_event, events, receive

from ferrule.encoding.encode import json_bytes
from ferrule.errors import (
    AuthenticationError,
    BadRequestError,
    ContextOverflowError,
    FerruleError,
    InputError,
    RateLimitError,
    RefusalError,
    ScriptError,
    UnavailableError,
)
from ferrule.models.hosted import LM
from ferrule.models.wires.anthropic import read, render
from ferrule.models.wires.anthropic.stream import Assembly
from ferrule.net.errors import status_error
from ferrule.programs.react import ReAct
from ferrule.settings import context
from ferrule.testing import ScriptedLM
from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import File, Image, Text
from ferrule.values.conversation.exchange import (
    Capabilities,
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
        "parameters": {"type": "object", "properties": {}},
    },
}
CALL = ToolCall(name="add", args={"a": 1}, id="toolu_1")
CONVERSATION = Messages([
    Message("system", "Use tools."),
    Message("system", "Be kind."),
    Message("user", (Text(text="What?"), Image(url="https://h/a.png"), Image(data="QUJD"))),
    Message("assistant", "I'll see.", (CALL, ToolCall(name="now", id="toolu_2"))),
    Message("tool", "3", tool_call_id="toolu_1", name="add"),
    Message("tool", (Text(text="no"), File(data="QUJD", media_type="application/pdf", name="a.pdf")), (), "toolu_2", "now", is_error=True),
    Message("user", "And?"),
])  # fmt: skip


def heard(request: Request, **settings) -> Request:
    """A request as the server has it after its way over the wire."""
    return receive(
        json.loads(render(request, model="m", settings=settings)),
        "/v1/messages",
    ).request


def assembled(*pieces: bytes) -> Response:
    assembly = Assembly()
    for piece in pieces:
        list(assembly.feed(piece))
    list(assembly.end())
    return assembly.response()


# -- requests


def test_a_request_is_read_as_it_was_made():
    """Every message, the tools, the choice, the shape, the settings."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    request = Request(
        CONVERSATION,
        Declarations([ADD]),
        {"type": "function", "function": {"name": "add"}},
        parallel=False,
        shape=Shape("json_schema", schema),
        settings={"temperature": 0.5, "stop": ["END"], "reasoning_effort": "low"},
    )
    found = heard(request)
    assert found.messages == request.messages
    assert found.tools == request.tools
    assert (found.tool_choice, found.parallel, found.shape) == (
        request.tool_choice,
        False,
        request.shape,
    )
    assert found.settings == {
        "max_tokens": 16_000,
        "temperature": 0.5,
        "stop": ["END"],
        "output_config": {"effort": "low"},
    }


def test_thoughts_of_an_answer_are_read_with_what_belongs_to_them():
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "hi"},
    ]
    message = read({"content": content, "stop_reason": "end_turn"}).message()
    assert heard(Request(Messages([Message("user", "x"), message]))).messages[1] == message


def test_forms_that_other_clients_send_are_read():
    body = {
        "model": "x",
        "system": "Be kind.",
        "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "now"}],
        "tool_choice": {"type": "any"},
        "stream": True,
    }
    found = receive(body, "/v1/messages")
    assert [(each.role, each.content) for each in found.request.messages] == [
        ("system", "Be kind."),
        ("user", "hi"),
        ("system", "now"),
    ]
    assert (found.model, found.stream, found.request.tool_choice, found.request.settings) == (
        "x",
        True,
        "required",
        {},
    )


NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGS = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name != "INVALID_JSON"),
    VALUES,
    max_size=3,
)
SOUND = st.builds(lambda name, args: {"name": name, "args": args}, NAMES, ARGS)
BROKEN = st.builds(
    lambda name, text: {"name": name, "arguments": text},
    NAMES,
    st.sampled_from(["{half", "[1]", '{"a": 1} {"b": 2}']),
)


@given(st.lists(SOUND | BROKEN, min_size=1, max_size=4))
def test_any_calls_survive_a_dump_and_the_way_over_the_wire(entries):
    """Order, duplicates, ids, values, faults."""
    made = ToolCalls.model_validate(
        [{**entry, "id": f"t{place}"} for place, entry in enumerate(entries)],
    )
    calls = tuple(ToolCalls.model_validate(json.loads(json_bytes(made.model_dump()))).tool_calls)
    found = (
        heard(Request(Messages([Message("user", "x"), Message("assistant", "", calls)])))
        .messages[1]
        .tool_calls
    )
    assert found == calls


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "`messages`"),
        ({"messages": []}, "`messages`"),
        ({"messages": [3]}, r"messages\[0\]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            r"messages\[0\].content\[0\]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            r"messages\[0\].content\[0\]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": "x"}], "system": [3]}, "`system`"),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "web_search_20250305", "name": "w"}],
            },
            r"tools\[0\]",
        ),
        ({"messages": [{"role": "user", "content": "x"}], "tools": {"a": 1}}, "`tools`"),
        (
            {"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "tool"}},
            "`tool_choice`",
        ),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "output_config": {"format": {"type": "xml"}},
            },
            "output_config.format",
        ),
    ],
    ids=[
        "empty",
        "none",
        "number",
        "role",
        "kind",
        "source",
        "no_id",
        "system",
        "own_tool",
        "tools",
        "choice",
        "format",
    ],
)
def test_what_is_no_request_is_refused_with_its_place(body, place):
    with pytest.raises(InputError, match=place):
        receive(body, "/v1/messages")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
)
BLOCK = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "image", "document", "tool_use", "tool_result", "thinking"],
        )
        | JSON,
    },
    optional={
        **dict.fromkeys(
            ["text", "id", "name", "input", "tool_use_id", "content", "is_error", "title"],
            JSON,
        ),
        "source": JSON,
    },
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": JSON | st.lists(BLOCK, max_size=3),
    },
)


@given(
    st.lists(MESSAGE, min_size=1, max_size=3),
    st.dictionaries(
        st.sampled_from(["system", "tools", "tool_choice", "output_config", "stop_sequences"]),
        JSON,
    ),
)
def test_a_request_of_anything_is_read_or_refused(messages, rest):
    try:
        assert receive({"messages": messages, **rest}, "/v1/messages").request.messages
    except InputError:
        return


# -- answers

REASONS = st.sampled_from(["stop", "length", "pause_turn"])
TEXT = st.text(max_size=30)


@st.composite
def responses(draw) -> Response:
    calls = tuple(
        ToolCalls.model_validate(
            [
                {**each, "id": f"t{n}"}
                for n, each in enumerate(draw(st.lists(SOUND | BROKEN, max_size=3)))
            ],
        ).tool_calls,
    )
    refusal = None
    if not calls:  # a refusal may stop in the middle of a call: `check_last`
        refusal = draw(st.none() | st.just("I won't."))
    reason = "content_filter" if refusal else "tool_calls" if calls else draw(REASONS)
    cached = draw(st.integers(0, 9))
    usage = Usage(cached + draw(st.integers(0, 9)), draw(st.integers(0, 9)), cached, 1)
    return Response(draw(TEXT) or None, calls, draw(TEXT) or None, reason, refusal, usage, "m")


def without_extra(response: Response) -> Response:
    """Thoughts of a model that signs none come back unsigned."""
    return Response(
        *(
            getattr(response, name)
            for name in (
                "text",
                "tool_calls",
                "reasoning",
                "finish_reason",
                "refusal",
                "usage",
                "model",
            )
        ),
    )


@given(responses())
def test_a_response_is_read_as_it_was_answered(response):
    assert without_extra(read(json_bytes(answer(response, model="m")))) == response


@given(responses(), st.integers(1, 5))
def test_a_response_is_read_as_it_was_streamed(response, size):
    """Both ends of the wire."""
    thoughts, text = response.reasoning or "", response.text or ""
    items = [Delta("", thoughts[place : place + size]) for place in range(0, len(thoughts), size)]
    items += [Delta(text[place : place + size]) for place in range(0, len(text), size)]
    assert without_extra(assembled(*events([*items, response], model="m"))) == response


def test_what_a_provider_wants_back_is_answered_as_it_came():
    """Where a real model is served."""
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}},
    ]
    response = read({"content": content, "stop_reason": "tool_use"})
    assert answer(response, model="m")["content"] == content


def test_calls_without_an_id_get_one_each():
    """The protocol has no call without."""
    response = Response(None, (ToolCall(name="a"), ToolCall(name="a")), finish_reason="tool_calls")
    for found in (read(answer(response, model="m")), assembled(*events([response], model="m"))):
        assert [call.id for call in found.tool_calls] == ["toolu_0", "toolu_1"]


def test_blocks_of_a_stream_are_opened_and_closed_in_turn():
    """What real clients rely on."""
    response = Response("ab", (CALL,), "hm", usage=Usage(5, 2, 1, 1))
    stream = b"".join(events([Delta("", "hm"), Delta("a"), Delta("b"), response], model="m"))
    found = [json.loads(line) for line in re.findall(rb"^data: (.*)$", stream, re.MULTILINE)]
    names = [name.decode() for name in re.findall(rb"^event: (.*)$", stream, re.MULTILINE)]
    assert names == [each["type"] for each in found]
    blocks = [
        f"{each['type'].removeprefix('content_block_')} {each['index']}"
        for each in found
        if "index" in each
    ]
    assert blocks == [
        *("start 0", "delta 0", "stop 0"),
        *("start 1", "delta 1", "delta 1", "stop 1"),
        *("start 2", "delta 2", "delta 2", "stop 2"),
    ]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert found[-2]["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1,
        "output_tokens": 2,
    }


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
    with pytest.raises(kind):
        assembled(error_event(body))


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (InputError("x"), 400, "invalid_request_error"),
        (ScriptError("x"), 500, "api_error"),
        (FerruleError("x"), 500, "api_error"),
        (UnavailableError("x", status=503), 503, "overloaded_error"),
    ],
    ids=["input", "script", "any", "own_status"],
)
def test_errors_have_a_status_and_the_providers_name(error, status, name):
    found, body = error_body(error)
    assert (found, body["type"], body["error"]["type"]) == (status, "error", name)


# -- both ends over HTTP


async def last(stream) -> Response:
    return [item async for item in stream][-1]


WAYS = {
    "complete": lambda lm, request: lm.complete(request),
    "acomplete": lambda lm, request: asyncio.run(lm.acomplete(request)),
    "stream": lambda lm, request: list(lm.stream(request))[-1],
    "astream": lambda lm, request: asyncio.run(last(lm.astream(request))),
}
ways = pytest.mark.parametrize("way", WAYS)
ASKED = Request(CONVERSATION, Declarations([ADD]))


@ways
def test_a_served_model_answers_over_the_wire(way):
    said = Response("Hi.", (CALL,), "hm", "tool_calls", None, Usage(9, 2, 4, 1), "served")
    with serve(ScriptedLM([said])) as served:
        assert without_extra(WAYS[way](served.lm(wire="anthropic"), ASKED)) == said
        [body] = served.requests
    assert body["messages"][0]["content"][0] == {"type": "text", "text": "What?"}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def boom(why: str) -> str:
    """Fails."""
    raise ValueError(why)


SCRIPT = {
    "native": [
        Response(
            "Both.",
            (
                ToolCall(name="add", args={"a": 1, "b": 2}, id="t1"),
                ToolCall(name="boom", args={"why": "no"}, id="t2"),
            ),
        ),
        Response(None, (ToolCall(name="add", args={"a": "x"}, id="t3"),), "It broke."),
        native_step("done", "finish", {"answer": "3"}),
    ],
    "text": [
        text_step("Both.", "add", {"a": 1, "b": 2}),
        text_step("hm", "boom", {"why": "no"}),
        text_step("done", "finish", {"answer": "3"}),
    ],
}


def prediction_over(wire: str, mode: str, way: str):
    with (
        serve(ScriptedLM(SCRIPT[mode])) as served,
        context(lm=served.lm(wire=wire, capabilities=Capabilities(native_tools=mode == "native"))),
    ):
        agent = ReAct("question -> answer", [add, boom])
        match way:
            case "call":
                return agent(question="1 + 2?")
            case "acall":
                return asyncio.run(agent.acall(question="1 + 2?"))
            case _:
                with agent.stream(question="1 + 2?") as stream:
                    list(stream)
                    return stream.prediction


@pytest.mark.parametrize("mode", SCRIPT)
@pytest.mark.parametrize("way", ["call", "acall", "stream"])
def test_an_agent_goes_the_same_way_as_over_the_common_wire(mode, way):
    ours, theirs = (
        prediction_over("anthropic", mode, way),
        prediction_over("openai_chat", mode, way),
    )
    assert dict(ours) == dict(theirs) == {**dict(ours), "answer": "3"}
    assert ours.trajectory.steps == theirs.trajectory.steps
    assert len(ours.trajectory.steps) == 3


@pytest.mark.parametrize("mode", ["native", "text"])
def test_each_request_of_an_agent_begins_with_the_one_before(mode):
    """Thirty steps, in both modes; cache markers are no part of the prompt."""
    step = native_step if mode == "native" else text_step
    turns = [step(f"step {n}", "add", {"a": n, "b": 1}) for n in range(29)]
    with (
        serve(ScriptedLM([*turns, step("done", "finish", {"answer": "3"})])) as served,
        context(
            lm=served.lm(
                wire="anthropic", capabilities=Capabilities(native_tools=mode == "native")
            ),
        ),
    ):
        assert ReAct("question -> answer", [add], max_iters=30)(question="?").answer == "3"
        bodies = served.bodies
    plain = [re.sub(rb',"cache_control":\{[^}]*\}', b"", body) for body in bodies]
    assert len(bodies) == 30
    assert all(later.startswith(earlier.removesuffix(b"]}")) for earlier, later in pairwise(plain))
    assert all(b"cache_control" in body for body in bodies)


ERRORS = {
    "key": (
        reply(
            '{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}',
            "401 X",
        ),
        AuthenticationError,
        401,
    ),
    "limit": (
        reply(
            '{"type":"error","error":{"type":"rate_limit_error","message":"slower"}}',
            "429 X",
            retry_after="7",
        ),
        RateLimitError,
        429,
    ),
    "inside": (
        reply('{"type":"error","error":{"type":"api_error","message":"Internal"}}', "500 X"),
        UnavailableError,
        500,
    ),
    "overloaded": (
        reply(
            '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            "529 X",
        ),
        UnavailableError,
        529,
    ),
    "too_long": (
        reply(
            '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}',
            "400 X",
        ),
        ContextOverflowError,
        400,
    ),
    "page": (
        reply("<html><title>Bad gateway</title></html>", "502 X", content_type="text/html"),
        UnavailableError,
        502,
    ),
}


@ways
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.usefixtures("retries_do_not_wait")
def test_errors_of_the_provider_are_errors_of_the_house(name, way):
    """With provider, status, request id and the provider's words."""
    act, kind, status = ERRORS[name]
    with raw_server(act) as server:
        lm = LM("anthropic/m", base_url=server.base_url, api_key="key-123", max_retries=0)
        with pytest.raises(kind) as caught:
            WAYS[way](lm, ASKED)
        sent, _ = server.requests[0]
    assert type(caught.value) is kind
    assert (caught.value.provider, caught.value.status) == ("anthropic", status)
    assert caught.value.retry_after_s == (7 if name == "limit" else None)
    assert (sent["x-api-key"], sent["anthropic-version"]) == ("key-123", "2023-06-01")
    assert "key-123" not in str(caught.value)


@ways
def test_the_request_id_is_kept(way):
    """The provider names it in a header of its own."""
    body = '{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'
    with (
        raw_server(reply(body, "400 X", request_id="req_1")) as server,
        pytest.raises(BadRequestError) as caught,
    ):
        WAYS[way](LM("anthropic/m", base_url=server.base_url, api_key="k"), ASKED)
    assert caught.value.request_id == "req_1"


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_stream_that_breaks_off_or_tells_of_an_error_is_an_error(way):
    opening = b"".join(list(events([Delta("Hel")], model="m"))[:-1])
    error = error_event(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    )
    for content in (opening, opening + error):
        with raw_server(begin(content, end)) as server, pytest.raises(UnavailableError) as caught:
            WAYS[way](
                LM("anthropic/m", base_url=server.base_url, api_key="k", max_retries=0),
                ASKED,
            )
        assert caught.value.provider == "anthropic"
