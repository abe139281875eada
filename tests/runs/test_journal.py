"""The journal: what was answered, by position."""

from __future__ import annotations

import asyncio

import pytest

from ferrule.errors import ReplayMismatch
from ferrule.runs.journal import Entry, Journal


def test_a_live_journal_has_nothing_to_hand_back() -> None:
    """Ours: entries written in this execution are not replayed in it."""
    journal = Journal()
    journal.add(Entry("0", "once", "clock", 7))
    assert journal.take("0", "once", "clock") is None
    assert not journal.replaying


def test_after_a_rewind_each_answer_is_handed_back_once() -> None:
    """Ours: an answer is taken, not looked up."""
    journal = Journal([Entry("0", "once", "clock", 7)])
    journal.rewind()
    assert journal.replaying
    found = journal.take("0", "once", "clock")
    assert found is not None
    assert found.value == 7
    assert journal.take("0", "once", "clock") is None
    assert not journal.replaying


def test_begun_without_a_result_is_no_answer() -> None:
    """R3, R4 (durability.md): what began but has no result is not taken for done."""
    journal = Journal([Entry("0.0", "begun", "add {}")])
    journal.rewind()
    assert journal.take("0.0", "result", "add {}") is None


@pytest.mark.parametrize(("kind", "digest"), [("model", "clock"), ("once", "dice")])
def test_another_question_at_a_recorded_place_is_a_mismatch_that_shows_both(kind: str, digest: str) -> None:
    """A11, R13: non-determinism fails closed."""
    journal = Journal([Entry("3", "once", "clock", 7)])
    journal.rewind()
    with pytest.raises(ReplayMismatch, match=r"at act 3: recorded once clock, now " + f"{kind} {digest}"):
        journal.take("3", kind, digest)  # type: ignore[arg-type]


def test_a_program_that_ends_before_its_journal_is_a_mismatch() -> None:
    """A11: the first act that differs, here the end."""
    journal = Journal([Entry("0", "once", "clock", 7)])
    journal.rewind()
    with pytest.raises(ReplayMismatch, match="ended without this act"):
        journal.finished()


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
def test_an_act_that_was_not_there_is_found_out_before_it_is_done(recorded: str, asked: str) -> None:
    """R13: where a later act of a frame was answered, an earlier one without an answer is none of that program."""
    journal = Journal([Entry(recorded, "model", "old", 1)])
    journal.rewind()
    with pytest.raises(ReplayMismatch, match=f"model old at {recorded}"):
        journal.take(asked, "result", "new")


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [("1.0", "1.1"), ("0", "1"), ("b#0/5", "a#0/2"), ("gather#0.1/5", "gather#0.0/2"), ("5", "a#0/2"), ("2.0/7", "2.1")],
    ids=["another_call", "earlier", "another_child", "another_branch", "a_parent", "inside_a_call"],
)
def test_an_answer_that_is_not_there_yet_is_no_mismatch(recorded: str, asked: str) -> None:
    """A12: calls of one turn, branches and children are answered in any order."""
    journal = Journal([Entry(recorded, "model", "old", 1)])
    journal.rewind()
    assert journal.take(asked, "result", "new") is None


class Slow:
    """A sink that a test lets go on."""

    def __init__(self) -> None:
        self.began, self.go = asyncio.Event(), asyncio.Event()
        self.written: list[Entry] = []

    def __call__(self, entry: Entry) -> None:
        raise AssertionError(entry)

    async def later(self, entry: Entry) -> None:
        self.began.set()
        await self.go.wait()
        self.written.append(entry)


def test_a_write_that_is_cancelled_is_waited_for() -> None:
    """R4: the journal knows what the store has, or else a finished call would be taken for an unfinished one."""

    async def main() -> None:
        sink = Slow()
        journal = Journal(sink=sink)
        writing = asyncio.ensure_future(journal.aadd(Entry("0", "once", "d", 1)))
        await sink.began.wait()
        writing.cancel()
        asyncio.get_running_loop().call_soon(sink.go.set)
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert [entry.slot for entry in sink.written] == [entry.slot for entry in journal.entries] == ["0"]

    asyncio.run(main())
