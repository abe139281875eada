"""`gather`: branches of one program at once."""

from __future__ import annotations

import asyncio

import pytest

from ferrule import MemoryStore, Module, Prediction, ReAct, Request, Run, RunError, ScriptedLM, context, gather, tool


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


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_call_beside_a_question_ends_and_is_recorded_even_in_a_plain_asyncio_gather(driver: str) -> None:
    """It was cut off, and a person was asked again and again whether it had run."""
    paid: list[str] = []

    @tool(require_confirmation=True)
    async def pay(name: str) -> str:
        """Pay."""
        for _ in range(100):  # the other branch asks its question meanwhile
            await asyncio.sleep(0)
        paid.append(name)
        return name

    def answer(request: Request) -> dict[str, object]:
        if request.messages[-1].role == "tool":
            return {"name": "finish", "args": {"answer": request.messages[-1].text}}
        return {"name": "pay", "args": {"name": "one" if "one" in request.messages[-1].text else "two"}}

    class Office(Module):
        def __init__(self) -> None:
            self.cashier = ReAct("bill -> answer", [pay])

        async def aforward(self) -> Prediction:
            found = await asyncio.gather(self.cashier.acall(bill="one"), self.cashier.acall(bill="two"))
            return Prediction(answers=[each.answer for each in found])

    store, asked = MemoryStore(), []
    with context(lm=ScriptedLM(by=answer)):
        run = Office().start(store=store, run_id="r")
        while run.status == "waiting" and len(asked) < 5:
            run = Run.load(store, "r", Office())
            asked += [(question.kind, question.call.args["name"]) for question in run.pending]
            for question in run.pending:
                run.answer(question.approve())
            if driver == "async":
                asyncio.run(run.aresume())
            else:
                run.resume()
    assert (asked, paid) == ([("confirm", "one"), ("confirm", "two")], ["one", "two"])
    assert run.prediction.answers == ["one", "two"]
