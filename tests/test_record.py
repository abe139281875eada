"""Structs of which some fields stay out of equality, hash and `repr`."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import asdict, replace

from ferrule.record import PartlyCompared
from ferrule.values.calls.call import ToolResult


class Point(PartlyCompared, Struct, frozen=True):
    _not_compared = frozenset({"secret"})
    _not_shown = frozenset({"secret"})

    x: int
    y: int = 0
    secret: str = "s"


class Place(Point, frozen=True):
    name: str = "here"


class Counter(PartlyCompared, Struct):
    _not_compared = frozenset({"seen"})

    count: int
    seen: int = 0


def test_fields_that_are_not_compared_or_shown_are_fields_like_others():
    assert Point(1, secret="other") == Point(1)
    assert hash(Point(1, secret="other")) == hash(Point(1))
    assert repr(Point(1, secret="other")) == "Point(x=1, y=0)"
    assert asdict(Point(1, secret="other")) == {"x": 1, "y": 0, "secret": "other"}
    assert replace(Point(1, secret="other"), x=2).secret == "other"


def test_other_fields_and_the_class_count():
    assert Point(1) != Point(2)
    assert Point(1) != (1, 0)
    assert Place(1) != Point(1)
    assert Place(1, secret="other") == Place(1)
    assert repr(Place(1)) == "Place(x=1, y=0, name='here')"


def test_a_mutable_struct_has_no_hash():
    assert Counter(1, seen=3) == Counter(1)
    with pytest.raises(TypeError, match="unhashable type: 'Counter'"):
        hash(Counter(1))


def copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, copied])
@pytest.mark.parametrize("value", [Point(1, secret="other"), Place(1), Counter(2, seen=1)])
def test_copies_have_all_fields(value: Any, again: Any):
    assert asdict(again(value)) == asdict(value)


def test_a_pickled_result_leaves_out_what_may_hold_anything():
    result = ToolResult("f", "3", value=lambda: 3, error=ValueError("x"), repairs=("quotes",))
    read = copied(result)
    assert read == result
    assert (read.value, read.error, read.repairs) == (None, None, ("quotes",))
