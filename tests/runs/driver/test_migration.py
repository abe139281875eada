"""What a resumed run recalls of a turn: which of its calls ran, were asked about, or did not fit."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule import Decision, MemoryStore, Question, ReAct, Run, ScriptedLM, context, tool


@tool(require_confirmation=True)
def book(hotel: str) -> str:
    """Book a hotel."""
    return f"booked {hotel}"


@tool
def add(x: int) -> str:
    """Add one."""
    return str(x + 1)


CALLS = [{"name": "book", "args": {"hotel": "Ritz"}}, {"name": "add", "args": {"x": 1}}, {"name": "add", "args": {"x": "zz"}}]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_a_turn_with_a_call_that_ran_one_that_did_not_fit_and_one_that_waits_goes_on(order: tuple[int, ...]) -> None:
    """Two calls of one tool: the one that ran has two entries in the journal, and is still one call."""
    agent, store = ReAct("question -> answer", [book, add], native=True), MemoryStore()
    calls: list[dict[str, Any]] = [CALLS[k] for k in order]
    with context(lm=ScriptedLM([{"tool_calls": calls}, {"name": "finish", "args": {"answer": "done"}}])):
        waiting = agent.start(question="q", store=store)
        run = Run.load(store, waiting.id, agent)
        run.answer(run.pending[0].approve())
        assert run.resume().prediction.answer == "done"
    results = [run.trajectory["observation_0"][order.index(k)] for k in range(3)]
    assert results[:2] == ["booked Ritz", "2"]
    assert "was not run" in results[2]


KINDS = {
    "asks": {"name": "user_clarification", "args": {"question": "which?"}},
    "books": {"name": "book", "args": {"hotel": "Ritz"}},
    "books another": {"name": "book", "args": {"hotel": "Hilton"}},
    "books nothing": {"name": "book", "args": {}},
    "adds": {"name": "add", "args": {"x": 1}},
}


def decide(question: Question, how: str) -> Decision:
    """What a person says. With `how="edit twice"`, first something that does not fit."""
    if question.kind == "clarify":
        return question.reply("this one") if how != "approve" else question.approve()
    if how == "edit twice" and not question.text.startswith("The edited"):
        return question.approve(hotel=["no", "hotel"])
    return question.deny("no") if how == "deny" else question.approve() if how == "approve" else question.approve(hotel="Astoria")


@given(
    turn=st.lists(
        st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from(["approve", "deny", "edit", "edit twice"])), min_size=2, max_size=4
    ),
    parallel=st.booleans(),
)
@example(turn=[("asks", "reply"), ("asks", "reply")], parallel=False)
@example(turn=[("books", "deny"), ("books", "approve")], parallel=False)
@example(turn=[("books", "edit twice"), ("books nothing", "approve")], parallel=True)
@example(turn=[("books nothing", "approve"), ("books", "approve")], parallel=True)
def test_a_turn_is_replayed_as_it_was_decided_however_its_calls_came(turn: list[tuple[str, str]], parallel: bool) -> None:
    """A journal has no ids of calls with decisions: those of one tool are told apart by what they have got already."""
    agent, store = ReAct("question -> answer", [book, add], native=True, parallel=parallel), MemoryStore()
    calls = [KINDS[kind] for kind, _ in turn]
    with context(lm=ScriptedLM([{"tool_calls": calls}, {"name": "finish", "args": {"answer": "done"}}])):
        run = agent.start(question="q", store=store)
        while run.status == "waiting":
            run = Run.load(store, run.id, agent)
            for question in run.pending:
                run.answer(decide(question, turn[int(question.call.id.rpartition("_")[2])][1]))
            run.resume()
        again = Run.from_json(run.to_json(), agent)
        assert (run.status, again.prediction.answer) == ("done", "done")
    assert [result.content for result in again.trajectory.steps[0].results] == [
        result.content for result in run.trajectory.steps[0].results
    ]
