"""Calls in code of a model: where they stand in it."""

from __future__ import annotations

import pytest

from ferrule.values.calls.in_code import PlaceInCode, numbered_lines, place_in_code


@pytest.mark.parametrize("code_call", ["call_1", "a.1:2", "", "a\nb"])
def test_the_place_of_a_call_is_read_from_its_id(code_call: str) -> None:
    place = PlaceInCode(code_call, number=3, line=12)
    assert place_in_code(str(place)) == place


@pytest.mark.parametrize("call_id", [None, "", "call_1", "call_1.2", "call_1.2:", "1:2"])
def test_another_id_has_no_place(call_id: str | None) -> None:
    assert place_in_code(call_id) is None


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("", []),
        ("\n \n", []),
        ("a", [(1, "a")]),
        ("\n\na\n\n  b\n\n", [(3, "a"), (4, ""), (5, "  b")]),
    ],
)
def test_lines_keep_their_numbers_without_empty_ones_around_them(
    code: str, lines: list[tuple[int, str]]
) -> None:
    assert numbered_lines(code) == lines
