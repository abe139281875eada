"""New versions of a `forward` with branches of `gather`: what happened is not done again."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from ferrule import Module, Prediction, ReAct, Request, Run, SQLiteStore, Tool, gather
from ferrule.acts import Once
from ferrule.testing import ScriptedLM

did: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    did.clear()


def look(order: str) -> str:
    """Look an order up."""
    did.append(f"look {order}")
    return f"{order} is paid"


def refund(order: str) -> str:
    """Refund an order."""
    did.append(f"refund {order}")
    return f"refunded {order}"


def clerk(order: str) -> ReAct:
    return ReAct(
        "task -> answer",
        [look, Tool(refund, require_confirmation=True)],
        native=True,
        lm=ScriptedLM(by=works_on(order)),
    )


def works_on(order: str) -> Any:
    """A model that looks, refunds and finishes, by the results that it was shown."""
    steps = [
        ("look", {"order": order}),
        ("refund", {"order": order}),
        ("finish", {"answer": f"{order} done"}),
    ]

    def answer(request: Request) -> Any:
        name, args = steps[sum(message.role == "tool" for message in request.messages)]
        return {"name": name, "args": args}

    return answer


class Timed(Module):
    """A program that asks for the time first, as its second version does."""

    def __init__(self, agent: Any, *, is_timed: bool) -> None:
        self.agent, self.is_timed = agent, is_timed

    def flow(self, **inputs: Any) -> Generator[Any, Any, Prediction]:
        if self.is_timed:
            yield Once(lambda: 1.0, "clock")
        return (yield from self.agent.flow(**inputs))


class Clock(Module):
    """Asks for the time."""

    def flow(self) -> Generator[Any, Any, Prediction]:
        return Prediction(answer=str((yield Once(lambda: 1.0, "clock"))))


class Both(Module):
    """Two clerks at once; in the second version after a look at the clock, or with another first
    clerk.
    """

    def __init__(self, *, is_late: bool = False, is_timed: bool = False) -> None:
        self.first, self.second = (
            Timed(clerk("A1"), is_timed=is_timed),
            Timed(clerk("B2"), is_timed=False),
        )
        self.clock, self.is_late = Clock(), is_late

    async def aforward(self, task: str) -> Prediction:
        if self.is_late:
            await self.clock.acall()
        first, second = await gather(self.first.acall(task=task), self.second.acall(task=task))
        return Prediction(answer=f"{first.answer}, {second.answer}")


def decide_all(run: Run) -> None:
    for question in run.pending:
        run.answer(question.approve())


def test_a_new_version_may_call_a_program_before_the_branches(tmp_path: Any) -> None:
    """In a `forward`, programs and branches have places of their own."""
    store = SQLiteStore(tmp_path / "runs.db")
    asyncio.run(Both().astart(task="?", store=store, run_id="r"))
    again = Run.load(store, "r", Both(is_late=True))
    decide_all(again)
    asyncio.run(again.aresume())
    assert again.prediction.answer == "A1 done, B2 done"
    assert sorted(did) == ["look A1", "look B2", "refund A1", "refund B2"]
