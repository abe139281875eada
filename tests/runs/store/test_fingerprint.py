"""The fingerprint of a program: equal for the same program in every process and on every Python,
and for no other.
"""

from __future__ import annotations

from typing import Annotated, Any, List, Literal, Optional, Union

import pytest
from pydantic import AfterValidator, BaseModel

from ferrule.programs.module import Module
from ferrule.programs.predict import Predict
from ferrule.programs.react import ReAct
from ferrule.runs.store.fingerprint import differences, program_fingerprint
from ferrule.tools.tool import Tool
from ferrule.values.content.parts import Image
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import InputField, OutputField, Signature


class Old(Signature):
    """Old."""

    a: Optional[int] = InputField()
    b: Union[int, str, None] = InputField()
    c: List[Optional[int]] = InputField()
    d: Annotated[Optional[int], "x"] = InputField()
    out: Optional[Literal["x"]] = OutputField()


class New(Signature):
    """New."""

    a: int | None = InputField()
    b: int | str | None = InputField()
    c: list[int | None] = InputField()
    d: None | int = InputField()  # noqa: RUF036
    out: Literal["x"] | None = OutputField()


class Both(Signature):
    """Both."""

    a: int | None = InputField()
    b: Optional[dict[str, int | None]] = InputField()
    out: Union[list[int], str] = OutputField()


TEXT = "q: int | None -> a: list[str | None], b: Literal['x','y'] | None"
DIGESTS: list[tuple[Any, str, str]] = [
    (Old, "791389528d12e9f6", "0253243aa633e018"),
    (New, "92f8e0a595f2a95c", "32ae275d2c97ef29"),
    (Both, "6b37cf99c8147474", "8d09125403044d6e"),
    (TEXT, "fc3b0e6ef9d1173c", "e910db3a05e45792"),
]


@pytest.mark.parametrize(
    ("signature", "until_3_13", "from_3_14"),
    DIGESTS,
    ids=["old", "new", "both", "text"],
)
def test_a_run_is_loaded_on_another_python_than_it_was_stored_on(
    signature: Any,
    until_3_13: str,
    from_3_14: str,
) -> None:
    """ours: from Python 3.14 on, `Optional[int]` and `int | None` are one type.

    The digests were made on 3.11 and on 3.14.
    """
    program = Predict(signature)
    stored = program_fingerprint(program)
    assert stored["predictors"]["self"]["digest"] in (until_3_13, from_3_14)
    for digest in (until_3_13, from_3_14):
        stored["predictors"]["self"]["digest"] = digest
        assert differences(stored, program) == {}


@pytest.mark.parametrize(
    "other",
    ["int | str", "int", "Optional[str]", "list[int | None]", "Union[int, float, None]"],
)
def test_another_type_is_another_program(other: str) -> None:
    stored = program_fingerprint(Predict("q: Optional[int] -> a"))
    found = differences(stored, Predict(f"q: {other} -> a"))
    assert list(found) == ["signature of `self`"]
    assert all(side.startswith("(q -> a) ") for side in found["signature of `self`"])


def test_a_difference_names_what_is_absent_and_what_changed() -> None:
    def one(x: int) -> int:
        return x

    def two(x: int | None) -> int:
        return x or 0

    stored = program_fingerprint(ReAct("q -> a", [Tool(one, "count"), Tool(one, "other")]))
    found = differences(stored, ReAct("q -> a", [Tool(two, "count")]))
    assert list(found) == ["tool `count` of `react`", "tool `other` of `react`"]
    assert found["tool `other` of `react`"][1] == "absent"


def test_a_program_without_signatures_is_its_class() -> None:
    class Plain(Module):
        def forward(self) -> None: ...

    assert program_fingerprint(Plain())["predictors"] == {}
    assert differences(program_fingerprint(Plain()), Plain()) == {}


class Place(BaseModel):
    name: str


class Album(Signature):
    """Describe it."""

    photos: list[Image] = InputField()
    history: History = InputField()
    place: Place = InputField()
    answer: str = OutputField()


def test_a_fingerprint_survives_a_move_of_ferrules_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored runs must load in a version that keeps `Image` in another module."""

    def made_anew() -> dict[str, Any]:  # as by another process: a signature is read once
        return program_fingerprint(Predict(Album.with_instructions(Album.instructions)))

    before = made_anew()
    assert before == program_fingerprint(Predict(Album))
    monkeypatch.setattr(Image, "__module__", "ferrule.values.elsewhere.parts")
    assert "elsewhere.parts" in repr(Album.fields["photos"].annotation)
    monkeypatch.setattr(History, "__module__", "ferrule.history")
    assert made_anew() == before
    monkeypatch.setattr(Place, "__module__", "another.module")
    assert made_anew() != before


def test_a_fingerprint_holds_no_address_of_memory() -> None:
    """A validator inside a type has its function's address in its `repr`: another in every process."""
    checks = [AfterValidator(lambda value: value), AfterValidator(lambda value: value)]
    one, two = (
        Signature({"q": (list[Annotated[int, check]], InputField()), "a": OutputField()})
        for check in checks
    )
    assert repr(one.fields["q"].annotation) != repr(two.fields["q"].annotation)
    assert program_fingerprint(Predict(one)) == program_fingerprint(Predict(two))
