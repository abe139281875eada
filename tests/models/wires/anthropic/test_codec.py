"""Answers are those of platform.claude.com, read in November 2026, made short: "Messages" (text),
"Tool use overview" (call, text and call), "Parallel tool use", "Extended thinking", "Stop reasons
and fallback" (refusal, truncated), "Prompt caching" (cached), "Web search tool" (search), "Errors".
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.encode import json_bytes
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
from ferrule.models.providers import address, choose
from ferrule.models.wires.anthropic import headers, path, read, render
from ferrule.models.wires.anthropic.encode import MAX_TOKENS
from ferrule.models.wires.openai_chat import read as read_openai
from ferrule.models.wires.openai_chat import render as render_openai
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.content.parts import Image, Text
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
NOW = {"type": "function", "function": {"name": "now", "description": ""}}
CALL = ToolCall(name="add", args={"a": 1}, id="toolu_1")
OTHER = ToolCall(name="now", id="toolu_2")
MARK = {"type": "ephemeral"}


def said(request: Request, **keywords) -> dict:
    return json.loads(render(request, **{"model": "m", "settings": {}, **keywords}))


def asking(*messages: Message, **keywords) -> Request:
    return Request(Messages(messages or [Message("user", "hi")]), **keywords)


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"anthropic_{name}.json").read_text(encoding="utf-8"))


def unmarked(body: bytes) -> bytes:
    return re.sub(rb',"cache_control":\{[^}]*\}', b"", body)


def marked(body: dict) -> list[str]:
    """Where the cache markers stand."""
    places = [f"tools/{tool['name']}" for tool in body.get("tools", ()) if "cache_control" in tool]
    places += [
        f"system/{block['text']}" for block in body.get("system", ()) if "cache_control" in block
    ]
    for number, message in enumerate(body["messages"]):
        places += [
            f"messages/{number}/{place}"
            for place, block in enumerate(message["content"])
            if "cache_control" in block
        ]
    return places


# -- requests

REQUESTS = {
    "request_plain": (asking(), {}),
    "request_conversation": (
        asking(
            Message("system", "Use tools."),
            Message("system", "Be kind."),
            Message("user", (Text(text="What is this?"), Image(url="https://example.com/a.png"))),
            Message("assistant", "I'll see.", (CALL, OTHER)),
            Message("tool", "3", tool_call_id="toolu_1", name="add"),
            Message("tool", "no clock", tool_call_id="toolu_2", name="now", is_error=True),
            tools=Declarations([ADD, NOW]),
            tool_choice="add",
            parallel=False,
            settings={
                "temperature": 0,
                "max_tokens": 10,
                "seed": None,
                "stop": "END",
                "user": "u1",
            },
        ),
        {"settings": {"temperature": 1, "top_p": 0.5, "top_k": 4}, "stream": True},
    ),
    "request_schema": (
        asking(
            shape=Shape(
                "json_schema",
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            ),
            settings={"reasoning_effort": "low"},
        ),
        {},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_rendered_as_the_golden_file_says(name):
    request, keywords = REQUESTS[name]
    assert said(request, **keywords) == golden(name)


def test_the_provider_speaks_its_own_wire_unless_another_is_wished():
    provider, model = choose("anthropic/claude-opus-5-5", None, None)
    assert (provider.wire, model, address(provider.base_url, path(model))) == (
        "anthropic",
        "claude-opus-5-5",
        "https://api.anthropic.com/v1/messages",
    )
    other, _ = choose("anthropic/claude-opus-5-5", None, None, "openai_chat")
    assert (other.wire, address(other.base_url)) == (
        "openai_chat",
        "https://api.anthropic.com/v1/chat/completions",
    )


def test_the_address_and_the_headers_are_the_providers():
    assert path("m") == path("m", stream=True) == "/messages"
    assert headers("k") == {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert headers(None) == {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("auto", None, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", True, {"type": "any"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ({"type": "function", "function": {"name": "add"}}, None, {"type": "tool", "name": "add"}),
        ({"type": "tool", "name": "add"}, None, {"type": "tool", "name": "add"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        (None, True, None),
    ],
    ids=["auto", "none", "required", "one_call", "named", "own_form", "only_parallel", "nothing"],
)
def test_choices_of_tools_are_said_in_the_providers_words(choice, parallel, expected):
    assert (
        said(asking(tools=Declarations([ADD]), tool_choice=choice, parallel=parallel)).get(
            "tool_choice",
        )
        == expected
    )
    assert "tool_choice" not in said(asking(tool_choice=choice, parallel=parallel))


def test_an_answer_has_room_unless_a_setting_says_how_much():
    """The provider demands the field; thinking counts, so a budget for it comes on top."""
    assert said(asking())["max_tokens"] == MAX_TOKENS
    thinking = {"type": "enabled", "budget_tokens": 2000}
    assert said(asking(settings={"thinking": thinking}))["max_tokens"] == MAX_TOKENS + 2000
    assert said(asking(settings={"max_completion_tokens": 7}))["max_tokens"] == 7
    assert said(asking(settings={"max_tokens": None}))["max_tokens"] == MAX_TOKENS


def test_settings_that_meet_in_one_field_are_put_together():
    shape = Shape("json_schema", {"type": "object", "properties": {}})
    body = said(
        asking(
            shape=shape,
            settings={"output_config": {"effort": "high"}, "metadata": {"a": 1}, "user": "u"},
        ),
    )
    assert set(body["output_config"]) == {"effort", "format"}
    assert body["metadata"] == {"a": 1, "user_id": "u"}
    assert said(asking(settings={"user": "u", "metadata": {"a": 1}}))["metadata"] == {
        "a": 1,
        "user_id": "u",
    }


@pytest.mark.parametrize(
    "shape",
    [
        Shape("json_object"),
        Shape("json_schema", {"type": "object"}),
        Shape(
            "json_schema",
            {"type": "object", "properties": {"a": {}}, "patternProperties": {"^a": {}}},
        ),
    ],
    ids=["any", "open", "odd"],
)
def test_a_shape_that_the_provider_cannot_hold_to_is_not_sent(shape):
    """It would refuse the request, and the prompt says the shape as well."""
    assert "output_config" not in said(asking(shape=shape))


def test_extra_goes_out_unchecked_and_last():
    body = said(asking(settings={"extra": {"container": "c", "model": "other"}, "max_tokens": 1}))
    assert (body["model"], body["container"]) == ("other", "c")
    assert list(body)[-1] == "messages"


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "messages",
        "tools",
        "stream",
        "system",
        "tool_choice",
        "response_format",
        "parallel_tool_calls",
    ],
)
def test_a_setting_may_not_say_what_the_request_says(name):
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        render(asking(settings={name: 1}), model="m", settings={})


def test_the_settings_of_a_model_are_not_changed_by_a_request():
    settings = {"extra": {"a": 1}, "prompt_cache": False, "temperature": 0}
    render(asking(settings={"extra": {"b": 1}}), model="m", settings=settings)
    assert settings == {"extra": {"a": 1}, "prompt_cache": False, "temperature": 0}


def test_strict_tools_and_tools_without_parameters_are_declared():
    strict = {"type": "function", "function": {**ADD["function"], "strict": True}}
    tools = said(asking(tools=Declarations([strict, NOW])), settings={"prompt_cache": False})[
        "tools"
    ]
    assert tools[0]["strict"] is True
    assert tools[1] == {"name": "now", "input_schema": {"type": "object"}}


def test_an_empty_answer_is_left_away_and_an_empty_question_says_so():
    """The provider refuses blocks of no text; turns of the user in a row are one to it."""
    body = said(asking(Message("user", " "), Message("assistant", "\n"), Message("user", "hi")))
    assert [message["role"] for message in body["messages"]] == ["user", "user"]
    assert body["messages"][0]["content"][0]["text"] == "(empty)"
    assert "system" not in said(asking(Message("system", ""), Message("user", "hi")))


def test_an_instruction_in_the_midst_stays_where_it_is():
    """At the top it would change what is cached."""
    body = said(
        asking(
            Message("system", "a"),
            Message("user", "b"),
            Message("assistant", "c"),
            Message("system", "d"),
        ),
    )
    assert [block["text"] for block in body["system"]] == ["a"]
    assert body["messages"][-1]["role"] == "user"
    assert body["messages"][-1]["content"][0]["text"] == "d"


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
        render(asking(Message("user", text + "!"), settings=settings), model="m", settings={}),
    )
    assert body["messages"][0]["content"][0]["text"] == text + "!"


# -- prompt caching


def conversation(steps: int, *, per_step: int = 2) -> list[Request]:
    """Requests of a run of so many steps, each of parallel calls and a thought."""
    messages = Messages([Message("system", "Use tools."), Message("user", "hi")])
    request = Request(messages, Declarations([ADD, NOW]), settings={"temperature": 0})
    requests = [request]
    for step in range(steps):
        calls = tuple(
            ToolCall(name="add", args={"a": step}, id=f"t{step}_{k}") for k in range(per_step)
        )
        results = [Message("tool", f"{step}", tool_call_id=call.id, name="add") for call in calls]
        messages = messages.then(Message("assistant", f"step {step}", calls), *results)
        requests.append(request.following(messages))
    return requests


def test_each_of_thirty_requests_begins_with_the_one_before():
    """Tools, system and messages to the byte; cache markers are no part of the prompt."""
    bodies = [render(request, model="m", settings={}) for request in conversation(30)]
    plain = [unmarked(body) for body in bodies]
    assert all(later.startswith(earlier.removesuffix(b"]}")) for earlier, later in pairwise(plain))
    assert plain == [
        render(request, model="m", settings={"prompt_cache": False}) for request in conversation(30)
    ]
    assert all(body.count(b"cache_control") <= 4 for body in bodies)


def test_markers_stand_on_tools_system_the_last_message_and_where_the_request_before_ended():
    first, second, third = (said(request) for request in conversation(2))
    assert marked(first) == ["tools/now", "system/Use tools.", "messages/0/0"]
    assert marked(second) == ["tools/now", "system/Use tools.", "messages/0/0", "messages/2/1"]
    assert marked(third) == ["tools/now", "system/Use tools.", "messages/2/1", "messages/4/1"]
    assert third["messages"][4]["content"][1]["cache_control"] == MARK


def test_the_results_of_one_turn_are_one_message_of_the_user():
    """The provider demands it."""
    body = said(conversation(1)[-1])
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["t0_0", "t0_1"]


def test_a_single_question_is_not_written_to_the_cache():
    """It is not asked again, and writing costs a quarter more."""
    assert marked(said(asking(Message("system", "s"), Message("user", "u")))) == ["system/s"]
    examples = asking(
        Message("system", "s"),
        Message("user", "u"),
        Message("assistant", "a"),
        Message("user", "v"),
    )
    assert marked(said(examples)) == ["system/s", "messages/0/0", "messages/2/0"]


def test_caching_is_a_setting():
    request = conversation(2)[-1]
    assert marked(said(request, settings={"prompt_cache": False})) == []
    for on in (True, None):
        assert said(request, settings={"prompt_cache": on}) == said(request)
    assert said(request, settings={"prompt_cache": "1h"})["tools"][-1]["cache_control"] == {
        **MARK,
        "ttl": "1h",
    }
    with pytest.raises(ConfigurationError, match="`prompt_cache`"):
        said(request, settings={"prompt_cache": "2h"})


@pytest.mark.parametrize(
    "settings",
    [{"cache_control": MARK}, {"extra": {"cache_control": MARK}}],
    ids=["setting", "extra"],
)
def test_markers_are_the_providers_where_it_is_asked_to_place_them(settings):
    """There may be four in all."""
    body = said(conversation(2)[-1], settings=settings)
    assert body["cache_control"] == MARK
    assert marked(body) == []


def test_what_was_rendered_is_not_rendered_again(monkeypatch):
    """A step costs the same at the end of a run as at its beginning."""
    requests = conversation(30)
    for request in requests[:-1]:
        render(request, model="m", settings={})
    seen = []
    monkeypatch.setattr("ferrule.models.wires.anthropic.encode.content_blocks", seen.append)
    monkeypatch.setattr("ferrule.models.wires.anthropic.encode._plain_text", seen.append)
    monkeypatch.setattr(
        "ferrule.models.wires.anthropic.encode.assistant_blocks",
        lambda message: seen.append(message) or [{"type": "text", "text": "x"}],
    )
    monkeypatch.setattr(
        "ferrule.models.wires.anthropic.encode.result_block",
        lambda message: seen.append(message) or {},
    )
    render(requests[-1], model="m", settings={})
    assert len(seen) == 3


def test_tools_are_put_in_the_providers_form_once(monkeypatch):
    """However many steps follow; they are known again by their JSON."""
    made = []
    monkeypatch.setattr(
        "ferrule.models.wires.anthropic.encode.json_bytes",
        lambda value: made.append(value) or json_bytes(value),
    )
    own = {"type": "function", "function": {"name": "of_this_test_alone"}}
    for request in [
        asking(tools=Declarations([own])),
        asking(tools=Declarations([own])),
        *conversation(1),
    ]:
        render(request, model="m", settings={})
    assert sum("of_this_test_alone" in str(value) for value in made) == 1


# -- answers

MODEL = "claude-opus-5-5"
WEATHER = ToolCall(name="get_weather", args={"location": "Paris"}, id="toolu_01")
ANSWERS = {
    "answer_text": Response(
        "Hi there.",
        finish_reason="stop",
        usage=Usage(12, 6, 0, 1),
        model=MODEL,
    ),
    "answer_call": Response(
        None,
        (
            ToolCall(
                name="get_weather",
                args={"location": "San Francisco, CA", "unit": "celsius"},
                id="toolu_01A09q90qw90lq917835lq9",
            ),
        ),
        finish_reason="tool_calls",
        usage=Usage(472, 89, 0, 1),
        model=MODEL,
    ),
    "answer_text_and_call": Response(
        "I'll check the weather.",
        (WEATHER,),
        None,
        "tool_calls",
        None,
        Usage(400, 70, 0, 1),
        MODEL,
    ),
    "answer_parallel_calls": Response(
        None,
        (WEATHER, ToolCall(name="get_time", id="toolu_02")),
        None,
        "tool_calls",
        None,
        Usage(420, 120, 0, 1),
        MODEL,
    ),
    "answer_refusal": Response(
        None,
        (),
        None,
        "content_filter",
        "The request was declined.",
        Usage(50, 0, 0, 1),
        MODEL,
    ),
    "answer_cached": Response(
        "Pride.",
        (),
        None,
        "stop",
        None,
        Usage(21 + 50 + 188086, 393, 188086, 1, 0, 50),
        MODEL,
    ),
    "answer_truncated": Response("Quantum", (), None, "length", None, Usage(10, 10, 0, 1), MODEL),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_as_expected(name):
    payload = golden(name)
    assert read(payload) == ANSWERS[name]
    assert read(payload).raw == payload
    assert read(json.dumps(payload).encode()) == ANSWERS[name]


@pytest.mark.parametrize("name", ["answer_thinking", "answer_search"])
def test_what_the_provider_wants_back_goes_back_unchanged(name):
    """Signed thoughts, blocks of its own tools, citations; in their order."""
    payload = golden(name)
    response = read(payload)
    journalled = json.loads(json.dumps(response.extra))
    message = Message(
        "assistant",
        response.text,
        response.tool_calls,
        reasoning=response.reasoning or "",
        extra=journalled,
    )
    assert (
        said(asking(Message("user", "hi"), message))["messages"][1]["content"] == payload["content"]
    )


def test_thoughts_are_read_as_reasoning():
    response = read(golden("answer_thinking"))
    assert (response.reasoning, response.text, response.tool_calls) == (
        "Which city? Paris.",
        "Let me look.",
        (WEATHER,),
    )


def test_thoughts_go_back_before_what_the_message_says_now():
    """A program may change its words; the signed blocks stay as they are."""
    response = read(golden("answer_thinking"))
    changed = Message("assistant", "Other words.", (CALL,), extra=response.extra)
    content = said(asking(Message("user", "hi"), changed))["messages"][1]["content"]
    assert [block["type"] for block in content] == [
        "thinking",
        "redacted_thinking",
        "thinking",
        "text",
        "tool_use",
    ]
    assert content[4] == {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}


def test_a_conversation_may_go_on_at_another_provider():
    """What belongs to one is nothing to the other."""
    ours = read(golden("answer_thinking")).message()
    assert (
        json.loads(render_openai(asking(ours), model="m", settings={}))["messages"][0]["content"]
        == "Let me look."
    )
    details = {
        "choices": [
            {"message": {"content": "x", "reasoning": "hm", "reasoning_details": [{"type": "y"}]}},
        ],
    }
    theirs = read_openai(details).message()
    assert said(asking(Message("user", "hi"), theirs))["messages"][1]["content"] == [
        {"type": "text", "text": "x"},
    ]


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
def test_the_last_call_of_an_answer_that_was_cut_off_does_not_run(reason: str):
    """Its `input` is an object of the arguments so far: a payment of 500 was one of the default."""
    first = {"type": "tool_use", "id": "a", "name": "pay", "input": {"to": "Bob", "euros": 1}}
    last = {"type": "tool_use", "id": "b", "name": "pay", "input": {"to": "Eve"}}
    kept, cut = read({"content": [first, last], "stop_reason": reason}).tool_calls
    assert (kept.args, kept.fault) == ({"to": "Bob", "euros": 1}, None)
    assert (cut.args, cut.fault.raw) == ({}, '{"to":"Eve"}')
    # What comes after a call shows that it is whole.
    text = {"type": "text", "text": "and"}
    [whole] = read({"content": [last, text], "stop_reason": reason}).tool_calls
    assert whole.fault is None


def test_arguments_that_are_no_object_are_a_fault_of_the_call():
    """The good call beside them is kept."""
    blocks = [
        {"type": "tool_use", "id": "a", "name": "add", "input": [1]},
        {"type": "tool_use", "id": "b", "name": "", "input": {}},
        {"type": "tool_use", "id": "c", "name": "add", "input": None},
        {
            "type": "tool_use",
            "id": "d",
            "name": "add",
            "input": {"INVALID_JSON": '{"a": 1} and {"b"'},
        },
    ]
    listed, nameless, empty, unreadable = read(
        {"content": blocks, "stop_reason": "tool_use"},
    ).tool_calls
    assert listed.fault.code == unreadable.fault.code == "invalid_tool_call_arguments"
    assert nameless.fault.code == "invalid_tool_call"
    assert (empty.fault, empty.args) == (None, {})
    assert unreadable.fault.raw == '{"a": 1} and {"b"'


def test_an_answer_of_nothing_at_its_end_is_an_answer():
    """Page "Stop reasons and fallback": empty answers with end_turn."""
    assert read({"content": [], "stop_reason": "end_turn"}) == Response(
        finish_reason="stop",
        usage=Usage(calls=1),
    )


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("pause_turn", "pause_turn"), ("stop_sequence", "stop"), (None, None)],
    ids=["own", "stop", "none"],
)
def test_reasons_are_the_houses_or_the_providers_own(reason, expected):
    assert read({"content": "hi", "stop_reason": reason}) == Response(
        "hi",
        finish_reason=expected,
        usage=Usage(calls=1),
    )


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({}, MissingContentError),
        ({"content": None, "stop_reason": "end_turn"}, MissingContentError),
        ({"content": []}, MissingContentError),
        ({"content": {}}, MissingContentError),
        ({"content": [], "stop_reason": "refusal"}, RefusalError),
        (
            {
                "content": [{"type": "thinking", "thinking": "x"}],
                "stop_reason": "refusal",
                "stop_details": None,
            },
            RefusalError,
        ),
        (golden("error"), BadRequestError),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}, RateLimitError),
        (
            {"type": "error", "error": {"type": "authentication_error", "message": "x"}},
            AuthenticationError,
        ),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
            UnavailableError,
        ),
        ({"type": "error"}, UnavailableError),
    ],
    ids=[
        "empty",
        "null",
        "nothing",
        "object",
        "refused",
        "refused_in_thought",
        "error",
        "limit",
        "key",
        "overloaded",
        "no_word",
    ],
)
def test_what_is_no_answer_is_an_error(payload, kind):
    with pytest.raises(kind) as caught:
        read(payload)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"{", b"null", b"[]", b"\xff\xfe"],
    ids=["empty", "html", "half", "null", "list", "bytes"],
)
def test_a_body_that_is_no_object_is_a_bad_request(body):
    with pytest.raises(BadRequestError):
        read(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
TYPES = (
    st.sampled_from(["text", "tool_use", "thinking", "redacted_thinking", "server_tool_use"]) | JSON
)
BLOCK = st.fixed_dictionaries(
    {"type": TYPES},
    optional=dict.fromkeys(
        ["text", "thinking", "signature", "id", "name", "input", "citations"],
        JSON,
    ),
)
KEYS = ["stop_reason", "stop_details", "usage", "model", "id"]


@given(st.lists(BLOCK | JSON, max_size=4) | JSON, st.dictionaries(st.sampled_from(KEYS), JSON))
def test_an_answer_of_any_content_gives_a_response_or_an_error_of_the_house(content, rest):
    """And what it gives can be sent back."""
    try:
        response = read({"content": content, **rest})
    except LMError:
        return
    assert isinstance(response, Response)
    json.loads(render(asking(response.message()), model="m", settings={}))


MUTABLE = [golden(name) for name in (*ANSWERS, "answer_thinking", "answer_search", "error")]


def places(value) -> list[tuple]:
    """Every place in a payload: what holds it, and its key there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return [
        place
        for key, each in list(pairs)
        for place in [(value, key), *(places(each) if isinstance(each, (dict, list)) else ())]
    ]


@given(st.sampled_from(MUTABLE), st.integers(0, 100), JSON)
def test_an_answer_with_anything_in_one_place_gives_a_response_or_an_error_of_the_house(
    payload,
    number,
    value,
):
    mutated = json.loads(json.dumps(payload))
    found = places(mutated)
    holder, key = found[number % len(found)]
    holder[key] = value
    try:
        response = read(mutated)
    except LMError:
        return
    json.loads(render(asking(response.message()), model="m", settings={}))


def test_a_call_with_a_fault_can_be_sent():
    """`input` must be an object."""
    call = ToolCall(
        name="add",
        id="t",
        fault=CallFault("invalid_tool_call_arguments", "why", "{half"),
    )
    assert said(asking(Message("user", "hi"), Message("assistant", "", (call,))))["messages"][1][
        "content"
    ] == [{"type": "tool_use", "id": "t", "name": "add", "input": {"INVALID_JSON": "{half"}}]
