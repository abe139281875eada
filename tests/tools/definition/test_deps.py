"""What a tool's `Context[X]` says of `deps`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NewType, Protocol, TypedDict, runtime_checkable

import pytest

from ferrule.errors import ConfigurationError
from ferrule.tools.definition.deps import check_deps, fits_deps
from ferrule.tools.tool import Tool
from ferrule.values.calls.context import Context

if TYPE_CHECKING:
    from decimal import Decimal


class Shop: ...


class Sells(Protocol):
    def sell(self) -> None: ...


@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...


class Options(TypedDict):
    a: int


Key = NewType("Key", str)


def plain(ctx: Context) -> None: ...
def typed(ctx: Context[Shop]) -> None: ...
def untyped(ctx: Context[Any]) -> None: ...
def maybe(ctx: Context[Shop | None]) -> None: ...
def optional(ctx: Context[Shop] | None = None) -> None: ...
def annotated(ctx: Annotated[Context[Shop], "x"]) -> None: ...
def unknown(ctx: Context[Decimal]) -> None: ...
def later(ctx: Context[Later]) -> None: ...
def nothing(n: int) -> None: ...


def quoted(ctx: "Context['Shop']") -> None: ...


class Later: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, Any), (typed, Shop), (untyped, Any), (maybe, Shop | None), (optional, Shop), (annotated, Shop),
        (quoted, Shop), (unknown, "Decimal"), (later, Later), (nothing, Any),
    ],
)  # fmt: skip
def test_a_tool_knows_the_type_of_its_deps(function: Any, expected: Any) -> None:
    """api.md, 20: also from text, as soon as its names are known."""
    assert Tool(function).deps_type == expected


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Shop, [Shop()], [None, "x", Shop]),
        (Shop | None, [Shop(), None], ["x"]),
        (Annotated[Shop, "x"], [Shop()], [None, "x"]),
        (Any, [None, "x"], []),
        (object, [None, "x"], []),
        (dict[str, int], [{}, {"a": 1}], [None, []]),
        (Sells, ["cannot be checked"], [None]),
        (Closes, [type("C", (), {"close": lambda self: None})()], [None, "x"]),
        (Options, [{"a": 1}], [None]),
        (Key, ["k"], [None]),
        ("Decimal", ["cannot be checked"], [None]),
    ],
)
def test_deps_are_checked_as_far_as_a_type_can_be_at_run_time(
    kind: Any,
    good: list[Any],
    bad: list[Any],
) -> None:
    assert [fits_deps(kind, each) for each in (*good, *bad)] == [True] * len(good) + [False] * len(
        bad,
    )


def test_a_type_of_deps_that_is_no_class_is_named_as_it_is_written() -> None:
    def act(context: Context[Shop | str]) -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"declares `Context\[.*Shop \| str\]`, and no `deps` were passed",
    ):
        check_deps(Tool(act), None)
