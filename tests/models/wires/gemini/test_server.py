"""Requests in Gemini's form, read, and answers written in it; both ends over a real connection."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from agent_script import native_step
from hypothesis import given
from hypothesis import strategies as st
from raw_server import begin, end, raw_server, reply
from wire_servers import serve
from wire_servers.gemini import answer, error_body, events, receive

from ferrule.encoding.encode import json_bytes
from ferrule.errors import (
    AuthenticationError,
    BadRequestError,
    ContextOverflowError,
    InputError,
    LMError,
    RateLimitError,
    RefusalError,
    UnavailableError,
)
from ferrule.models.hosted import LM
from ferrule.models.model import BaseLM
from ferrule.models.wires.gemini import read, render
from ferrule.models.wires.gemini.stream import Assembly
from ferrule.net.errors import status_error
from ferrule.programs.react import ReAct
from ferrule.settings import context
from ferrule.testing import ScriptedLM
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.conversation.exchange import (
    Declarations,
    Delta,
    Request,
    Response,
    Shape,
    Usage,
)
from ferrule.values.conversation.message import Message, Messages

MODEL = "gemini-3.5-flash"
PATH = f"/v1beta/models/{MODEL}:generateContent"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        },
    },
}
CALL = ToolCall(name="add", args={"a": 1}, id="c1")


def taken(body: dict) -> Request:
    return receive(body, PATH).request


def through(request: Request, model: str = MODEL) -> Request:
    return taken(json.loads(render(request, model=model, settings={})))


# -- requests

CONVERSATION = [
    Message("system", "Use tools."),
    Message(
        "user",
        (
            Text(text="look"),
            Image(data="aGk="),
            Audio(data="aGk="),
            File(url="https://x/a.pdf", media_type="application/pdf"),
        ),
    ),
    Message("assistant", "One moment.", (CALL, ToolCall(name="now", id="c2"))),
    Message("tool", "3", tool_call_id="c1", name="add"),
    Message(
        "tool",
        (Text(text="seen"), Image(data="aGk=")),
        tool_call_id="c2",
        name="now",
        is_error=True,
    ),
    Message("user", "And?"),
    Message("assistant", "4"),
]


def test_a_request_survives_the_way_there():
    """All that the form can say."""
    request = Request(
        Messages(CONVERSATION),
        Declarations([ADD]),
        "add",
        None,
        Shape("json_schema", {"type": "object", "properties": {"a": {"type": "string"}}}),
        {"temperature": 0.5, "max_tokens": 7, "stop": ["x"], "top_k": 3, "safety_settings": [1]},
    )
    assert through(request) == request


NAMES = st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
SAFE = st.from_regex("[a-zA-Z0-9_-]{1,64}", fullmatch=True)
CALLS = st.lists(
    st.builds(ToolCall, name=SAFE, args=st.dictionaries(st.text(), VALUES, max_size=3), id=NAMES),
    max_size=4,
)


@given(CALLS)
def test_calls_survive_a_dump_and_the_way_there_and_back(calls):
    dumped = ToolCalls.model_validate(ToolCalls(tool_calls=calls).model_dump())
    request = through(
        Request(
            Messages(
                [
                    Message("user", "?"),
                    Message("assistant", "", tuple(dumped.tool_calls)),
                    Message("user", "!"),
                ],
            ),
        ),
    )
    assert list(request.messages[1].tool_calls) == calls
    back = read(
        json_bytes(
            answer(Response(None, request.messages[1].tool_calls, finish_reason="stop"), model="m"),
        ),
    )
    assert list(back.tool_calls) == calls


def test_the_path_names_the_model_and_the_stream():
    body = {"contents": [{"parts": [{"text": "hi"}]}]}
    found = receive(body, "/v1/models/org/a%20b:streamGenerateContent?alt=sse")
    assert (found.model, found.stream) == ("org/a b", True)
    assert (
        receive(body, "/v1beta/tunedModels/mine:generateContent").model,
        receive(body, PATH).stream,
    ) == ("mine", False)
    assert found.request.messages == [Message("user", "hi")]


def test_fields_are_read_in_either_spelling():
    """The API takes both, and the google-genai client sends both (version 3.4, November 2026)."""
    request = taken(
        {
            "system_instruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                {
                    "role": "user",
                    "parts": [{"inline_data": {"mime_type": "image/png", "data": "aGk="}}],
                },
            ],
            "tools": [
                {
                    "function_declarations": [
                        {"name": "add", "parameters_json_schema": {"type": "object"}},
                    ],
                },
            ],
            "tool_config": {
                "function_calling_config": {"mode": "ANY", "allowed_function_names": ["add"]},
            },
            "generation_config": {"response_mime_type": "application/json", "max_output_tokens": 3},
        },
    )
    assert request.messages == [
        Message("system", "Be brief."),
        Message("user", (Image(data="aGk=", media_type="image/png"),)),
    ]
    assert request.tools[0]["function"]["parameters"] == {"type": "object"}
    assert (request.tool_choice, request.shape, request.settings) == (
        "add",
        Shape("json_object"),
        {"max_tokens": 3},
    )


def test_schemas_in_openapis_words_become_json_schema():
    """Types in capitals, `nullable`; a property may be called as a keyword is."""
    schema = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "nullable": True},
            "list": {
                "type": "ARRAY",
                "items": {"anyOf": [{"type": "INTEGER"}, {"type": "STRING", "enum": ["A"]}]},
            },
        },
    }
    request = taken(
        {
            "contents": [{"parts": [{"text": "hi"}]}],
            "tools": [
                {"functionDeclarations": [{"name": "f", "parameters": schema}, {"name": "g"}]},
            ],
            "generationConfig": {"responseMimeType": "application/json", "responseSchema": schema},
        },
    )
    expected = {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"]},
            "list": {
                "type": "array",
                "items": {"anyOf": [{"type": "integer"}, {"type": "string", "enum": ["A"]}]},
            },
        },
    }
    assert [tool["function"]["parameters"] for tool in request.tools] == [
        expected,
        {"type": "object", "properties": {}},
    ]
    assert request.shape == Shape("json_schema", expected)


def call_part(name: str, **fields: object) -> dict:
    return {"functionCall": {"name": name, "args": {}, **fields}}


def result_part(name: str, **fields: object) -> dict:
    return {"functionResponse": {"name": name, "response": {"output": "r"}, **fields}}


def test_calls_without_ids_get_some_and_results_find_them_by_name_and_order():
    """Gemini before version 3."""
    request = taken(
        {
            "contents": [
                {"role": "user", "parts": [{"text": "?"}]},
                {"role": "model", "parts": [call_part("a"), call_part("b"), call_part("a")]},
                {
                    "role": "user",
                    "parts": [
                        result_part("a"),
                        result_part("a"),
                        result_part("b"),
                        {"text": "go on"},
                    ],
                },
                {"role": "model", "parts": [call_part("a", id="own")]},
                {"role": "function", "parts": [result_part("a")]},
            ],
        },
    )
    assert [call.id for message in request.messages for call in message.tool_calls] == [
        "call_1",
        "call_2",
        "call_3",
        "own",
    ]
    assert [message.tool_call_id for message in request.messages if message.role == "tool"] == [
        "call_1",
        "call_3",
        "call_2",
        "own",
    ]
    assert [message.role for message in request.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "user",
        "assistant",
        "tool",
    ]


@pytest.mark.parametrize(
    ("response", "text", "is_error"),
    [
        ({"output": "a"}, "a", False),
        ({"output": {"b": 1}}, '{"b":1}', False),
        ({"error": "no"}, "no", True),
        ({"result": 3}, '{"result":3}', False),
        ({}, "{}", False),
        (None, "{}", False),
    ],
    ids=["text", "object", "error", "whole", "empty", "null"],
)
def test_results_are_read_as_the_api_reads_them(response, text, is_error):
    """`output`, `error`, or the whole."""
    contents = [
        {"role": "model", "parts": [call_part("a")]},
        {"role": "user", "parts": [result_part("a", response=response)]},
    ]
    message = taken({"contents": contents}).messages[1]
    assert (message.text, message.is_error) == (text, is_error)


def test_thoughts_and_signatures_of_earlier_turns_are_kept():
    part = {
        "functionCall": {"id": "c1", "name": "add", "args": {"a": 1}},
        "thoughtSignature": "c2ln",
    }
    contents = [
        {"role": "user", "parts": [{"text": "?"}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, part]},
    ]
    request = taken(
        {"contents": [*contents, {"role": "user", "parts": [result_part("add", id="c1")]}]},
    )
    assert request.messages[1].reasoning == "hm"
    assert json.loads(render(request, model=MODEL, settings={}))["contents"][:2] == contents


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "contents"),
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "user"}]}, r"contents\[0\] has no list"),
        ({"contents": [3]}, r"contents\[0\]"),
        ({"contents": [{"role": "system", "parts": []}]}, r"contents\[0\] has the role 'system'"),
        ({"contents": [{"parts": [{"videoMetadata": {}}]}]}, r"contents\[0\]"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "image/png"}}]}]}, r"contents\[0\]"),
        (
            {"contents": [{"parts": [result_part("a")]}]},
            r"contents\[0\].parts\[0\] answers no call",
        ),
        (
            {
                "contents": [
                    {"role": "model", "parts": [call_part("a")]},
                    {"parts": [result_part("a", parts=[{"inlineData": {}}])]},
                ],
            },
            r"contents\[1\].parts\[0\]: an incomplete part",
        ),
        (
            {"contents": [{"parts": [{"text": "a"}]}], "tools": [{"googleSearch": {}}]},
            r"tools\[0\]",
        ),
        (
            {"contents": [{"parts": [{"text": "a"}]}], "tools": [{"functionDeclarations": [{}]}]},
            r"tools\[0\]",
        ),
    ],
    ids=range(11),
)
def test_what_is_no_request_is_refused_with_its_place(body, words):
    with pytest.raises(InputError, match=words):
        receive(body, PATH)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
)
PIECE = (
    st.dictionaries(
        st.sampled_from(["text", "functionCall", "functionResponse", "inlineData", "fileData"]),
        JSON,
    )
    | JSON
)
CONTENT = (
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "model", 3]),
            "parts": st.lists(PIECE, max_size=3) | JSON,
        },
    )
    | JSON
)


@given(st.lists(CONTENT, max_size=3) | JSON, JSON, JSON, JSON)
def test_a_body_of_any_shape_is_read_or_refused(contents, tools, config, other):
    """A server never breaks."""
    try:
        body = {
            "contents": contents,
            "tools": tools,
            "generationConfig": config,
            "toolConfig": other,
            "systemInstruction": other,
        }
        assert isinstance(taken(body), Request)
    except InputError:
        return


# -- answers

SIGNED = {
    "gemini": {
        "parts": [
            {"text": "aloud"},
            {"functionCall": {}, "thoughtSignature": "c2ln"},
            {"functionCall": {}},
        ],
    },
}
ANSWERS = {
    "empty": Response(finish_reason="stop"),
    "text": Response("hi \ud800", finish_reason="length", usage=Usage(1, 2, 1, 1)),
    "filtered": Response("half", finish_reason="content_filter"),
    "own_word": Response("half", finish_reason="LANGUAGE"),
    "calls": Response(
        "aloud",
        (ToolCall(name="a", args={"x": [1]}, id="1"), ToolCall(name="b")),
        "hm",
        "tool_calls",
        usage=Usage(3, 4),
    ),
    "signed": Response(
        "aloud",
        (ToolCall(name="a", id="1"), ToolCall(name="b", id="2")),
        None,
        "tool_calls",
        extra=SIGNED,
    ),
    "fault": Response(
        None,
        (
            ToolCall(
                name="a",
                id="1",
                fault=CallFault("invalid_tool_call_arguments", "x", "{half"),
            ),
            ToolCall(name="", id="2", fault=CallFault("invalid_tool_call", "x", "what")),
        ),
        finish_reason="tool_calls",
    ),
}
FIELDS = ("text", "reasoning", "finish_reason", "refusal", "extra")


def same(found: Response, response: Response) -> None:
    assert [getattr(found, name) for name in FIELDS] == [getattr(response, name) for name in FIELDS]
    facts = [
        [(c.name, c.args, c.id, c.fault and (c.fault.code, c.fault.raw)) for c in each.tool_calls]
        for each in (found, response)
    ]
    assert [fact[:3] for fact in facts[0]] == [fact[:3] for fact in facts[1]]
    assert [fact[3] is None for fact in facts[0]] == [fact[3] is None for fact in facts[1]]
    assert (found.usage.total_tokens, found.usage.cached_tokens) == (
        response.usage.total_tokens,
        response.usage.cached_tokens,
    )


def streamed(response: Response) -> Response:
    items = [
        *([Delta("", response.reasoning)] if response.reasoning else []),
        *map(Delta, response.text or ""),
        response,
    ]
    assembly = Assembly()
    for each in events(items, model="m"):
        list(assembly.feed(each))
    list(assembly.end())
    return assembly.response()


@pytest.mark.parametrize(
    "way",
    [lambda response: read(json_bytes(answer(response, model="m"))), streamed],
    ids=["whole", "streamed"],
)
@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_written_is_read_again(name, way):
    same(way(ANSWERS[name]), ANSWERS[name])


def test_signed_text_and_thoughts_are_written_once():
    """What was streamed is not said again with its signature."""
    kept = [{"text": "hm", "thought": True}, {"text": "aloud", "thoughtSignature": "c2ln"}]
    response = Response("aloud", (), "hm", "stop", extra={"gemini": {"parts": kept}})
    same(read(answer(response, model="m")), response)
    found = streamed(response)
    assert (found.text, found.reasoning) == ("aloud", "hm")
    assert found.extra == {
        "gemini": {
            "parts": [*kept[:1], {"text": "aloud"}, {"text": "", "thoughtSignature": "c2ln"}],
        },
    }


TEXTS = st.text(min_size=1, max_size=12) | st.none()


USAGES = st.builds(
    lambda put_in, got_out: Usage(put_in, got_out, put_in // 2, 1),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(TEXTS, TEXTS, CALLS, st.sampled_from(["stop", "length"]), USAGES)
def test_both_ends_agree_on_any_answer(text, reasoning, calls, reason, usage):
    response = Response(
        text,
        tuple(calls),
        reasoning,
        "tool_calls" if calls else reason,
        None,
        usage,
        "m",
    )
    assert read(json_bytes(answer(response, model="m"))) == response
    assert streamed(response) == response


def test_a_refusal_is_withheld():
    """Gemini has no words of refusal but the reason."""
    for way in (lambda response: read(answer(response, model="m")), streamed):
        with pytest.raises(RefusalError, match="I will not"):
            way(Response(None, refusal="I will not", finish_reason="stop"))


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
    assert body["error"]["code"] == status
    error, _ = status_error(status, {}, json_bytes(body))
    assert type(error) is kind
    assert "said" in str(error)


# -- both ends over a connection

ASKED = Request(Messages([Message("user", "add 3 and 4")]), Declarations([ADD]))
EVERYTHING = Response(
    "aloud",
    ANSWERS["signed"].tool_calls,
    "hm hm",
    "tool_calls",
    usage=Usage(3, 4, 2, 1),
)


async def collected(stream) -> list:
    return [item async for item in stream]


WAYS = {
    "complete": lambda lm: lm.complete(ASKED),
    "acomplete": lambda lm: asyncio.run(lm.acomplete(ASKED)),
    "stream": lambda lm: list(lm.stream(ASKED))[-1],
    "astream": lambda lm: asyncio.run(collected(lm.astream(ASKED)))[-1],
}
ways = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS.keys())


@ways
def test_a_served_model_answers_as_it_does_itself(ask):
    """Over a real connection."""
    with serve(ScriptedLM(by=lambda request: EVERYTHING)) as served:
        same(ask(served.lm(wire="gemini")), EVERYTHING)
        [body] = served.requests
    assert set(body) == {"tools", "contents"}


SCRIPT = [
    native_step("Look.", "look", {"at": "a"}),
    native_step("Add.", "add", {"a": 1, "b": 2}),
    native_step("Done.", "finish", {"answer": "3"}),
]


def look(at: str) -> tuple[Text, Image]:
    """Look at something."""
    return Text(text=f"seen {at}"), Image(data="aGk=")


def add(a: int, b: int) -> int:
    """Add."""
    if b > 1:
        return a + b
    raise ValueError(b)


def steps(wire: str, run) -> tuple:
    with serve(ScriptedLM(list(SCRIPT))) as served, context(lm=served.lm(wire=wire, model=MODEL)):
        prediction = run(ReAct("question -> answer", [look, add], native=True))
        bodies = served.bodies
    return prediction.answer, prediction.trajectory, bodies


def run_stream(agent: ReAct):
    with agent.stream(question="?") as stream:
        list(stream)
        return stream.prediction


@pytest.mark.parametrize(
    "run",
    [
        lambda agent: agent(question="?"),
        lambda agent: asyncio.run(agent.acall(question="?")),
        run_stream,
    ],
    ids=["sync", "async", "streamed"],
)
def test_an_agent_goes_the_same_way_over_either_wire(run):
    """Prediction and trajectory; and each request begins with the one before."""
    answer_there, way_there, bodies = steps("gemini", run)
    answer_here, way_here, _ = steps("openai_chat", run)
    assert (answer_there, way_there) == (answer_here, way_here)
    assert answer_there == "3"
    assert all(later.startswith(earlier.removesuffix(b"]}")) for earlier, later in pairwise(bodies))
    [_, _, result] = json.loads(bodies[1])["contents"]
    assert result["parts"][0]["functionResponse"]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
    ]


def test_an_agent_mends_a_call_that_the_provider_could_not_read():
    """MALFORMED_FUNCTION_CALL is told to the model, and the next request is one the API takes."""
    bad = {
        "candidates": [
            {
                "finishReason": "MALFORMED_FUNCTION_CALL",
                "finishMessage": "Malformed function call: add(a=",
            },
        ],
    }
    good = answer(
        Response(None, (ToolCall(name="finish", args={"answer": "3"}, id="f"),)),
        model="m",
    )
    with raw_server(reply(json.dumps(bad)), reply(json.dumps(good))) as server:
        lm = LM(server.base_url, model=MODEL, wire="gemini")
        with context(lm=lm):
            assert ReAct("question -> answer", [add], native=True)(question="?").answer == "3"
        contents = json.loads(server.requests[1][1])["contents"]
    calls = [part["functionCall"] for part in contents[1]["parts"] if "functionCall" in part]
    results = [part["functionResponse"] for part in contents[2]["parts"]]
    assert [call["name"] for call in calls] == [result["name"] for result in results] == ["unnamed"]
    assert "error" in results[0]["response"]


def told(code: int, status: str, message: str) -> str:
    return json.dumps({"error": {"code": code, "message": message, "status": status}})


@ways
@pytest.mark.parametrize(
    ("act", "kind", "status"),
    [
        (
            reply(
                told(401, "UNAUTHENTICATED", "bad k-secret"),
                "401 Unauthorized",
                x_request_id="r1",
            ),
            AuthenticationError,
            401,
        ),
        (
            reply(
                told(429, "RESOURCE_EXHAUSTED", "slow"),
                "429 Too Many",
                x_request_id="r1",
                retry_after="7",
            ),
            RateLimitError,
            429,
        ),
        (
            reply(f"[{told(500, 'INTERNAL', 'oops')}]", "500 Internal", x_request_id="r1"),
            UnavailableError,
            500,
        ),
        (
            reply(
                told(
                    400,
                    "INVALID_ARGUMENT",
                    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                ),
                "400 Bad",
                x_request_id="r1",
            ),
            ContextOverflowError,
            400,
        ),
        (
            reply(
                "<html><title>Sign in</title></html>",
                content_type="text/html",
                x_request_id="r1",
            ),
            BadRequestError,
            None,
        ),
        (
            reply(json.dumps({"promptFeedback": {"blockReason": "SAFETY"}, "responseId": "r1"})),
            RefusalError,
            None,
        ),
    ],
    ids=["key", "rate", "server", "overflow", "html", "blocked"],
)
def test_errors_of_the_provider_are_those_of_the_house(ask, act, kind, status):
    with raw_server(act) as server:
        with pytest.raises(kind) as caught:
            ask(LM(server.base_url, model="m", wire="gemini", api_key="k-secret", max_retries=0))
        [(sent, _)] = server.requests
    error = caught.value
    assert isinstance(error, LMError)
    assert (type(error), error.status, error.request_id) == (kind, status, "r1")
    assert error.provider in server.base_url
    assert error.retry_after_s == (7 if kind is RateLimitError else None)
    assert "k-secret" not in str(error)
    assert sent["x-goog-api-key"] == "k-secret"


class Failing(BaseLM):
    """Breaks off in the midst of an answer."""

    def stream(self, request: Request):
        del request
        yield Delta("half")
        raise UnavailableError("gave up")


def test_a_served_model_that_fails_in_the_midst_says_so_in_the_stream():
    with serve(Failing()) as served, pytest.raises(UnavailableError, match="gave up"):
        list(served.lm(wire="gemini", max_retries=0).stream(ASKED))


def test_a_stream_that_breaks_off_or_fails_is_an_error():
    part = b'data: {"candidates": [{"content": {"parts": [{"text": "a"}]}}]}\n\n'
    failed = (
        part
        + b'data: {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}\n\n'
    )
    for content, words in ((part, "ended after a part of the answer"), (failed, "overloaded")):
        with (
            raw_server(begin(content, end)) as server,
            pytest.raises(UnavailableError, match=words),
        ):
            list(LM(server.base_url, model="m", wire="gemini", max_retries=0).stream(ASKED))
