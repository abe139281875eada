"""The thread of a store, by hand."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any
from weakref import ref

import pytest

from ferrule.concurrency.completion import Completion
from ferrule.errors import StoreError
from ferrule.runs.protocols import Lease
from ferrule.runs.store.sqlite.file import SQLiteFile
from ferrule.runs.store.sqlite.writer_thread import WriterThread, _Item, _settle


@pytest.fixture
def file() -> SQLiteFile:
    return SQLiteFile(":memory:", full_sync=False)


def nothing(*_: Any) -> None:
    """There is nothing to renew."""


def test_it_ends_when_there_is_no_lease_left_and_starts_again_when_needed(file: SQLiteFile) -> None:
    """Runs that wait hold no thread."""
    thread = WriterThread(file, lambda _, items: [True] * len(items), nothing)
    thread.look()
    first = thread._thread
    assert first is not None
    first.join(60)
    assert not first.is_alive()
    assert thread._thread is None
    assert asyncio.run(thread.submit("x")) is True


def test_it_renews_what_is_held_and_gives_back_what_is_not(file: SQLiteFile) -> None:
    """A lease is held by its object; the thread needs nothing else to know that nobody is at work
    under it.
    """
    tended: SimpleQueue[tuple[list[Any], list[Any]]] = SimpleQueue()
    lease, other = Lease("r", 1), Lease("s", 2)
    for each in (lease, other):
        file.leases.hold(each, lambda: 100.0, 0.3)
    thread = WriterThread(file, nothing, lambda _, held, left: tended.put((held, left)))
    thread.look()
    assert tended.get(timeout=60) == ([("r", 1, 100.3), ("s", 2, 100.3)], [])
    del other, each
    while (found := tended.get(timeout=60))[1] == []:
        pass
    assert found == ([("r", 1, 100.3)], [("s", 2)])
    assert tended.get(timeout=60) == ([("r", 1, 100.3)], [])
    del lease
    while tended.get(timeout=60) != ([], [("r", 1)]):
        pass


def test_new_ends_of_leases_are_only_made_when_they_are_due(file: SQLiteFile) -> None:
    """A thousand runs at once would pay for a thousand leases with each write."""
    clocked: list[int] = []
    leases = [Lease("r", k) for k in range(50)]
    for each in leases:
        file.leases.hold(each, lambda: float(clocked.append(1) or 0), 3000.0)
    thread = WriterThread(file, lambda _, items: [True] * len(items), nothing)
    thread.look()
    for _ in range(20):
        assert asyncio.run(thread.submit("x")) is True
    assert clocked == []
    for each in leases:
        file.leases.forget("r", each.token)


def test_a_lease_that_is_taken_while_it_is_about_to_end_is_renewed(file: SQLiteFile) -> None:
    """The caller sees a thread that is running; so that one must see the lease."""
    renewed = Event()
    thread = WriterThread(file, nothing, lambda *_: renewed.set())
    for pause_s in (0.0, 0.49, 0.5, 0.51, 1.0):  # around the moment at which it ends
        if thread._thread is not None:
            thread._thread.join(pause_s)
        lease = Lease("r", 1)
        file.leases.hold(lease, lambda: 0.0, 0.3)
        renewed.clear()
        thread.look()
        assert renewed.wait(60)
        file.leases.forget("r", 1)


def test_it_does_not_keep_a_file_that_nothing_else_uses() -> None:
    """A store that is forgotten is closed, though its thread runs."""
    file = SQLiteFile(":memory:", full_sync=False)
    known = ref(file)
    thread = WriterThread(file, nothing, nothing)
    lease = Lease("r", 1)
    file.leases.hold(lease, lambda: 0.0, 30.0)
    thread.look()
    running = thread._thread
    assert running is not None
    del file
    running.join(1.2)
    assert known() is not None  # while there is a lease it goes on
    del lease
    running.join(60)
    assert not running.is_alive()
    assert known() is None


def test_what_comes_together_is_written_together(file: SQLiteFile) -> None:
    """A batch across runs."""
    batches: list[int] = []
    holding, held = Event(), Event()

    def write(_: SQLiteFile, items: list[Any]) -> list[Any]:
        batches.append(len(items))
        if len(batches) == 1:
            held.set()
            holding.wait(60)
        return [True] * len(items)

    thread = WriterThread(file, write, nothing)

    async def go() -> None:
        first = asyncio.ensure_future(thread.submit(0))
        await asyncio.to_thread(held.wait, 10)
        rest = [asyncio.ensure_future(thread.submit(k)) for k in range(3)]
        await asyncio.sleep(0)
        holding.set()
        assert await asyncio.gather(first, *rest) == [True] * 4

    asyncio.run(go())
    assert batches == [1, 3]


def test_threads_are_answered_like_loops(file: SQLiteFile) -> None:
    """Runs in threads have their commits together, too; each gets its own answer."""

    def write(_: SQLiteFile, items: list[Any]) -> list[Any]:
        return [StoreError("no") if item == "bad" else item for item in items]

    thread = WriterThread(file, write, nothing)
    assert thread.wait("x") == "x"
    with pytest.raises(StoreError, match="no"):
        thread.wait("bad")


def test_threads_wake_one_after_another(file: SQLiteFile) -> None:
    """All that wake at once fight for Python's lock, and two hundred runs took twice the time."""
    thread = WriterThread(file, lambda _, items: items, nothing)
    queues: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(3)]
    thread._serve(file, [_Item(file, k, None, queue) for k, queue in enumerate(queues[:2])])
    thread._serve(file, [_Item(file, 2, None, queues[2])])  # the first thread does not run yet
    assert [each.empty() for each in queues] == [False, True, True]
    for k in range(1, 3):
        with thread._answering:
            thread._is_waking = False
            thread._wake_next()
        assert [each.empty() for each in queues] == [each > k for each in range(3)]
    assert [each.get() for each in queues] == [0, 1, 2]


def test_each_of_many_threads_gets_its_own_answers(file: SQLiteFile) -> None:
    """Also where others are refused."""

    def write(_: SQLiteFile, items: list[Any]) -> list[Any]:
        return [StoreError(str(item)) if item % 3 == 0 else item for item in items]

    thread = WriterThread(file, write, nothing)

    def work(first: int) -> list[Any]:
        found: list[Any] = []
        for item in range(first, first + 50):
            try:
                found.append(thread.wait(item))
            except StoreError as error:
                found.append(-int(str(error)))
        return found

    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(work, range(0, 1000, 50)))
    assert [each for some in found for each in some] == [
        -item if item % 3 == 0 else item for item in range(1000)
    ]


@pytest.mark.parametrize("where", ["done", "set_result"])
def test_an_interrupt_while_answers_are_given_loses_none(where: str) -> None:
    """A loop that is interrupted and goes on finds the answers, also the one that was interrupted."""

    class Interrupted(Completion[int]):
        """A future whose answer is interrupted once."""

    def interrupt(future: Interrupted, *given: Any) -> Any:
        delattr(Interrupted, where)
        raise KeyboardInterrupt

    setattr(Interrupted, where, interrupt)
    loop = asyncio.new_event_loop()
    futures: Any = [loop.create_future(), Interrupted(loop=loop), loop.create_future()]
    with pytest.raises(KeyboardInterrupt):
        _settle(loop, [*zip(futures, (1, 2, 3), strict=True)])
    assert loop.run_until_complete(asyncio.gather(*futures)) == [1, 2, 3]
    loop.close()


@pytest.mark.parametrize("error", [StoreError, MemoryError])
def test_a_batch_that_fails_as_a_whole_is_told_to_each(
    file: SQLiteFile,
    error: type[Exception],
) -> None:
    """No caller goes on as if it were written, or waits for ever, whatever the error; the thread
    goes on.
    """
    failures = [error("no room"), error("no room")]

    def write(_: SQLiteFile, items: list[Any]) -> list[Any]:
        if failures:
            raise failures.pop()
        return [True] * len(items)

    thread = WriterThread(file, write, nothing)

    async def go() -> None:
        for _ in range(2):
            with pytest.raises(error, match="no room"):
                await asyncio.wait_for(thread.submit("x"), 60)
        assert await thread.submit("x") is True

    asyncio.run(go())


@pytest.mark.parametrize("is_running", [True, False])
def test_an_interrupt_while_it_starts_leaves_one_thread(
    file: SQLiteFile,
    monkeypatch: pytest.MonkeyPatch,
    is_running: bool,
) -> None:
    """Ctrl-C may come before the thread runs, or after."""
    start, begun = Thread.start, list[Thread]()

    def interrupted(self: Thread) -> None:
        begun.append(self)
        if len(begun) > 1 or is_running:
            start(self)
        if len(begun) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Thread, "start", interrupted)
    thread, lease = WriterThread(file, lambda _, items: [True] * len(items), nothing), Lease("r", 1)
    file.leases.hold(lease, lambda: 0.0, 30.0)  # so that the second goes on
    with pytest.raises(KeyboardInterrupt):
        thread.look()
    assert asyncio.run(thread.submit("x")) is True
    if is_running:
        begun[0].join(60)
    assert [each.is_alive() for each in begun] == [False, True]
    assert thread._thread is begun[1]
    file.leases.forget("r", 1)
