"""The confidence in a call is the probability of its own tokens, in whatever form it was written."""

from __future__ import annotations

import json
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.confidence import Token, with_confidence


def tokens(*pieces: tuple[str, float]) -> tuple[Token, ...]:
    return tuple(Token(text, log(probability)) for text, probability in pieces)


def calls(*named: tuple[str, dict]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(name=name, args=args) for name, args in named)


def confidences(*arguments, **options) -> list[float | None]:
    found = with_confidence(*arguments, **options)
    return [None if call.confidence is None else round(call.confidence, 6) for call in found]


WEATHER = calls(("weather", {"city": "Oslo", "days": 3, "hourly": True, "unit": None}))
FORMS = {
    "JSON": (
        '<tool_call>{"name": "weather", "arguments": {"city": "',
        "Oslo",
        '", "days": 3, "hourly": true, "unit": null}}</tool_call>',
    ),
    "Python": ("```python\nweather(city='", "Oslo", "', days=3, hourly=True, unit=None)\n```"),
    "elements": (
        "<function=weather>\n<parameter=city>\n",
        "Oslo",
        "\n</parameter>\n<parameter=days>\n3\n<parameter=hourly>\ntrue\n<parameter=unit>\nnull",
    ),
    "fields": (
        '[[ ## next_tool_name ## ]]\nweather\n\n[[ ## next_tool_args ## ]]\n{"city":"',
        "Oslo",
        '","days":3,"hourly":true,"unit":null}',
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_is_found_in_any_textual_form(form):
    before, doubtful, after = FORMS[form]
    answer = tokens(("I look. ", 0.5), (before, 0.9), (doubtful, 0.4), (after, 1.0), (" ok", 0.5))
    assert confidences(WEATHER, answer) == [pytest.approx(0.36)]


def test_each_call_has_the_confidence_in_its_own_tokens():
    two = calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Lyon"}))
    answer = tokens(
        ('[{"name": "weather", "arguments": {"city": "', 0.9),
        ("Oslo", 0.5),
        ('"}}, ', 0.1),
        ('{"name": "weather", "arguments": {"city": "', 0.8),
        ("Lyon", 0.5),
        ('"}}]', 0.1),
    )
    assert confidences(two, answer) == [pytest.approx(0.45), pytest.approx(0.4)]


def test_a_draft_in_the_thoughts_is_not_the_call():
    answer = tokens(
        ('<think>Perhaps weather {"city": "Oslo", "days": 3, "hourly": true, "unit": null}', 0.1),
        ("</think>", 1.0),
        ('weather {"city": "Oslo", "days": 3, "hourly": true, "unit": null}', 0.9),
    )
    assert confidences(WEATHER, answer) == [pytest.approx(0.9)]


def test_tokens_of_the_text_beside_a_structured_call_are_not_its_own():
    said = 'I call weather with {"city": "Oslo", "days": 3, "hourly": true, "unit": null}'
    assert confidences(WEATHER, tokens((said, 0.9)), text=f" {said}\n") == [None]


@pytest.mark.parametrize(
    "text",
    [
        "I do not know.",
        '{"name": "weather", "arguments": {"city": "Lyon"}}',
        "weather" + " " * 200 + '{"city": "Oslo", "days": 3, "hourly": true, "unit": null}',
        "",
    ],
)
def test_a_call_that_is_not_found_has_no_confidence(text):
    assert confidences(WEATHER, tokens((text, 0.9))) == [None]


def test_without_tokens_the_calls_stay_as_they_are():
    sure = (WEATHER[0].changed(confidence=0.7),)
    assert with_confidence(sure, ()) == sure


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.one_of(
            st.text(max_size=8),
            st.integers(),
            st.booleans(),
            st.none(),
            st.lists(st.text(max_size=5), max_size=2),
        ),
        max_size=3,
    ),
    st.booleans(),
)
def test_a_call_in_json_is_found_whatever_its_arguments(args, ascii_only):
    written = json.dumps({"name": "weather", "arguments": args}, ensure_ascii=ascii_only)
    answer = tokens(*((piece, 0.99) for piece in written))
    [confidence] = confidences(calls(("weather", args)), answer)
    assert confidence is not None
    assert 0 < confidence <= 0.99
