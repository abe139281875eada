"""`Log`: an append-only sequence whose views share one list."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from ferrule.values.log import Log

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
TestLogsAgainstLists.settings = settings(stateful_step_count=25)


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
