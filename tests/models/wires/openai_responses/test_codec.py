"""The golden answers have the shapes of OpenAI's pages as of November 2026: API reference, "Create
a model response"; guides "Function calling", "Reasoning models" and "Structured model outputs";
cookbook, "Better performance from reasoning models". Ids and keys are shortened.
"""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_calls import json_values
from msgspec.structs import replace

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
from ferrule.models.providers import PROVIDERS, address, choose
from ferrule.models.wires import payload
from ferrule.models.wires.openai_responses import headers, path, read, render
from ferrule.values.calls.call import ToolCall
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
PICTURE = Image(data="AAAA")


def said(request: Request, **keywords) -> dict:
    return json.loads(render(request, **{"model": "m", "settings": {}, **keywords}))


def asking(*messages: Message, **keywords) -> Request:
    return Request(Messages(messages or [Message("user", "hi")]), **keywords)


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"responses_{name}.json").read_text(encoding="utf-8"))


# -- requests

REQUESTS = {
    "request_plain": (asking(), {}),
    "request_conversation": (
        asking(
            Message("system", "Use tools."),
            Message(
                "user",
                (
                    Text(text="What is this?"),
                    Image(url="https://example.com/a.png"),
                    File(data="AAAA", media_type="application/pdf", name="a.pdf"),
                    File(url="https://example.com/b.pdf"),
                ),
            ),
            Message(
                "assistant",
                "I add.",
                (CALL, ToolCall(name="add", args={"a": 2}, id="call_2")),
            ),
            Message("tool", "3", tool_call_id="call_1", name="add"),
            Message(
                "tool",
                (Text(text="a picture"), PICTURE),
                tool_call_id="call_2",
                name="add",
                is_error=True,
            ),
            tools=Declarations([ADD]),
            tool_choice="add",
            parallel=False,
            settings={
                "temperature": 0,
                "max_tokens": 10,
                "seed": None,
                "reasoning_effort": "low",
                "verbosity": "low",
            },
        ),
        {
            "settings": {
                "temperature": 1,
                "top_p": 0.5,
                "seed": 4,
                "reasoning": {"summary": "auto"},
            },
            "stream": True,
        },
    ),
    "request_schema": (
        asking(
            shape=Shape("json_schema", {"type": "object"}, "thing"),
            settings={"text": {"verbosity": "high"}},
        ),
        {},
    ),
    "request_json_object": (asking(shape=Shape("json_object")), {}),
}


def with_lists(items):
    return [{"content": [], **item} if item["type"] == "reasoning" else item for item in items]


def test_every_item_says_its_type_and_reasoning_has_its_list():
    """Llama.cpp's server refuses a history otherwise ("Cannot determine type of 'item'",
    "item['content'] is not an array").
    """
    history = [Message("system", "s"), Message("user", "hi"), read(golden("reasoning")).message()]
    items = said(asking(*history, Message("assistant", "ho"), Message("user", "more")))["input"]
    assert [item.get("type") for item in items if "role" in item] == ["message"] * 4
    assert all("type" in item for item in items)
    assert all(isinstance(item["content"], list) for item in items if item["type"] == "reasoning")


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_rendered_as_the_golden_file_says(name):
    request, keywords = REQUESTS[name]
    found = said(request, **keywords)
    assert found == golden(name)
    assert next(reversed(found)) == "input"


def test_it_is_asked_for_at_its_path():
    assert (path("m"), path("m", stream=True)) == ("/responses", "/responses")
    assert (headers("k"), headers(None)) == ({"authorization": "Bearer k"}, {})


def test_openai_speaks_it_when_told_to():
    """Chat completions stay the default."""
    provider, model = choose("openai/gpt-5", None, None, "openai_responses")
    assert (provider.wire, model) == ("openai_responses", "gpt-5")
    assert address(provider.base_url, path(model)) == "https://api.openai.com/v1/responses"
    assert PROVIDERS["openai"].wire == "openai_chat"
    assert (
        said(asking(settings={"max_tokens": 5}), dialect=provider.dialect)["max_output_tokens"] == 5
    )


def test_nothing_is_stored_unless_the_settings_say_so():
    assert said(asking())["store"] is False
    stored = said(asking(settings={"store": True, "include": None}))
    assert stored["store"] is True
    assert "include" not in stored


@pytest.mark.parametrize(("model", "is_asked"), [("gpt-5-mini", True), ("o4-mini", True), ("openai/gpt-oss-20b", True), ("gpt-4o", False),
    ("gpt-4.1-mini", False), ("gpt-5-chat-latest", False)], ids=["gpt5", "o4", "oss", "4o", "41", "chat"])  # fmt: skip
def test_only_models_that_reason_are_asked_for_their_reasoning(model, is_asked):
    """Others answer with 400 (pydantic-ai, issue 2865)."""
    assert ("include" in said(asking(), model=model)) == is_asked
    assert said(asking(settings={"include": ["x"]}), model=model)["include"] == ["x"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_the_requests_limit_goes_first_whatever_it_is_called(name):
    body = said(asking(settings={name: 7}), settings={"max_output_tokens": 1, "max_tokens": 2})
    assert body["max_output_tokens"] == 7
    assert "max_tokens" not in body
    assert "max_output_tokens" not in said(
        asking(settings={name: None}),
        settings={"max_output_tokens": 1},
    )


@pytest.mark.parametrize(
    ("own", "asked", "found"),
    [
        (
            {"reasoning": {"summary": "auto", "effort": "high"}},
            {"reasoning_effort": "low"},
            {"summary": "auto", "effort": "low"},
        ),
        (
            {"reasoning_effort": "low"},
            {"reasoning": {"summary": "auto"}},
            {"effort": "low", "summary": "auto"},
        ),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": None}, None),
        ({"reasoning_effort": "high"}, {"reasoning": None}, None),
        ({}, {"reasoning_effort": None}, None),
    ],
    ids=["short_in_long", "long_over_short", "taken_out", "all_taken_out", "never_there"],
)
def test_short_names_of_settings_go_into_their_objects(own, asked, found):
    assert said(asking(settings=asked), settings=own).get("reasoning") == found


def test_the_settings_of_a_model_are_not_changed_by_a_request():
    settings = {"extra": {"a": 1}, "reasoning": {"summary": "auto"}}
    render(
        asking(settings={"extra": {"b": 1}, "reasoning_effort": "low"}),
        model="m",
        settings=settings,
    )
    assert settings == {"extra": {"a": 1}, "reasoning": {"summary": "auto"}}


def test_what_it_does_not_know_goes_through_and_extra_last():
    body = said(
        asking(settings={"extra": {"model": "other"}, "service_tier": "flex"}),
        settings={"stop": ["x"]},
    )
    assert (body["model"], body["service_tier"], body["stop"]) == ("other", "flex", ["x"])


@pytest.mark.parametrize(
    "name",
    ["model", "input", "messages", "tools", "stream", "response_format", "previous_response_id"],
)
def test_a_setting_may_not_say_what_the_request_says(name):
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        render(asking(settings={name: 1}), model="m", settings={})
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        render(asking(), model="m", settings={name: None})


def test_tool_choice_is_not_sent_without_tools():
    """Providers refuse it."""
    assert set(said(asking(tool_choice="required", parallel=True))) == {
        "model",
        "store",
        "include",
        "input",
    }


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "add"}}, {"type": "function", "name": "add"}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": []},
            {"type": "allowed_tools", "mode": "auto", "tools": []},
        ),
    ],
    ids=["auto", "none", "required", "one", "own"],
)
def test_a_tool_choice_is_said_in_the_providers_form(choice, found):
    assert (
        said(asking(tools=Declarations([ADD]), tool_choice=choice, parallel=True))["tool_choice"]
        == found
    )


def test_a_tool_that_is_strict_stays_strict():
    """Others say that they are not, or the provider would make their optional arguments required."""
    strict = {"type": "function", "function": {**ADD["function"], "strict": True}}
    assert [
        tool["strict"] for tool in said(asking(tools=Declarations([ADD, strict])))["tools"]
    ] == [False, True]


def test_tools_are_rendered_once():
    class Counted(dict):
        reads = 0

        def __getitem__(self, key):
            Counted.reads += 1
            return super().__getitem__(key)

    request = asking(
        tools=Declarations([Counted(type="function", function={"name": "rendered_once"})]),
    )
    assert said(request) == said(request.following(request.messages))
    assert Counted.reads == 1


def test_what_it_cannot_carry_is_said_in_words_and_once_in_the_log(caplog, monkeypatch):
    monkeypatch.setattr(payload, "_logged", set())
    sound = Audio(data="AAAA")
    with caplog.at_level(logging.WARNING, "ferrule.models"):
        user, tool, answer = said(
            asking(
                Message("user", (sound, sound)),
                Message("tool", (sound,), tool_call_id="1"),
                Message("assistant", (Text(text="a"), sound)),
            ),
        )["input"]
    words = f"[{sound!r} was left out: it cannot be sent here]"
    assert user["content"] == [{"type": "input_text", "text": words}] * 2
    assert tool["output"] == [{"type": "input_text", "text": words}]
    assert answer["content"] == f"a\n{words}"
    assert len(caplog.messages) == 3


@given(
    st.text(),
    st.dictionaries(
        st.sampled_from(["temperature", "reasoning", "text", "verbosity", "user"]),
        st.text() | st.floats() | st.none(),
    ),
)
def test_any_text_and_any_setting_give_json(text, settings):
    """Lone surrogates and NaN included."""
    body = json.loads(
        render(
            asking(Message("user", text), shape=Shape("json_object"), settings=settings),
            model="m",
            settings={},
        ),
    )
    assert body["input"][0]["content"] == text


# -- the conversation goes on


def test_each_of_30_requests_begins_with_the_one_before():
    """Reasoning, parallel calls and pictures included."""
    messages = Messages([Message("system", "Use tools."), Message("user", "hi")])
    request = Request(messages, Declarations([ADD]), settings={"temperature": 0})
    bodies = []
    for step in range(30):
        bodies.append(render(request, model="m", settings={}))
        answer = read(golden("reasoning" if step % 2 else "text_and_calls")).message()
        results = [
            Message("tool", ("x", (PICTURE,))[step % 3 == 0], tool_call_id=call.id)
            for call in answer.tool_calls
        ]
        messages = messages.then(answer, *results)
        request = request.following(messages)
    assert all(
        later.startswith(earlier.removesuffix(b"]}") + b",") for earlier, later in pairwise(bodies)
    )


def test_a_message_is_rendered_once(monkeypatch):
    """A step costs what it adds."""
    rendered = []
    monkeypatch.setattr(
        "ferrule.models.wires.openai_responses.encode._rendered",
        lambda message: rendered.append(message) or b"{}",
    )
    messages = Messages([Message("user", "hi")])
    for _ in range(3):
        render(Request(messages), model="m", settings={})
        messages = messages.then(Message("user", "more"))
    assert len(rendered) == 3


@pytest.mark.parametrize("name", ["reasoning", "text_and_calls", "open_reasoning"])
def test_what_came_goes_back_unchanged_and_in_its_order(name):
    """Encrypted reasoning, the phase of a message, arguments to the letter."""
    payload = golden(name)
    assert said(asking(Message("user", "hi"), read(payload).message()))["input"][1:] == with_lists(
        payload["output"],
    )


@pytest.mark.parametrize("name", ["text", "call", "parallel", "refusal"])
def test_nothing_is_kept_of_an_answer_that_can_be_made_again(name):
    """Journals stay small."""
    assert read(golden(name)).extra is None


def test_reasoning_that_only_the_provider_could_find_is_not_handed_back():
    """It is answered with 404 where nothing was stored (vercel/ai, issue 7543)."""
    thought = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
    }
    spoken = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hi"}],
    }
    gone = read({"output": [thought, spoken], "store": False})
    assert (gone.reasoning, gone.extra) == ("hm", None)
    stored = read({"output": [thought, spoken], "store": True})
    assert said(asking(stored.message()))["input"] == with_lists([thought, spoken])


def test_such_reasoning_is_left_out_beside_what_does_go_back():
    thought = {"id": "rs_1", "type": "reasoning", "summary": []}
    spoken = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "hi"}],
    }
    assert said(asking(read({"output": [thought, spoken]}).message()))["input"] == [spoken]


def test_reasoning_that_nothing_followed_is_not_handed_back():
    """It is refused (openai-agents-python, issue 1611); an answer that was cut off while thinking,
    say.
    """
    thought, call, *_ = golden("reasoning")["output"]
    cut = read(
        {
            "output": [thought],
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
        },
    )
    assert (cut.finish_reason, cut.extra) == ("length", None)
    assert said(asking(read({"output": [thought, call, thought]}).message()))[
        "input"
    ] == with_lists([thought, call])


def test_an_answer_without_words_is_its_calls_and_without_both_an_empty_one():
    """An item of no words would be one too many, and no item at all would break the list."""
    items = said(asking(Message("assistant", "", (CALL,)), Message("assistant", "")))["input"]
    assert [item.get("type") for item in items] == ["function_call", "message"]
    assert items[1] == {"type": "message", "role": "assistant", "content": ""}


def test_a_call_that_got_another_id_goes_back_under_it():
    """Runs make ids unique."""
    answer = read(golden("reasoning"))
    renamed = replace(
        answer,
        tool_calls=tuple(call.with_id(f"own_{k}") for k, call in enumerate(answer.tool_calls)),
    )
    calls = [
        item for item in said(asking(renamed.message()))["input"] if item["type"] == "function_call"
    ]
    assert [(call["call_id"], call["arguments"]) for call in calls] == [
        ("own_0", '{ "location" : "Paris" }'),
        ("own_1", '{"location": "Oslo"}'),
    ]


def test_names_and_ids_that_the_api_refuses_are_changed():
    """`call_id` has at most 64 characters; a result keeps its call."""
    long = "call_" + "x" * 90
    calls = (ToolCall(name="get weather!", id=long), ToolCall(name="", id="ok"))
    first, second, result = said(
        asking(Message("assistant", "", calls), Message("tool", "no", tool_call_id=long)),
    )["input"]
    assert (first["name"], second["name"], second["call_id"]) == ("get_weather_", "unnamed", "ok")
    assert first["call_id"] == result["call_id"]
    assert len(first["call_id"]) == 64


def test_a_call_with_other_arguments_goes_back_as_it_is_now():
    answer = read(golden("reasoning"))
    changed = replace(
        answer,
        tool_calls=(answer.tool_calls[0], ToolCall(name="other", args={"x": 1}, id="call_2")),
    )
    last = said(asking(changed.message()))["input"][-1]
    assert (last["name"], last["arguments"], last["id"]) == ("other", '{"x":1}', "fc_2")


@pytest.mark.parametrize(
    "change",
    [{"tool_calls": ()}, {"text": "other words"}, {"tool_calls": (), "text": "other"}],
    ids=["no_calls", "text", "both"],
)
def test_an_answer_that_was_changed_goes_back_without_its_reasoning(change):
    """Reasoning without what followed it is refused (openai-agents-python, issue 1611)."""
    items = said(asking(replace(read(golden("reasoning")), **change).message()))["input"]
    assert [item for item in items if item.get("type") == "reasoning"] == []
    assert len([item for item in items if item.get("type") == "function_call"]) == (
        0 if "tool_calls" in change else 2
    )


def test_a_conversation_that_began_elsewhere_is_rendered():
    """What others want back is not for this provider."""
    foreign = Message(
        "assistant",
        "x",
        (CALL,),
        reasoning="hm",
        extra={"openai_chat": {"message": {"reasoning_details": [1]}}},
    )
    spoken, call = said(asking(foreign))["input"]
    assert spoken == {"type": "message", "role": "assistant", "content": "x"}
    assert call == {
        "type": "function_call",
        "name": "add",
        "arguments": '{"a":1}',
        "call_id": "call_1",
    }


# -- answers

MODEL = "gpt-5-mini-2025-08-07"
WEATHER = [
    ToolCall(name="get_weather", args={"location": place}, id=f"call_{k}")
    for k, place in enumerate(["Paris", "Bogotá"], 1)
]
ANSWERS = {
    "text": Response(
        "Hello! How can I help?",
        (),
        None,
        "stop",
        None,
        Usage(12033, 44, 11904, 1),
        MODEL,
    ),
    "call": Response(
        None,
        (ToolCall(name="get_weather", args={"location": "Paris, France"}, id="call_1"),),
        None,
        "tool_calls",
        None,
        Usage(291, 23, 0, 1),
        MODEL,
    ),
    "parallel": Response(
        None,
        (
            *WEATHER,
            ToolCall(name="send_email", args={"to": "bob@example.com", "body": "Hi"}, id="call_3"),
        ),
        None,
        "tool_calls",
        None,
        Usage(300, 60, 0, 1),
        MODEL,
    ),
    "text_and_calls": Response(
        "Let me look.",
        (WEATHER[0],),
        None,
        "tool_calls",
        None,
        Usage(10, 5, 0, 1),
        MODEL,
    ),
    "reasoning": Response(
        None,
        (WEATHER[0], ToolCall(name="get_weather", args={"location": "Oslo"}, id="call_2")),
        "**First.**\n\n**Then.**",
        "tool_calls",
        None,
        Usage(81, 1035, 0, 1),
        MODEL,
    ),
    "open_reasoning": Response(
        "Hi.",
        (),
        "The user greets.",
        "stop",
        None,
        Usage(7, 9, 0, 1),
        "openai/gpt-oss-20b",
    ),
    "refusal": Response(
        None,
        (),
        None,
        "stop",
        "I'm sorry, I cannot assist with that.",
        Usage(81, 11, 0, 1),
        MODEL,
    ),
    "length": Response(None, (), None, "length", None, Usage(81, 1000, 0, 1), MODEL),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_as_expected(name):
    payload = golden(name)
    found = read(payload)
    assert replace(found, extra=None) == ANSWERS[name]
    assert found.raw == payload
    assert read(json.dumps(payload).encode()) == found


def test_bad_calls_are_kept_beside_good_ones():
    """With the raw text and the reason."""
    cut, nameless, good = read(golden("bad_calls")).tool_calls
    assert cut.fault is not None
    assert (cut.name, cut.fault.code, cut.fault.raw) == (
        "add",
        "invalid_tool_call_arguments",
        '{"a": 1} and {"b"',
    )
    assert nameless.fault is not None
    assert (nameless.fault.code, nameless.fault.reason.partition(":")[0]) == (
        "invalid_tool_call",
        "call 1",
    )
    assert (good.args, good.fault) == ({"a": 2}, None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"output": [{"type": "message", "content": "plain"}]}, "plain"),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": ""}]}]}, ""),
        ({"output": [{"type": "message", "content": []}]}, None),
        (
            {
                "output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]
                * 2,
                "status": "completed",
            },
            "aa",
        ),
        (
            {
                "output": [
                    {"type": "web_search_call", "id": "ws_1"},
                    {"type": "message", "content": [None, {"type": "text", "text": "a"}]},
                ],
            },
            "a",
        ),
    ],
    ids=["string", "empty", "no_part", "two_messages", "other_items"],
)
def test_the_text_is_that_of_all_messages(body, text):
    response = read(body)
    assert (response.text, response.finish_reason) == (text, "stop")


@pytest.mark.parametrize(
    ("status", "details", "reason"),
    [
        ("incomplete", {"reason": "max_output_tokens"}, "length"),
        ("incomplete", {"reason": "content_filter"}, "content_filter"),
        ("incomplete", {"reason": "steered"}, "steered"),
        ("incomplete", None, "incomplete"),
        ("cancelled", None, "cancelled"),
        ("completed", None, "stop"),
        (None, None, "stop"),
    ],
    ids=["length", "filter", "own_word", "no_word", "cancelled", "completed", "no_status"],
)
def test_why_it_ended_is_said_in_the_words_of_the_house(status, details, reason):
    output = [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]
    assert (
        read({"status": status, "incomplete_details": details, "output": output}).finish_reason
        == reason
    )


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({}, MissingContentError),
        ({"output": None}, MissingContentError),
        ({"output": {"type": "message"}}, MissingContentError),
        ({"output": [None, 1, "x"], "status": "completed"}, MissingContentError),
        ({"output": [], "status": "queued"}, MissingContentError),
        ({"choices": [{"message": {"content": "x"}}]}, MissingContentError),
        (golden("filtered"), RefusalError),
        (golden("failed"), UnavailableError),
        ({"status": "failed"}, UnavailableError),
        ({"error": {"code": "rate_limit_exceeded", "message": "x"}}, RateLimitError),
        ({"error": {"code": "invalid_prompt", "message": "x"}}, BadRequestError),
        ({"error": {"code": "image_too_large", "message": "x"}}, BadRequestError),
        ({"error": {"code": "bio_policy", "message": "x"}}, RefusalError),
        ({"error": {"code": "misalignment_policy_violation", "message": "x"}}, RefusalError),
        ({"error": {"message": "bad key", "type": "authentication_error"}}, AuthenticationError),
        ({"error": "x"}, UnavailableError),
    ],
    ids=[
        "empty", "null", "no_list", "no_items", "queued", "chat", "filtered", "failed", "failed_without_a_word",
        "rate", "prompt", "image", "bio", "misaligned", "key", "text",
    ],
)  # fmt: skip
def test_what_is_no_answer_is_an_error(payload, kind):
    with pytest.raises(kind) as caught:
        read(payload)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"{", b"null", b"[]"],
    ids=["empty", "html", "half", "null", "list"],
)
def test_a_body_that_is_no_object_is_a_bad_request(body):
    with pytest.raises(BadRequestError):
        read(body)


TYPES = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "web_search_call",
        "output_text",
        "refusal",
        "summary_text",
    ],
)
PART = json_values | st.fixed_dictionaries(
    {"type": TYPES | json_values},
    optional={"text": json_values, "refusal": json_values},
)
ITEM = st.fixed_dictionaries(
    {"type": TYPES | json_values},
    optional={
        **dict.fromkeys(
            ["id", "call_id", "name", "arguments", "encrypted_content", "phase"], json_values
        ),
        **dict.fromkeys(["content", "summary"], json_values | st.lists(PART, max_size=3)),
    },
)
BODY = st.fixed_dictionaries(
    {"output": st.lists(ITEM | json_values, max_size=4) | json_values},
    optional={
        **dict.fromkeys(["error", "id", "model", "usage", "incomplete_details"], json_values),
        "status": json_values | st.sampled_from(["incomplete", "failed"]),
        "store": st.booleans() | json_values,
    },
)


@given(BODY)
@example({"output": [{"type": "message", "content": [{"type": []}]}]})
def test_an_answer_of_any_content_gives_a_response_or_an_error_of_the_house(payload):
    """Gateways send anything; and what was read can be sent back."""
    try:
        response = read(json.dumps(payload).encode())
    except LMError:
        return
    json.loads(render(asking(response.message()), model="m", settings={}))


@pytest.mark.parametrize("name", ["reasoning", "text_and_calls", "text"])
@given(data=st.data())
def test_a_recorded_answer_with_any_part_replaced_is_read_or_refused(name, data):
    """Missing, null and wrong types."""
    payload = golden(name)
    place = payload
    for _ in range(data.draw(st.integers(1, 5))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and data.draw(st.booleans()):
            place = place[key]
        elif data.draw(st.booleans()):
            place[key] = data.draw(json_values)
        else:
            del place[key]
    try:
        response = read(payload)
    except LMError:
        return
    json.loads(render(asking(response.message()), model="m", settings={}))
