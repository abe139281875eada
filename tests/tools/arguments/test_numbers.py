import copy
import dataclasses
from typing import Annotated, Any, Optional

import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field

from ferrule.errors import ToolArgumentsError
from ferrule.tools.arguments.nested import fit_numbers
from ferrule.tools.tool import Tool

INFINITE = float("inf")
Free = Annotated[float, Field(allow_inf_nan=True)]


class Point(BaseModel):
    x: float = 0
    path: list[float] = []
    height: Optional[float] = None
    named: float = Field(default=0, alias="Named")
    free: Free = 0
    free_path: list[Free] = []
    free_field: float = Field(default=0, allow_inf_nan=True)
    anything: Any = None
    items: list = []


class Open(BaseModel):
    model_config = ConfigDict(allow_inf_nan=True)
    x: float
    point: Point = Point()


@dataclasses.dataclass
class Plain:
    x: float


@pydantic.dataclasses.dataclass
class Checked:
    x: float


class Holder(BaseModel):
    plain: Plain = Plain(0)
    checked: Checked = Checked(0)
    points: list[Point] = []
    by_name: dict[str, Point] = {}


def problems(hint, value):
    def use(v: hint): ...

    try:
        Tool(use).prepare({"v": value})
    except ToolArgumentsError as error:
        assert {text for _, text in error.problems} == {'"Infinity" is not a finite number'}
        return {path for path, _ in error.problems}
    return set()


@pytest.mark.parametrize(
    ("hint", "value", "path"),
    [
        (Point, {"x": INFINITE}, "v.x"),
        (Point, {"path": [1, INFINITE]}, "v.path.1"),
        (Point, {"height": INFINITE}, "v.height"),
        (Point, {"Named": INFINITE}, "v.Named"),
        (Point, Point(x=INFINITE), "v.x"),
        (list[Point], [{}, {"x": INFINITE}], "v.1.x"),
        (Open, {"x": 1, "point": {"x": INFINITE}}, "v.point.x"),
        (Plain, {"x": INFINITE}, "v.x"),
        (Checked, {"x": INFINITE}, "v.x"),
        (Holder, {"plain": {"x": INFINITE}}, "v.plain.x"),
        (Holder, {"checked": {"x": INFINITE}}, "v.checked.x"),
        (Holder, {"points": [{"x": INFINITE}]}, "v.points.0.x"),
        (Holder, {"by_name": {"k": {"x": INFINITE}}}, "v.by_name.k.x"),
    ],
)
def test_a_number_in_a_model_that_is_not_finite_is_refused_where_it_stands(hint, value, path):
    """The schema says `number`, and JSON's are finite."""
    assert problems(hint, value) == {path}


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Point, {"free": INFINITE}),
        (Point, {"free_path": [INFINITE]}),
        (Point, {"free_field": INFINITE}),
        (Point, {"anything": INFINITE, "items": [INFINITE]}),
        (Open, {"x": INFINITE}),
        (Point, {"x": 1e308, "path": [0.5]}),
    ],
)
def test_a_model_that_says_so_takes_any_number(hint, value):
    assert problems(hint, value) == set()


def test_a_model_that_holds_itself_is_looked_at_once():
    class Node(BaseModel):
        x: float = 0
        next: Optional["Node"] = None

    node = Node(x=INFINITE)
    node.next = node
    assert problems(Any, node) == set()

    def use(v: Node): ...

    with pytest.raises(ToolArgumentsError, match="not a finite number"):
        Tool(use).prepare({"v": node})


@dataclasses.dataclass
class Unit:
    """Metadata of one's own, that no set can hold."""

    name: str


@dataclasses.dataclass
class Range:
    low: float = -INFINITE
    high: float = INFINITE
    any_float: Annotated[float, Field(allow_inf_nan=True)] = 0


class Query(BaseModel):
    range: Range = Range()
    limit: float = INFINITE
    weight: Annotated[float, Unit("kg")] = 1.5
    tags: Annotated[list[str], {"doc": "odd"}] = []


def test_metadata_may_be_anything():
    """It need not even hash."""
    made = Tool(lambda query: query, name="f", arg_types={"query": Query})
    assert made.prepare({"query": {"weight": 2.5}}).named["query"].weight == 2.5
    with pytest.raises(ToolArgumentsError, match="not a finite number"):
        made.prepare({"query": {"weight": "inf"}})


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"query": {}},
        {"query": {"range": {"low": 1}}},
        {"query": {"range": {"any_float": "inf"}}},
    ],
    ids=repr,
)
def test_an_infinity_that_is_a_default_is_nobodys_mistake(args):
    """Nobody gave it, and a model could not mend it."""

    def search(query: Query = Query()):
        return query

    query = Tool(search).prepare(args).named["query"]
    assert (query.limit, query.range.high) == (INFINITE, INFINITE)


# -- integral floats and booleans

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "s": {"type": "string"},
        "xs": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
        "ns": {"type": "array", "items": {"type": "integer"}},
        "tree": {"$ref": "#/$defs/Tree"},
        "either": {
            "anyOf": [
                {"type": "object", "properties": {"a": {"type": each}}}
                for each in ("integer", "string")
            ],
        },
        "any": {},
    },
    "$defs": {
        "Tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
            },
        },
    },
}


def test_booleans_are_found_where_numbers_are_wanted():
    """api.md 1."""
    args = {
        "n": True,
        "s": True,
        "xs": [1, False],
        "tree": {"kids": [{"value": True}]},
        "either": {"a": True},
        "any": [True],
        "unknown": True,
    }
    made, problems = fit_numbers(args, SCHEMA)
    assert made == args
    assert problems == [
        ("either.a", "expected an integer or a string, got true"),
        ("tree.kids.0.value", "expected an integer, got true"),
        ("xs.1", "expected a number or null, got false"),
        ("n", "expected an integer, got true"),
    ]
    assert fit_numbers({"n": 1, "any": [1, {"b": "x"}]}, SCHEMA)[1] == []


def test_integral_floats_become_integers_where_only_an_integer_fits():
    """ours: JSON Schema, 6.1.1."""
    args = {
        "n": 7.0,
        "s": 1.0,
        "xs": [1.0],
        "ns": [1e20, 1.5],
        "tree": {"value": 2.0, "kids": [{"value": 3.0}]},
        "any": [1.0],
    }
    before = copy.deepcopy(args)
    made, problems = fit_numbers(args, SCHEMA)
    wanted = {
        "n": 7,
        "s": 1.0,
        "xs": [1.0],
        "ns": [10**20, 1.5],
        "tree": {"value": 2, "kids": [{"value": 3}]},
        "any": [1.0],
    }
    assert repr(made) == repr(wanted)
    assert problems == []
    assert repr(args) == repr(before)


def test_arguments_that_contain_themselves_are_looked_through_once():
    """ours: Python code may pass such a value; only JSON cannot hold it."""
    around: list[Any] = [1.0]
    around += [around, around]
    made, problems = fit_numbers({"any": around, "n": 2.0}, SCHEMA)
    assert made["n"] == 2
    assert made["any"][1] is around
    assert problems == []


def test_a_boolean_in_a_tuple_of_python_code_is_found_and_the_tuple_stays():
    args = {"xs": (1, False)}
    made, problems = fit_numbers(args, SCHEMA)
    assert made == args
    assert problems == [("xs.1", "expected a number or null, got false")]
