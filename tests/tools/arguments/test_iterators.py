import io
from collections.abc import Generator, Iterable, Iterator
from typing import Annotated, Any, NamedTuple, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from ferrule.errors import ToolArgumentsError
from ferrule.schema.iterables import eager_type
from ferrule.tools.tool import Tool


class Basket(BaseModel):
    prices: Iterable[int]


class Items:
    """An iterator of one's own."""

    def __init__(self, *items):
        self._items = list(items)

    def __iter__(self):
        return self

    def __next__(self):
        if not self._items:
            raise StopIteration
        return self._items.pop(0)


def problems(made, args):
    with pytest.raises(ToolArgumentsError) as caught:
        made.prepare(args)
    return dict(caught.value.problems)


def taking(hint):
    def use(xs: hint):
        return list(xs), list(xs)

    return Tool(use)


@pytest.mark.parametrize(
    "hint",
    [
        Iterable[int],
        Iterable,
        Optional[Iterable[int]],
        Iterable[int] | str,
        Iterable[str] | Iterable[int],
        list[int],
        Any,
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: [1, 2, 3],
        lambda: (each for each in (1, 2, 3)),
        lambda: map(int, "123"),
        lambda: iter([1, 2, 3]),
    ],
    ids=["list", "generator", "map", "iterator"],
)
def test_what_is_shown_is_what_the_function_reads(hint, make):
    """Showing a call took the items away from the function."""
    found = taking(hint).prepare({"xs": make()})
    assert found.shown == {"xs": [1, 2, 3]}
    assert list(found.named["xs"]) == [1, 2, 3]


def test_an_iterable_is_a_list_whose_items_are_all_checked_before_the_call():
    made = taking(Annotated[Iterable[int], Field(min_length=2)])
    assert made(xs=["1", 2]) == ([1, 2], [1, 2])
    assert made.parameters["properties"]["xs"] == {
        "items": {"type": "integer"},
        "minItems": 2,
        "type": "array",
    }
    assert problems(made, {"xs": ["a", 1, "b"]}) == {
        "xs.0": 'expected an integer, got "a"',
        "xs.2": 'expected an integer, got "b"',
    }
    assert problems(made, {"xs": [1]}) == {"xs": "has 1 items, expected at least 2"}
    assert problems(made, {"xs": "12"}) == {
        "xs": 'expected a list of integers, at least 2 items, got "12"',
    }


@pytest.mark.parametrize(
    "hint",
    [
        Iterator[int],
        Generator[int, None, None],
        Optional[Iterator[int]],
        Annotated[Iterator[int], "d"],
    ],
    ids=repr,
)
def test_a_function_that_wants_an_iterator_gets_one(hint):
    def use(xs: hint):
        return next(xs), list(xs)

    made = Tool(use)
    assert made(xs=[1, "2", 3]) == (1, [2, 3])
    assert made(xs=Items(1, 2)) == (1, [2])
    assert problems(made, {"xs": [1, "a"]}) == {"xs.1": 'expected an integer, got "a"'}


def test_iterables_inside_other_types_are_read_too():
    def use(
        rows: list[Iterable[int]],
        names: dict[str, Iterable[str]],
        pair: tuple[Iterable[int], int] = ((), 0),
        **more: Iterable[int],
    ):
        return rows, names, pair, more

    made = Tool(use)
    assert made(rows=[[1], ["2"], (3,)], names={"a": ["x"]}, pair=[[1], 2], k=["1"]) == (
        [[1], [2], [3]],
        {"a": ["x"]},
        ([1], 2),
        {"k": [1]},
    )
    assert set(problems(made, {"rows": [[1], ["x"]], "names": {"a": [[]]}})) == {
        "rows.1.0",
        "names.a.0",
    }


def test_a_field_of_a_model_is_read_before_the_call():
    """At the path where it stands."""

    def use(basket: Basket, more: list[Basket] = []):
        return sum(basket.prices), sum(basket.prices), [sum(each.prices) for each in more]

    made = Tool(use)
    assert made(basket={"prices": [1, "2"]}, more=[{"prices": [4]}]) == (3, 3, [4])
    assert made.prepare({"basket": {"prices": [1]}}).shown == {
        "basket": {"prices": [1]},
        "more": [],
    }
    assert problems(made, {"basket": {"prices": [1, "a"]}}) == {
        "basket.prices.1": 'expected an integer, got "a"',
    }
    assert problems(made, {"basket": {"prices": []}, "more": [{"prices": ["a"]}]}) == {
        "more.0.prices.0": 'expected an integer, got "a"',
    }


def test_an_iterator_is_read_once_however_often_it_is_checked():
    """A second check of an exhausted one would find nothing wrong."""

    def use(xs: list[int], rows: list[list[int]], n: int = 1):
        return xs, rows, n

    made = Tool(use)
    assert made(xs=Items(1, 2), rows=[(each for each in (3, 4))], n="5") == ([1, 2], [[3, 4]], 5)
    assert problems(made, {"xs": Items(1, "a"), "rows": []}) == {
        "xs.1": 'expected an integer, got "a"',
    }
    assert set(problems(made, {"xs": Items(1), "rows": [Items("a")], "n": "x"})) == {
        "rows.0.0",
        "n",
    }


def test_python_code_may_give_a_generator_or_a_file_to_an_argument_without_a_type():
    """The one is read and made anew, the other is left alone."""

    def use(xs):
        return xs

    made = Tool(use)
    given = made(xs=(each for each in (1, 2)))
    assert (next(given), list(given)) == (1, [2])
    file = io.StringIO("a\nb\n")
    assert made(xs=file) is file
    assert file.read() == "a\nb\n"
    assert made.prepare({"xs": file}).shown["xs"].startswith("<_io.StringIO")
    assert made(xs={"deep": [(each for each in (1, 2))]}) == {"deep": [[1, 2]]}


TYPES = st.recursive(
    st.sampled_from([int, str, None, Iterable[int]]),
    lambda inside: (
        inside.map(lambda one: list[one])
        | inside.map(Optional.__getitem__)
        | inside.map(lambda one: Annotated[one, "d"])
    ),
    max_leaves=4,
)


@given(TYPES)
def test_only_types_with_an_iterable_inside_are_rewritten(hint):
    assert (eager_type(hint) is hint) == ("Iterable" not in repr(hint))
    assert "Iterable" not in repr(eager_type(hint))


class Order(BaseModel):
    items: Iterable[int]


class Pair(NamedTuple):
    first: Order
    rest: Iterable[int]


@pytest.mark.parametrize(
    ("hint", "given_", "found"),
    [
        (
            tuple[Order, ...],
            [{"items": [1, 2]}],
            lambda value: [list(each.items) for each in value] == [[1, 2]],
        ),
        (tuple[int, Order], [1, {"items": [1, 2]}], lambda value: list(value[1].items) == [1, 2]),
        (
            Pair,
            [{"items": [1]}, [2, 3]],
            lambda value: (list(value.first.items), list(value.rest)) == ([1], [2, 3]),
        ),
    ],
    ids=["of any length", "of fixed length", "named"],
)
def test_iterables_inside_of_tuples_are_read_too(hint, given_, found):
    """Whatever holds the model that holds them."""
    made = Tool(lambda value: value, name="f", arg_types={"value": hint})
    assert found(made.prepare({"value": given_}).named["value"])


def test_a_bad_item_inside_of_a_tuple_is_told_with_its_place():
    made = Tool(lambda value: value, name="f", arg_types={"value": tuple[Order, ...]})
    assert "integer" in problems(made, {"value": [{"items": [1, "q"]}]})["value.0.items.1"]
