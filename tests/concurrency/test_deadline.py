"""Awaiting for a limited time: the limit holds whatever the work does, and nothing is heard of it
afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from ferrule.concurrency import deadline
from ferrule.concurrency.deadline import within
from ferrule.errors import ToolTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

LONG = 60  # seconds nobody waits for, unless something is broken
SHORT = 0.02
place: ContextVar[str] = ContextVar("place", default="nowhere")


@pytest.fixture(autouse=True)
def grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "GRACE_S", SHORT)
    monkeypatch.setattr(deadline, "_abandoned", set())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """On a loop of its own; nothing may be told to its exception handler, now or when the garbage
    is collected.
    """
    told: list[Any] = []

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        return await work

    try:
        return asyncio.run(main())
    finally:
        gc.collect()
        assert told == []
        assert deadline._abandoned == set()


async def late(value: Awaitable[Any]) -> str:
    with pytest.raises(ToolTimeoutError) as caught:
        await within(value, SHORT, SHORT, "slow")
    return str(caught.value)


async def forever() -> None:
    await asyncio.Event().wait()


async def refuses() -> None:
    while True:
        try:
            await forever()
        except asyncio.CancelledError:
            continue


ENDED = "`slow` did not finish within 0.02 s."
LEFT = "`slow` did not finish within 0.02 s. It may still be running: it did not end when it was cancelled."


def test_what_is_done_in_time_is_returned_and_what_it_raises_is_raised():
    async def fails(error: BaseException) -> None:
        raise error

    async def main() -> None:
        assert await within(asyncio.sleep(0, "value"), LONG, LONG, "t") == "value"
        for error in (
            TimeoutError("mine"),
            KeyboardInterrupt(),
            SystemExit(3),
            asyncio.CancelledError("mine"),
        ):
            with pytest.raises(type(error)) as caught:
                await within(fails(error), LONG, LONG, "t")
            assert caught.value is error

    run(main())


def test_what_ends_when_it_is_cancelled_is_over_when_the_error_is_raised():
    """Also where it tidies up for a moment."""
    seen: list[str] = []

    async def tidy() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            seen.append("tidy")

    async def main() -> None:
        assert await late(tidy()) == ENDED
        assert seen == ["tidy"]

    run(main())


def test_a_value_that_comes_after_the_limit_does_not_count():
    """The tool caught the cancelling, and returned; or it kept the loop from seeing the limit."""

    async def catches() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            return "late"
        return "never"

    async def blocks() -> str:
        threading.Event().wait(3 * SHORT)
        return "late"

    async def main() -> None:
        assert [await late(catches()), await late(blocks())] == [ENDED, ENDED]

    run(main())


def test_an_error_of_the_tidying_is_the_cause():
    """Style: what was found is told."""

    async def fails() -> None:
        try:
            await forever()
        finally:
            raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ToolTimeoutError) as caught:
            await within(fails(), SHORT, SHORT, "t")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    run(main())


def test_what_refuses_to_end_is_left_behind_and_nothing_is_heard_of_it():
    """Neither hangs the caller, nor `asyncio.run` at its end, which cancels what is left and waits
    for it.
    """
    released = asyncio.Event()
    ended: list[str] = []

    async def tidies_long() -> None:
        try:
            await forever()
        finally:
            await released.wait()
            ended.append("tidied")

    async def fails_late() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            await released.wait()
        raise ZeroDivisionError

    async def main() -> None:
        assert [await late(refuses()), await late(tidies_long()), await late(fails_late())] == [
            LEFT,
        ] * 3
        gc.collect()
        assert len(deadline._abandoned) == 3
        released.set()
        while len(deadline._abandoned) > 1:
            await asyncio.sleep(0)
        assert ended == ["tidied"]

    run(main())


@pytest.mark.parametrize("times", [1, 3])
def test_cancelling_the_caller_cancels_the_work_and_waits_for_it(times: int):
    """Once, as it may be tidying up, and what it returns then does not count."""
    seen: list[str] = []
    released = asyncio.Event()

    async def tidy() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await released.wait()
            seen.append("tidy")
        return "value"

    async def main() -> None:
        task = asyncio.ensure_future(within(tidy(), LONG, LONG, "t"))
        await asyncio.sleep(0)
        for _ in range(times):
            await asyncio.sleep(0)
            task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cancelled", "tidy"]

    run(main())


def test_cancelling_the_caller_of_what_refuses_ends_with_the_limit():
    async def main() -> None:
        task = asyncio.ensure_future(within(refuses(), 3 * SHORT, 3 * SHORT, "t"))
        await asyncio.sleep(SHORT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_context_variables_are_the_callers_and_what_is_set_is_gone():
    async def changes() -> str:
        found = place.get()
        place.set("elsewhere")
        return found

    async def main() -> None:
        place.set("here")
        assert await within(changes(), LONG, LONG, "t") == "here"
        assert place.get() == "here"

    run(main())


def test_an_error_leaves_no_cycle_behind():
    """F: a run ends without garbage."""

    class MarkedError(Exception):
        pass

    async def fails() -> None:
        raise MarkedError

    async def main() -> None:
        for value in (fails(), asyncio.sleep(0)):
            with contextlib.suppress(MarkedError):
                await within(value, LONG, LONG, "t")
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(MarkedError):
                await within(fails(), LONG, LONG, "t")
            await asyncio.sleep(0)
            assert not [each for each in gc.get_objects() if isinstance(each, MarkedError)]
        finally:
            gc.enable()

    run(main())
