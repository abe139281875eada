from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.models.wires import payload
from ferrule.models.wires.anthropic.decode import call_in, read_blocks
from ferrule.models.wires.anthropic.encode import (
    assistant_blocks,
    call_block,
    content_blocks,
    result_block,
)
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.conversation.message import Message


def coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def document(**source: str) -> dict:
    return {"type": "document", "source": source}


PARTS = {
    "picture": (
        Image(data="QUJD"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
    ),
    "jpg": (
        Image(data="QUJD", media_type="image/jpg"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "QUJD"}},
    ),
    "picture_at": (
        Image(url="https://h/a.png"),
        {"type": "image", "source": {"type": "url", "url": "https://h/a.png"}},
    ),
    "picture_in_address": (
        Image(url="data:image/gif;base64,QUJD"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "QUJD"}},
    ),
    "paper": (
        File(data="QUJD", media_type="application/pdf", name="a.pdf"),
        {**document(type="base64", media_type="application/pdf", data="QUJD"), "title": "a.pdf"},
    ),
    "paper_at": (File(url="https://h/a.pdf"), document(type="url", url="https://h/a.pdf")),
    "notes": (
        File(data=coded("a,b"), media_type="text/csv"),
        document(type="text", media_type="text/plain", data="a,b"),
    ),
    "json": (
        File(data=coded("{}"), media_type="application/json"),
        document(type="text", media_type="text/plain", data="{}"),
    ),
    "text": (Text(text="hi"), {"type": "text", "text": "hi"}),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_goes_in_the_providers_form(name):
    """In messages and in results alike."""
    part, expected = PARTS[name]
    assert content_blocks((part,), "messages") == [expected]
    assert result_block(Message("tool", (part,), tool_call_id="t"))["content"] == [expected]


LEFT = {
    "sound": Audio(data="QUJD"),
    "svg": Image(data="QUJD", media_type="image/svg+xml;x"),
    "zip": File(data="QUJD", media_type="application/zip"),
    "no_text": File(data="/w==", media_type="text/plain"),
    "empty": File(data=coded(" "), media_type="text/plain"),
    "text_at": File(url="https://h/a.txt", media_type="text/plain"),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_part_that_the_provider_takes_not_is_named_in_its_stead(name, monkeypatch, caplog):
    """Told once in the log."""
    monkeypatch.setattr(payload, "_logged", set())
    for _ in range(2):
        [block] = content_blocks((LEFT[name],), "messages")
    assert block["type"] == "text"
    assert "was left out" in block["text"]
    assert len(caplog.records) == 1


def test_text_of_spaces_is_left_away():
    """The provider refuses it."""
    assert content_blocks((Text(text=" "), Text(text="a")), "messages") == [
        {"type": "text", "text": "a"},
    ]
    assert content_blocks("\n", "messages") == []


@pytest.mark.parametrize(
    ("content", "is_error", "rest"),
    [
        ("3", False, {"content": "3"}),
        ("", False, {}),
        ("no", True, {"content": "no", "is_error": True}),
        ("", True, {"content": "error", "is_error": True}),
        ((Text(text="a"),), False, {"content": [{"type": "text", "text": "a"}]}),
        ((), False, {}),
    ],
    ids=["text", "empty", "error", "wordless_error", "parts", "no_parts"],
)
def test_a_result_says_whether_it_is_an_error(content, is_error, rest):
    """E67; an error without a word is refused."""
    block = result_block(Message("tool", content, tool_call_id="t", name="add", is_error=is_error))
    assert block == {"type": "tool_result", "tool_use_id": "t", **rest}


def test_a_name_and_an_id_that_the_provider_refuses_are_changed():
    """A model may have called a tool that there is not, and a conversation may have begun at
    another provider.
    """
    block = call_block(ToolCall(name="a.b c", id="functions.add:0"))
    assert block["name"] == "a_b_c"
    assert block["id"].startswith("functions_add_0_")
    assert (
        result_block(Message("tool", "1", tool_call_id="functions.add:0"))["tool_use_id"]
        == block["id"]
    )
    nameless = ToolCall(name="", id="t", fault=CallFault("invalid_tool_call", "why", "[]"))
    assert call_block(nameless)["name"] == "unnamed"


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
    max_leaves=8,
)


@given(NAMES, NAMES, st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_a_call_is_read_as_it_was_written(name, call_id, args):
    call = ToolCall(name=name, args=args, id=call_id)
    if list(args) != ["INVALID_JSON"]:
        assert call_in(call_block(call), 0) == call


def test_calls_that_are_gone_from_the_message_do_not_go_back():
    """A call without its result would be refused; what else came stays in its order."""
    came = [
        {"type": "tool_use", "id": "a", "name": "x", "input": {}, "caller": {"type": "direct"}},
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "tool_use", "id": "b", "name": "y", "input": {}},
    ]
    _, thoughts, calls, extra, *_ = read_blocks(came)
    assert thoughts == "t"
    assert assistant_blocks(Message("assistant", "", calls, extra=extra)) == came
    assert assistant_blocks(Message("assistant", "", calls[:1], extra=extra)) == came[:2]
    added = ToolCall(name="z", id="c")
    assert [
        block.get("id")
        for block in assistant_blocks(Message("assistant", "", (*calls, added), extra=extra))
    ] == ["a", None, "b", "c"]
