"""Forms that a person fills in (M59)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import DecisionError
from ferrule.values.calls.call import ToolCall
from ferrule.values.confirmation.form import agree_to_form, describe_form, fill_form, form_fields, read_form
from ferrule.values.confirmation.question import Question

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "default": 3},
        "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "odd": True,
    },
    "required": ["name"],
}
ONE = {"type": "object", "properties": {"seats": {"type": "integer"}, "note": {"type": "string", "default": ""}}}
YES = {"type": "object", "properties": {"approve": {"type": "boolean"}}}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def asked(form: Any) -> Question:
    return Question("input", "?", ToolCall(name="book"), "q", form=form)


def test_what_is_left_out_has_its_default() -> None:
    """SEP-1034."""
    assert fill_form(FORM, {"name": "Ann", "age": 4}) == {"age": 4, "kind": "a", "name": "Ann"}
    assert fill_form(None, {}) == {}


def test_the_fields_are_told_with_choices_and_defaults() -> None:
    assert describe_form(FORM) == (
        '`name` (string), `age` (integer, default 3, may be left out), `kind` ("a" or "b", default "a", may be left out), '
        "`odd` (any, may be left out)"
    )
    assert describe_form(None) == "no fields"


@pytest.mark.parametrize(
    ("form", "said", "content"),
    [(ONE, "2", {"seats": 2}), (ONE, "two", {"seats": "two"}), (ONE, '{"note": "x"}', {"note": "x"}), (YES, "true", {"approve": True})],
    ids=["number", "word", "object", "boolean"],
)
def test_one_value_needs_no_object(form: Any, said: str, content: Any) -> None:
    assert read_form(form, said) == content


def test_a_text_stays_a_text_though_it_reads_as_json() -> None:
    assert read_form({"properties": {"name": {"type": "string"}}}, "7") == {"name": "7"}


def test_a_word_that_could_be_any_of_several_fields_is_refused_with_all_of_them() -> None:
    with pytest.raises(DecisionError, match=r"`name` \(string\)"):
        read_form(FORM, "Ann")


def test_a_plain_yes_agrees_to_a_form_of_one_boolean_and_to_defaults() -> None:
    assert (agree_to_form(YES), agree_to_form(FORM), agree_to_form(None)) == ({"approve": True}, {}, {})
    assert json.loads(asked(YES).decide("yes").text) == {"approve": True}
    assert asked(YES).decide("no").kind == "deny"
    assert json.loads(asked(ONE).decide({"seats": 1}).text) == {"note": "", "seats": 1}


def test_only_a_question_with_a_form_is_filled() -> None:
    with pytest.raises(DecisionError, match="kind `input`"):
        Question("confirm", "?", ToolCall(name="book"), "q").fill({})


def test_a_question_is_another_one_when_something_else_is_asked() -> None:
    assert asked(ONE).digest != asked(YES).digest
    assert asked(ONE).fill({"seats": 1}).shown == asked(ONE).digest


@given(form=st.dictionaries(st.sampled_from(["properties", "required", "type"]), ANY_JSON), said=st.text())
def test_any_form_and_any_words_give_values_or_a_refusal(form: Any, said: str) -> None:
    assert isinstance(form_fields(form), dict)
    try:
        found = read_form(form, said)
    except DecisionError:
        return
    assert isinstance(found, dict)
