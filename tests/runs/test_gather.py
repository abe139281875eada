"""`gather`: branches of one program at once."""

from __future__ import annotations

import asyncio

import pytest

from ferrule import gather


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
