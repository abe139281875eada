"""How long requests wait while a server asks. (M59)"""

from __future__ import annotations

import asyncio

import pytest

from ferrule.errors import MCPError
from ferrule.mcp_bridge.connection.session import Clocks


def ends(clocks: Clocks) -> list[float | None]:
    """When each request under way is given up, from now."""
    now = asyncio.get_running_loop().time()
    return [
        None if (when := each.when()) is None else round(when - now) for each in clocks._running
    ]


class Person:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self.gone: list[str] = []

    async def ask(self, params: dict) -> dict:
        self.waiting[params["message"]] = asyncio.get_running_loop().create_future()
        try:
            await self.waiting[params["message"]]
        except asyncio.CancelledError:
            self.gone.append(params["message"])
            raise
        return {"action": "accept"}

    async def answer(self, message: str, asked: asyncio.Task) -> None:
        self.waiting[message].set_result(None)
        assert await asked == {"action": "accept"}


async def begun(hook, message: str) -> asyncio.Task:
    task = asyncio.ensure_future(hook({"message": message}))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_clocks_stand_until_the_last_question_is_answered() -> None:
    """All of them, as the server does not say which call asks; a limit for the whole call holds all the same."""

    async def main() -> None:
        clocks, person = Clocks(), Person()
        hook, now = clocks.stopped_by(person.ask), asyncio.get_running_loop().time()
        async with (
            clocks.request(100, None, is_call=True) as first,
            clocks.request(100, now + 500, is_call=True) as second,
        ):
            assert ends(clocks) == [100, 100]
            one, two = await begun(hook, "one"), await begun(hook, "two")
            assert ends(clocks) == [None, 500]
            first()
            second()  # progress meanwhile starts nothing
            assert ends(clocks) == [None, 500]
            await person.answer("two", two)
            assert ends(clocks) == [None, 500]
            async with clocks.request(30, None, is_call=False):
                assert ends(clocks) == [None, 500, 30]
            await person.answer("one", one)
            assert ends(clocks) == [100, 100]

    asyncio.run(main())


def test_progress_prolongs_up_to_the_end_and_where_there_is_none_not_at_all() -> None:
    async def main() -> None:
        clocks, now = Clocks(), asyncio.get_running_loop().time()
        async with (
            clocks.request(100, now + 50, is_call=True) as first,
            clocks.request(100, None, is_call=True) as second,
        ):
            first()
            second()
            assert ends(clocks) == [50, 100]
        first()  # late: it is over

    asyncio.run(main())


@pytest.mark.parametrize("given_up", [{"action": "cancel"}, None], ids=["an_answer", "an_error"])
def test_a_hook_ends_with_the_last_call_that_may_have_asked(given_up: dict | None) -> None:
    async def main() -> None:
        clocks, person = Clocks(), Person()
        hook = clocks.stopped_by(person.ask, given_up)
        async with clocks.request(100, None, is_call=True):
            async with clocks.request(100, None, is_call=True):
                task = await begun(hook, "one")
            async with clocks.request(100, None, is_call=False):
                pass
            assert not task.done()
        if given_up is None:
            with pytest.raises(MCPError, match="abandoned"):
                await task
        else:
            assert await task == given_up
        assert person.gone == ["one"]

    asyncio.run(main())


def test_a_question_outside_any_call_is_not_ended_by_one_and_ends_when_it_is_taken_back() -> None:
    async def main() -> None:
        clocks, person = Clocks(), Person()
        hook = clocks.stopped_by(person.ask)
        task = await begun(hook, "one")
        async with clocks.request(100, None, is_call=True):
            pass
        await begun(hook, "two")
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert person.gone == ["one"]
        assert clocks._open_questions == 1

    asyncio.run(main())
