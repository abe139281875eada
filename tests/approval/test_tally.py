"""What the decisions of a run come to, and that counting them costs the same at the thousandth."""

from __future__ import annotations

import threading
import time
from typing import Any

from ferrule.approval.policy import Grant
from ferrule.approval.question import Decision
from ferrule.approval.tally import Tally
from ferrule.programs.react import ReAct
from ferrule.runs.run import Run
from ferrule.settings import context
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool


class Counted(list[Any]):
    """A list that counts how often one of its elements is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Any:
        for each in super().__iter__():
            self.looks += 1
            yield each


def use(number: int, key: str = "q") -> Decision:
    return Decision(f"u{number}", "approve", via=f"grant:{key}")


def test_a_grant_is_used_up_and_can_be_ended() -> None:
    """E23 and on: what is left follows from the decisions alone."""
    given = Decision("q", "approve", grant=Grant(calls=3))
    other = Decision("r", "approve", grant=Grant())
    made, tally = [given, other, use(1)], Tally()
    assert {key: grant.calls for key, grant in tally.grants(made).items()} == {"q": 2, "r": None}
    made += [use(2), Decision("revoke:r", "revoke")]
    assert {key: grant.calls for key, grant in tally.grants(made).items()} == {"q": 1}
    made += [use(3), use(4)]
    assert tally.grants(made) == {}


def test_the_first_decision_on_a_question_is_found_and_none_is_noted_twice() -> None:
    """Also after a crash that left only the journal."""
    first, made, tally = Decision("q", "deny", "No."), [], Tally()
    assert tally.first(made, "q") is None
    for each in (first, Decision("q", "deny", "No!"), Decision("q", "approve")):
        tally.note(made, each)
    assert [each.kind for each in made] == ["deny", "approve"]
    assert tally.first(made, "q") is first


def test_a_list_that_takes_the_place_of_another_is_counted_anew() -> None:
    """A run that is read from its JSON is given one."""
    tally = Tally()
    assert list(tally.grants([Decision("q", "approve", grant=Grant())])) == ["q"]
    assert tally.grants([use(1)]) == {}


def test_the_thousandth_use_of_a_grant_costs_what_the_first_one_did() -> None:
    """Architecture: live and in a replay, each decision is looked at a few times, however many
    there are.
    """
    count = 60
    agent = ReAct(
        "task -> answer",
        [Tool(lambda i: "x", "look", require_confirmation=True)],
        native=True,
        max_iters=count + 2,
    )
    turns = [{"name": "look", "args": {"i": i}} for i in range(count)]
    with context(lm=ScriptedLM([*turns, {"name": "finish", "args": {"answer": "done"}}])):
        run = Run(agent, (), {"task": "x"})
        run.decisions = live = Counted()
        run.resume()
        run.answer(run.pending[0].approve(always=Grant(args="any")))
        run.resume()
        assert run.status == "done"
        again = Run(agent, (), {"task": "x"})
        again.key, again.decisions = run.key, Counted()
        again.journal.entries += run.journal.entries
        assert again.resume().status == "done"
    assert len(again.decisions) == len(live) == count
    assert max(live.looks, again.decisions.looks) <= 5 * count


def test_a_count_waits_for_no_other_run() -> None:
    """A process forked, or a handler of a signal called, while one run counted, waited for ever at
    the next count of any run.
    """
    found: list[Any] = []

    class Interrupted(list[Any]):
        def __len__(self) -> int:
            found.append(Tally().first([], "q"))  # in the midst of the count
            return super().__len__()

    threading.Thread(target=Tally().first, args=(Interrupted(), "q"), daemon=True).start()
    deadline = time.monotonic() + 10
    while not found and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == [None]
