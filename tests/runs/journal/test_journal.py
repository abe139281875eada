"""The journal: what was answered, by position."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ferrule.approval.policy import Policy, deny
from ferrule.concurrency.completion import Completion, completed
from ferrule.errors import ReplayMismatchError
from ferrule.programs.react import ReAct
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.runs.run import Run
from ferrule.settings import context
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.slot import Slot


def test_a_live_journal_has_nothing_to_hand_back() -> None:
    """Entries written in this execution are not replayed in it."""
    journal = Journal()
    journal.add(Entry("0", "once", "clock", 7))
    assert journal.take("0", "once", "clock") is None
    assert not journal.unread


def test_after_a_rewind_each_answer_is_handed_back_once() -> None:
    """An answer is taken, not looked up."""
    journal = Journal([Entry("0", "once", "clock", 7)])
    journal.rewind()
    assert journal.unread
    found = journal.take("0", "once", "clock")
    assert found is not None
    assert found.value == 7
    assert journal.take("0", "once", "clock") is None
    assert not journal.unread


def test_begun_without_a_result_is_no_answer() -> None:
    """Durability.md. what began but has no result is not taken for done."""
    journal = Journal([Entry("0.0", "begun", "add {}")])
    journal.rewind()
    assert journal.take("0.0", "result", "add {}") is None


@pytest.mark.parametrize(("kind", "digest"), [("model", "clock"), ("once", "dice")])
def test_another_question_at_a_recorded_place_is_a_mismatch_that_shows_both(
    kind: str,
    digest: str,
) -> None:
    """Non-determinism fails closed."""
    journal = Journal([Entry("3", "once", "clock", 7)])
    journal.rewind()
    with pytest.raises(
        ReplayMismatchError,
        match=r"at act 3: recorded once clock, now " + f"{kind} {digest}",
    ):
        journal.take("3", kind, digest)  # type: ignore[arg-type]


def test_a_program_that_ends_before_its_journal_is_a_mismatch() -> None:
    """The first act that differs, here the end."""
    journal = Journal([Entry("0", "once", "clock", 7)])
    journal.rewind()
    with pytest.raises(ReplayMismatchError, match="ended without this act"):
        journal.check_finished()


def test_journals_are_equal_by_slot_whatever_the_order_calls_of_a_turn_ended_in() -> None:
    """Architecture: sync and async drivers write equal journals."""
    one, two = Entry("1.0", "result", "a", 1), Entry("1.1", "result", "b", 2)
    assert Journal([one, two]) == Journal([two, one])
    assert Journal([one]) != Journal([one, two])
    assert Journal([one]) != [one]


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [("1", "0.0"), ("0", "0.0"), ("2.0", "1"), ("a#0/3", "a#0/2.1"), ("1p", "0")],
    ids=["later", "another_kind", "later_call", "in_a_child", "later_policy"],
)
def test_an_act_that_was_not_there_is_found_out_before_it_is_done(
    recorded: str,
    asked: str,
) -> None:
    """Where a later act of a frame was answered, an earlier one without an answer is none of that
    program.
    """
    journal = Journal([Entry(recorded, "model", "old", 1)])
    journal.rewind()
    with pytest.raises(ReplayMismatchError, match=f"model old at {recorded}"):
        journal.take(asked, "result", "new")


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [
        ("1.0", "1.1"),
        ("0", "1"),
        ("b#0/5", "a#0/2"),
        ("gather#0.1/5", "gather#0.0/2"),
        ("5", "a#0/2"),
        ("2.0/7", "2.1"),
    ],
    ids=["another_call", "earlier", "another_child", "another_branch", "a_parent", "inside_a_call"],
)
def test_an_answer_that_is_not_there_yet_is_no_mismatch(recorded: str, asked: str) -> None:
    """Calls of one turn, branches and children are answered in any order."""
    journal = Journal([Entry(recorded, "model", "old", 1)])
    journal.rewind()
    assert journal.take(asked, "result", "new") is None


class Slow:
    """A sink that a test lets go on."""

    def __init__(self) -> None:
        self.began: asyncio.Event = asyncio.Event()
        self.go: Completion[None] = Completion()
        self.written: list[Entry] = []

    def __call__(self, entry: Entry) -> None:
        raise AssertionError(entry)

    async def later(self, entry: Entry) -> None:
        self.began.set()
        try:
            await completed(self.go)
        finally:
            self.written.append(entry)


def test_a_write_that_is_cancelled_is_waited_for() -> None:
    """The journal knows what the store has, or else a finished call would be taken for an
    unfinished one.
    """

    async def main() -> None:
        sink = Slow()
        journal = Journal(sink=sink)
        writing = asyncio.ensure_future(journal.aadd(Entry("0", "once", "d", 1)))
        await sink.began.wait()
        writing.cancel()
        asyncio.get_running_loop().call_soon(sink.go.set_result, None)
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert (
            [entry.slot for entry in sink.written]
            == [entry.slot for entry in journal.entries]
            == ["0"]
        )

    asyncio.run(main())


class Counted(dict[str, Any]):
    """A dict that counts how many of its entries are looked at."""

    looks = 0

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)


def test_looking_ahead_all_the_way_looks_at_each_entry_a_few_times() -> None:
    """Architecture: the thousandth step costs what the first one did, in a replay too."""
    count = 300
    places = [
        f"{path}{act}{call}"
        for act in range(count)
        for path, call in (("", ""), ("a#0/", ".0"), ("a#1/", "p"))
    ]
    journal = Journal(Entry(slot, "once", "x") for slot in places)
    journal.rewind()
    journal.unread = unread = Counted(journal.unread)
    for at, slot in enumerate(places):
        path, act = slot[: slot.rfind("/") + 1], at // 3
        later = journal.ahead(path, act)
        assert later is not None
        assert later.slot.startswith(f"{path}{count - 1}")
        assert journal.ahead(path, count) is None
        assert journal.take(slot, "once", "x") is not None
    assert not journal.unread
    assert unread.looks <= 10 * len(places)


def test_what_is_missing_is_told_with_the_next_act_that_was_answered() -> None:
    """Not with the last one of a long run."""
    journal = Journal(Entry(slot, "once", "clock") for slot in ("9", "3", "5", "a#0/2"))
    journal.rewind()
    with pytest.raises(ReplayMismatchError, match="recorded once clock at 3, now once dice"):
        journal.take("1", "once", "dice")


@pytest.mark.parametrize("again", ["resumed", "loaded and read"])
@pytest.mark.parametrize(
    "policy",
    [None, Policy([deny("wipe")], loaded_later=["wipe"])],
    ids=["no policy", "a policy"],
)
def test_a_replay_looks_at_each_entry_a_few_times(
    policy: Policy | None,
    again: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Architecture: a run of twice as many steps takes twice the work to replay."""
    count = 60
    agent = ReAct(
        "task -> answer",
        [Tool(lambda i: "x", "look", effect="read")],
        native=True,
        max_iters=count + 2,
    )
    turns = [{"name": "look", "args": {"i": i}} for i in range(count)]
    with context(
        lm=ScriptedLM([*turns, {"name": "finish", "args": {"answer": "done"}}]),
        policy=policy,
    ):
        first = Run(agent, (), {"task": "x"}).resume()
        rewind, counted = Journal.rewind, list[Counted]()

        def rewound(journal: Journal) -> None:
            rewind(journal)
            journal.unread = Counted(journal.unread)
            counted.append(journal.unread)

        monkeypatch.setattr(Journal, "rewind", rewound)
        if again == "resumed":
            run = Run(agent, (), {"task": "x"})
            run.journal.entries += first.journal.entries
            assert run.resume().status == "done"
        else:
            run = Run.from_json(first.to_json(), agent)
            assert run.prediction.answer == "done"
    assert len(run.trajectory.steps) == count + 1
    assert len(counted) == 1
    assert counted[0].looks <= 5 * len(first.journal)


@pytest.mark.parametrize(
    "look",
    [
        lambda journal: journal.has_begun_from("", 9),
        lambda journal: journal.turn("", 9),
        lambda journal: journal.drop_from("", 9, because="a decision"),
    ],
    ids=["begun", "turn", "drop"],
)
def test_a_look_at_what_is_left_is_not_disturbed_by_a_branch_in_another_thread(
    look: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Branches of a resumed run take their entries meanwhile: Python then refuses to go on through
    the dict.
    """
    begun = [Entry(f"b/{k}.0", "begun", "add {}") for k in range(3)]
    journal = Journal([*begun, *(Entry(f"b/{k}", "once", "clock", k) for k in range(3, 6))])
    journal.rewind()
    position = Slot.position

    def in_between(slot: Slot) -> Any:
        monkeypatch.setattr(Slot, "position", position)  # once
        journal.take_begun("b/2.0", "add")
        journal.take("b/3", "once", "clock")
        return slot.position

    monkeypatch.setattr(Slot, "position", property(in_between))
    look(journal)
