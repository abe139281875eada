"""The thread of a store, by hand."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import pytest

from ferrule.errors import StoreError
from ferrule.runs.store.writer_thread import StoreThread


def test_it_ends_when_there_is_no_lease_left_and_starts_again_when_needed() -> None:
    """V1: runs that wait hold no thread."""
    asked = Event()

    thread = StoreThread(lambda items: [True] * len(items), asked.set, lambda: False, every_s=0.0)
    thread.start()
    first = thread._thread
    assert first is not None
    first.join(60)
    assert asked.is_set()
    assert not first.is_alive()
    assert asyncio.run(thread.submit("x")) is True


def test_it_goes_on_for_a_lease_that_is_taken_while_it_is_about_to_end() -> None:
    """A3: whoever takes one sees a thread that is running; so that one must see the lease."""
    leases: list[str] = []
    renewed, again = Event(), Event()

    def renew() -> None:
        if renewed.is_set():
            again.set()
        renewed.set()
        leases[:] = ["taken just after nothing was found to renew"]

    thread = StoreThread(lambda items: [True] * len(items), renew, lambda: bool(leases), every_s=0.0)
    thread.start()
    assert again.wait(60)
    thread.stop()


def test_what_comes_together_is_written_together() -> None:
    """F5: a batch across runs."""
    batches: list[int] = []
    holding, held = Event(), Event()

    def write(items: list[Any]) -> list[Any]:
        batches.append(len(items))
        if len(batches) == 1:
            held.set()
            holding.wait(60)
        return [True] * len(items)

    thread = StoreThread(write, lambda: None, lambda: True, every_s=60.0)

    async def go() -> None:
        first = asyncio.ensure_future(thread.submit(0))
        await asyncio.to_thread(held.wait, 10)
        rest = [asyncio.ensure_future(thread.submit(k)) for k in range(3)]
        await asyncio.sleep(0)
        holding.set()
        assert await asyncio.gather(first, *rest) == [True] * 4

    asyncio.run(go())
    thread.stop()
    assert batches == [1, 3]


def test_a_batch_that_fails_as_a_whole_is_told_to_each() -> None:
    """A3: nobody goes on as if it were written."""

    def write(items: list[Any]) -> list[Any]:
        raise StoreError(f"no room for {len(items)}")

    thread = StoreThread(write, lambda: None, lambda: True, every_s=60.0)
    with pytest.raises(StoreError, match="no room"):
        asyncio.run(thread.submit("x"))
    thread.stop()
