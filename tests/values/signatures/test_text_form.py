"""The string form of a signature."""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal
from typing import Any, Callable, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule.errors import SignatureError
from ferrule.programs.predict import Predict
from ferrule.tools.tool import Tool
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Image
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import Signature
from ferrule.values.signatures.text_form import read_fields


class Point(BaseModel):
    x: int


def types(text: str, **custom: Any) -> dict[str, Any]:
    return {name: field.annotation for name, field in read_fields(text, custom).items()}


def test_names_types_and_defaults_are_read() -> None:
    fields = read_fields("question, k: int = 3 -> answer: list[str], score: float")
    assert [
        (name, field.role, field.annotation, field.is_untyped) for name, field in fields.items()
    ] == [
        ("question", "input", str, True),
        ("k", "input", int, False),
        ("answer", "output", list[str], False),
        ("score", "output", float, False),
    ]
    assert fields["k"].default == 3


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("dict[str, list[int]]", dict[str, list[int]]),
        ("Literal['a -> b', 'c, d', ':']", Literal["a -> b", "c, d", ":"]),
        (r"Literal['it\'s, or', 'not']", Literal["it's, or", "not"]),
        ("Callable[[int, list[str]], bool]", Callable[[int, list[str]], bool]),
        ("Literal[1, None, -2]", Literal[1, None, -2]),  # noqa: PYI061
        ("Optional[int]", Optional[int]),
        ("int | None", int | None),
        ("'int' | str", int | str),
        ("typing.Any", Any),
        ("tuple[int, ...]", tuple[int, ...]),
        ("datetime.date", dt.date),
        ("datetime", dt.datetime),
        ("Decimal", Decimal),
        ("History", History),
        ("list[Image]", list[Image]),
        ("ToolCalls", ToolCalls),
    ],
)
def test_types_are_known_by_name(written: str, kind: Any) -> None:
    """Builtins, typing, ferrule's own."""
    assert types(f"a -> b: {written}")["b"] == kind


def test_own_types_are_given_by_name() -> None:
    assert types("a: Place -> b: list[geo.Place]", Place=Point, **{"geo.Place": Point}) == {
        "a": Point,
        "b": list[Point],
    }
    with pytest.raises(SignatureError, match=r"`b`.*unknown type `Place`.*custom_types"):
        Signature("a -> b: Place")
    assert (
        Signature("a -> b: Place", custom_types={"Place": Point}).output_fields["b"].annotation
        is Point
    )


Alias = dict[str, Point]
NotAType = "a value"
Text = Point
"""Hides `typing.Text`."""


def test_types_are_found_in_the_scope_of_the_caller() -> None:
    class Local(BaseModel):
        y: int

    def inner() -> type[Signature]:
        return Signature(
            "a: Point, b: list[Local] | None, c: dt.date, d: Alias, e: Text -> f: contextlib.ExitStack",
        )

    found = {name: field.annotation for name, field in inner().fields.items()}
    assert found == {
        "a": Point,
        "b": list[Local] | None,
        "c": dt.date,
        "d": Alias,
        "e": Point,
        "f": contextlib.ExitStack,
    }
    assert Predict[Any]("a: Point -> b: Local").signature.fields["b"].annotation is Local
    assert Signature("a -> b: Local", custom_types={"Local": Point}).fields["b"].annotation is Point


def test_a_name_that_is_no_type_is_not_found_in_the_scope_of_the_caller() -> None:
    datetime = dt.datetime  # as after `from datetime import datetime`: `datetime.date` is a method
    list = str  # noqa: A001  Python's own types keep their names
    assert types("a -> b: datetime.date, c: datetime, d: list[int]") == {
        "a": str,
        "b": dt.date,
        "c": datetime,
        "d": [].__class__[int],
    }
    assert list is str
    for written in ("NotAType", "dt", "types", "contextlib.suppress.__init__"):
        with pytest.raises(SignatureError, match=f"unknown type `{written}`"):
            Signature(f"a -> b: {written}")


def test_public_types_of_ferrule_are_found_by_their_full_names() -> None:
    assert types("a: ferrule.Image, b: list[ferrule.Tool] -> c: ferrule.ToolCalls") == {
        "a": Image,
        "b": list[Tool],
        "c": ToolCalls,
    }
    for written in ("ferrule.tool", "ferrule.Nothing", "ferrule._Hidden"):
        with pytest.raises(SignatureError, match="unknown type"):
            Signature(f"a -> b: {written}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("question", "no `->`"),
        ("a -> b -> c", "2 of them"),
        ("", "no `->`"),
        ("a, a -> b", "`a` appears twice"),
        ("a -> a", "`a` appears as an input and as an output"),
        ("a b -> c", "'a b' is not a valid name"),
        ("class -> b", "'class' is not a valid name"),
        ("1a -> b", "'1a' is not a valid name"),
        ("a,, b -> c", "'' is not a valid name"),
        ("a: -> b", "`a`.*without a type"),
        ("a: list[ -> b", "no `->`"),
        ("a -> b: int[str]", "`b`.*not a type"),
        ("a -> b: 3", "`b`.*not a type"),
        ("a -> b: Literal[x]", "`b`.*Literal\\['x'\\]"),
        ("a: ().__class__ -> b", "`a`"),
        ("a: __import__('os') -> b", "`a`"),
        ("a: int = foo -> b", "`a`.*not a Python literal"),
        ("a -> b: str.__class__", "`b`"),
        ("a ->", "at least one output"),
        ("->", "at least one output"),
        ("_a -> b", "'_a'.*underscore"),
        ("model_fields -> b", "'model_fields'"),
        ("append -> b", "'append'.*uses the name"),
    ],
)
def test_what_makes_no_sense_is_told_with_field_and_reason(text: str, reason: str) -> None:
    """Errors name the field."""
    with pytest.raises(SignatureError, match=reason):
        Signature(text)


def test_trailing_commas_and_odd_blanks_do_not_matter() -> None:
    assert types("\n a ,\tb:int,\n->\n c ,") == {"a": str, "b": int, "c": str}


@given(st.text())
def test_any_text_is_a_signature_or_a_signature_error(text: str) -> None:
    for written in (text, f"a: {text} -> b", f"a -> b = {text}"):
        with contextlib.suppress(SignatureError):
            read_fields(written)


def test_a_list_of_types_is_no_type() -> None:
    """Any value fitted."""
    with pytest.raises(
        SignatureError,
        match=r"Field `b`: '\[int\]' is not a type; write `list\[int\]`",
    ):
        read_fields("a -> b: [int]")
