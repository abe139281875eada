"""Secrets in what a model wrote (`values/calls/secrets.py`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferrule import Response, ToolCall
from ferrule.values.calls.secrets import (
    STARS,
    masked_args,
    masked_text,
    masked_thought,
    secret_values,
)
from ferrule.values.masked import masked_response

SECRETS = {"log_in": ("password",), "sign": ("api_key", "pins")}
_CALL = json.dumps({"name": "log_in", "arguments": {"user": "ann", "password": 'hu"sh, hush'}})


@pytest.mark.parametrize(
    "text",
    [
        _CALL,
        json.dumps({"arguments": _CALL}),
        _CALL[:-6],  # cut off
        'log_in(user="ann", password="hu\\"sh, hush")',
        "log_in(user='ann', password='hush, hush')",
        "{'password': 'hush'}",
        "<password>hush, hush</password>",
        "<parameter=password>\nhush, hush\n</parameter>",
        '<parameter name="password">hush</parameter>',
        "<arg_key>password</arg_key>\n<arg_value>hush</arg_value>",
        "Password: hush",
        '{"pass-word": "hush"}',
        '{"apiKey": "hush", "other": 1}',
        '{"pins": ["hush", {"a": "hush"}], "other": 1}',
        '{"password": 1234, "what": "hu"}',
    ],
)
def test_a_call_in_text_has_stars_however_it_is_written(text: str) -> None:
    shown = masked_text(text, SECRETS)
    assert STARS in shown
    assert "sh" not in shown.replace("pass", "")
    assert "1234" not in shown


@pytest.mark.parametrize(
    "text", ["", "My password is none of your business.", '{"user": "ann"}', "<user>ann</user>"]
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert masked_text(text, SECRETS) == text


@pytest.mark.parametrize("name", ["log_in", "functions.log_in", "log_in:0"])
def test_the_arguments_of_a_call_have_stars_under_any_spelling(name: str) -> None:
    args = {"user": "ann", "password": "hush", "Pass_Word": "hush"}
    assert masked_args(name, args, SECRETS) == {
        "user": "ann",
        "password": STARS,
        "Pass_Word": STARS,
    }


def test_thoughts_that_repeat_a_value_have_stars_too() -> None:
    call = ToolCall(name="log_in", args={"password": "open sesame"})
    response = Response("I say open sesame.", (call,), reasoning="open sesame!")
    shown = masked_response(response, SECRETS)
    assert (shown.text, shown.reasoning) == (f"I say {STARS}.", f"{STARS}!")
    assert masked_response(response, {}) is response


@pytest.mark.parametrize(
    ("args", "seen"),
    [
        ({"arguments": {"key": "hunter2", "n": 1}}, {"arguments": {"key": STARS, "n": 1}}),
        ({"arguments": '{"key": "hunter2"}'}, {"arguments": f'{{"key": "{STARS}"}}'}),
        ({"arguments": [{"Key": ["hunter2"]}]}, {"arguments": [{"Key": STARS}]}),
    ],
)
def test_a_secret_inside_another_argument_is_stars(args, seen):
    assert masked_args("use", args, {"use": ["key"]}) == seen
    assert masked_args("other", args, {"use": ["key"]}) == args


def test_a_thought_never_repeats_a_secret_that_is_nested():
    call = ToolCall(name="use", args={"arguments": {"key": {"pin": ["hunter2"]}}})
    assert masked_thought("It is hunter2.", call, {"use": ["key"]}) == f"It is {STARS}."


def test_arguments_of_any_depth_are_masked():
    deep: Any = "hunter2"
    for _ in range(5000):
        deep = {"a": deep}
    call = ToolCall.unchecked("use", {"a": deep})
    assert "hunter2" not in str(list(secret_values([call], {"use": ["key"]})))
    assert masked_args("use", call.args, {"use": ["key"]})["a"] != deep
