"""`Mark`: marks escaped in values, and given back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.mark import Mark

END = Mark("<", r"/a\s*>")
PIECES = st.lists(
    st.sampled_from(["<", "\\", "/a", ">", " ", "</a>", "</b>", "<\\/a>", "x", "\n"]),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("", ""),
        ("a </b> \\", "a </b> \\"),
        ("x</a >y", "x<\\/a >y"),
        ("<\\/a>", "<\\\\/a>"),
        ("<</a></a>", "<<\\/a><\\/a>"),
    ],
)
def test_only_the_mark_is_escaped_and_what_is_escaped_once_more(text: str, escaped: str) -> None:
    assert END.escape(text) == escaped
    assert END.unescape(escaped) == text


@given(PIECES)
def test_every_text_comes_back_and_holds_no_mark(text: str) -> None:
    escaped = END.escape(text)
    assert re.search(r"</a\s*>", escaped) is None
    assert END.unescape(escaped) == text


@given(PIECES, PIECES)
def test_different_texts_stay_different(one: str, other: str) -> None:
    assert (END.escape(one) == END.escape(other)) == (one == other)
