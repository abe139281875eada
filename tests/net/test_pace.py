from __future__ import annotations

import asyncio
import os
import pickle
import threading

import pytest

from ferrule import LM, Message, Messages, Request
from ferrule.errors import ConfigurationError, UnavailableError
from ferrule.net import pace as paces
from ferrule.net.pace import Pace, Slots
from ferrule.testing import ScriptedLM, serve

ASKED = Request(Messages([Message("user", "hi")]))
LONG_S = 60


class Crowd:
    """Answers when `enough` requests are in, or after a while; knows how many were in at once."""

    def __init__(self, enough: int) -> None:
        self.lock = threading.Condition()
        self.enough, self.inside, self.most, self.total = enough, 0, 0, 0

    def __call__(self, request):
        with self.lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)
            self.lock.notify_all()
            self.lock.wait_for(
                lambda: self.total >= self.enough,
                0.2,
            )  # time for one too many to come in
            self.inside -= 1
        return "fine"


def crowded(ask, number: int, **options) -> Crowd:
    crowd = Crowd(number)
    with serve(ScriptedLM(by=crowd)) as server:
        ask(server.lm(**options), number)
    assert crowd.total == number
    return crowd


def in_threads(lm, number):
    threads = [
        threading.Thread(target=(lm.copy(temperature=k) if k % 2 else lm).complete, args=(ASKED,))
        for k in range(number)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(LONG_S)


def on_a_loop(lm, number):
    async def main():
        await asyncio.gather(
            *[(lm.copy(temperature=k) if k % 2 else lm).acomplete(ASKED) for k in range(number)],
        )

    asyncio.run(main())


def streamed(lm, number):
    async def main():
        async def one():
            return [item async for item in lm.astream(ASKED)]

        await asyncio.gather(*[one() for _ in range(number)])

    asyncio.run(main())


@pytest.mark.parametrize("ask", [in_threads, on_a_loop, streamed])
def test_no_more_requests_go_out_at_once_than_allowed(ask):
    assert crowded(ask, 6, max_concurrency=2).most == 2


def test_threads_and_loops_share_the_limit():
    def both(lm, number):
        thread = threading.Thread(target=in_threads, args=(lm, number // 2))
        thread.start()
        on_a_loop(lm, number - number // 2)
        thread.join(LONG_S)

    assert crowded(both, 6, max_concurrency=2).most <= 2


def test_without_a_limit_all_go_out():
    assert crowded(on_a_loop, 6).most == 6


def test_those_who_wait_are_served_in_their_order():
    order: list[int] = []

    async def main():
        slots = Slots(1)

        async def one(number):
            async with slots.aheld():
                order.append(number)
                await asyncio.sleep(0)

        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == list(range(20))


def test_a_cancelled_caller_leaves_its_place_and_its_queue():
    async def main():
        slots = Slots(1)
        entered = asyncio.Event()

        async def hold():
            async with slots.aheld():
                entered.set()
                await asyncio.sleep(LONG_S)

        holder = asyncio.create_task(hold())
        await entered.wait()
        waiting = [asyncio.create_task(hold()) for _ in range(3)]
        await asyncio.sleep(0)
        for each in (*waiting[:2], holder):
            each.cancel()
        entered.clear()
        await asyncio.wait_for(entered.wait(), LONG_S)  # the third one is in
        waiting[2].cancel()
        await asyncio.gather(holder, *waiting, return_exceptions=True)
        async with asyncio.timeout(LONG_S), slots.aheld():
            pass

    asyncio.run(main())


def test_a_place_given_to_a_caller_who_is_being_cancelled_goes_on_to_the_next():
    async def main():
        slots = Slots(1)
        first = slots.aheld()
        await first.__aenter__()

        async def enter():
            async with slots.aheld():
                return "in"

        second, third = asyncio.create_task(enter()), asyncio.create_task(enter())
        await asyncio.sleep(0)
        await first.__aexit__(
            None,
            None,
            None,
        )  # hands the place to the second, whose task has not run yet
        second.cancel()
        assert await asyncio.wait_for(third, LONG_S) == "in"

    asyncio.run(main())


@pytest.mark.parametrize("way", ["complete", "stream"])
def test_a_failed_or_abandoned_request_leaves_its_place(way):
    with serve(
        ScriptedLM([UnavailableError("x", status=503), "fine words here", "fine"]),
    ) as server:
        lm = server.lm(max_concurrency=1, max_retries=0)
        with pytest.raises(UnavailableError):
            lm.complete(ASKED) if way == "complete" else list(lm.stream(ASKED))
        stream = lm.stream(ASKED)
        next(stream)
        stream.close()
        assert lm.complete(ASKED).text == "fine"


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.now += seconds


def test_no_more_requests_go_out_in_a_minute_than_allowed(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(paces, "time", clock)
    pace = Pace(requests_per_minute=2)
    passed = []
    for _ in range(5):
        pace.wait()
        passed.append(clock.now)
    assert passed == [0, 0, 60, 60, 120]


def test_no_more_requests_go_out_in_a_minute_from_a_loop(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(paces, "time", clock)
    monkeypatch.setattr(asyncio, "sleep", clock.asleep)

    async def main():
        pace = Pace(requests_per_minute=2)
        await asyncio.gather(*[pace.await_() for _ in range(5)])

    asyncio.run(main())
    assert clock.now == 120


@pytest.mark.parametrize("way", ["complete", "stream"])
def test_a_retry_is_a_request(way, monkeypatch, retries_do_not_wait):
    clock = Clock()
    monkeypatch.setattr(paces, "time", clock)
    with (
        serve(ScriptedLM([UnavailableError("x", status=503), "fine", "fine"])) as server,
    ):
        lm = server.lm(requests_per_minute=1)
        for _ in range(2):
            assert (
                lm.complete(ASKED) if way == "complete" else list(lm.stream(ASKED))[-1]
            ).text == "fine"
    assert clock.now == 120


def test_the_limits_are_pickled_and_the_places_are_not():
    pace = Pace(2, 30)
    with pace.slot():
        copy = pickle.loads(pickle.dumps(pace))
    assert (copy._slots._free, copy._per_minute) == (2, 30)
    assert (
        pickle.loads(pickle.dumps(LM("openai/m", max_concurrency=3)))._transport._pace._slots.number
        == 3
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_places_of_its_own():
    slots = Slots(1)
    with slots.held():
        slots._fork._pid = -1  # as a child finds it
        with slots.held():
            assert not slots._fork.has_forked()


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrency": 0},
        {"max_concurrency": 1.5},
        {"requests_per_minute": 0},
        {"max_concurrency": True},
    ],
)
def test_a_limit_is_a_number_of_at_least_one(options):
    with pytest.raises(ConfigurationError, match="at least 1"):
        LM("openai/m", **options)


def test_a_limit_is_no_setting_of_a_request():
    with pytest.raises(ConfigurationError, match="Make a model with it"):
        LM("openai/m").copy(max_concurrency=2)
