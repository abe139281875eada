"""The string form of a signature."""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal
from typing import Any, Callable, Literal, Optional  # noqa: UP035  as the text form names it

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule.errors import SignatureError
from ferrule.values.calls.call import ToolCalls
from ferrule.values.content.parts import Image
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import Signature
from ferrule.values.signatures.text_form import read_signature


class Point(BaseModel):
    x: int


def types(text: str, **custom: Any) -> dict[str, Any]:
    return {field.name: field.annotation for field in read_signature(text, custom)}


def test_names_types_and_defaults_are_read() -> None:
    """D43, U144."""
    fields = read_signature("question, k: int = 3 -> answer: list[str], score: float")
    assert [(field.name, field.role, field.annotation, field.is_untyped) for field in fields] == [
        ("question", "input", str, True),
        ("k", "input", int, False),
        ("answer", "output", list[str], False),
        ("score", "output", float, False),
    ]
    assert fields[1].default == 3


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("dict[str, list[int]]", dict[str, list[int]]),
        ("Literal['a -> b', 'c, d', ':']", Literal["a -> b", "c, d", ":"]),
        (r"Literal['it\'s, or', 'not']", Literal["it's, or", "not"]),
        ("Callable[[int, list[str]], bool]", Callable[[int, list[str]], bool]),
        ("Literal[1, None, -2]", Literal[1, None, -2]),  # noqa: PYI061
        ("Optional[int]", Optional[int]),  # noqa: UP045
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
    """D43: builtins, typing, ferrule's own."""
    assert types(f"a -> b: {written}")["b"] == kind


def test_own_types_are_given_by_name_and_nothing_else_is_searched() -> None:
    """D43: custom types by name, no frame walking."""
    assert types("a: Point -> b: list[geo.Point]", Point=Point, **{"geo.Point": Point}) == {"a": Point, "b": list[Point]}
    with pytest.raises(SignatureError, match=r"`b`.*unknown type `Point`.*custom_types"):
        Signature("a -> b: Point")
    assert Signature("a -> b: Point", custom_types={"Point": Point}).output_fields["b"].annotation is Point


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
    """D43: errors name the field."""
    with pytest.raises(SignatureError, match=reason):
        Signature(text)


def test_trailing_commas_and_odd_blanks_do_not_matter() -> None:
    """Ours."""
    assert types("\n a ,\tb:int,\n->\n c ,") == {"a": str, "b": int, "c": str}


@given(st.text())
def test_any_text_is_a_signature_or_a_signature_error(text: str) -> None:
    """Ours."""
    for written in (text, f"a: {text} -> b", f"a -> b = {text}"):
        with contextlib.suppress(SignatureError):
            read_signature(written)
