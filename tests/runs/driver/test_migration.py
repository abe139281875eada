"""What a resumed run recalls of a turn: which of its calls ran, were asked about, or did not fit."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from ferrule import MemoryStore, ReAct, Run, ScriptedLM, context, tool


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
