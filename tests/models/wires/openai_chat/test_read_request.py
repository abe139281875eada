from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import InputError
from ferrule.models.wires.openai_chat import render
from ferrule.models.wires.openai_chat.read_request import read_message, read_request
from ferrule.values.calls.call import ToolCall
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.conversation.exchange import Declarations, Request, Shape
from ferrule.values.conversation.message import Message, Messages

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
PARTS = (
    Text(text="see"),
    Image(url="https://example.com/a.png"),
    Image(data="QUJD", media_type="image/jpeg"),
    Audio(data="QUJD", media_type="audio/mp3"),
    File(data="QUJD", media_type="application/pdf", name="a.pdf"),
)


def test_the_address_of_a_sound_is_read():
    """A history holds messages in this form."""
    sound = Audio(url="https://example.com/a.mp3")
    assert read_message({"role": "user", "content": sound.format()}).content == (sound,)


def test_what_is_rendered_is_read_again():
    request = Request(
        Messages(
            [
                Message("system", "s"),
                Message("user", PARTS),
                Message("assistant", "", (ToolCall(name="add", args={"a": 1}, id="c"),)),
                Message("tool", "1", tool_call_id="c"),
            ],
        ),
        Declarations([TOOL]),
        "required",
        False,
        Shape("json_schema", {"type": "object"}, "thing"),
        {"temperature": 0},
    )
    assert read_request(json.loads(render(request, model="m", settings={}))) == request


def test_roles_of_old_and_new_are_known():
    assert read_message({"role": "developer", "content": "x"}).role == "system"
    assert read_message({"role": "function", "name": "f", "content": "x"}) == Message(
        "tool",
        "x",
        name="f",
    )
    assert read_message({"role": "assistant", "content": None}).content == ""


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"role": "robot", "content": "x"}, r"messages\[0\].*robot"),
        ({"content": "x"}, "role"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": [{"type": "video"}]}, "no such part"),
        ({"role": "user", "content": ["x"]}, "no such part"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "incomplete"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": 3}]}, "incomplete"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "incomplete"),
        ({"role": "assistant", "tool_calls": [{}]}, "name"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "list"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ("hi", "not a message"),
        (None, "not a message"),
    ],
    ids=range(13),
)
def test_a_bad_message_is_named_with_its_place(bad, words):
    with pytest.raises(InputError, match=words):
        read_request({"messages": [bad]})


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        {"messages": []},
        {"messages": {}},
        {"messages": [{"role": "user", "content": "x"}], "tools": {"a": 1}},
        {"messages": [{"role": "user", "content": "x"}], "tools": [3]},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": 3}}]},
        {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "grammar"}},
        {
            "messages": [{"role": "user", "content": "x"}],
            "response_format": {"type": "json_schema"},
        },
        {"messages": [{"role": "user", "content": "x"}], "response_format": "json"},
    ],
    ids=range(11),
)
def test_a_bad_request_is_refused(bad):
    with pytest.raises(InputError):
        read_request(bad)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "input_audio", "file", "x"])},
    optional=dict.fromkeys(("text", "image_url", "input_audio", "file"), JSON),
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | JSON},
    optional={
        "content": JSON | st.lists(PART, max_size=2),
        "tool_calls": JSON,
        "tool_call_id": JSON,
        "name": JSON,
    },
)


@given(
    st.fixed_dictionaries(
        {"messages": JSON | st.lists(MESSAGE, max_size=2)},
        optional={"tools": JSON, "response_format": JSON, "tool_choice": JSON},
    ),
)
def test_junk_is_refused_in_one_way(body):
    """Clients of `serve` send anything."""
    try:
        read_request(body)
    except InputError:
        return
