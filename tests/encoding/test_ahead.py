"""Searches forwards in a text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.ahead import Ahead


@given(st.text("ab(", max_size=30), st.lists(st.integers(0, 31)))
def test_it_finds_what_str_find_finds_from_any_offset(text: str, offsets: list[int]) -> None:
    ahead = Ahead(text)
    for literal in ("a", "ab", "(("):
        found = [ahead.find(literal, offset) for offset in offsets]
        assert found == [text.find(literal, offset) for offset in offsets]


def test_forward_questions_search_each_stretch_once() -> None:
    text = "x" * 50 + ")" + "x" * 49
    searched: list[int] = []

    def search(offset: int) -> int:
        searched.append(offset)
        return text.find(")", offset)

    ahead = Ahead(text)
    found = [ahead.search("close", offset, search) for offset in range(100)]
    assert found == [50] * 51 + [-1] * 49
    assert searched == [0, 51]
