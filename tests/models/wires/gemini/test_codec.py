"""Requests and answers of Gemini.

Answers are written by hand after the examples of ai.google.dev/gemini-api/docs (pages as of May to
July 2026): "Text generation" (text), "Thought signatures" (a call, parallel calls), "Function
calling" (text and a call), "Thinking", "Context caching", "Code execution", "Safety settings"
(withheld, blocked), "Troubleshooting" (error); a malformed call after python-genai issue 430.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_calls import json_values

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
from ferrule.models.hosted import LM
from ferrule.models.providers import Dialect, address, capabilities_of, choose
from ferrule.models.wires.gemini import encode as gemini
from ferrule.models.wires.gemini import headers, path, read, render
from ferrule.models.wires.gemini.encode import UNSIGNED
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.content.parts import Image, Text
from ferrule.values.conversation.exchange import Declarations, Request, Response, Shape, Usage
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.provider_tools import ProviderCall

GOLDEN = Path(__file__).parents[2] / "golden"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "exclusiveMinimum": 0}},
            "required": ["a"],
        },
    },
}
CALL = ToolCall(name="add", args={"a": 1}, id="call_1")
TOOLS = Declarations([ADD])


def said(request: Request, **keywords) -> dict:
    return json.loads(render(request, **{"model": "gemini-3.5-flash", "settings": {}, **keywords}))


def asking(*messages: Message, **keywords) -> Request:
    return Request(Messages(messages or [Message("user", "hi")]), **keywords)


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"gemini_{name}.json").read_text(encoding="utf-8"))


# -- requests

CONVERSATION = (
    Message("system", "Use tools."),
    Message("system", "Be brief."),
    Message("user", (Text(text="What is this?"), Image(url="https://example.com/a.png"))),
    Message("assistant", "Let me see.", (CALL, CALL.with_id("call_2"))),
    Message("tool", "3", tool_call_id="call_1", name="add"),
    Message("tool", "no", tool_call_id="call_2", name="add", is_error=True),
    Message("system", "The person is in a hurry."),
    Message("user", "And?"),
)
REQUESTS = {
    "request_plain": (asking(), {}),
    "request_conversation": (
        asking(
            *CONVERSATION,
            tools=TOOLS,
            tool_choice="add",
            parallel=False,
            settings={"temperature": 0, "max_tokens": 10, "seed": None},
        ),
        {"settings": {"temperature": 1, "top_p": 0.5, "seed": 4, "stop": "END"}, "stream": True},
    ),
    "request_old_model": (
        asking(*CONVERSATION[2:6], settings={"reasoning_effort": "low"}),
        {"model": "gemini-2.5-flash"},
    ),
    "request_schema": (
        asking(
            shape=Shape(
                "json_schema",
                {"type": "object", "properties": {"a": {"const": 1}}},
                "thing",
            ),
        ),
        {},
    ),
    "request_json_object": (asking(shape=Shape("json_object")), {}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_rendered_as_the_golden_file_says(name):
    request, keywords = REQUESTS[name]
    assert said(request, **keywords) == golden(name)


@pytest.mark.parametrize("model", ["gemini-3.5-flash", "gemini-2.5-flash"])
def test_the_body_of_a_request_begins_with_the_one_before(model):
    """30 steps with parallel calls; results of one turn share one content."""
    messages = Messages([Message("system", "Use tools."), Message("user", "hi")])
    request = Request(messages, TOOLS, settings={"temperature": 0})
    bodies = []
    for step in range(30):
        bodies.append(render(request, model=model, settings={}))
        calls = tuple(CALL.with_id(f"c{step}_{k}") for k in range(1 + step % 3))
        results = [
            Message("tool", "1", tool_call_id=call.id, name=None if step % 2 else "add")
            for call in calls
        ]
        messages = messages.then(Message("assistant", "", calls), *results)
        request = request.following(messages)
    assert all(later.startswith(earlier.removesuffix(b"]}")) for earlier, later in pairwise(bodies))
    contents = json.loads(bodies[-1])["contents"]
    assert [content["role"] for content in contents] == ["user", *["model", "user"] * 29]
    assert [len(content["parts"]) for content in contents[1::2]] == [
        len(content["parts"]) for content in contents[2::2]
    ]
    assert {
        part["functionResponse"]["name"] for content in contents[2::2] for part in content["parts"]
    } == {"add"}


def test_what_was_rendered_is_not_rendered_again(monkeypatch):
    """Neither messages, nor tools of the same `Declarations`, nor the schema of an answer."""
    request = asking(
        *CONVERSATION,
        tools=Declarations([ADD]),
        shape=Shape("json_schema", {"type": "object", "title": "only here"}),
    )
    first = render(request, model="gemini-3.5-flash", settings={})

    def never(*args: object, **keywords: object) -> None:
        raise AssertionError

    for name in ("turn_parts", "result_parts", "lower_schema", "lower_tools"):
        monkeypatch.setattr(gemini, name, never)
    assert render(request, model="gemini-3.5-flash", settings={}) == first


def test_a_message_goes_to_models_of_both_kinds_in_their_own_form():
    """What is kept of a message for one is not sent to the other."""
    request = asking(
        Message("user", "hi"),
        Message("assistant", "", (CALL,)),
        Message("tool", (Image(data="aGk="),), tool_call_id="call_1"),
    )
    new, old, again = (
        said(request, model=model)
        for model in ("gemini-3-pro", "gemini-2.5-pro", "gemini-flash-latest")
    )
    assert new == again
    assert new["contents"][1]["parts"][0]["thoughtSignature"] == UNSIGNED
    assert "thoughtSignature" not in old["contents"][1]["parts"][0]
    assert [
        "parts" in body["contents"][2]["parts"][0]["functionResponse"] for body in (new, old)
    ] == [True, False]


def test_a_result_is_named_after_the_call_it_answers():
    """The API wants the name; messages in OpenAI's form have only the id."""
    other = ToolCall(name="other", id="call_2")
    request = asking(
        Message("user", "hi"),
        Message("assistant", "", (CALL, other)),
        Message("tool", "b", tool_call_id="call_2"),
        Message("tool", "a", tool_call_id="call_1"),
        Message("tool", "?", tool_call_id="of nothing"),
    )
    parts = said(request)["contents"][2]["parts"]
    assert [part["functionResponse"]["name"] for part in parts] == ["other", "add", "unnamed"]


def test_a_conversation_of_system_messages_alone_still_asks_something():
    """The API refuses a request without contents."""
    body = said(asking(Message("system", "a"), Message("system", "b")))
    assert body["systemInstruction"]["parts"] == [{"text": "a"}]
    assert body["contents"] == [{"role": "user", "parts": [{"text": "b"}]}]


def test_what_a_person_says_twice_stays_two_contents():
    """Only what belongs to one turn of the model is put together."""
    said_twice = [
        Message("user", "a"),
        Message("user", "b"),
        Message("assistant", "c"),
        Message("assistant", "", (CALL,)),
    ]
    contents = said(asking(*said_twice))["contents"]
    assert [(content["role"], len(content["parts"])) for content in contents] == [
        ("user", 1),
        ("user", 1),
        ("model", 2),
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("add", {"mode": "ANY", "allowedFunctionNames": ["add"]}),
        (
            {"type": "function", "function": {"name": "add"}},
            {"mode": "ANY", "allowedFunctionNames": ["add"]},
        ),
    ],
    ids=["auto", "none", "required", "name", "dict"],
)
def test_the_choice_of_tools_is_a_mode(choice, expected):
    assert said(asking(tools=TOOLS, tool_choice=choice))["toolConfig"] == {
        "functionCallingConfig": expected,
    }


def test_a_choice_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="tool_choice"):
        said(asking(tools=TOOLS, tool_choice={"type": "custom"}))


def test_tool_choice_is_not_sent_without_tools():
    assert set(said(asking(tool_choice="required", parallel=True))) == {"contents"}


def test_a_function_without_parameters_has_no_schema():
    """The API refuses an object without properties."""
    bare = {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    }
    assert said(asking(tools=Declarations([bare])))["tools"] == [
        {"functionDeclarations": [{"name": "now", "description": ""}]},
    ]


def test_settings_get_the_names_they_have_there():
    """Users know OpenAI's names, and Gemini's in either spelling."""
    settings = {
        "max_completion_tokens": 5,
        "stop": ["a", "b"],
        "top_k": 3,
        "presence_penalty": 0.5,
        "topP": 0.1,
        "safety_settings": [{"category": "X"}],
        "cachedContent": "cachedContents/1",
        "reasoning_effort": "high",
        "thinking_config": {"includeThoughts": True},
        "generation_config": {"mediaResolution": "LOW"},
        "something_new": 1,
    }
    body = said(asking(settings=settings))
    assert body.pop("contents")
    assert body == {
        "generationConfig": {
            "maxOutputTokens": 5,
            "stopSequences": ["a", "b"],
            "topK": 3,
            "presencePenalty": 0.5,
            "topP": 0.1,
            "thinkingConfig": {"thinkingLevel": "high", "includeThoughts": True},
            "mediaResolution": "LOW",
            "somethingNew": 1,
        },
        "safetySettings": [{"category": "X"}],
        "cachedContent": "cachedContents/1",
    }
    assert said(asking(settings={"seed": 1}), dialect=Dialect({"seed": "luck"}))[
        "generationConfig"
    ] == {"luck": 1}


def test_extra_goes_out_unchecked_and_last():
    """Objects are completed, other fields replaced; tools of the provider stand before ours."""
    extra = {
        "generationConfig": {"temperature": 1},
        "tools": [{"googleSearch": {}}],
        "toolConfig": {"retrievalConfig": {}},
    }
    body = said(
        asking(
            tools=TOOLS,
            tool_choice="auto",
            settings={"extra": extra, "temperature": 0, "top_p": 1},
        ),
    )
    assert body["generationConfig"] == {"temperature": 1, "topP": 1}
    assert [[*tool] for tool in body["tools"]] == [["googleSearch"], ["functionDeclarations"]]
    assert set(body["toolConfig"]) == {"functionCallingConfig", "retrievalConfig"}
    forced = said(
        asking(
            *CONVERSATION,
            settings={"extra": {"systemInstruction": {"parts": []}, "contents": []}},
        ),
    )
    assert forced == {"systemInstruction": {"parts": []}, "contents": []}


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "contents",
        "tools",
        "tool_choice",
        "response_json_schema",
        "responseMimeType",
        "stream",
    ],
)
def test_a_setting_may_not_say_what_the_request_says(name):
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        said(asking(settings={name: 1}))


def test_the_settings_of_a_model_are_not_changed_by_a_request():
    settings = {
        "extra": {"tools": [{"googleSearch": {}}], "generationConfig": {"a": 1}},
        "temperature": 0,
        "stop": "x",
    }
    before = json.dumps(settings)
    said(
        asking(settings={"thinking_config": {"a": 1}, "reasoning_effort": "low"}),
        settings=settings,
    )
    assert json.dumps(settings) == before


@given(
    st.text(),
    st.dictionaries(
        st.sampled_from(["temperature", "stop", "user", "reasoning_effort"]),
        st.text() | st.floats() | st.none(),
    ),
)
def test_any_text_and_any_setting_give_json(text, settings):
    """Lone surrogates and NaN included."""
    body = said(asking(Message("system", text), Message("user", text), settings=settings))
    assert body["contents"][0]["parts"] == body["systemInstruction"]["parts"] == [{"text": text}]


def test_the_path_names_the_model_and_whether_it_streams():
    """The query stays a query."""
    base = "https://host/v1beta"
    assert (
        address(base, path("gemini-3.5-flash")) == f"{base}/models/gemini-3.5-flash:generateContent"
    )
    assert (
        address(base, path("models/x", stream=True))
        == f"{base}/models/x:streamGenerateContent?alt=sse"
    )
    assert path("tunedModels/mine") == "/tunedModels/mine:generateContent"
    assert path("org/a b?c") == "/models/org/a%20b%3Fc:generateContent"


def test_the_key_has_its_own_header():
    assert headers("k") == {"x-goog-api-key": "k"}
    assert headers(None) == {}


def test_the_provider_speaks_its_own_wire_and_openais_at_another_address():
    provider, model = choose("gemini/gemini-3.5-flash", None, None)
    assert (provider.wire, model) == ("gemini", "gemini-3.5-flash")
    assert address(provider.base_url, path(model)).endswith(
        "/v1beta/models/gemini-3.5-flash:generateContent",
    )
    other, _ = choose("gemini/gemini-3.5-flash", None, None, "openai_chat")
    assert address(other.base_url).endswith("/v1beta/openai/chat/completions")
    assert LM("gemini/m").capabilities == capabilities_of(provider, "m")


# -- answers


def kept(*parts: dict) -> dict:
    return {"gemini": {"parts": list(parts)}}


def weather(city: str) -> ToolCall:
    return ToolCall(name="get_current_temperature", args={"location": city})


CALL_EXTRA = kept({"functionCall": {}, "thoughtSignature": "U2lnbmF0dXJlIEE="})
ANSWERS = {
    "answer_text": Response(
        "AI learns patterns from data.",
        (),
        None,
        "stop",
        None,
        Usage(8, 38, 0, 1, 31),
        "gemini-3.5-flash",
    ),
    "answer_call": Response(
        None,
        (ToolCall(name="check_flight", args={"flight": "AA100"}, id="8f2b1a3c"),),
        None,
        "tool_calls",
        None,
        Usage(70, 108, 0, 1, 90),
        "gemini-3-pro-preview",
        extra=CALL_EXTRA,
    ),
    "answer_parallel_calls": Response(
        None,
        (weather("Paris"), weather("London")),
        None,
        "tool_calls",
        None,
        Usage(72, 36, 0, 1),
        "gemini-3-pro-preview",
        extra=kept(*CALL_EXTRA["gemini"]["parts"], {"functionCall": {}}),
    ),
    "answer_text_and_call": Response(
        "I will look it up.",
        (ToolCall(name="get_weather", args={"city": "Oslo"}),),
        None,
        "tool_calls",
        None,
        Usage(40, 20, 0, 1),
        "gemini-2.0-flash",
    ),
    "answer_thinking": Response(
        "9.8 is greater.",
        (),
        "**Compare**\n\nFirst the tenths.",
        "stop",
        None,
        Usage(12, 129, 0, 1, 120),
        "gemini-3.5-flash",
        extra=kept(
            {"text": "**Compare**\n\nFirst the tenths.", "thought": True},
            {"text": "9.8 is greater.", "thoughtSignature": "U2lnbmF0dXJlIEI="},
        ),
    ),
    "answer_cached": Response(
        "The transcript is of a launch.",
        (),
        None,
        "stop",
        None,
        Usage(5030, 8, 4990, 1),
        "gemini-3.5-flash",
    ),
    "answer_truncated": Response(
        "Once upon",
        (),
        None,
        "length",
        None,
        Usage(5, 2, 0, 1),
        "gemini-3.5-flash",
    ),
    "answer_code": Response(
        "It is 4.",
        (),
        None,
        "stop",
        None,
        Usage(17, 20, 0, 1, provider_calls={"code_execution": 1}),
        "gemini-3.5-flash",
        provider_calls=(
            ProviderCall("code_execution", {"code": "print(2+2)"}, "4\n", id="code_0"),
        ),
        extra=kept(
            {"executableCode": {"language": "PYTHON", "code": "print(2+2)"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "4\n"}},
            {"text": "It is 4."},
        ),
    ),
    "answer_malformed_call": Response(
        None,
        (
            ToolCall(
                name="",
                fault=CallFault(
                    "invalid_tool_call",
                    "the provider could not read the call (MALFORMED_FUNCTION_CALL)",
                    "Malformed function call: print(default_api.add(a=1,",
                    0,
                ),
            ),
        ),
        None,
        "tool_calls",
        None,
        Usage(50, 0, 0, 1),
        "gemini-2.5-flash",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_as_expected(name):
    payload = golden(name)
    found = read(payload)
    assert found == ANSWERS[name]
    assert found.raw == payload
    assert read(json.dumps(payload).encode()) == ANSWERS[name]


@pytest.mark.parametrize("name", [name for name, response in ANSWERS.items() if response.extra])
def test_what_came_with_signatures_goes_back_as_it_came(name):
    payload = golden(name)
    turn = said(asking(Message("user", "hi"), read(payload).message()))["contents"][1]
    assert turn == {"role": "model", "parts": payload["candidates"][0]["content"]["parts"]}


def answering(*parts: object, reason: object = "STOP", **fields: object) -> dict:
    return {
        "candidates": [
            {"content": {"role": "model", "parts": list(parts)}, "finishReason": reason},
        ],
        **fields,
    }


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ({"name": "add", "args": "{half"}, "invalid_tool_call_arguments"),
        ({"name": "add", "args": [1]}, "invalid_tool_call_arguments"),
        ({"args": {}}, "invalid_tool_call"),
        ({"name": ""}, "invalid_tool_call"),
        ([], "invalid_tool_call"),
        ("add", "invalid_tool_call"),
    ],
    ids=["text", "list", "nameless", "empty_name", "no_call", "word"],
)
def test_a_bad_call_is_kept_beside_the_good_ones(call, code):
    good = {"functionCall": {"name": "add", "args": {"a": 1}}}
    bad, fine = read(answering({"functionCall": call}, good)).tool_calls
    assert bad.fault.code == code
    assert (fine.fault, fine.args) == (None, {"a": 1})


@pytest.mark.parametrize(
    "args",
    [{}, {"args": None}, {"args": {}}, {"args": ""}],
    ids=["missing", "null", "empty", "empty_text"],
)
def test_a_call_without_arguments_has_none(args):
    [call] = read(answering({"functionCall": {"name": "now", **args}})).tool_calls
    assert (call.args, call.fault) == ({}, None)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("LANGUAGE", "LANGUAGE"),
        ("FINISH_REASON_UNSPECIFIED", None),
        (None, None),
        (3, None),
    ],
    ids=["stop", "max", "safety", "recitation", "own", "unspecified", "none", "number"],
)
def test_finish_reasons_are_of_one_vocabulary(reason, expected):
    assert read(answering({"text": "a"}, reason=reason)).finish_reason == expected


def test_an_answer_may_be_empty():
    """All tokens went into thoughts, or the model had nothing to add."""
    cut = read(answering({"text": "hm", "thought": True}, reason="MAX_TOKENS"))
    assert (cut.text, cut.reasoning, cut.finish_reason) == (None, "hm", "length")
    assert (
        read({"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}).finish_reason
        == "stop"
    )


def test_of_several_answers_the_first_is_read():
    body = answering({"text": "a"})
    body["candidates"].append(answering({"text": "b"})["candidates"][0])
    assert read(body).text == "a"


@pytest.mark.parametrize(
    ("payload", "kind", "words"),
    [
        ({}, MissingContentError, "no candidates"),
        ({"candidates": None}, MissingContentError, "no candidates"),
        ({"candidates": {}}, MissingContentError, "no candidates"),
        ({"candidates": [None]}, MissingContentError, "no candidates"),
        ({"candidates": [{"index": 0}]}, MissingContentError, "without content"),
        (answering(reason="OTHER"), MissingContentError, "OTHER"),
        (golden("answer_withheld"), RefusalError, "SAFETY"),
        (golden("answer_blocked"), RefusalError, "PROHIBITED_CONTENT"),
        (
            answering({"text": "hm", "thought": True}, reason="PROHIBITED_CONTENT"),
            RefusalError,
            "PROHIBITED",
        ),
        (
            {"promptFeedback": {"blockReason": "OTHER", "blockReasonMessage": "because"}},
            RefusalError,
            "because",
        ),
        (golden("error"), RateLimitError, "quota"),
        (
            {"error": {"code": 401, "message": "x", "status": "UNAUTHENTICATED"}},
            AuthenticationError,
            "x",
        ),
        ({"error": {"code": 503, "message": "x", "status": "UNAVAILABLE"}}, UnavailableError, "x"),
        (
            {"error": {"code": 400, "message": "x", "status": "INVALID_ARGUMENT"}},
            BadRequestError,
            "x",
        ),
        ({"error": "x"}, UnavailableError, "x"),
    ],
    ids=range(15),
)
def test_what_is_no_answer_is_an_error(payload, kind, words):
    with pytest.raises(kind, match=words) as caught:
        read(payload)
    assert type(caught.value) is kind


def test_errors_name_the_answer_they_are_of():
    with pytest.raises(RefusalError) as caught:
        read(golden("answer_blocked"))
    assert caught.value.request_id == "resp-blocked"


@pytest.mark.parametrize("body", [b"", b"<html>", b"{", b"null", b"[]", b"\xff\xfe"], ids=range(6))
def test_a_body_that_is_no_object_is_a_bad_request(body):
    with pytest.raises(BadRequestError):
        read(body)


PART = (
    st.dictionaries(
        st.sampled_from(["text", "thought", "functionCall", "thoughtSignature", "inlineData"]),
        json_values,
    )
    | json_values
)


@given(json_values, json_values, st.lists(PART, max_size=4) | json_values, json_values)
def test_an_answer_of_any_content_gives_a_response_or_an_error_of_the_house(
    usage,
    reason,
    parts,
    feedback,
):
    """Gateways send anything."""
    candidate = {"content": {"parts": parts}, "finishReason": reason, "finishMessage": feedback}
    try:
        response = read(
            {
                "candidates": [candidate],
                "usageMetadata": usage,
                "promptFeedback": feedback,
                "modelVersion": reason,
            },
        )
    except (BadRequestError, RefusalError):
        return
    assert isinstance(response, Response)
    said(asking(response.message()))


@given(st.sampled_from(list(ANSWERS)), st.randoms(use_true_random=False), json_values)
def test_a_recorded_answer_with_anything_in_any_place_is_read_or_an_error_of_the_house(
    name,
    chance,
    junk,
):
    payload = golden(name)
    replace_somewhere(payload, chance, junk)
    try:
        said(asking(read(payload).message()))
    except LMError:
        return


def replace_somewhere(value: dict | list, chance: random.Random, junk: object) -> None:
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = chance.choice(keys)
    if isinstance(value[key], (dict, list)) and value[key] and chance.random() < 0.7:
        replace_somewhere(value[key], chance, junk)
    else:
        value[key] = junk


@given(json_values)
def test_a_payload_of_any_shape_gives_an_error_of_the_house(payload):
    with pytest.raises(LMError):
        read(json.dumps(payload).encode())
