"""What a server wrote is read, mended, or told apart from what is no answer. (M19, M46)"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

from ferrule.mcp_bridge.transport.messages import answered_id, read_message, repair_characters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb'"\ud83d"', "�"),
        (rb'"\ud83d\ude00 \\ud83d \ude00"', "\U0001f600 \\ud83d �"),
        (b'"\xed\xa0"', "��"),
        ('"ä \U0001f600"'.encode(), "ä \U0001f600"),
    ],
    ids=["half", "pair_and_escaped_and_half", "bytes", "whole"],
)
def test_half_a_character_is_mended_and_nothing_else(text: bytes, expected: str) -> None:
    assert json.loads(repair_characters(text)) == expected
    assert read_message(
        b'{"jsonrpc":"2.0","id":7,"result":{"text":' + text + b"}}",
    ).message.result == {"text": expected}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    ),
)
def test_good_json_is_not_changed_by_mending(value) -> None:
    assert json.loads(repair_characters(json.dumps(value).encode())) == value


BROKEN = {
    "null": b'{"jsonrpc":"2.0","id":7,"result":null}',
    "list": b'{"jsonrpc":"2.0","id":7,"result":[1]}',
    "error_text": b'{"jsonrpc":"2.0","id":7,"error":"boom"}',
    "no_code": b'{"jsonrpc":"2.0","error":{"message":"boom"},"id":7}',
    "float_id": b'{"jsonrpc":"2.0","id":7.0,"result":{}}',
    "text_id": b'{"jsonrpc":"2.0","id":"7","result":0}',
    "deep": b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "cut_off": b'{"jsonrpc":"2.0","id":7,"result":{"a":"b',
    "says_nothing": b'{"jsonrpc":"2.0","id":7}',
    "inner_id": b'{"result":{"id":9},"x":[{"id":8}],"id":7,"method',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_cannot_be_read_is_an_error_of_ours_under_its_id(text: bytes) -> None:
    found = read_message(text)
    assert (found.message.id, found.message.error.message) == (7, found.broken)
    assert found.broken.startswith("an answer that cannot be read")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"a banner",
        b"12",
        b"[]",
        b'{"id":7}',
        b'{"jsonrpc":"2.0","id":7,"met',
        b'{"jsonrpc":"2.0","id":7,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"id":7,"method":3,"result":1}',
        b'{"id":true,"result":1}',
        b'{"result":{"id":7}}',
    ],
    ids=["empty", "banner", "number", "array", "id", "cut_off", "deep", "request", "true", "no_id"],
)
def test_what_answers_nothing_is_no_message(text: bytes) -> None:
    assert read_message(text).message is None


@given(st.binary(max_size=80))
def test_no_bytes_break_the_reading(text: bytes) -> None:
    read_message(text)
    assert answered_id(
        b'{"id":7,"result":'
        + text.replace(b"}", b"").replace(b"]", b"").replace(b'"', b"").replace(b",", b""),
    ) in {7, None}


@pytest.mark.parametrize("piece", [b'\\"', b'"\\', b'"', b"\\"])
def test_the_id_is_looked_for_once_in_a_string_without_an_end(piece: bytes) -> None:
    """A megabyte of them took many minutes when each quotation mark was tried as a beginning."""
    assert answered_id(b'{"id": 7, "result": {' + piece * 500_000) == 7
