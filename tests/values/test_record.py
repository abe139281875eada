"""Records: plain values that cost nothing until the first is made."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from typing import Any, ClassVar

import pytest

from ferrule.values.record import Changing, Record, field, fields_of, replace


class Point(Record):
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)
    secret: str = field(default="s", compare=False, repr=False)
    cache: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    kind: ClassVar[str] = "point"


class Place(Point):
    name: str = "here"


class Told(Changing, kw_only=True):
    run: str = ""


class Said(Told):
    text: str
    loud: bool = False


class Checked(Record):
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"{self.count} is below zero")


class Made(Record):
    total: int

    def __init__(self, *parts: int) -> None:
        object.__setattr__(self, "total", sum(parts))


def test_a_record_is_made_and_read_like_a_dataclass():
    """Ours."""
    point = Point(1, tags=["a"])
    assert (point.x, point.y, point.tags, point.secret, point.cache, point.kind) == (1, 0, ["a"], "s", {}, "point")
    assert repr(point) == "Point(x=1, y=0, tags=['a'])"
    assert Point(1).tags is not Point(1).tags
    assert fields_of(point) == {"x": 1, "y": 0, "tags": ["a"], "secret": "s", "cache": {}}
    match point:
        case Point(x, y):
            assert (x, y) == (1, 0)


@pytest.mark.parametrize(
    "args", [((), {}), ((1, 2, [], "s", {}), {}), ((1,), {"cache": {}}), ((1,), {"z": 1}), ((1,), {"x": 1})], ids=range(5)
)
def test_wrong_arguments_are_refused(args):
    """Ours."""
    with pytest.raises(TypeError):
        Point(*args[0], **args[1])


def test_records_are_compared_by_the_fields_that_count():
    """Ours: and a subclass is another kind."""
    assert Point(1) == Point(1, secret="other")
    assert Point(1) != Point(2)
    assert Point(1) != Place(1)
    assert Point(1) != (1, 0)
    assert hash(Made(1, 2)) == hash(Made(3))
    with pytest.raises(TypeError):
        hash(Said("a"))


def test_a_record_does_not_change_but_a_changing_one_does():
    """Ours."""
    point = Point(1)
    for change in (lambda: setattr(point, "x", 2), lambda: setattr(point, "z", 2), lambda: delattr(point, "x")):
        with pytest.raises(AttributeError, match="a Point is frozen"):
            change()
    assert replace(point, x=5) == Point(5)
    assert replace(Place(1, name="there"), x=2) == Place(2, name="there")
    said = Said("a")
    said.text = "b"
    assert said == Said("b")
    with pytest.raises(AttributeError):
        said.other = 1


def test_fields_of_a_base_come_first_and_keyword_ones_last():
    """Ours: as events have them."""
    assert Place(1, 2, ["a"], "s", "there").name == "there"
    assert (Said("a", loud=True, run="r").run, Said("a").run) == ("r", "")
    with pytest.raises(TypeError):
        Told("r")


def test_a_record_may_check_itself_or_make_itself():
    """Ours."""
    with pytest.raises(ValueError, match="-1 is below zero"):
        Checked(-1)
    assert Checked(1).count == 1
    assert Made(1, 2, 3).total == 6


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))], ids=["copy", "deepcopy", "pickle"]
)
@pytest.mark.parametrize(
    "made", [Point(1, tags=["a"]), Place(1), Said("a", run="r"), Checked(1), Made(1, 2)], ids=lambda each: type(each).__name__
)
def test_a_record_is_copied_and_pickled(made, again):
    """Ours."""
    twin = again(made)
    assert twin == made
    assert fields_of(twin) == fields_of(made)


def test_the_first_instance_may_be_made_by_several_threads_at_once():
    """Ours: `__init__` is written when it is first needed, and two runs may need it at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    wrong: list[Any] = []
    try:
        for _ in range(200):
            first = type(Record)("First", (Record,), {"__annotations__": {"a": "int", "b": "int"}, "b": 2})
            second = type(Record)("Second", (first,), {"__annotations__": {"c": "int"}, "c": 3})
            meet = threading.Barrier(4)

            def make(second=second, meet=meet) -> None:
                meet.wait()
                try:
                    wrong.extend(made for made in [second(1)] if (made.a, made.b, made.c) != (1, 2, 3))
                except Exception as error:
                    wrong.append(error)

            threads = [threading.Thread(target=make) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
