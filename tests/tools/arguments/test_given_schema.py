import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SecretStr

from ferrule.errors import ToolArgumentsError
from ferrule.tools.tool import Tool


def tool_of(hint, schema):
    def use(x: hint):
        return x

    return Tool(use, args={"x": schema})


def problems(made, **args):
    with pytest.raises(ToolArgumentsError) as caught:
        made.prepare(args)
    return dict(caught.value.problems)


@pytest.mark.parametrize(
    ("hint", "schema", "fits", "got"),
    [
        (Decimal, {"type": "number", "minimum": 0}, 12.5, Decimal("12.5")),
        (Decimal, {"type": "number", "minimum": 0}, Decimal("12.5"), Decimal("12.5")),
        (Decimal, {"type": "integer"}, "5", Decimal(5)),
        (
            list[Decimal],
            {"type": "array", "items": {"type": "number"}},
            [1, 2.5],
            [Decimal(1), Decimal("2.5")],
        ),
        (SecretStr, {"type": "string", "maxLength": 5}, "abc", SecretStr("abc")),
        (SecretStr, {"type": "string", "maxLength": 5}, SecretStr("abc"), SecretStr("abc")),
        (timedelta, {"type": "number", "maximum": 60}, 5, timedelta(seconds=5)),
        (timedelta, {"type": "number", "maximum": 60}, timedelta(seconds=5), timedelta(seconds=5)),
        (datetime, {"type": "integer"}, 0, datetime.fromisoformat("1970-01-01T00:00:00+00:00")),
        (int, {"type": "string", "enum": ["1", "2"]}, "1", 1),
        (int, {"type": "string", "enum": ["1", "2"]}, 2, 2),
        (int, {"type": "integer", "maximum": 5}, "4", 4),
    ],
)
def test_a_call_that_fits_the_schema_is_taken_whatever_the_function_makes_of_it(
    hint,
    schema,
    fits,
    got,
):
    """What a model is shown is what it may write."""
    assert tool_of(hint, schema)(x=fits) == got


@pytest.mark.parametrize(
    ("hint", "schema", "misfit", "said"),
    [
        (Decimal, {"type": "number", "minimum": 0}, -5, "-5 is under the minimum 0"),
        (Decimal, {"type": "number", "minimum": 0}, "-5", "-5 is under the minimum 0"),
        (
            list[Decimal],
            {"type": "array", "items": {"type": "number", "minimum": 0}},
            [1, -2],
            "-2 is under the minimum 0",
        ),
        (timedelta, {"type": "number", "maximum": 60}, 90, "90 is over the maximum 60"),
        (int, {"type": "string", "enum": ["1", "2"]}, "3", 'expected one of "1", "2", got "3"'),
        (int, {"type": "integer", "maximum": 5}, "7", "7 is over the maximum 5"),
        (Any, {"type": "number"}, "x", 'expected a number, got "x"'),
        (Any, {"type": "number"}, float("nan"), 'expected a number, got "NaN"'),
    ],
)
def test_what_does_not_fit_the_schema_is_refused_in_its_words(hint, schema, misfit, said):
    [text] = problems(tool_of(hint, schema), x=misfit).values()
    assert text == said


def test_a_secret_is_checked_itself_and_not_told():
    """Ten stars are long enough for any rule."""
    made = tool_of(SecretStr, {"type": "string", "minLength": 8})
    assert made(x="long enough").get_secret_value() == "long enough"
    for short in ("abc", SecretStr("abc")):
        assert problems(made, x=short) == {"x": "expected a string of at least 8 characters"}


def test_an_argument_that_does_not_fit_is_told_beside_one_whose_form_differs():
    def pay(amount: Decimal, times: int):
        return amount, times

    made = Tool(
        pay,
        args={"amount": {"type": "number"}, "times": {"type": "integer", "maximum": 3}},
    )
    assert problems(made, amount=1, times=4) == {"times": "4 is over the maximum 3"}
    assert made(amount=1, times=3) == (Decimal(1), 3)


def test_a_rule_about_all_arguments_is_asked_about_what_was_given():
    def pay(amount: Decimal, note: str = ""):
        return amount, note

    schema: dict[str, Any] = {
        "properties": {"amount": {}, "note": {}},
        "oneOf": [{"properties": {"amount": {"type": "number"}}}],
    }
    made = Tool(pay, schema=schema)
    assert made(amount=2) == (Decimal(2), "")
    assert problems(made, amount="two") != {}


def test_a_name_that_the_schema_has_as_an_alias_may_be_given_as_its_own():
    """What is shown can be passed again."""

    def use(from_: int = Field(alias="from")):
        return from_

    made = Tool(
        use,
        schema={
            "properties": {"from": {"type": "integer"}},
            "required": ["from"],
            "additionalProperties": False,
        },
    )
    assert made.prepare(made.prepare({"from": 1}).shown).named == {"from_": 1}


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2))
def test_a_decimal_is_taken_as_the_number_it_is(amount):
    made = tool_of(Decimal, {"type": "number", "minimum": 0})
    if amount >= 0:
        assert made(x=amount) == amount
    else:
        assert set(problems(made, x=amount)) == {"x"}


def test_a_time_of_python_code_is_checked_as_the_text_that_a_model_would_write():
    made = tool_of(datetime, {"type": "string", "maxLength": 19})
    assert made(x=datetime(2026, 1, 2)) == datetime(2026, 1, 2)  # noqa: DTZ001  the shortest text
    assert set(problems(made, x=datetime(2026, 1, 2, microsecond=1))) == {"x"}  # noqa: DTZ001


def test_an_argument_equal_to_its_default_is_taken_as_if_it_was_left_out():
    """What is shown of a call holds the defaults, and can be passed again."""

    def fetch(limit: int = 0):
        return limit

    made = Tool(fetch, schema={"properties": {"limit": {"type": "integer", "minimum": 1}}})
    assert made.prepare(made.prepare({}).shown).named == {"limit": 0}
    assert problems(made, limit=-1) == {"limit": "-1 is under the minimum 1"}


@pytest.mark.parametrize(
    ("admitted", "value"),
    [(True, False), (True, [1]), ({"type": "boolean"}, False), ({"type": "string"}, "7")],
)
def test_an_argument_whose_name_fits_a_pattern_goes_by_that_pattern(admitted, value):
    """And not by what holds for all other names."""

    def act(**given):
        return given

    made = Tool(
        act,
        schema={"patternProperties": {"^a": admitted}, "additionalProperties": {"type": "number"}},
    )
    assert made(a1=value, b=1) == {"a1": value, "b": 1}
    assert set(problems(made, a1=value, b="x")) == {"b"}


PATH = {"type": "object", "properties": {"type": {"type": "string"}}}
LINE = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "end": {"type": "array", "items": {"type": "number"}},
    },
}
SHAPE = {"anyOf": [PATH, LINE]}
SHAPES = {
    "a property": {"type": "object", "properties": {"x": SHAPE}},
    "any property": {"type": "object", "additionalProperties": SHAPE},
    "a reference": {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/shape"}},
        "$defs": {"shape": SHAPE},
    },
    "references": {
        "type": "object",
        "properties": {"x": {"anyOf": [{"$ref": "#/$defs/path"}, {"$ref": "#/$defs/line"}]}},
        "$defs": {"path": PATH, "line": LINE},
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_boolean_is_accepted_where_one_form_of_the_schema_accepts_it(name):
    """Though another form has a number in its place."""

    def use(**arguments):
        return arguments

    value = {"type": "line", "end": [True, 1]}
    assert Tool(use, schema=SHAPES[name])(x=value) == {"x": value}


@pytest.mark.parametrize("name", ["a property", "any property"])
def test_a_boolean_that_no_form_accepts_is_refused(name):
    def use(**arguments):
        return arguments

    text = json.dumps(SHAPES[name]).replace('"type": "object", ', "")
    schema = json.loads(text.replace('{"type": {"type": "string"}}', '{"end": {"type": "null"}}'))
    made = Tool(use, schema={"type": "object", **schema})
    assert problems(made, x={"type": "line", "end": [True, 1]})


def test_a_boolean_that_pydantic_would_make_a_number_is_refused():
    def use(x: dict[str, list[float] | str]):
        return x

    made = Tool(use, schema={"type": "object", "properties": {"x": SHAPE}})
    assert problems(made, x={"type": "line", "end": [True, 1]})
