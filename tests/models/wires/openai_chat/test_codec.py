from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigurationError,
    LMError,
    MissingContentError,
    RateLimitError,
    RefusalError,
    UnavailableError,
)
from ferrule.models.providers import PROVIDERS, Dialect
from ferrule.models.wires.openai_chat import read, render
from ferrule.models.wires.payload import decode
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.conversation.exchange import Declarations, Request, Response, Shape, Usage
from ferrule.values.conversation.message import Message, Messages

GOLDEN = Path(__file__).parents[2] / "golden"
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
CALL = ToolCall(name="add", args={"a": 1}, id="call_1")


def said(request: Request, **keywords) -> dict:
    return json.loads(render(request, **{"model": "m", "settings": {}, **keywords}))


def asking(*messages: Message, **keywords) -> Request:
    return Request(Messages(messages or [Message("user", "hi")]), **keywords)


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


# -- requests

REQUESTS = {
    "request_plain": (asking(), {}),
    "request_conversation": (
        asking(
            Message("system", "Use tools."),
            Message("user", (Text(text="What is this?"), Image(url="https://example.com/a.png"))),
            Message("assistant", "", (CALL,)),
            Message("tool", "3", tool_call_id="call_1", name="add"),
            tools=Declarations([ADD]),
            tool_choice="add",
            parallel=False,
            settings={"temperature": 0, "max_tokens": 10, "seed": None},
        ),
        {"settings": {"temperature": 1, "top_p": 0.5, "seed": 4}, "stream": True},
    ),
    "request_schema": (asking(shape=Shape("json_schema", {"type": "object"}, "thing")), {}),
    "request_json_object": (asking(shape=Shape("json_object")), {}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_rendered_as_the_golden_file_says(name):
    request, keywords = REQUESTS[name]
    assert said(request, **keywords) == golden(name)


def test_messages_and_tools_go_out_as_they_were_rendered():
    """The body of a request begins with the body of the one before."""
    messages = Messages([Message("system", "Use tools."), Message("user", "hi")])
    request = Request(messages, Declarations([ADD]), settings={"temperature": 0})
    bodies = []
    for _ in range(5):
        bodies.append(render(request, model="m", settings={}))
        messages = messages.then(
            Message("assistant", "", (CALL,)),
            Message("tool", "1", tool_call_id="call_1"),
        )
        request = request.following(messages)
    assert all(later.startswith(earlier.removesuffix(b"]}")) for earlier, later in pairwise(bodies))


def test_tool_choice_is_not_sent_without_tools():
    """Providers refuse it."""
    assert set(said(asking(tool_choice="required", parallel=True))) == {"model", "messages"}


@pytest.mark.parametrize(
    "choice",
    ["auto", "none", "required", {"type": "function", "function": {"name": "add"}}],
    ids=["a", "n", "r", "dict"],
)
def test_a_known_tool_choice_is_sent_as_it_is(choice):
    assert said(asking(tools=Declarations([ADD]), tool_choice=choice))["tool_choice"] == choice


def test_extra_goes_out_unchecked_and_last():
    body = said(
        asking(
            settings={"extra": {"provider": {"order": ["x"]}, "model": "other"}, "temperature": 0},
        ),
    )
    assert body == {
        "model": "other",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "provider": {"order": ["x"]},
    }


@pytest.mark.parametrize("name", ["model", "messages", "tools", "stream", "response_format"])
def test_a_setting_may_not_say_what_the_request_says(name):
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        render(asking(settings={name: 1}), model="m", settings={})


def test_providers_get_their_own_names_of_settings():
    request = asking(settings={"max_tokens": 5, "seed": 1})
    assert said(request, dialect=PROVIDERS["openai"].dialect)["max_completion_tokens"] == 5
    mistral = said(request, dialect=PROVIDERS["mistral"].dialect, stream=True)
    assert mistral["random_seed"] == 1
    assert "stream_options" not in mistral


def test_the_settings_of_a_model_are_not_changed_by_a_request():
    settings = {"extra": {"a": 1}, "temperature": 0}
    render(asking(settings={"extra": {"b": 1}}), model="m", settings=settings)
    assert settings == {"extra": {"a": 1}, "temperature": 0}


def test_what_a_provider_wants_back_goes_back():
    """OpenRouter's reasoning details, Gemini's signatures of calls."""
    payload = golden("answer_signed")
    response = read(payload)
    again = said(asking(Message("user", "hi"), response.message()))["messages"][1]
    message = payload["choices"][0]["message"]
    assert again["reasoning_details"] == message["reasoning_details"]
    assert again["tool_calls"] == message["tool_calls"]


def test_reasoning_goes_back_with_calls_where_the_provider_wants_it():
    """DeepSeek."""
    message = Message("assistant", "", (CALL,), reasoning="hm\ud800")
    deepseek = PROVIDERS["deepseek"].dialect
    assert said(asking(message), dialect=deepseek)["messages"][0]["reasoning_content"] == "hm\ud800"
    assert (
        said(asking(Message("assistant", "", (CALL,))), dialect=deepseek)["messages"][0][
            "reasoning_content"
        ]
        == ""
    )
    assert "reasoning_content" not in said(asking(message))["messages"][0]
    assert (
        "reasoning_content"
        not in said(asking(Message("assistant", "x", reasoning="hm")), dialect=deepseek)[
            "messages"
        ][0]
    )


@pytest.mark.parametrize("provider", ["openrouter", "deepseek"])
@pytest.mark.parametrize("kept", [False, True], ids=["plain", "with_extra"])
def test_a_faulty_call_goes_back_under_a_name_that_the_api_takes(provider, kept):
    """OpenAI answers 400 to any other, and the run could not go on."""
    extra = {"openai_chat": {"message": {"reasoning_details": []}}} if kept else None
    message = Message(
        "assistant",
        "",
        (ToolCall(name="", id="1"), ToolCall(name="get weather!", id="2")),
        extra=extra,
    )
    [sent] = said(asking(message), dialect=PROVIDERS[provider].dialect)["messages"]
    assert [call["function"]["name"] for call in sent["tool_calls"]] == ["unnamed", "get_weather_"]


def test_ids_that_are_too_long_for_openai_are_shortened_in_the_call_and_in_its_result():
    """OpenAI takes 40 characters.

    Gateways keep what they need in ids: there they stay as they came.
    """
    long = "call_" + "x" * 90
    messages = (
        Message("assistant", "", (CALL, CALL.with_id(long))),
        Message("tool", (PICTURE,), tool_call_id=long),
    )
    request = asking(Message("user", "hi"), *messages)
    _, calls, result, picture = said(request, dialect=PROVIDERS["openai"].dialect)["messages"]
    assert calls["tool_calls"][0]["id"] == "call_1"
    assert calls["tool_calls"][1]["id"] == result["tool_call_id"]
    assert result["tool_call_id"] in picture["content"][0]["text"]
    assert len(result["tool_call_id"]) == 40
    assert (
        said(request)["messages"][1]["tool_calls"][1]["id"]
        == said(request)["messages"][2]["tool_call_id"]
        == long
    )


PICTURE, SOUND, PAPER = (
    Image(data="AAAA"),
    Audio(data="AAAA"),
    File(url="https://example.com/a.pdf", name="a.pdf"),
)
BOTH = Message("assistant", "", (CALL, CALL.with_id("call_2")))


@pytest.mark.parametrize(
    "dialect",
    [Dialect(), Dialect(reasoning="always")],
    ids=["plain", "reasoning"],
)
def test_pictures_in_results_go_into_one_message_of_the_user_behind_them(dialect):
    """Tool messages are text here."""
    sent = said(
        asking(
            Message("user", (PICTURE,)),
            BOTH,
            Message(
                "tool",
                (Text(text="two of them"), PICTURE, SOUND),
                tool_call_id="call_1",
                name="draw",
            ),
            Message("tool", (PAPER,), tool_call_id="call_2", name="print"),
            Message("assistant", "Fine."),
        ),
        dialect=dialect,
    )["messages"]
    assert [message["role"] for message in sent] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]
    assert sent[0]["content"] == PICTURE.format()
    words = [
        f"[{part!r}: see the message after the tool results]" for part in (PICTURE, SOUND, PAPER)
    ]
    assert sent[2] == {
        "role": "tool",
        "tool_call_id": "call_1",
        "content": [{"type": "text", "text": text} for text in ("two of them", *words[:2])],
    }
    assert sent[3]["content"] == [{"type": "text", "text": words[2]}]
    assert sent[4]["content"] == [
        {"type": "text", "text": "From the result of `draw` (call call_1):"}, *PICTURE.format(), *SOUND.format(),
        {"type": "text", "text": "From the result of `print` (call call_2):"}, *PAPER.format(),
    ]  # fmt: skip


def test_pictures_of_the_last_results_go_last():
    """The model is to see them now."""
    sent = said(
        asking(
            Message("tool", (PICTURE,), tool_call_id="call_1"),
            Message("tool", "x", tool_call_id="call_2"),
        ),
    )["messages"]
    assert [message["role"] for message in sent] == ["tool", "tool", "user"]
    assert sent[2]["content"] == [
        {"type": "text", "text": "From the result of `the tool` (call call_1):"},
        *PICTURE.format(),
    ]


def test_parts_that_are_all_text_need_no_message_of_the_user():
    message = Message("tool", (Text(text="a"), Text(text="b")), tool_call_id="call_1")
    assert said(asking(message))["messages"] == [json.loads(message.json)]


def test_each_of_30_requests_with_pictures_begins_with_the_one_before():
    messages = Messages([Message("user", "hi")])
    request = Request(messages, Declarations([ADD]))
    bodies = []
    for step in range(30):
        bodies.append(render(request, model="m", settings={}))
        results = [(PICTURE,), "text"] if step % 3 else ["text", (Text(text="x"), SOUND)]
        said_back = [
            Message("tool", content, tool_call_id=call.id)
            for content, call in zip(results, BOTH.tool_calls, strict=True)
        ]
        messages = messages.then(Message("assistant", "", BOTH.tool_calls), *said_back)
        request = request.following(messages)
    assert all(
        later.startswith(earlier.removesuffix(b"]}") + b",") for earlier, later in pairwise(bodies)
    )


def test_the_address_of_a_sound_is_a_note_and_bytes_in_an_address_are_sent():
    """The protocol takes the bytes of a sound only."""
    far, near = Audio(url="https://example.com/a.mp3"), Audio(url="data:audio/mp3;base64,AAAA")
    for request in (
        asking(Message("user", (far, near))),
        asking(
            Message("assistant", "", (CALL,)),
            Message("tool", (far, near), tool_call_id="call_1"),
        ),
    ):
        body = said(request)
        parts = [
            part
            for message in body["messages"]
            for part in message["content"] or []
            if part["type"] == "input_audio"
        ]
        assert [part["input_audio"] for part in parts] == [{"data": "AAAA", "format": "mp3"}]
        assert "was left out" in str(body)


def test_a_result_added_after_a_request_stands_before_the_pictures_of_its_turn():
    """A message of the user between two results of a turn is refused by the API."""
    start = Messages(
        [
            Message("assistant", "", BOTH.tool_calls),
            Message("tool", (PICTURE,), tool_call_id="call_1"),
        ],
    )
    render(Request(start), model="m", settings={})
    later = start.then(Message("tool", "x", tool_call_id="call_2"), Message("user", "go on"))
    assert render(Request(later), model="m", settings={}) == render(
        Request(Messages(later)),
        model="m",
        settings={},
    )
    assert [message["role"] for message in said(Request(later))["messages"]] == [
        "assistant",
        "tool",
        "tool",
        "user",
        "user",
    ]


def test_pictures_of_results_are_rendered_once():
    """A step costs what it adds."""
    message = Message("tool", (PICTURE,), tool_call_id="call_1")
    first, second = (render(asking(message), model="m", settings={}) for _ in range(2))
    kept = message.rendered("openai_chat+media", lambda _: pytest.fail("rendered again"))
    assert first == second
    assert kept in first


@given(
    st.text(),
    st.dictionaries(
        st.sampled_from(["temperature", "stop", "user"]),
        st.text() | st.floats() | st.none(),
    ),
)
def test_any_text_and_any_setting_give_json(text, settings):
    """Lone surrogates and NaN included."""
    body = json.loads(
        render(asking(Message("user", text), settings=settings), model="m", settings={}),
    )
    assert body["messages"][0]["content"] == text


@given(st.text(alphabet=st.characters(categories=["Cs"])))
def test_lone_surrogates_go_out_as_escapes(text):
    assert json.loads(render(asking(Message("user", text)), model=text, settings={"user": text}))[
        "user"
    ].encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


# -- answers

ONE = Usage(calls=1)
ANSWERS = {
    "answer_text": Response(
        "Hello!",
        (),
        None,
        "stop",
        None,
        Usage(9, 12, 4, 1),
        "gpt-5-mini-2025-08-07",
    ),
    "answer_calls": Response(
        None,
        (
            ToolCall(name="get_weather", args={"city": "Paris"}, id="call_a"),
            ToolCall(name="get_weather", args={"city": "Oslo"}, id="call_b"),
        ),
        None,
        "tool_calls",
        None,
        Usage(82, 34, 0, 1),
        "gpt-5-mini",
    ),
    "answer_function_call": Response(
        None,
        (ToolCall(name="add", args={"a": 1}),),
        None,
        "tool_calls",
        None,
        ONE,
        "gpt-3.5-turbo",
    ),
    "answer_refusal": Response(
        None,
        (),
        None,
        "stop",
        "I can't help with that.",
        Usage(5, 3, 0, 1),
        "gpt-5-mini",
    ),
    "answer_deepseek": Response(
        "9.11 < 9.8",
        (),
        "Compare.",
        "stop",
        None,
        Usage(10, 20, 8, 1),
        "deepseek-reasoner",
    ),
    "answer_openrouter": Response(
        "hi",
        (),
        "Say hi.",
        "stop",
        None,
        Usage(3, 2, 0, 1),
        "qwen/qwen3",
        0.0001,
    ),
    "answer_magistral": Response(
        "4",
        (),
        "2+2 is 4",
        "stop",
        None,
        Usage(7, 9, 0, 1),
        "magistral-medium",
    ),
    "answer_bad_calls": Response(
        "",
        (
            ToolCall(name="add", args={"a": 1}, id="ok"),
            ToolCall(
                name="",
                id="nameless",
                fault=CallFault(
                    "invalid_tool_call",
                    "call 1: ",
                    '{"id":"nameless","type":"function","function":{"arguments":"{}"}}',
                ),
            ),
            ToolCall(name="add", id="object", args={"a": 2}),
        ),
        None,
        "tool_calls",
        None,
        ONE,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_as_expected(name):
    payload = golden(name)
    found, expected = read(payload), ANSWERS[name]
    if name == "answer_bad_calls":  # E39: the words of the fault are values/calls/call.py's
        assert found.tool_calls[1].fault.reason.startswith("call 1: ")
        found = Response(
            *(
                getattr(found, each)
                for each in ("text", "tool_calls", "reasoning", "finish_reason", "refusal", "usage")
            ),
        )
        assert [(call.name, call.args, call.id) for call in found.tool_calls] == [
            (call.name, call.args, call.id) for call in expected.tool_calls
        ]
        return
    assert found == expected
    assert found.raw == payload
    assert read(json.dumps(payload).encode()) == expected


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": [{"type": "text", "text": "2+2 is 4"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "2+2 is 4"}]},
        {"type": "reasoning", "text": "2+2 is 4"},
    ],
    ids=["mistral", "databricks", "text"],
)
def test_reasoning_among_the_parts_of_content_is_no_text(part):
    """Streamed, too."""
    content = [part, {"type": "text", "text": "4"}]
    found = read({"choices": [{"message": {"content": content}}]})
    assert (found.text, found.reasoning) == ("4", "2+2 is 4")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_has_several_names(name):
    """DeepSeek's, OpenRouter's and vLLM's, GitHub Copilot's."""
    assert (
        read({"choices": [{"message": {"content": "4", name: "2+2 is 4"}}]}).reasoning == "2+2 is 4"
    )


def test_an_answer_that_met_the_end_of_the_context_was_cut_off():
    """Mistral's word for it."""
    assert (
        read(
            {"choices": [{"message": {"content": "a"}, "finish_reason": "model_length"}]},
        ).finish_reason
        == "length"
    )


def test_arguments_that_are_no_json_are_a_fault_of_the_call():
    """Raw text and reason."""
    call = {
        "id": "x",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1} and {"b"'},
    }
    [found] = read({"choices": [{"message": {"tool_calls": [call]}}]}).tool_calls
    assert found.fault is not None
    assert found.fault.code == "invalid_tool_call_arguments"
    assert found.fault.raw == '{"a": 1} and {"b"'


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({}, MissingContentError),
        ({"choices": None}, MissingContentError),
        ({"choices": {}}, MissingContentError),
        ({"choices": [None]}, MissingContentError),
        ({"choices": [{"message": {}}]}, MissingContentError),
        (
            {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]},
            RefusalError,
        ),
        ({"error": {"message": "x", "type": "rate_limit_error"}}, RateLimitError),
        ({"error": {"message": "x", "code": 401}}, AuthenticationError),
        ({"error": {"message": "x"}, "choices": []}, UnavailableError),
        ({"error": "x"}, UnavailableError),
        ({"error": {"code": "invalid_prompt", "message": "x"}}, BadRequestError),
        ({"object": "error", "message": "slow down", "type": "x", "code": 429}, RateLimitError),
        (
            {
                "choices": [
                    {
                        "message": {"content": ""},
                        "finish_reason": "error",
                        "error": {"code": 502, "message": "x"},
                    },
                ],
            },
            UnavailableError,
        ),
    ],
    ids=range(13),
)
def test_what_is_no_answer_is_an_error(payload, kind):
    with pytest.raises(kind) as caught:
        read(payload)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "body",
    [b"", b" \n", b"<html>", b"{", b'{"choices"', b"null", b"[]", b"\xff\xfe", b"[" * 100_000],
    ids=range(9),
)
def test_a_body_that_is_no_object_is_a_bad_request(body):
    with pytest.raises(BadRequestError) as caught:
        read(body)
    assert len(str(caught.value)) < 600


def test_lone_surrogates_in_an_answer_are_read():
    assert read(b'{"choices": [{"message": {"content": "a\\ud800b"}}]}').text == "a\ud800b"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = [
    "content",
    "tool_calls",
    "function_call",
    "reasoning",
    "reasoning_content",
    "refusal",
    "reasoning_details",
]


@given(
    JSON,
    JSON,
    st.dictionaries(
        st.sampled_from(KEYS),
        JSON | st.lists(st.fixed_dictionaries({"id": JSON, "function": JSON})),
        min_size=1,
    ),
)
def test_an_answer_of_any_content_gives_a_response_or_an_error_of_the_house(usage, reason, message):
    """Gateways send anything."""
    try:
        response = read(
            {
                "choices": [{"message": message, "finish_reason": reason}],
                "usage": usage,
                "model": reason,
            },
        )
    except (BadRequestError, RefusalError):
        return
    assert isinstance(response, Response)
    render(
        asking(response.message()),
        model="m",
        settings={},
        dialect=Dialect(reasoning="always"),
    )


@given(JSON)
def test_a_payload_of_any_shape_gives_a_response_or_an_error_of_the_house(payload):
    with pytest.raises(LMError):
        read(json.dumps(payload).encode())


def test_decoding_reads_objects_only():
    assert decode(b'{"a": 1}') == {"a": 1}
