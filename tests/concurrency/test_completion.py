"""Work that must not be left half done, and the task that awaits it."""

from __future__ import annotations

import asyncio

import pytest

from ferrule.concurrency.completion import ClaimedCompletion, Completion, completed
from ferrule.concurrency.offload import run_or_cancel


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_task_goes_on_when_the_work_has_ended(times: int) -> None:
    """However often it is cancelled."""

    async def go() -> None:
        work: Completion[int] = Completion()
        task = asyncio.ensure_future(completed(work))
        for _ in range(times):
            await asyncio.sleep(0)
            task.cancel("enough")
        await asyncio.sleep(0)
        assert not task.done()
        work.set_result(1)
        with pytest.raises(asyncio.CancelledError, match="enough") as raised:
            await task
        assert raised.value.__cause__ is None

    asyncio.run(go())


def test_a_cancellation_names_the_error_of_the_work() -> None:
    """The caller knows whether the work was done."""

    async def go() -> None:
        work: Completion[int] = Completion()
        task = asyncio.ensure_future(completed(work))
        await asyncio.sleep(0)
        task.cancel()
        work.set_exception(OSError("no room"))
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert repr(raised.value.__cause__) == "OSError('no room')"

    asyncio.run(go())


def test_a_time_limit_is_reported_when_the_work_has_ended() -> None:
    """`asyncio.timeout` cancels the task, and counts its cancellations."""

    async def limited(work: Completion[int]) -> int:
        async with asyncio.timeout(0):
            asyncio.get_running_loop().call_later(0, work.set_result, 1)
            return await completed(work)

    async def go() -> None:
        work: Completion[int] = Completion()
        with pytest.raises(TimeoutError):
            await limited(work)
        assert work.result() == 1
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(go())


def test_ctrl_c_while_the_result_of_work_arrives_does_not_lose_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A future that refuses to be cancelled would be waited for for ever."""
    loop = asyncio.new_event_loop()

    def interrupted(future: ClaimedCompletion[int], result: int) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(ClaimedCompletion, "set_result", interrupted)
    working = loop.create_task(run_or_cancel(lambda: 7))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(working)
    assert loop.run_until_complete(working) == 7
    loop.close()
