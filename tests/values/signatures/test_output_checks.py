"""What checks outputs: values out of JSON as they are, texts as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from ferrule.values.signatures.signature import InputField, OutputField, Signature


class Point(BaseModel):
    x: int


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date


class Digit(Enum):
    ONE = "1"


def made(kind: Any) -> type[Signature]:
    return Signature({"q": InputField(), "a": (kind, OutputField())})


def is_same(got: Any, found: Any) -> bool:
    return got == found and type(got) is type(found)


VALUES: list[tuple[Any, Any, Any]] = [
    (str | None, "    return x\n", "    return x\n"),
    (str | None, "null", "null"),
    (str | None, '"q"', '"q"'),
    (str | None, None, None),
    (str | None, 5, "5"),
    (Any, "7", "7"),
    (Any, '{"a": 1}', '{"a": 1}'),
    (int | str, "true", "true"),
    (int | str, True, "true"),
    (int | str, "7", "7"),
    (int | str, 7, 7),
    (float | str, "1.5", "1.5"),
    (float | str, 1.5, 1.5),
    (float | bool, True, True),
    (int | Literal[True], True, True),
    (Literal["1", 1], "1", "1"),
    (Literal["1", 1], 1, 1),
    (list[str] | str, '["a"]', '["a"]'),
    (list[str] | str, ["a"], ["a"]),
    (dict[str, Any] | None, '{"a": 1}', {"a": 1}),
    (list[str], '["a"]', ["a"]),
    (list[str] | None, "null", None),
    (Annotated[str, Field(min_length=9)] | None, "null", None),
    (int, "7", 7),
    (Digit, "1", Digit.ONE),
    (Literal["yes", "no"], "Yes.", "yes"),
    (Strict, {"day": "2026-01-01"}, Strict(day=date(2026, 1, 1))),
    (Strict, '{"day": "2026-01-01"}', Strict(day=date(2026, 1, 1))),
    (Annotated[date, Field(strict=True)], "2026-01-01", date(2026, 1, 1)),
]


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    VALUES,
    ids=[f"{kind} of {value!r}" for kind, value, _ in VALUES],
)
def test_a_value_out_of_json_is_taken_as_it_is_and_read_as_text_only_where_it_does_not_fit(
    kind: Any,
    value: Any,
    found: Any,
) -> None:
    """What a JSON answer says in a string is that string."""
    assert is_same(made(kind).check_output("a", value, is_value=True), found)


TEXTS: list[tuple[Any, str, Any]] = [
    (str | None, '"q"', '"q"'),
    (str | None, "null", None),
    (str | None, " null\n", None),
    (str | None, "5", "5"),
    (str | None, "```\nx\n```", "```\nx\n```"),
    (int | str, "true", "true"),
    (int | str, "False", "False"),
    (float | str, "1.5", "1.5"),
    (int | str | None, "null", None),
    (Annotated[str, Field(max_length=2)] | int, "7", "7"),
    (Literal["1", 1], "1", "1"),
    (Literal["1", 1] | None, "1", "1"),
    (Literal["a", 1], "1", 1),
    (Literal["yes", "no"] | None, "`Yes`.", "yes"),
    (Literal["yes", "no"] | None, "null", None),
    (Literal["yes", "null"] | None, "null", None),
    (Literal["yes", "null"], "null", "null"),
    (Digit | None, "1", Digit.ONE),
    (Literal[Digit.ONE], "1", Digit.ONE),
    (Literal[Digit.ONE, "2"] | None, "ONE", Digit.ONE),
    (Literal[Digit.ONE, "2"] | None, "2", "2"),
    (list[str] | str, '["a"]', ["a"]),
    (list[str] | str, "['a',]", ["a"]),
    (list[int] | str, "[a] note", "[a] note"),
    (Point | str, '```json\n{"x": 1}\n```', Point(x=1)),
    (Point | str, '{"y": 1}', '{"y": 1}'),
    (bool | int, "true", True),
    (bool | int, "1", 1),
    (int | None, "7", 7),
    (Any, " ", " "),
    (Any, "word", "word"),
    (Any, "truly", "truly"),
    (Any, "1 apple", "1 apple"),
    (Any, "-", "-"),
    (Any, "7", 7),
    (Any, "[1, 2,]", [1, 2]),
    (Any, "[1, 2] and more {", "[1, 2] and more {"),
]


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    TEXTS,
    ids=[f"{kind} of {text!r}" for kind, text, _ in TEXTS],
)
def test_a_text_is_itself_where_text_fits(kind: Any, text: str, found: Any) -> None:
    """It is read as JSON only for null, an object or an array; a boolean is never a number."""
    assert is_same(made(kind).check_output("a", text), found)


@pytest.mark.parametrize(
    "kind",
    [int | None, float | None, int | float, int | list[str], Annotated[int, Field(ge=0)] | None],
    ids=str,
)
@pytest.mark.parametrize("value", [True, "true", "False"])
@pytest.mark.parametrize("is_value", [True, False])
def test_a_boolean_is_no_number_in_a_union_either(kind: Any, value: Any, is_value: bool) -> None:
    """The house's rule."""
    with pytest.raises(ValueError, match=f"should be a number, got {value!r}"):
        made(kind).check_output("a", value, is_value=is_value)


@pytest.mark.parametrize(
    "text",
    ["12345678901234567.89", " 1234.50\n", '"1234.50"', "-0.10", "1e3"],
)
@pytest.mark.parametrize(
    "kind",
    [Decimal, Decimal | None, Annotated[Decimal, Field(decimal_places=2)]],
    ids=str,
)
def test_a_decimal_keeps_the_digits_that_the_model_wrote(kind: Any, text: str) -> None:
    """A float in between lost digits of an amount of money."""
    assert str(made(kind).check_output("a", text)) == str(Decimal(text.strip().strip('"')))


def test_other_texts_of_a_decimal_are_read_as_before() -> None:
    assert made(Decimal | None).check_output("a", "null") is None
    assert is_same(made(int | Decimal).check_output("a", "5"), 5)
    with pytest.raises(ValueError, match="greater than 0"):
        made(Annotated[Decimal, Field(gt=0)]).check_output("a", "-1.50")


def test_a_value_that_fits_in_no_way_is_told() -> None:
    with pytest.raises(ValueError, match="valid list"):
        made(list[int]).check_output("a", "junk", is_value=True)
    with pytest.raises(ValueError, match=r"valid string.*{'a': 1}"):
        made(str | None).check_output("a", {"a": 1}, is_value=True)
    with pytest.raises(ValueError, match="at most 2"):
        made(Annotated[str, Field(max_length=2)] | None).check_output("a", "long")


@given(st.text())
def test_any_string_of_json_is_itself_where_text_fits(text: str) -> None:
    for kind in (str | None, int | str, Any, list[str] | str, Sequence[int] | str | None):
        assert is_same(made(kind).check_output("a", text, is_value=True), text)


class Level(Enum):
    LOW = 1
    HIGH = 2
    TOP = 2  # noqa: PIE796  an alias


class Mark(Enum):
    GOOD = "BAD"
    BAD = "worse"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Level, "HIGH", Level.HIGH),
        (Level, "`low`", Level.LOW),
        (Level, "TOP", Level.HIGH),
        (Level, '"LOW"', Level.LOW),
        (Level, "2", Level.HIGH),
        (Level | None, "LOW", Level.LOW),
        (Mark, "BAD", Mark.GOOD),
        (Mark, "GOOD", Mark.GOOD),
        (Mark, "worse", Mark.BAD),
    ],
)
@pytest.mark.parametrize("is_value", [False, True])
def test_an_enum_is_read_by_value_and_by_name(
    kind: Any,
    text: str,
    value: Enum,
    is_value: bool,
) -> None:
    made = Signature({"q": InputField(), "answer": (kind, OutputField())})
    assert made.check_output("answer", text, is_value=is_value) is value


def test_a_literal_of_an_enums_members_is_read_by_value_inside_other_types() -> None:
    for given_, is_value in (({"x": [1]}, True), ('{"x": [1]}', False)):
        assert made(dict[str, list[Literal[Level.LOW]]]).check_output(
            "a",
            given_,
            is_value=is_value,
        ) == {"x": [Level.LOW]}
    assert Signature({"q": (Literal[Level.LOW], InputField()), "a": OutputField()}).check_inputs(
        {"q": 1},
    ) == {"q": Level.LOW}


class Basket(BaseModel):
    prices: Iterable[int]


@pytest.mark.parametrize("kind", [Iterable[int], Iterator[int], Iterable[int] | None], ids=str)
def test_an_output_that_is_an_iterable_is_a_checked_list(kind: Any) -> None:
    """pydantic's iterator would raise in the caller's loop, and be empty at the second one."""
    for given_, is_value in (([1, "2"], True), ("[1, 2]", False)):
        assert is_same(made(kind).check_output("a", given_, is_value=is_value), [1, 2])
    with pytest.raises(ValueError, match="valid integer"):
        made(kind).check_output("a", ["x"], is_value=True)


def test_an_iterable_in_a_model_of_an_output_is_a_checked_list() -> None:
    for given_, is_value in (({"prices": [1]}, True), ('{"prices": [1]}', False)):
        assert made(Basket).check_output("a", given_, is_value=is_value).prices == [1]
    with pytest.raises(ValueError, match=r"prices\.0: .*valid integer"):
        made(Basket).check_output("a", {"prices": ["x"]}, is_value=True)


class Measured(BaseModel):
    value: float


class Unbounded(BaseModel):
    value: float = Field(allow_inf_nan=True)


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (float, "{}"),
        (float | None, "{}"),
        (Annotated[float, Field(gt=-1e9)] | bool, "{}"),
        (list[float], "[{}]"),
        (dict[str, list[float]], '{{"a": [1.5, {}]}}'),
        (Measured, '{{"value": {}}}'),
        (list[Measured | str], '[{{"value": {}}}]'),
        (Any, '{{"a": {}}}'),
    ],
    ids=str,
)
def test_a_number_that_json_does_not_have_is_refused(kind: Any, form: str, number: str) -> None:
    """A prediction is stored: what it holds must come back unchanged."""
    text = form.format(number)
    signature = made(kind)
    with pytest.raises(ValueError, match=r"not a finite number|greater than"):
        signature.check_output("a", text)
    with pytest.raises(ValueError, match=r"not a finite number|greater than"):
        signature.check_output("a", json.loads(text), is_value=True)


def test_a_type_that_allows_such_numbers_by_name_gets_them() -> None:
    for kind in (Annotated[float, Field(allow_inf_nan=True)], Unbounded):
        text = "Infinity" if kind is not Unbounded else '{"value": Infinity}'
        value = made(kind).check_output("a", text)
        assert getattr(value, "value", value) == float("inf")
