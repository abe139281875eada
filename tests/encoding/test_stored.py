"""What is read from files that others may have changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.stored import check_fields, parse_json, reading
from ferrule.errors import ConfigurationError, StoreError

_ALL = st.characters()
"""Also halves of surrogate pairs."""


@dataclass
class Record:
    name: str
    count: int | None = None
    kind: Literal["a", "b"] = "a"
    more: Any = None


@pytest.mark.parametrize(
    "fields",
    [{"name": "x"}, {"name": "x", "count": 3, "kind": "b", "more": object()}],
)
def test_fields_of_their_types_are_taken(fields: dict[str, Any]) -> None:
    assert check_fields(Record(**fields)) == Record(**fields)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": 5}, "`name` is 5, not str"),
        ({"name": "x", "count": "3"}, r"`count` is '3', not int \| None"),
        ({"name": "x", "count": True}, "`count` is True, not int"),
        ({"name": "x", "kind": "c"}, "`kind` is 'c', not Literal"),
    ],
)
def test_a_field_of_another_type_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        check_fields(Record(**fields))


def test_types_that_passed_once_do_not_let_another_literal_pass() -> None:
    check_fields(Record("x", 1, "a"))
    with pytest.raises(TypeError, match="`kind` is 'z'"):
        check_fields(Record("x", 1, "z"))  # type: ignore[arg-type]


def test_white_space_around_json_is_none_of_it() -> None:
    assert parse_json(' \n{"a": [1]}\t') == parse_json('{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "{", "", "[1"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a JSON value|Expecting"):
        parse_json(text)


def test_text_after_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Extra data"):
        parse_json("{} {}")


def test_whatever_damage_does_is_one_error_that_says_what_was_read() -> None:
    with (
        pytest.raises(
            StoreError,
            match=r"The note cannot be read: damaged or changed by hand \(KeyError: 'a'\)",
        ),
        reading("The note"),
    ):
        {}["a"]
    with (
        pytest.raises(ConfigurationError, match="nested too deeply"),
        reading("The note", ConfigurationError),
    ):
        raise RecursionError
    known = StoreError("it is locked")
    with pytest.raises(StoreError) as raised, reading("The note"):
        raise known
    assert raised.value is known


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(_ALL),
        lambda values: st.lists(values) | st.dictionaries(st.text(_ALL), values),
    ),
    st.booleans(),
)
def test_json_is_read_as_python_reads_it(value: Any, ensure_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii)
    try:
        expected: Any = json.loads(text, parse_constant=_refuse)
    except ValueError:
        with pytest.raises(ValueError, match="not a JSON value"):
            parse_json(text)
        return
    assert repr(parse_json(text)) == repr(expected)


def _refuse(name: str) -> None:
    raise ValueError(name)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', "1e400", "-0", "9" * 400, '"\ud800"', b'"\xff"']
)
def test_odd_json_is_read_as_python_reads_it(text: Any) -> None:
    def outcome(read: Any) -> str:
        try:
            return repr(read(text))
        except ValueError:
            return "refused"

    assert outcome(parse_json) == outcome(json.loads)
