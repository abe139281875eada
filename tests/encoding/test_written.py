"""Numbers with the digits that a model wrote."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.encode import json_text
from ferrule.encoding.repair import read_json, strict_json
from ferrule.encoding.written import (
    WrittenFloat,
    may_hold_floats,
    number_text,
    read_float,
    split_digits,
    with_digits,
    without_digits,
)

NUMBERS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?\Z").filter(
    lambda text: text != "-0"
)
DATA = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | NUMBERS.map(strict_json),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(NUMBERS)
def test_a_number_is_written_as_it_was_read_wherever_it_stands(digits: str) -> None:
    for text, find in (
        (digits, lambda value: value),
        (f'{{"a": {digits}}}', lambda value: value["a"]),
        (f'[1, [{{"a":{digits}}}], "x"]', lambda value: value[1][0]["a"]),
        (f"{{'a': [ {digits},]}}", lambda value: value["a"][0]),
        (f"```json\n[{digits}]\n```", lambda value: value[0]),
    ):
        number = find(read_json(text)[0])
        assert number_text(number) == digits
        assert number == json.loads(digits)


@given(DATA, NUMBERS)
def test_bytes_that_may_hold_floats_are_found_as_in_text(data: Any, digits: str) -> None:
    for text in (json_text(data), digits, f'{{"a": {digits}}}', f'["gpt-4.1", "1e3", {digits}]'):
        assert may_hold_floats(text.encode()) == may_hold_floats(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_as_json_writes_it_is_a_plain_float(number: float) -> None:
    assert type(read_float(json_text(number))) is float


@pytest.mark.parametrize("digits", ["3.10", "1e3", "-0.10", "0.12345678901234567890"])
def test_a_written_float_is_a_float_like_any_other(digits: str) -> None:
    number = read_float(digits)
    assert type(number) is WrittenFloat
    assert (number, hash(number), str(number)) == (
        float(digits),
        hash(float(digits)),
        str(float(digits)),
    )
    assert json_text([number]) == json_text([float(digits)])
    for copied in (copy.deepcopy(number), pickle.loads(pickle.dumps(number))):
        assert (copied, copied.digits) == (number, digits)


@given(st.dictionaries(st.text(), DATA))
def test_arguments_and_their_text_make_the_arguments_with_digits_again(args: Any) -> None:
    plain, text = split_digits(args)
    assert plain == args
    assert without_digits(plain) is plain
    again = plain
    if text is not None:
        again = with_digits(plain, text)
    assert _digits(again) == _digits(args)


def test_digits_of_arguments_that_were_changed_are_dropped() -> None:
    plain, text = split_digits({"a": read_float("3.10")})
    assert with_digits({"a": 3.2}, text) == {"a": 3.2}
    assert _digits(with_digits({"a": 3.1}, text)) == {"a": "3.10"}
    assert plain == {"a": 3.1}


def _digits(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _digits(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_digits(item) for item in value]
    return number_text(value)


def test_deep_data_loses_its_digits_without_an_error() -> None:
    value: Any = [read_float("3.10")]
    for _ in range(5000):
        value = [{"a": value}]
    plain, text = split_digits({"a": value})
    assert text is None
    while isinstance(plain, (dict, list)):
        plain = plain["a"] if isinstance(plain, dict) else plain[0]
    assert type(plain) is float
