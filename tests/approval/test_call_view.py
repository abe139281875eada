"""What a person is shown of a call: all of it, in order, and so that no other call looks the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ferrule import Question, ToolCall
from ferrule.approval.call_view import MOST_CHARACTERS, value_text, view_call


def asked(args: dict[str, Any], **fields: Any) -> Question:
    return Question("confirm", "", ToolCall(name="pay", args=args), **fields)


def test_every_argument_is_shown_in_the_order_of_the_call_also_outside_the_schema() -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    shown = view_call(asked({"force": True, "amount": 5, "also": ["/srv"]}, schema=schema))
    assert [(argument.name, argument.type, argument.text) for argument in shown.arguments] == [
        ("force", "true or false", "true"),
        ("amount", "number", "5"),
        ("also", "list", '[\n  "/srv"\n]'),
    ]
    assert shown.not_shown == ()


def test_the_schema_of_a_server_masks_nothing() -> None:
    schema = {
        "properties": {"command": {"type": "string", "format": "password", "writeOnly": True}}
    }
    shown = view_call(asked({"command": "rm -rf /srv/ada"}, schema=schema, server="shop"))
    assert [argument.text for argument in shown.arguments] == ["rm -rf /srv/ada"]


def test_stars_are_a_secret_only_in_a_tool_of_python() -> None:
    stars = asked({"key": "**********"})
    assert [argument.is_secret for argument in view_call(stars).arguments] == [True]
    remote = replace(stars, server="shop")
    assert [argument.is_secret for argument in view_call(remote).arguments] == [False]


def test_a_long_text_is_shown_whole_and_a_longer_one_is_not_to_be_approved() -> None:
    tail = "SELECT 1;" + " " * 30_000 + "DROP TABLE users;"
    [argument] = view_call(asked({"sql": tail})).arguments
    assert argument.text.endswith("DROP TABLE users;")
    assert argument.length == len(tail)
    too_long = view_call(asked({"a": 1, "sql": "x" * MOST_CHARACTERS}))
    assert [argument.name for argument in too_long.arguments] == ["a"]
    assert "'sql' has 200,000 characters" in too_long.not_shown[0]


@pytest.mark.parametrize("value", [10**5_000, [[10**5_000]]], ids=["number", "nested"])
def test_a_value_without_a_text_is_not_to_be_approved(value: Any) -> None:
    shown = view_call(asked({"n": value}))
    assert (shown.arguments, len(shown.not_shown)) == ((), 1)


def test_a_number_of_400_digits_is_shown() -> None:
    [argument] = view_call(asked({"n": 10**399})).arguments
    assert argument.text == "1" + "0" * 399


def test_differences_to_the_model_s_words_and_to_defaults_are_marked() -> None:
    shown = view_call(
        asked(
            {"euros": 29.9, "order": "A-1", "notify": True, "fee": 3},
            raw={"euros": "29.90", "order": "a-1", "fee": 3, "extra": "x"},
            schema={"properties": {"fee": {"default": 0}, "notify": {"default": True}}},
        )
    )
    marks = {
        argument.name: (argument.written, argument.is_default, argument.default)
        for argument in shown.arguments
    }
    assert marks == {
        "euros": (None, False, None),
        "order": ('"a-1"', False, None),
        "notify": (None, True, None),
        "fee": (None, False, "0"),
    }
    assert [(argument.name, argument.text) for argument in shown.dropped] == [("extra", '"x"')]


@pytest.mark.parametrize(
    ("written", "is_marked"),
    [
        ("29.90", False),
        (" 29.9 ", False),
        ("2.99e1", False),
        ("30 euros", True),
        (None, True),
        (True, True),
        ("", True),
        ("NaN", True),
    ],
    ids=repr,
)
def test_another_form_of_the_model_s_value_is_no_difference(written: Any, is_marked: bool) -> None:
    """A stranger read "the model wrote 29.90, prepared as 29.9" and wondered."""
    [argument] = view_call(asked({"euros": 29.9}, raw={"euros": written})).arguments
    assert (argument.written is not None) == is_marked


def test_a_call_as_lines_has_the_server_s_words_under_its_name() -> None:
    call = asked(
        {"note": "one\ntwo", "to\nwhom": "Eve\u3164"},
        server="shop",
        original="pay",
        description="Pays.",
        effect="once",
    )
    assert view_call(call).lines() == [
        "pay (pay of the MCP server shop)",
        "  the server says: Pays.",
        "  has an effect that cannot be undone, so the call is never repeated automatically",
        "  note (text):",
        "    | one",
        "    | two",
        "  to\\u000awhom (text): Eve\\u3164",
    ]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('\\uU"0a2\u202e \n\t\u00a0\u3164\ufe0f5n')),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=4,
)


@given(VALUES, VALUES)
def test_values_that_differ_are_shown_differently(one: Any, other: Any) -> None:
    shown = [view_call(asked({"a": value})).arguments[0] for value in (one, other)]
    looks_same = (shown[0].type, shown[0].text) == (shown[1].type, shown[1].text)
    assert looks_same == (canonical(one) == canonical(other))


def canonical(value: Any) -> str:
    """A value as JSON, in which a whole number has one form."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return json.dumps(value)


@given(VALUES.filter(lambda value: not isinstance(value, str)))
def test_what_is_shown_of_lists_and_numbers_is_json(value: Any) -> None:
    assert json.loads(value_text(value)) == value
