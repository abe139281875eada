"""Records: plain values that cost nothing until the first is made."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import threading
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from ferrule.record import Log, MutableRecord, Record, field, fields_of, maker, replace
from ferrule.values.calls.call import ToolResult
from ferrule.values.conversation.message import Message
from ferrule.values.outcome import Step


class Point(Record):
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)
    secret: str = field(default="s", compare=False, repr=False)
    cache: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    kind: ClassVar[str] = "point"


class Place(Point):
    name: str = "here"


class Told(MutableRecord, kw_only=True):
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
    point = Point(1, tags=["a"])
    assert (point.x, point.y, point.tags, point.secret, point.cache, point.kind) == (
        1,
        0,
        ["a"],
        "s",
        {},
        "point",
    )
    assert repr(point) == "Point(x=1, y=0, tags=['a'])"
    assert Point(1).tags is not Point(1).tags
    assert fields_of(point) == {"x": 1, "y": 0, "tags": ["a"], "secret": "s", "cache": {}}
    match point:
        case Point(x, y):
            assert (x, y) == (1, 0)


@pytest.mark.parametrize("later", [Point, Place, Said, Checked])
@pytest.mark.parametrize(
    "args",
    [
        (),
        (1,),
        (1, 2),
        (-1,),
        (1, 2, ["t"], "s"),
        (1, 2, ["t"], "s", "there"),
        (1, 2, ["t"], "s", {}, 9),
    ],
)
@pytest.mark.parametrize(
    "keywords",
    [{}, {"x": 1}, {"y": 3}, {"run": "r", "loud": True}, {"text": "t"}, {"z": 1}, {"cache": {}}],
    ids=str,
)
def test_the_first_instances_are_made_as_all_later_ones(later, args, keywords):
    """The first ones have no compiled `__init__`."""
    first = type(later)(later.__name__, (later,), {"__qualname__": later.__qualname__})
    for _ in range(50):
        with contextlib.suppress(TypeError, ValueError):
            later(1)
            later(text="t")

    def made(kind):
        try:
            return repr(kind(*args, **keywords))
        except (TypeError, ValueError) as error:
            return str(error)

    assert made(first) == made(later)


@pytest.mark.parametrize(
    "args",
    [
        ((), {}),
        ((1, 2, [], "s", {}), {}),
        ((1,), {"cache": {}}),
        ((1,), {"z": 1}),
        ((1,), {"x": 1}),
    ],
    ids=range(5),
)
def test_wrong_arguments_are_refused(args):
    with pytest.raises(TypeError):
        Point(*args[0], **args[1])


def test_help_shows_the_arguments_before_the_first_instance_and_after():
    fresh = type(Record)("Fresh", (Point,), {"__annotations__": {"more": "int"}, "more": 1})
    before = str(inspect.signature(fresh))
    for _ in range(50):
        fresh(1)
    assert before == str(inspect.signature(fresh))
    assert list(inspect.signature(fresh).parameters) == ["x", "y", "tags", "secret", "more"]
    assert list(inspect.signature(Made).parameters) == ["parts"]
    assert inspect.signature(Said).parameters["run"].kind is inspect.Parameter.KEYWORD_ONLY


def test_records_are_compared_by_the_fields_that_count():
    """And a subclass is another kind."""
    assert Point(1) == Point(1, secret="other")
    assert Point(1) != Point(2)
    assert Point(1) != Place(1)
    assert Point(1) != (1, 0)
    assert hash(Made(1, 2)) == hash(Made(3))
    with pytest.raises(TypeError):
        hash(Said("a"))


def test_a_record_does_not_change_but_a_changing_one_does():
    point = Point(1)
    for change in (
        lambda: setattr(point, "x", 2),
        lambda: setattr(point, "z", 2),
        lambda: delattr(point, "x"),
    ):
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
    """As events have them."""
    assert Place(1, 2, ["a"], "s", "there").name == "there"
    assert (Said("a", loud=True, run="r").run, Said("a").run) == ("r", "")
    with pytest.raises(TypeError):
        Told("r")


def test_a_record_may_check_itself_or_make_itself():
    with pytest.raises(ValueError, match="-1 is below zero"):
        Checked(-1)
    assert Checked(1).count == 1
    assert Made(1, 2, 3).total == 6


@pytest.mark.parametrize("gil", [True, False])
def test_a_subclass_of_a_frozen_record_may_make_itself_of_its_base(gil, monkeypatch):
    """The base's compiled `__init__` fills the subclass, which has another layout."""
    monkeypatch.setattr("sys._is_gil_enabled", lambda: gil, raising=False)
    base = type(Record)("Base", (Point,), {})

    class Moved(base):
        by: int

        def __init__(self, by: int) -> None:
            super().__init__(1, by)
            object.__setattr__(self, "by", 2 * by)

    for _ in range(50):
        assert base(1, 2) == base(1, 2, tags=[])
    moved = Moved(3)
    assert (type(moved), moved.x, moved.y, moved.by, moved.cache) == (Moved, 1, 3, 6, {})
    with pytest.raises(AttributeError, match="a Base is frozen"):
        base(1).x = 2


class Sealed(Record, kw_only=True, weak=True):
    first: int
    kept: list[int] = field(default_factory=list, init=False)


@pytest.mark.parametrize("gil", [True, False])
@pytest.mark.parametrize(
    ("kind", "args", "fields"),
    [
        (Point, (7,), {}),
        (Place, (7, 1, ["a"]), {"name": "there"}),
        (Sealed, (), {"first": 7}),
        (Message, ("tool", "3"), {"tool_call_id": "c"}),
        (ToolResult, ("add", "3"), {"value": 3}),
        (Step, ("thought",), {}),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_a_maker_makes_records_as_their_class_does(kind, args, fields, gil, monkeypatch):
    """Of that class and frozen. Where a change of class would stop all threads, it is the class
    (https://github.com/python/cpython/issues/145566).
    """
    monkeypatch.setattr("sys._is_gil_enabled", lambda: gil, raising=False)
    make = maker(kind)
    made, wanted = make(*args, **fields), kind(*args, **fields)
    assert (make is kind) is not gil
    assert (type(made), fields_of(made)) == (kind, fields_of(wanted))
    assert made == wanted == copy.copy(made)
    name = next(iter(fields_of(made)))
    for change in (
        lambda: setattr(made, name, 3),
        lambda: setattr(made, "other", 3),
        lambda: delattr(made, name),
    ):
        with pytest.raises(AttributeError, match=f"a {kind.__name__} is frozen"):
            change()
    for wrong in ({"z": 1}, {name: 1, "z": 1}):
        with pytest.raises(TypeError):
            make(*args, **fields, **wrong)


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize(
    "made",
    [Point(1, tags=["a"]), Place(1), Said("a", run="r"), Checked(1), Made(1, 2)],
    ids=lambda each: type(each).__name__,
)
def test_a_record_is_copied_and_pickled(made, again):
    twin = again(made)
    assert twin == made
    assert fields_of(twin) == fields_of(made)


@pytest.mark.usefixtures("busy_switching")
def test_the_first_instance_may_be_made_by_several_threads_at_once():
    """`__init__` is written when it is first needed, and two runs may need it at once."""
    wrong: list[Any] = []
    for _ in range(200):
        first = type(Record)(
            "First",
            (Record,),
            {"__annotations__": {"a": "int", "b": "int"}, "b": 2},
        )
        second = type(Record)("Second", (first,), {"__annotations__": {"c": "int"}, "c": 3})
        meet = threading.Barrier(4, timeout=60)

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
    assert wrong == []


numbers = st.integers(0, 3)  # few, so that equal items meet


class LogsAgainstLists(RuleBasedStateMachine):
    """Every view ever made is compared with a plain list of its own, after every step."""

    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Log[int], list[int]]] = []

    def keep(self, log: Log[int], plain: list[int]) -> tuple[Log[int], list[int]]:
        self.made.append((log, plain))
        return log, plain

    @rule(target=views, items=st.lists(numbers, max_size=3))
    def start(self, items):
        return self.keep(Log(items), list(items))

    @rule(target=views, view=views, items=st.lists(numbers, max_size=3))
    def go_on(self, view, items):
        log, plain = view
        return self.keep(log.then(*items), plain + items)

    @rule(
        target=views,
        view=views,
        items=st.lists(numbers, min_size=1, max_size=2),
        others=st.lists(numbers, min_size=1, max_size=2),
    )
    def go_on_twice(self, view, items, others):
        log, plain = view
        return multiple(
            self.keep(log.then(*items), plain + items),
            self.keep(log.then(*others), plain + others),
        )

    @rule(
        target=views,
        view=views,
        again=st.sampled_from(
            [copy.copy, copy.deepcopy, Log, lambda log: pickle.loads(pickle.dumps(log))],
        ),
    )
    def copied(self, view, again):
        log, plain = view
        return self.keep(again(log), plain)

    @rule(view=consumes(views))
    def forget(self, view):
        self.made = [each for each in self.made if each[0] is not view[0]]

    @rule(
        view=views,
        index=st.integers(-5, 5),
        other=st.integers(-5, 5),
        step=st.sampled_from([None, 1, 2, -1]),
    )
    def read(self, view, index, other, step):
        log, plain = view
        assert log[index:other:step] == plain[index:other:step]
        if -len(plain) <= index < len(plain):
            assert log[index] == plain[index]
        else:
            with pytest.raises(IndexError, match=f"index {index} is outside a log of {len(plain)}"):
                log[index]

    @invariant()
    def every_view_is_its_list(self):
        for log, plain in self.made:
            assert list(log) == plain
            assert len(log) == len(plain)
            assert log == plain
            assert list(reversed(log)) == plain[::-1]
            assert bool(log) == bool(plain)


TestLogsAgainstLists = LogsAgainstLists.TestCase
TestLogsAgainstLists.settings = settings(max_examples=60, stateful_step_count=25)


def test_adding_copies_nothing_while_nobody_forks():
    """A step costs the same at the thousandth as at the first."""
    log = Log([0])
    first = log
    for i in range(1, 1000):
        log = log.then(i)
    assert log._items is first._items
    assert list(log) == list(range(1000))
    assert list(first) == [0]


def test_a_fork_copies_once_and_then_grows_in_place():
    log = Log("ab")
    one = log.then("c")
    other = log.then("d")
    assert other._items is not log._items
    assert other.then("e")._items is other._items
    assert (list(one), list(other), list(log)) == (list("abc"), list("abd"), list("ab"))


def test_nothing_added_is_a_view_of_its_own():
    log = Log([1])
    assert log.then() == log
    assert log.then().then(2) == [1, 2]
    assert log == [1]


def test_a_list_given_to_a_log_stays_the_givers():
    items = [1]
    log = Log(items)
    items.append(2)
    log.then(3)
    assert (items, list(log)) == ([1, 2], [1])


def test_a_reader_that_started_before_sees_what_was_there_then():
    """Iterating a view while the log grows."""
    log = Log([1, 2])
    reader = iter(log)
    assert next(reader) == 1
    log.then(3, 4)
    assert list(reader) == [2]


def test_logs_are_compared_by_content_and_have_no_hash():
    assert Log([1, 2]) == (1, 2)
    assert Log([1]) != [2]
    assert Log("a") != "a"
    assert Log() != None  # noqa: E711  what `==` says is the point
    with pytest.raises(TypeError):
        hash(Log())
    assert repr(Log([1, "a"])) == "Log([1, 'a'])"


@pytest.mark.usefixtures("busy_switching")
@pytest.mark.parametrize("same", [False, True], ids=["items_of_their_own", "the_same_items"])
def test_threads_that_extend_one_view_at_once_each_get_their_own(same):
    """Two runs that share the beginning of a conversation may go on at the same time."""
    shared = object()
    for turn in range(60):
        start = Log([turn])
        meet = threading.Barrier(4, timeout=60)
        ends: dict[int, tuple[Log[object], list[object]]] = {}

        def go_on(number: int, start=start, meet=meet, ends=ends) -> None:
            mine: list[object] = [start[0]]
            log = start
            meet.wait()
            for i in range(5):
                items = (
                    [shared] * (1 + (number + i) % 2)
                    if same
                    else [(number, i), (number, i, "and")][: 1 + i % 2]
                )
                log = log.then(*items)
                mine += items
            ends[number] = log, mine

        threads = [threading.Thread(target=go_on, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ends) == 4
        for log, mine in ends.values():
            assert list(log) == mine
        assert list(start) == [turn]


def test_the_loser_of_a_race_copies():
    """The interleaving that goes wrong without the look at what came to stand at the end."""

    class Overtaken(list):
        """Its length is asked, and then another thread is faster."""

        overtaking = ()

        def __len__(self) -> int:
            length = super().__len__()
            overtaking, self.overtaking = self.overtaking, ()
            super().extend(overtaking)
            return length

    for first, then, found in [
        (["x"], ["y"], ["y"]),
        (["x"], ["x"], ["x"]),
        (["x"], ["x", "y"], ["x", "y"]),
        (["x", "y"], ["x"], ["x"]),
    ]:
        log = Log(["a"])
        log._items = Overtaken(["a"])
        log._items.overtaking = first
        longer = log.then(*then)
        assert list(longer) == ["a", *found]
        assert list(longer.then("z")) == ["a", *found, "z"]
        assert list(longer) == ["a", *found]
