"""`gather`: branches of one program at once."""

from __future__ import annotations

import asyncio

import pytest

from ferrule import MemoryStore, Module, Prediction, ReAct, RunError, ScriptedLM, context, gather, tool


def test_the_first_error_in_the_order_of_branches_is_raised_after_all_have_ended() -> None:
    """Ours: the later branch fails first."""
    ended: list[str] = []
    is_late = asyncio.Event()

    async def early() -> None:
        await is_late.wait()
        ended.append("early")
        raise ValueError("the first branch")

    async def late() -> None:
        is_late.set()
        ended.append("late")
        raise ValueError("the second branch")

    with pytest.raises(ValueError, match="the first branch"):
        asyncio.run(_gathered(early, late))
    assert ended == ["late", "early"]


async def _gathered(*branches: object) -> object:
    return await gather(*(branch() for branch in branches))  # type: ignore[operator]


def test_a_question_in_a_task_group_fails_the_run_with_what_to_use_in_its_place() -> None:
    """The group raised the signal that unwinds a waiting run, as a `BaseExceptionGroup` out of `start`."""

    @tool(require_confirmation=True)
    def pay(name: str) -> str:
        """Pay."""
        return name

    class Office(Module):
        def __init__(self) -> None:
            self.cashier = ReAct("bill -> answer", [pay])

        async def aforward(self) -> Prediction:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.cashier.acall(bill=bill)) for bill in ("one", "two")]
            return Prediction(answers=[task.result().answer for task in tasks])

    class Outer(Module):
        def __init__(self) -> None:
            self.office = Office()

        async def aforward(self) -> Prediction:
            return await self.office.acall()

    for program in (Office(), Outer()):
        with context(lm=ScriptedLM(by=lambda request: {"name": "pay", "args": {"name": "ann"}})):
            run = program.start(store=MemoryStore(), run_id="r")
        assert (run.status, type(run.error)) == ("failed", RunError)
        assert "ferrule.gather(...)" in str(run.error)
